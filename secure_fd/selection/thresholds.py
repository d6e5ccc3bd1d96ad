"""Where a client draws the line between its own distribution and the rest."""

import numpy as np

from secure_fd.errors import ConfigurationError
from secure_fd.knowledge import FloatArray, IntArray

_BINS = 256


def quantile_thresholds(
    ratios: FloatArray, labels: IntArray, classes: tuple[int, ...], quantile: float
) -> FloatArray:
    """tau_client of the paper: for each class, a quantile of its ratio on held-back local data.

    ratios: [n, len(classes)] at the held-back records; labels: [n]. Returns [len(classes)].
    """
    if not 0 <= quantile <= 1:
        raise ConfigurationError("quantile", quantile, "use a number from 0 to 1")
    own = [ratios[labels == c, column] for column, c in enumerate(classes)]
    return np.array([np.quantile(v, quantile) if len(v) else np.inf for v in own])


def otsu_thresholds(ratios: FloatArray) -> FloatArray:
    """For each column, the split of the proxies' own scores into two classes of least variance.

    N. Otsu, "A threshold selection method from gray-level histograms", 1979. It reads no private
    record beyond the ratios themselves. ratios: [P, k] at the proxies. Returns [k].
    """
    return np.array([_otsu(column) for column in ratios.T])


def top_share_thresholds(ratios: FloatArray, share: float) -> FloatArray:
    """For each column, the score that the given share of the proxies reaches.

    It follows ranks alone, so noise that spreads the scores moves it with them; Otsu's split of
    two heaps wanders once noise has made one heap of them. ratios: [P, k] at the proxies; share:
    in (0, 1]. Returns [k].
    """
    if not 0 < share <= 1:
        raise ConfigurationError("share", share, "use a number above 0, at most 1")
    return np.asarray(np.quantile(ratios, 1.0 - share, axis=0))


def _otsu(values: FloatArray) -> float:
    counts, edges = np.histogram(values, _BINS)
    centres = (edges[1:] + edges[:-1]) / 2
    below = np.cumsum(counts)[:-1]
    above = len(values) - below
    mass = np.cumsum(counts * centres)
    with np.errstate(divide="ignore", invalid="ignore"):
        gap = mass[:-1] / below - (mass[-1] - mass[:-1]) / above
    between = np.nan_to_num(below * above * gap**2)
    return float(edges[1:-1][between.argmax()])
