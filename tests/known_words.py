"""A method that learns nothing: the members of a sum determine the sum."""

from collections.abc import Sequence
from typing import ClassVar, Final

import numpy as np
from torch import nn

from secure_fd.methods.base import Method, Own, Setting
from secure_fd.protocol.messages import (
    ClientRole,
    ClientTurn,
    ServerRole,
    ServerTurn,
    SumInput,
    SumRequest,
)

WORDS: Final = 64
BOUND: Final = 2**40


class KnownWords(Method):
    """A method whose clients share words that follow from their number and the round alone."""

    title: ClassVar[str] = "known words"

    def check(self, setting: Setting, models: Sequence[nn.Module]) -> None:
        """Any federation serves."""

    def client(self, setting: Setting, own: Own) -> ClientRole:
        """Role of one client."""
        return _Words(setting, own)

    def server(self, setting: Setting, initial: nn.Module) -> ServerRole:  # noqa: ARG002
        """Role of the server."""
        return _Sums()


class _Words(ClientRole):
    def __init__(self, setting: Setting, own: Own) -> None:
        self.learner, self._number = own.learner(setting.schedule), own.number

    def begin(self) -> ClientTurn:
        yield from ()

    def round(self, announcement: bytes) -> ClientTurn:
        index = int.from_bytes(announcement, "big")
        rng = np.random.default_rng((self._number, index, 22))
        yield SumInput(rng.integers(0, BOUND, WORDS, dtype=np.uint64), BOUND)


class _Sums(ServerRole):
    def round(self, index: int) -> ServerTurn:
        yield SumRequest(index.to_bytes(8, "big"), WORDS, BOUND)
        return b"taken"
