"""Where noise comes from: an argument, n -> n bytes, that is os.urandom unless told otherwise."""

import hashlib
import os
from collections.abc import Callable

import numpy as np

from secure_fd.errors import LocalError
from secure_fd.knowledge import WordArray

Random = Callable[[int], bytes]
"""Gives exactly as many bytes as it is asked for, uniform and unpredictable."""


def words(random: Random, count: int) -> WordArray:
    """[count] uniform 64-bit words; for none, `random` is not called."""
    if count == 0:
        return np.empty(0, dtype=np.uint64)
    drawn = random(8 * count)
    if len(drawn) != 8 * count:
        raise LocalError(f"random: gave {len(drawn)} bytes where {8 * count} were asked for")
    return np.frombuffer(drawn, dtype="<u8").astype(np.uint64)


class SeededRandom:
    """A reproducible stream of bytes: for tests only, because whoever knows the seed undoes it.

    Every guarantee made with it is void, and says so: see `unmet_by`.
    """

    insecure = True

    def __init__(self, seed: int) -> None:
        self._key = seed.to_bytes(16, "big")
        self._calls = 0

    def __call__(self, count: int) -> bytes:
        """The next `count` bytes: SHAKE-256 of the seed and the number of the call."""
        self._calls += 1
        return hashlib.shake_256(self._key + self._calls.to_bytes(8, "big")).digest(count)

    def __repr__(self) -> str:
        return "SeededRandom(insecure)"


def unmet_by(random: Random) -> tuple[str, ...]:
    """Why noise from `random` carries no guarantee; empty for the operating system's alone.

    A generator that may be repeated cannot be told from one that may not, so none is vouched for.
    """
    if random is os.urandom:
        return ()
    if getattr(random, "insecure", False):
        return ("the noise was drawn from a seeded generator",)
    return ("the noise came from a caller's generator, for which this package cannot vouch",)
