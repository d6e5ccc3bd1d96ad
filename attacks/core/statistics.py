"""Rates with intervals, means over seeds, and what differential privacy allows.

Intervals are 95 % percentile bootstraps, or exact where counts allow; over seeds they are
Student's.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import binomtest, norm, t

from secure_fd.errors import ConfigurationError, LocalError
from secure_fd.votes.codec import FloatArray

Interval = tuple[float, float]
RESAMPLES = 1000
LEVEL = 0.95
_ROUNDING = 1e-9
"""Differences below are of floating point, not of attacks."""


@dataclass(frozen=True, slots=True)
class Rate:
    """A figure and its 95 % interval.

    >>> proportion(3, 4).value
    0.75
    """

    value: float
    interval: Interval


@dataclass(frozen=True, slots=True)
class OverSeeds:
    """A mean over seeds and its 95 % interval, which is None for one seed: that has no spread."""

    value: float
    interval: Interval | None


def mean(values: ArrayLike, seed: int) -> Rate:
    """The mean of [n] values with a bootstrap interval over them.

    >>> mean([1.0, 1.0], seed=0)
    Rate(value=1.0, interval=(1.0, 1.0))
    """
    sample = np.asarray(values, dtype=np.float64)
    picks = np.random.default_rng(seed).integers(0, sample.size, (RESAMPLES, sample.size))
    return Rate(float(sample.mean()), percentiles(sample[picks].mean(axis=1)))


def proportion(hits: int, trials: int) -> Rate:
    """Return hits / trials with the exact interval of Clopper and Pearson (1934)."""
    bounds = binomtest(hits, trials).proportion_ci(LEVEL, method="exact")
    return Rate(hits / trials, (float(bounds.low), float(bounds.high)))


def total_variation(p: ArrayLike, q: ArrayLike) -> FloatArray:
    """Half the L1 distance of distributions [..., C]: 0 for equal ones, 1 for disjoint ones.

    >>> float(total_variation([1.0, 0.0], [0.5, 0.5]))
    0.5
    """
    gap = np.abs(np.asarray(p, dtype=np.float64) - np.asarray(q, dtype=np.float64))
    return np.asarray(gap.sum(axis=-1) / 2)


def over_seeds(values: ArrayLike) -> OverSeeds:
    """The mean of one figure a seed [s], with Student's interval: mean ± t(s - 1) · sd / √s.

    It covers all that a seed draws (split, training, attack, choice of records) where figures are
    about normal; two or three seeds make it wide. Raises LocalError without a finite figure.
    """
    sample = np.asarray(values, dtype=np.float64)
    if sample.ndim != 1 or not sample.size or not np.isfinite(sample).all():
        raise LocalError(f"figures: {sample.tolist()} is not allowed; use a finite one a seed")
    center, count = float(sample.mean()), sample.size
    if count == 1:
        return OverSeeds(center, None)
    half = float(t.ppf((1 + LEVEL) / 2, count - 1) * sample.std(ddof=1) / np.sqrt(count))
    return OverSeeds(center, (center - half, center + half))


def paired(figures: ArrayLike, controls: ArrayLike) -> OverSeeds:
    """Figure minus control, seed by seed: what both owe to the seed's records cancels."""
    a, b = np.asarray(figures, dtype=np.float64), np.asarray(controls, dtype=np.float64)
    if a.shape != b.shape:
        raise LocalError(f"controls: {b.size} for {a.size} figures; use one a seed")
    return over_seeds(a - b)


def paired_p_value(figures: ArrayLike, controls: ArrayLike) -> float:
    """Student's paired test, two-sided, over two seeds or more; differences of rounding are none.

    >>> round(paired_p_value([0.7, 0.8, 0.9], [0.5, 0.5, 0.5]), 3)
    0.035
    """
    gap = np.asarray(figures, dtype=np.float64) - np.asarray(controls, dtype=np.float64)
    error = float(gap.std(ddof=1) / np.sqrt(gap.size))
    return _two_sided(float(gap.mean()), error, gap.size - 1)


