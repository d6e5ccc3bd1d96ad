"""The mean accuracy over sites, as one more masked sum a round, where all sites allow it.

Both roles stand around those of the method: after its last sum of a round they add one of two
numbers, the validation images that a site gets right and how many it has. No noise is in it, so no
epsilon covers it.
"""

import struct
from collections.abc import Generator
from contextlib import suppress
from dataclasses import replace
from typing import ClassVar, Final

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from secure_fd.data.images import Images
from secure_fd.privacy.guarantee import Guarantee
from secure_fd.protocol.messages import (
    ClientRole,
    ClientTurn,
    RoundAborted,
    ServerRole,
    ServerTurn,
    SumInput,
    SumRequest,
)
from secure_fd.training.trainer import Steps
from secure_fd.votes.codec import FloatArray

_MESSAGE: Final = struct.Struct(">8sII")
_MARK: Final = b"accuracy"
BOUND: Final = (1 << 24) - 1
"""Validation images of a site, at most."""
NOT_COVERED: Final = "the mean accuracy on validation images over all sites, one sum a round"


def mean_in(message: bytes | None) -> float | None:
    """Return the mean accuracy that a message carries; None for another message.

    >>> mean_in(_MESSAGE.pack(_MARK, 3, 4)), mean_in(b"votes")
    (0.75, None)
    """
    if message is None or len(message) != _MESSAGE.size or not message.startswith(_MARK):
        return None
    _, right, count = _MESSAGE.unpack(message)
    return right / count if count else None


class AccuracyServer(ServerRole):
    """Asks for one more sum a round. accuracy: the newest mean, None before any."""

    checkpointed: ClassVar[tuple[str, ...]] = ("inner",)

    def __init__(self, inner: ServerRole) -> None:
        self.inner = inner
        self.accuracy: float | None = None

    def round(self, index: int) -> ServerTurn:
        """Run the method's round; its last message announces the further sum."""
        message = yield from self.inner.round(index)
        if message is None:
            return None
        self.kept, self.accuracy = self.inner.kept, None
        found = yield SumRequest(message, 2, BOUND)
        right, count = (int(number) for number in found.total)
        last = _MESSAGE.pack(_MARK, right, count)
        self.accuracy = mean_in(last)
        return last

    def unopened(self, index: int) -> None:
        """Take back what the method counts."""
        self.inner.unopened(index)

    def parameters(self) -> NDArray[np.float32] | None:
        """Return the method's global model."""
        return self.inner.parameters()


class AccuracyClient(ClientRole):
    """Adds its own two numbers to the sum. mean: the newest mean over sites, None before any."""

    def __init__(self, inner: ClientRole, held_out: Images) -> None:
        self.inner, self.learner, self._held_out = inner, inner.learner, held_out
        self.mean: float | None = None

    def begin(self) -> ClientTurn:
        """Train alone as the method does."""
        return self.inner.begin()

    def round(self, announcement: bytes) -> ClientTurn:
        """Take part in the method's round, then share the two numbers, unless it was aborted."""
        if (yield from self._whole(self.inner.round(announcement))):
            right = round(self.inner.accuracy(self._held_out) * len(self._held_out))
            values = np.array([right, len(self._held_out)], dtype=np.uint64)
            with suppress(RoundAborted):
                self.mean = mean_in((yield SumInput(values, BOUND, title="accuracy")))

    def _whole(self, turn: ClientTurn) -> Generator[SumInput | Steps, bytes, bool]:
        """Run the method's turn; return whether it shared something and was not aborted."""
        shared = aborted = False
        try:
            wanted = next(turn)
            while True:
                shared |= isinstance(wanted, SumInput)
                try:
                    got = yield wanted
                except RoundAborted as why:
                    aborted = True
                    wanted = turn.throw(why)
                else:
                    wanted = turn.send(got)
        except StopIteration:
            return shared and not aborted

    def announced(self, index: int, digest: bytes) -> None:
        """Tell the method."""
        self.inner.announced(index, digest)

    def missed(self, announcement: bytes, message: bytes | None) -> None:
        """Take the result of a round that this site left early."""
        if (found := mean_in(message)) is not None:
            self.mean = found
        else:
            self.inner.missed(announcement, message)

    def unopened(self, announcement: bytes) -> None:
        """Take back what the method counts."""
        self.inner.unopened(announcement)

    def memory(self) -> bytes:
        """Return that of the method."""
        return self.inner.memory()

    def recall(self, memory: bytes) -> None:
        """Continue from what `memory` returned."""
        self.inner.recall(memory)

    def accuracy(self, test: Images) -> float:
        """Return that of the method's predictor."""
        return self.inner.accuracy(test)

    def answers(self, pixels: Tensor) -> FloatArray:
        """Return those of the method's predictor."""
        return self.inner.answers(pixels)

    def guarantee(self) -> Guarantee | None:
        """Return the method's, which does not cover the shared accuracy."""
        claim = self.inner.guarantee()
        if claim is None:
            return None
        return replace(claim, not_covered=(*claim.not_covered, NOT_COVERED))
