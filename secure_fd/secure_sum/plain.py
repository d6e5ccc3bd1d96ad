"""The sum in clear: the server reads every input and adds them up."""

import os
from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from secure_fd.errors import ConfigurationError, LocalError, MissingClientError, PeerError
from secure_fd.secagg.session import Place, RoundTerms, frame
from secure_fd.secure_sum.base import SecureSum, Stage, WithoutSetUp
from secure_fd.votes.codec import LaneLayout, UnitArray, WordArray
from secure_fd.wire import (
    Kind,
    Sum,
    read_header,
)


class PlainClient:
    """A client's half of the sum in clear: one message, nothing to set up."""

    gave: ClassVar[bool] = False
    """Whether its input arrived, the server alone knows, which is trusted with it."""

    def __init__(self, number: int, session: bytes, n_clients: int) -> None:
        self._number, self._session, self._n_clients = number, session, n_clients

    def start(self) -> list[bytes]:
        """Nothing to agree on."""
        return []

    def load(self, terms: RoundTerms, values: UnitArray) -> list[bytes]:
        """The values, packed and in clear; LocalError for another number of them."""
        if values.shape != (terms.length,):
            raise LocalError(f"the round sums {terms.length} values, not {values.shape}")
        words = LaneLayout(self._n_clients, terms.bound, terms.noise.room).pack(values)
        place = Place(self._session, terms.index)
        return [frame(Kind.INPUT, place, self._number, terms.subject, words.tobytes())]

    def receive(self, data: bytes) -> list[bytes]:
        """PeerError: a sum in clear has no further messages."""
        raise PeerError(f"a sum in clear has no message of {len(data)} bytes for a client")


class PlainServer:
    """The server's half of the sum in clear: every input is read, and added."""

    readable: ClassVar[bool] = True
    stage: ClassVar[Stage] = Stage.INPUT
    missing: ClassVar[Mapping[int, Stage]] = {}
    accused: ClassVar[Mapping[int, str]] = {}

    def __init__(self, session: bytes, n_clients: int) -> None:
        self._session, self._n_clients = session, n_clients
        self.busy = False
        self.result: Sum | None = None
        self._inputs: dict[int, WordArray] = {}
        self._terms: RoundTerms | None = None

    @property
    def opened(self) -> bool:
        """Whether any input came: it was in clear."""
        return bool(self._inputs)

    @property
    def waiting(self) -> set[int]:
        """The clients without an input."""
        return set(range(self._n_clients)) - set(self._inputs)

    def open(self, terms: RoundTerms) -> Mapping[int, bytes]:
        """Wait for inputs."""
        self._terms, self._inputs = terms, {}
        self.busy, self.result = True, None
        return {}

    def receive(self, sender: int, data: bytes) -> None:
        """Take one input of each client; PeerError for any other message, or a value too large."""
        kind, index, body = read_header(data, self._session, sender)
        terms = self._terms
        if terms is None or (kind, index) != (Kind.INPUT, terms.index) or sender in self._inputs:
            raise PeerError(f"client {sender} sent something else than its one input")
        told = len(terms.subject)
        if len(body) != told + 8 * self._layout(terms).words(terms.length):
            raise PeerError(f"the input of client {sender} has another length than agreed")
        if body[:told] != terms.subject:
            raise PeerError(f"client {sender} was told something else")
        words = np.frombuffer(body[told:], "<u8").astype(np.uint64)
        self._layout(terms).unpack(words, terms.length, terms.bound)
        self._inputs[sender] = words

    def advance(self) -> Mapping[int, bytes]:
        """Add up; MissingClientError for no input, or fewer than the noise takes."""
        self.busy, terms = False, self._terms
        if terms is None:
            raise LocalError("no sum was opened")
        least = max(1, terms.noise.survivors)
        if len(self._inputs) < least:
            raise MissingClientError(f"{len(self._inputs)} inputs arrived and {least} are needed")
        layout = self._layout(terms)
        total = np.zeros(layout.words(terms.length), dtype=np.uint64)
        for words in self._inputs.values():
            total += words
        self.result = Sum(layout.unpack(total, terms.length), tuple(sorted(self._inputs)))
        return {}

    def _layout(self, terms: RoundTerms) -> LaneLayout:
        return LaneLayout(self._n_clients, terms.bound, terms.noise.room)


class PlainSum(WithoutSetUp):
    """Packs as the masked sum does and masks nothing, in one stage.

    n_clients: the cohort, numbered from 0.

    >>> PlainSum(3).hides
    False
    """

    name: ClassVar[str] = "plain"
    hides: ClassVar[bool] = False
    corrupt: ClassVar[int] = 0
    guarantee: ClassVar[str] = (
        "None: the server reads every client's values, and adds them up as it is trusted to do."
    )
    caveats: ClassVar[tuple[str, ...]] = ()

    def __init__(self, n_clients: int) -> None:
        self.n_clients = n_clients
        self.session = os.urandom(32)

    def client(self, number: int) -> PlainClient:
        """The half of client `number`."""
        return PlainClient(number, self.session, self.n_clients)

    def server(self) -> PlainServer:
        """The server's half."""
        return PlainServer(self.session, self.n_clients)


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