def differs_by_chance(gap: float, half: float, count: int) -> float:
    """The p-value, two-sided, of a gap between a mean of `count` records and its control.

    half: of the mean's 95 % bootstrap interval. The control is about as uncertain as the mean.
    count: 0 where it is unknown, which is taken for many; of a single record nothing is known.

    >>> round(differs_by_chance(0.2, half=0.1, count=0), 4), differs_by_chance(0.2, 0.1, count=1)
    (0.0056, 1.0)
    """
    if count == 1:
        return 1.0
    unbiased = math.sqrt(count / (count - 1)) if count else 1.0
    error = math.sqrt(2) * half * unbiased / float(norm.ppf((1 + LEVEL) / 2))
    return _two_sided(gap, error, count - 1 if count else math.inf)


def _two_sided(gap: float, error: float, freedom: float) -> float:
    if abs(gap) <= _ROUNDING:
        return 1.0
    return float(2 * t.sf(abs(gap) / error, freedom)) if error > 0 else 0.0


def percentiles(values: FloatArray) -> Interval:
    """The 95 % interval of resampled figures [B]."""
    low, high = np.quantile(values, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


def distribution(counts: FloatArray, otherwise: FloatArray) -> FloatArray:
    """Counts [C], negative ones as zero, rescaled to total one; `otherwise` without any."""
    clipped = np.clip(counts, 0.0, None)
    total = clipped.sum()
    return np.asarray(clipped / total) if total > 0 else otherwise


def distributions(rows: FloatArray, otherwise: FloatArray) -> FloatArray:
    """The same of every row of [K, C]."""
    return np.stack([distribution(row, otherwise) for row in rows])


def auc_bound(epsilon: float, delta: float) -> float:
    """The largest area under the curve that (epsilon, delta) allows; infinite epsilon gives 1.

    In the claim's game, one record in or out with all else fixed, the miss rate of every test of
    false-positive rate a is at least

        f(a) = max(0, 1 - delta - e^eps a, e^-eps (1 - delta - a))

    (Wasserman and Zhou, 2010; Kairouz, Oh and Viswanath, 2015), which some mechanism attains. Its
    lines meet at a* = (1 - delta) / (1 + e^eps); the two trapezoids below them add up to
    (1 - delta)^2 / (1 + e^eps). Bounds are of probabilities: an estimate may exceed them by its
    own error.

    >>> round(auc_bound(1.0, 0.0), 3)
    0.731
    """
    if not epsilon >= 0:
        raise ConfigurationError("epsilon", epsilon, "use 0 or more, or inf")
    if not 0 <= delta <= 1:
        raise ConfigurationError("delta", delta, "use a number from 0 to 1")
    odds = math.exp(-epsilon) / (1.0 + math.exp(-epsilon))  # 1 / (1 + e^eps) without overflow
    return 1.0 - (1.0 - delta) ** 2 * odds


def gaussian_auc(noise_multiplier: float) -> float:
    """Largest AUC of any membership attack under Gaussian noise: Phi(mu / sqrt 2), mu = 1 / z.

    noise_multiplier: z, the noise's standard deviation over the L2 sensitivity; 0 is no noise.
    Sharper than `auc_bound` at the epsilon of the same noise (Dong, Roth and Su, 2019).
    """
    if not noise_multiplier >= 0:
        raise ConfigurationError("noise_multiplier", noise_multiplier, "use 0 or more")
    return float(norm.cdf(1 / (noise_multiplier * math.sqrt(2)))) if noise_multiplier else 1.0


@dataclass(frozen=True, slots=True)
class Claim:
    """A record's (epsilon, delta) in the game that is played.

    noise_multiplier: z, of Gaussian noise.

    >>> round(Claim(0.0, 0.0, 1.0).bounds()["auc_bound"], 2)
    0.5
    """

    epsilon: float
    delta: float
    noise_multiplier: float

    def bounds(self) -> dict[str, float]:
        """Return the largest figures that the claim allows, by name for a report."""
        return {
            "claimed_epsilon": self.epsilon,
            "auc_bound": auc_bound(self.epsilon, self.delta),
            "auc_bound_of_the_noise": gaussian_auc(self.noise_multiplier),
        }
