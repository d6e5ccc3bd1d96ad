"""The symmetric Skellam distribution: the difference of two Poisson numbers of one mean.

Sums of independent Skellam numbers are Skellam, their variances added; so shares of noise that
clients draw by themselves make the very noise of the sum (Agarwal, Kairouz and Liu, "The Skellam
mechanism for differentially private federated learning", 2021). Of discrete Gaussians that is
only nearly true.

The Poisson number is drawn by inversion from a table over 14 standard deviations on either side
of its mean, at most 2^17.4 entries.

Distance to the ideal. What the table leaves out has a probability below 2^-139, and the thresholds
are exact to 2^-128 (inverse_cdf.py). So a difference of two draws is within 2^-110 of the ideal in
total variation, and m of them add at most (1 + e^eps) m 2^-110 to delta.

Running time depends on what is drawn; a local observer with a clock is out of scope.
"""

from decimal import Decimal, localcontext
from functools import lru_cache
from typing import Final

import numpy as np

from secure_fd.errors import ConfigurationError
from secure_fd.knowledge import IntArray
from secure_fd.privacy.entropy import Random
from secure_fd.privacy.inverse_cdf import DIGITS, Table

TOTAL_VARIATION: Final = 2.0**-110
"""Bound on the distance of one sample to the ideal distribution."""
MAX_VARIANCE: Final = 2.0**26
"""Up to here the table has a megabyte or three, and keeps the distance that is stated."""

_LEAST: Final = Decimal(2) ** -142


def skellam(variance: float, size: int, random: Random) -> IntArray:
    """[size] independent integers of mean zero and this variance.

    variance: in [0, 2^26], taken as the exact value of the float; 0 gives zeros and draws nothing.
    """
    if not 0 <= variance <= MAX_VARIANCE:
        raise ConfigurationError("variance", variance, f"use a number in [0, {MAX_VARIANCE:g}]")
    if variance == 0:
        return np.zeros(size, dtype=np.int64)
    table = _poisson(float(variance))
    return table.draw(size, random) - table.draw(size, random)


@lru_cache(maxsize=16)
def _poisson(variance: float) -> Table:
    """Poisson numbers of half the variance, less the smallest, which cancels in a difference.

    Weights in proportion to the largest, up and down from there until they fall below 2^-142. On
    either side the rest falls at least as fast as a geometric series that sums to less than
    2^-142 (2 + sd / 10), where all weights sum to more than 1 and more than 2 sd.
    """
    with localcontext() as context:
        context.prec = DIGITS
        mean = Decimal(variance) / 2
        mode = int(mean)
        below, above = [Decimal(1)], [Decimal(1)]
        while below[-1] > _LEAST and len(below) <= mode:
            below.append(below[-1] * (mode - len(below) + 1) / mean)
        while above[-1] > _LEAST:
            above.append(above[-1] * mean / (mode + len(above)))
    return Table.of([*reversed(below), *above[1:]])
