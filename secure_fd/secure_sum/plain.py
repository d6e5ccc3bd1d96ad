"""The sum in clear: the server reads every input and adds them up."""

import os
from collections.abc import Mapping

import numpy as np

from secure_fd.errors import LocalError, MissingClientError, PeerError
from secure_fd.secagg.session import RoundTerms
from secure_fd.secure_sum.base import SecureSum, SumClient, SumServer
from secure_fd.votes.codec import UnitArray, WordArray
from secure_fd.votes.packing import LaneLayout
from secure_fd.wire import Kind, Place, Sum, frame, read_header


class PlainClient(SumClient):
    """Client role of the sum in clear: one message, nothing to set up.

    It cannot detect whether its input arrived: `gave` stays False, and the server is trusted.
    """

    def __init__(self, number: int, session: bytes, n_clients: int) -> None:
        self._number, self._session, self._n_clients = number, session, n_clients

    def load(self, terms: RoundTerms, values: UnitArray) -> list[bytes]:
        """Return the values, packed and in clear; LocalError for another number of them."""
        if values.shape != (terms.length,):
            raise LocalError(f"the round sums {terms.length} values, not {values.shape}")
        words = LaneLayout(self._n_clients, terms.bound, terms.noise.room).pack(values)
        place = Place(self._session, terms.index)
        return [frame(Kind.INPUT, place, self._number, terms.subject, words.tobytes())]


class PlainServer(SumServer):
    """Server role of the sum in clear: every input is read, and added."""

    busy = False
    result: Sum | None = None

    def __init__(self, session: bytes, n_clients: int) -> None:
        self._session, self._n_clients = session, n_clients
        self._inputs: dict[int, WordArray] = {}
        self._terms: RoundTerms | None = None

    @property
    def opened(self) -> bool:
        """True once an input came: it was in clear."""
        return bool(self._inputs)

    @property
    def waiting(self) -> set[int]:
        """The clients without an input."""
        return set(range(self._n_clients)) - set(self._inputs)

    def open(self, terms: RoundTerms) -> Mapping[int, bytes]:
        """Wait for inputs."""
        self._terms, self._inputs = terms, {}
        self._layout = LaneLayout(self._n_clients, terms.bound, terms.noise.room)
        self.busy, self.result = True, None
        return {}

    def receive(self, sender: int, data: bytes) -> None:
        """Take one input of each client; PeerError for any other message, or a value too large."""
        kind, index, body = read_header(data, self._session, sender)
        terms = self._terms
        if terms is None or (kind, index) != (Kind.INPUT, terms.index) or sender in self._inputs:
            raise PeerError(f"client {sender} sent something else than its one input")
        start = len(terms.subject)
        if len(body) != start + 8 * self._layout.words(terms.length):
            raise PeerError(f"the input of client {sender} has another length than agreed")
        if body[:start] != terms.subject:
            raise PeerError(f"client {sender} received another announcement")
        words = np.frombuffer(body[start:], "<u8").astype(np.uint64)
        self._layout.unpack(words, terms.length, terms.bound)
        self._inputs[sender] = words

    def advance(self) -> Mapping[int, bytes]:
        """Add up; MissingClientError for no input, or fewer than the noise takes."""
        self.busy, terms = False, self._terms
        if terms is None:
            raise LocalError("no sum was opened")
        least = max(1, terms.noise.survivors)
        if len(self._inputs) < least:
            raise MissingClientError(f"{len(self._inputs)} inputs arrived and {least} are needed")
        total = np.zeros(self._layout.words(terms.length), dtype=np.uint64)
        for words in self._inputs.values():
            total += words
        self.result = Sum(self._layout.unpack(total, terms.length), tuple(sorted(self._inputs)))
        return {}


class PlainSum(SecureSum):
    """Packs as the masked sum does and masks nothing, in one stage.

    n_clients: the cohort, numbered from 0.

    >>> PlainSum(3).hides
    False
    """

    name = "plain"
    guarantee = (
        "None: the server reads every client's values, and adds them up as it is trusted to do."
    )

    def __init__(self, n_clients: int) -> None:
        self.n_clients, self.session = n_clients, os.urandom(32)
        self._clients = [PlainClient(k, self.session, n_clients) for k in range(n_clients)]
        self._server = PlainServer(self.session, n_clients)
