"""The Skellam sampler must accept sigma and must reject 2 sigma / 3 and 3 sigma / 2.

Every test here has a fixed seed and a false-alarm rate of at most 1e-6 over seeds; the power of
the chi-square tests is worked out from the noncentral distribution.
"""

import math
import random as python_random

import numpy as np
import pytest
from scipy.special import ive
from scipy.stats import chi2, chisquare, ncx2, norm

from secure_fd.knowledge import FloatArray, IntArray
from secure_fd.privacy.samplers import MAX_VARIANCE, SeededRandom, discrete_gaussian, skellam
from tests.two_samples import FALSE_ALARM, same

SAMPLES = 20_000
VARIANCES = [0.5, 4.0, 300.7, 2.0**20, MAX_VARIANCE]


def edges_for(variance: float, bins: int = 24) -> FloatArray:
    """The upper ends of all bins but the last, about equally likely."""
    quantiles = norm.ppf(np.arange(1, bins) / bins) * math.sqrt(variance)
    return np.asarray(np.unique(np.floor(quantiles)))


def binned(edges: FloatArray, variance: float) -> FloatArray:
    """What the distribution puts into each bin: P(x) = exp(-v) I_|x|(v)."""
    reach = math.ceil(12 * math.sqrt(variance)) + 20
    support = np.arange(-reach, reach + 1)
    mass = ive(np.abs(support), variance)
    return np.asarray(np.bincount(np.searchsorted(edges, support), mass, len(edges) + 1))


def fit(samples: IntArray, variance: float) -> float:
    """p-value of a chi-square test that the samples are Skellam."""
    edges = edges_for(variance)
    expected = binned(edges, variance)
    observed = np.bincount(np.searchsorted(edges, samples), minlength=len(edges) + 1)
    return float(chisquare(observed, expected / expected.sum() * len(samples)).pvalue)


@pytest.mark.parametrize("variance", VARIANCES)
def test_accepts_sigma_and_rejects_its_neighbours(variance: float) -> None:
    assert fit(skellam(variance, SAMPLES, SeededRandom(31)), variance) > FALSE_ALARM
    for wrong in (2 / 3, 3 / 2):
        sampled = min(variance * wrong**2, MAX_VARIANCE)
        off = skellam(sampled, SAMPLES, SeededRandom(32))
        assert fit(off, sampled / wrong**2) < FALSE_ALARM


@pytest.mark.parametrize("variance", VARIANCES)
def test_the_fit_rejects_a_sigma_that_is_off_by_a_tenth_nearly_always(variance: float) -> None:
    """Power above .999 at a tenth, and above 1 - 1e-12 at 2 / 3 and 3 / 2."""
    edges = edges_for(variance)
    right, critical = binned(edges, variance), chi2.isf(FALSE_ALARM, len(edges))
    for wrong, least in ((0.9, 0.999), (1.1, 0.999), (2 / 3, 1 - 1e-12), (3 / 2, 1 - 1e-12)):
        off = binned(edges, variance * wrong**2)
        noncentral = SAMPLES * float(((off - right) ** 2 / right).sum())
        assert ncx2.sf(critical, len(edges), noncentral) > least


def test_a_discrete_gaussian_of_the_same_variance_is_told_apart() -> None:
    """Skellam noise has heavier tails: kurtosis 3 + 1 / variance."""
    gaussian = discrete_gaussian(1.0, 100_000, SeededRandom(33))
    assert fit(gaussian, 1.0) < FALSE_ALARM
    assert fit(skellam(1.0, 100_000, SeededRandom(34)), 1.0) > FALSE_ALARM


def test_shares_add_up_to_the_noise_of_their_summed_variance() -> None:
    """Forty shares of variance 0.1 are Skellam of variance 4; eight fewer are noticed."""
    shares = skellam(0.1, 40 * SAMPLES, SeededRandom(35)).reshape(40, SAMPLES)
    assert fit(shares.sum(axis=0), 4.0) > FALSE_ALARM
    assert fit(shares[:32].sum(axis=0), 4.0) < FALSE_ALARM


def test_samples_are_independent_of_each_other() -> None:
    samples = skellam(1e4, 100_000, SeededRandom(37)) / 1e2
    for lag in (1, 2, 17):
        correlation = float((samples[:-lag] * samples[lag:]).mean())
        assert abs(correlation) < 5 / math.sqrt(samples.size)  # 6e-7 a lag
    assert abs(samples.mean()) < 5 / math.sqrt(samples.size)


def poisson_one(source: python_random.Random) -> int:
    """A Poisson number of mean 1 from uniform integers alone (Duchon and Duvignau, 2016)."""
    n, g, k = 1, 0, 1
    while True:
        i = source.randrange(n + 1) + 1
        if i == n + 1:
            k += 1
        elif i > g:
            k, g = k - 1, n + 1
        else:
            return k
        n += 1


def oracle(mean: int, source: python_random.Random) -> int:
    """The difference of two sums of Poisson numbers of mean 1."""
    one, other = (sum(poisson_one(source) for _ in range(mean)) for _ in range(2))
    return one - other


@pytest.mark.parametrize("mean", [1, 5])
def test_agrees_with_an_exact_sampler_of_integers(mean: int) -> None:
    source = python_random.Random(38)  # noqa: S311 - an oracle's seed, not a key
    theirs = np.array([oracle(mean, source) for _ in range(10_000)])
    reach = math.ceil(2 * math.sqrt(2 * mean))
    assert same(skellam(2.0 * mean, 10_000, SeededRandom(39)), theirs, reach) > FALSE_ALARM
    for wrong in (2 / 3, 3 / 2):
        off = skellam(2 * mean * wrong**2, 10_000, SeededRandom(40))
        assert same(off, theirs, reach) < FALSE_ALARM
