"""One comparison for all samplers of noise: do two samples of integers have one distribution?"""

from typing import Final

import numpy as np
from scipy.stats import chi2_contingency

from secure_fd.knowledge import IntArray

FALSE_ALARM: Final = 1e-6
"""Of every test that rejects below it; seeds are fixed, so a verdict never changes."""


def same(one: IntArray, other: IntArray, reach: int) -> float:
    """p-value of Pearson's chi-square on the values -reach .. reach, the ends taking the tails."""
    clipped = [
        np.bincount(np.clip(x, -reach, reach) + reach, minlength=2 * reach + 1)
        for x in (one, other)
    ]
    return float(chi2_contingency(np.array(clipped)).pvalue)
