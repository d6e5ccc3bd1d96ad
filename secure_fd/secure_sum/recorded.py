"""Recorder of the inputs that reach the server of a sum, for attacks on what it sees."""

from collections.abc import Mapping
from typing import Final

import numpy as np

from secure_fd.crypto.primitives import WORD
from secure_fd.errors import LocalError
from secure_fd.exchange import Kind, Seen, Sum
from secure_fd.knowledge import LaneLayout, WordArray
from secure_fd.secagg.session import HEADER_BYTES, MessageType, RoundTerms
from secure_fd.secure_sum.base import Stage, SumServer

_INPUTS: Final = {kind.to_bytes(2, "big"): kind for kind in (Kind.INPUT, MessageType.MASKED)}
"""Messages that carry packed words, in clear or masked. Other sums send none."""


class RecordedSum:
    """A sum's server that keeps the words of every input it takes, by client.

    It passes everything on to `inner` as it came. n_clients: of the sum.
    """

    def __init__(self, inner: SumServer, n_clients: int) -> None:
        self.inner, self._n_clients = inner, n_clients
        self._terms: RoundTerms | None = None
        self._payloads: dict[int, WordArray] = {}
        self.seen: list[Seen] = []
        """The sums that came about, in order; whoever reads them may empty the list."""

    @property
    def readable(self) -> bool:
        """Whether the server reads inputs in clear."""
        return self.inner.readable

    @property
    def busy(self) -> bool:
        """Whether a stage is open."""
        return self.inner.busy

    @property
    def stage(self) -> Stage:
        """The stage that is open, or was last."""
        return self.inner.stage

    @property
    def result(self) -> Sum | None:
        """The newest sum, once it is there."""
        return self.inner.result

    @property
    def missing(self) -> Mapping[int, Stage]:
        """By client, the first stage that it did not answer."""
        return self.inner.missing

    @property
    def accused(self) -> Mapping[int, str]:
        """By client whose input turned out bad when a stage closed, what was wrong with it."""
        return self.inner.accused

    @property
    def opened(self) -> bool:
        """Whether clients may have given what it takes to read the newest sum."""
        return self.inner.opened

    @property
    def waiting(self) -> set[int]:
        """The clients whose message of this stage has not come."""
        return self.inner.waiting

    def open(self, terms: RoundTerms) -> Mapping[int, bytes]:
        """Begin the next sum."""
        self._terms, self._payloads = terms, {}
        return self.inner.open(terms)

    def receive(self, sender: int, data: bytes) -> None:
        """Take a message, and keep the words of an input that is taken."""
        kind = _INPUTS.get(data[2:4])
        due = kind is not None and self.stage is Stage.INPUT and sender in self.waiting
        self.inner.receive(sender, data)
        if due:
            self._payloads[sender] = self._words(data, plain=kind is Kind.INPUT)

    def advance(self) -> Mapping[int, bytes]:
        """Close the stage; a sum that came about is kept with its inputs."""
        relayed = self.inner.advance()
        result = self.result
        if not self.busy and result is not None:
            there = {k: self._payloads[k] for k in result.survivors if k in self._payloads}
            self.seen.append(Seen(result, there, self.readable))
        return relayed

    def _words(self, data: bytes, *, plain: bool) -> WordArray:
        terms = self._terms
        if terms is None:
            raise LocalError("no sum was opened")
        count = LaneLayout(self._n_clients, terms.bound, terms.noise.room).words(terms.length)
        start = HEADER_BYTES + (len(terms.subject) if plain else 0)
        return np.frombuffer(data, WORD, count, start).astype(np.uint64, copy=False)
