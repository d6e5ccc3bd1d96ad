"""A method that learns nothing: whoever knows who was in a sum knows the sum."""

from collections.abc import Sequence
from typing import ClassVar, Final

import numpy as np
from torch import nn

from secure_fd.exchange import Ask, ClientTurn, ServerTurn, Share
from secure_fd.knowledge import UnitArray
from secure_fd.methods.base import LearningHalf, Own, RecordingHalf, Setting

WORDS: Final = 64
BOUND: Final = 2**40
LONG: Final = (6_000, 2**22 - 1)
"""Values of a longer vector, and the largest of them."""


class KnownWords:
    """A method whose clients share words that follow from their number and the round alone."""

    name: ClassVar[str] = "known words"
    needs_proxies: ClassVar[bool] = False

    def check(self, setting: Setting, models: Sequence[nn.Module]) -> None:
        """Any federation serves."""

    def client(self, setting: Setting, own: Own) -> LearningHalf:
        """The half of one client."""
        return _Words(setting, own)

    def server(self, setting: Setting, initial: nn.Module) -> RecordingHalf:  # noqa: ARG002
        """The server's half."""
        return _Sums()


class _Words(LearningHalf):
    def __init__(self, setting: Setting, own: Own, length: int = WORDS, bound: int = BOUND) -> None:
        self.learner, self._number = own.learner(setting.schedule), own.number
        self._length, self._bound = length, bound

    def begin(self) -> ClientTurn:
        yield from ()

    def round(self, subject: bytes) -> ClientTurn:
        index = int.from_bytes(subject, "big")
        yield Share(words(self._number, index, self._length, self._bound), self._bound)


class _Sums(RecordingHalf):
    def __init__(self, length: int = WORDS, bound: int = BOUND) -> None:
        self._length, self._bound = length, bound

    def round(self, index: int) -> ServerTurn:
        yield Ask(index.to_bytes(8, "big"), self._length, self._bound)
        return b"taken"


def words(site: int, index: int, length: int = WORDS, bound: int = BOUND) -> UnitArray:
    """[length] what a site shares in a round."""
    rng = np.random.default_rng((site, index, 22))
    return rng.integers(0, bound, length, dtype=np.uint64)


class LongWords(KnownWords):
    """The same with as many values as a model has, of 22 bits."""

    def client(self, setting: Setting, own: Own) -> LearningHalf:
        """The half of one client."""
        return _Words(setting, own, *LONG)

    def server(self, setting: Setting, initial: nn.Module) -> RecordingHalf:  # noqa: ARG002
        """The server's half."""
        return _Sums(*LONG)
