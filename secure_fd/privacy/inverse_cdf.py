"""Draws from a table of probabilities by inversion: a uniform 128-bit number, compared exactly.

The first 64 bits are looked up on the whole array; only where they tie with a threshold (for a
table of n entries once in 2^64 / n) are the other 64 drawn and compared.

Distance to the ideal. A threshold is the cumulative probability rounded down to a multiple of
2^-128, so a draw from n entries is within n 2^-129 of the table's law in total variation.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from decimal import Decimal, localcontext
from itertools import accumulate
from typing import Final

import numpy as np

from secure_fd.knowledge import IntArray, WordArray
from secure_fd.privacy.entropy import Random, words

BITS: Final = 128
DIGITS: Final = 60
"""Decimal digits of every weight: 128 bits are 39, and sums of 2^18 weights lose 6 at most."""


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """Probabilities of 0 .. n - 1, as n - 1 thresholds of 128 bits in ascending order.

    leading, trailing: [n - 1] the upper and the lower 64 bits of each.
    """

    leading: WordArray = field(repr=False)
    trailing: WordArray = field(repr=False)

    @classmethod
    def of(cls, weights: Sequence[Decimal]) -> "Table":
        """Of probabilities in proportion to `weights` [n], one or more of them above 0."""
        with localcontext() as context:
            context.prec = DIGITS
            *reached, total = accumulate(weights)
            scale = (1 << BITS) / total
            # The last entry's threshold is 1, which no uniform number reaches.
            cumulative = [min(int(reach * scale), (1 << BITS) - 1) for reach in reached]
        upper = np.array([threshold >> 64 for threshold in cumulative], dtype=np.uint64)
        lower = np.array([threshold % (1 << 64) for threshold in cumulative], dtype=np.uint64)
        return cls(upper, lower)

    def draw(self, count: int, random: Random) -> IntArray:
        """[count] independent entries, each the number of thresholds that a number has reached."""
        return self.look_up(words(random, count), random)

    def look_up(self, uniform: WordArray, random: Random) -> IntArray:
        """[m] entries, from the first 64 bits of m numbers; `random` gives the others where due."""
        first = np.searchsorted(self.leading, uniform, side="left")
        beyond = np.searchsorted(self.leading, uniform, side="right")
        for i in np.flatnonzero(first != beyond):
            tied = self.trailing[first[i] : beyond[i]]
            first[i] += np.searchsorted(tied, words(random, 1)[0], side="right")
        return first.astype(np.int64, copy=False)
