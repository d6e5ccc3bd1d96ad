"""Recorder of the inputs that reach the server of a sum, for attacks on what it sees."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from secure_fd.crypto.keys import WORD
from secure_fd.secagg.session import MessageType, RoundTerms
from secure_fd.secure_sum.base import SumServer
from secure_fd.votes.codec import WordArray
from secure_fd.votes.packing import LaneLayout
from secure_fd.wire import HEADER_BYTES, Kind, Stage, Sum

_PLAIN: Final = Kind.INPUT.to_bytes(2, "big")
_MASKED: Final = MessageType.MASKED.to_bytes(2, "big")


@dataclass(frozen=True, slots=True, eq=False)
class Seen:
    """One sum as the server saw it.

    payloads: by client, the words of its input, where a record is kept. readable: whether these
    are values in clear. position: of the sum among those of its round.
    """

    result: Sum
    payloads: Mapping[int, WordArray] = field(repr=False)
    readable: bool
    position: int = 0


class RecordedSum:
    """Server role of a sum that keeps the words of every input it takes, by client.

    Everything passes on to `inner` as it came. Inputs are words where they are in clear or masked;
    of other sums nothing is kept.

    Args:
        inner: the server role of the sum.
        n_clients: of the sum.
        keep: False keeps the sums alone.
    """

    def __init__(self, inner: SumServer, n_clients: int, *, keep: bool = True) -> None:
        self.inner, self._n_clients, self._keep = inner, n_clients, keep
        self._inputs: dict[int, WordArray] = {}
        self.readable = False
        """True if inputs of the newest sum are kept that were in clear."""
        self.seen: list[Seen] = []
        """The sums that came about, in order; its reader may empty the list."""

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - as the inner one's
        return getattr(self.inner, name)

    def open(self, terms: RoundTerms) -> Mapping[int, bytes]:
        """Begin the next sum."""
        self._terms, self._inputs, self.readable = terms, {}, False
        return self.inner.open(terms)

    def receive(self, sender: int, data: bytes) -> None:
        """Take a message, and keep the words of an input that is taken."""
        kind, due = data[2:4], self.inner.stage is Stage.INPUT and sender in self.inner.waiting
        self.inner.receive(sender, data)
        if self._keep and due and kind in (_PLAIN, _MASKED):
            terms, self.readable = self._terms, kind == _PLAIN
            start = HEADER_BYTES + (len(terms.subject) if self.readable else 0)
            layout = LaneLayout(self._n_clients, terms.bound, terms.noise.room)
            words = np.frombuffer(data, WORD, layout.words(terms.length), start)
            self._inputs[sender] = words.astype(np.uint64, copy=False)

    def advance(self) -> Mapping[int, bytes]:
        """Close the stage; a sum that came about is kept with its inputs."""
        relayed, result = self.inner.advance(), self.inner.result
        if not self.inner.busy and result is not None:
            inputs = {k: self._inputs[k] for k in result.survivors if k in self._inputs}
            self.seen.append(Seen(result, inputs, self.readable, position=len(self.seen)))
        return relayed
