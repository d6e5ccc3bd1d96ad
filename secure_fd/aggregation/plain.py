"""The sum without protection: the server reads every client's values. The baseline."""

from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from secure_fd.aggregation.base import SecureSum, Stage, SumResult, Traffic, VoidRoundError
from secure_fd.aggregation.cohort import absences, agreed_length, uploaders
from secure_fd.errors import ConfigurationError
from secure_fd.knowledge import UnitArray
from secure_fd.secagg.packing import LaneLayout
from secure_fd.secagg.session import NO_NOISE, NoiseTerms


class PlainSum:
    """Packs as the masked sum does, masks nothing; one stage, no framing.

    n_clients: the cohort, numbered from 0.
    """

    name: ClassVar[str] = "plain"
    hides: ClassVar[bool] = False
    guarantee: ClassVar[str] = (
        "None: the server reads every client's values, and adds them up as it is trusted to do."
    )
    caveats: ClassVar[tuple[str, ...]] = ()

    def __init__(self, n_clients: int) -> None:
        self.n_clients = n_clients

    def draw(self, round_index: int, population: int, count: int) -> None:
        """None: clients that trust the server with their values have no say here either."""

    def sum(
        self,
        round_index: int,
        vectors: Mapping[int, UnitArray],
        bound: int,
        *,
        subject: bytes = b"",  # noqa: ARG002 - nothing binds a sum in clear
        dropouts: Mapping[int, Stage] | None = None,
        noise: NoiseTerms = NO_NOISE,
    ) -> SumResult:
        """See SecureSum.sum. One input is enough without noise; only INPUT sends anything."""
        length = agreed_length(vectors, self.n_clients)
        layout = LaneLayout(self.n_clients, bound, noise.room)
        missing = absences(vectors, self.n_clients, dropouts)
        survivors = uploaders(missing, self.n_clients)
        least = max(1, noise.survivors)
        if len(survivors) < least:
            why = f"{len(survivors)} inputs arrived in round {round_index} and {least} are needed"
            raise VoidRoundError(why, missing, Traffic({}, {}, 1))
        payloads = {client: layout.pack(vectors[client]) for client in survivors}
        total = np.zeros(layout.words(length), dtype=np.uint64)
        for words in payloads.values():
            total += words
        traffic = Traffic(
            up={client: words.nbytes for client, words in payloads.items()},
            down=dict.fromkeys(payloads, 0),
            stages=1,
        )
        values = layout.unpack(total, length)
        return SumResult(values, traffic, payloads, True, survivors, missing)


def sum_for(n_clients: int, aggregation: SecureSum | None) -> SecureSum:
    """The sum that was chosen, or one in clear.

    Raises ConfigurationError where it was made for another number of clients.
    """
    chosen = aggregation or PlainSum(n_clients)
    if chosen.n_clients != n_clients:
        raise ConfigurationError(
            "aggregation", chosen.n_clients, f"make it for {n_clients} clients"
        )
    return chosen
