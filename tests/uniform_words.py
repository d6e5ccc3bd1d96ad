"""One test of uniformity, for everything that must look like noise to whoever lacks the key.

At each of the eight byte positions of a word, Pearson's chi-square of the 256 byte values; eight
p-values, Bonferroni. Words are rejected below ALPHA, so sound ones are rejected with probability
1e-6; all keys come from fixed seeds, so a verdict never changes from run to run. Power: of 2**17
words, a top byte that is never 255, or a word one bit short, is rejected.
"""

import numpy as np
from scipy.stats import chi2

from secure_fd.knowledge import WordArray

ALPHA = 1e-6


def p_value(words: WordArray) -> float:
    """Of the hypothesis that the words are uniform and independent."""
    columns = np.ascontiguousarray(words, dtype="<u8").view(np.uint8).reshape(-1, 8).T
    expected = words.size / 256
    each = [
        chi2.sf(((np.bincount(c, minlength=256) - expected) ** 2 / expected).sum(), df=255)
        for c in columns
    ]
    return min(1.0, 8 * float(min(each)))


def looks_uniform(words: WordArray) -> bool:
    """Whether the test accepts."""
    return p_value(words) >= ALPHA
