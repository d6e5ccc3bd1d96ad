"""The sum without protection: the server reads every client's values. The baseline."""

from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from secure_fd.aggregation.base import SumResult, Traffic
from secure_fd.aggregation.cohort import agreed_length
from secure_fd.errors import MissingClientError
from secure_fd.knowledge import WordArray
from secure_fd.secagg.packing import LaneLayout


class PlainSum:
    """Packs as the masked sum does, masks nothing; one stage, no framing.

    n_clients: the cohort, numbered from 0.
    """

    name: ClassVar[str] = "plain"
    guarantee: ClassVar[str] = (
        "None: the server reads every client's values, and adds them up as it is trusted to do."
    )
    caveats: ClassVar[tuple[str, ...]] = ()

    def __init__(self, n_clients: int) -> None:
        self.n_clients = n_clients

    def sum(
        self,
        round_index: int,
        vectors: Mapping[int, WordArray],
        bound: int,
        *,
        subject: bytes = b"",  # noqa: ARG002 - nothing binds a sum in clear
    ) -> SumResult:
        """See SecureSum.sum."""
        length = agreed_length(vectors, self.n_clients)
        layout = LaneLayout(self.n_clients, bound)
        missing = sorted(set(range(self.n_clients)) - set(vectors))
        if missing:
            raise MissingClientError(f"clients {missing} did not answer in round {round_index}")
        payloads = {client: layout.pack(vectors[client]) for client in sorted(vectors)}
        total = np.zeros(layout.words(length), dtype=np.uint64)
        for words in payloads.values():
            total += words
        traffic = Traffic(
            up={client: words.nbytes for client, words in payloads.items()},
            down=dict.fromkeys(payloads, 0),
            stages=1,
        )
        return SumResult(layout.unpack(total, length), traffic, payloads, readable=True)
