"""The noise of many clients at once, as a simulation needs it: share by share, then the sum."""

from collections.abc import Callable
from typing import Final

import numpy as np

from secure_fd.errors import ConfigurationError
from secure_fd.knowledge import IntArray
from secure_fd.privacy.entropy import Random

_BLOCK: Final = 2**20
"""Numbers in memory at a time, where one share does not have more."""


def summed_shares(
    draw_one: Callable[[int, Random], IntArray], shares: int, size: int, random: Random
) -> IntArray:
    """[size] sums of so many independent shares, exactly as if each had been drawn by itself.

    draw_one: gives that many independent numbers of one share's law, for instance
    `partial(discrete_gaussian, sigma)`. Memory is bounded; time grows with shares * size.
    """
    for name, value in (("shares", shares), ("size", size)):
        if value < 0:
            raise ConfigurationError(name, value, "use 0 or more")
    total, at_once = np.zeros(size, dtype=np.int64), max(1, _BLOCK // max(1, size))
    for start in range(0, shares, at_once):
        rows = min(at_once, shares - start)
        total += draw_one(rows * size, random).reshape(rows, size).sum(axis=0)
    return total
