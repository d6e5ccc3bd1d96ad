"""The discrete Gaussian must accept sigma and must reject 2 sigma / 3 and 3 sigma / 2.

Every test here has a fixed seed and a false-alarm rate of at most 1e-6 over seeds. The power of
the chi-square tests, over seeds again, is worked out below from the noncentral distribution.
"""

import math
import random as python_random
from fractions import Fraction
from typing import Final

import numpy as np
import pytest
from scipy.stats import chi2, chi2_contingency, chisquare, ncx2, norm

from secure_fd.privacy.record import UNITS, Bounded, PooledPlan
from secure_fd.privacy.samplers import SeededRandom, discrete_gaussian
from secure_fd.votes.codec import FloatArray, IntArray

SIGMAS = [0.6, 1.0, 4.0, 15.5, 37.5, 1.158 * 2.0**16, 2.0**19]
SAMPLES = 20_000


FALSE_ALARM: Final = 1e-6
"""Of every test that rejects below it; seeds are fixed, so a verdict never changes."""


def same(one: IntArray, other: IntArray, reach: int) -> float:
    """p-value of Pearson's chi-square on the values -reach .. reach, the ends taking the tails."""
    clipped = [
        np.bincount(np.clip(x, -reach, reach) + reach, minlength=2 * reach + 1)
        for x in (one, other)
    ]
    return float(chi2_contingency(np.array(clipped)).pvalue)


def edges_for(sigma: float, bins: int) -> FloatArray:
    """The upper ends of all bins but the last, about equally likely under sigma."""
    return np.asarray(np.unique(np.floor(norm.ppf(np.arange(1, bins) / bins) * sigma)))


def binned(edges: FloatArray, sigma: float) -> FloatArray:
    """What a discrete Gaussian puts into each bin; for large sigma the continuous one does too,
    to a part in 24 sigma^2.
    """
    if sigma > 1e4:
        return np.diff(norm.cdf((edges + 0.5) / sigma), prepend=0, append=1)
    support = np.arange(-math.ceil(12 * sigma), math.ceil(12 * sigma) + 1)
    mass = np.exp(-(support**2) / (2 * sigma**2))
    counts = np.bincount(np.searchsorted(edges, support), mass, len(edges) + 1)
    return np.asarray(counts / mass.sum())


def fit(samples: IntArray, sigma: float, bins: int = 24) -> float:
    """p-value of a chi-square test that the samples are a discrete Gaussian's."""
    edges = edges_for(sigma, bins)
    observed = np.bincount(np.searchsorted(edges, samples), minlength=len(edges) + 1)
    return float(chisquare(observed, binned(edges, sigma) * len(samples)).pvalue)


@pytest.mark.parametrize("sigma", SIGMAS)
def test_accepts_sigma_and_rejects_its_neighbours(sigma):
    samples = discrete_gaussian(sigma, SAMPLES, SeededRandom(11))
    assert fit(samples, sigma) > FALSE_ALARM
    for wrong in (2 / 3, 3 / 2):
        assert fit(discrete_gaussian(sigma * wrong, SAMPLES, SeededRandom(12)), sigma) < FALSE_ALARM


@pytest.mark.parametrize("sigma", SIGMAS)
def test_the_fit_rejects_a_sigma_that_is_off_by_a_tenth_nearly_always(sigma):
    """Power above .999 at a tenth, and above 1 - 1e-12 at 2 / 3 and 3 / 2."""
    edges = edges_for(sigma, 24)
    right, critical = binned(edges, sigma), chi2.isf(FALSE_ALARM, len(edges))
    for wrong, least in ((0.9, 0.999), (1.1, 0.999), (2 / 3, 1 - 1e-12), (3 / 2, 1 - 1e-12)):
        off = binned(edges, sigma * wrong)
        noncentral = SAMPLES * float(((off - right) ** 2 / right).sum())
        assert ncx2.sf(critical, len(edges), noncentral) > least


def test_single_values_of_a_two_level_draw_are_right():
    """sigma = 40 has k = 4: the fine digit must follow the curve inside each bucket."""
    samples = discrete_gaussian(40.0, 200_000, SeededRandom(13))
    assert fit(samples, 40.0, bins=10_000) > FALSE_ALARM
    flat = samples // 4 * 4 + np.random.default_rng(0).integers(0, 4, samples.size)
    assert fit(flat, 40.0, bins=10_000) < FALSE_ALARM


def test_samples_are_independent_of_each_other():
    samples = discrete_gaussian(1e4, 100_000, SeededRandom(14)) / 1e4
    for lag in (1, 2, 17):
        correlation = float((samples[:-lag] * samples[lag:]).mean())
        assert abs(correlation) < 5 / math.sqrt(samples.size)  # 6e-7 a lag
    assert abs(samples.mean()) < 5 / math.sqrt(samples.size)


def bernoulli_exp(gamma: Fraction, source: python_random.Random) -> bool:
    """Algorithm 1 of Canonne, Kamath and Steinke (2020): true with probability exp(-gamma)."""
    while gamma > 1:
        if not bernoulli_exp(Fraction(1), source):
            return False
        gamma -= 1
    k = 1
    while source.randrange(gamma.denominator * k) < gamma.numerator:
        k += 1
    return k % 2 == 1


def oracle(sigma: Fraction | int, source: python_random.Random) -> int:
    """Their algorithms 2 and 3: a discrete Laplace proposal and a rejection, in fractions."""
    t = math.floor(sigma) + 1
    while True:
        u = source.randrange(t)
        if not bernoulli_exp(Fraction(u, t), source):
            continue
        v = 0
        while bernoulli_exp(Fraction(1), source):
            v += 1
        y, negative = u + t * v, source.random() < 0.5
        if negative and y == 0:
            continue
        if bernoulli_exp(Fraction((y - Fraction(sigma**2, t)) ** 2 / (2 * sigma**2)), source):
            return -y if negative else y


def rounded_gaussian(sigma: float, size: int) -> IntArray:
    """A twin: the continuous Gaussian, rounded; where sigma is small its variance is 1/12 more."""
    return np.rint(np.random.default_rng(18).normal(0, sigma, size)).astype(np.int64)


@pytest.mark.parametrize("sigma", [1, 3, 10])
def test_agrees_with_the_published_rejection_sampler(sigma):
    source = python_random.Random(15)  # noqa: S311 - an oracle's seed, not a key
    theirs = np.array([oracle(sigma, source) for _ in range(10_000)])
    ours = discrete_gaussian(sigma, 10_000, SeededRandom(16))
    assert same(ours, theirs, 2 * sigma) > FALSE_ALARM
    for wrong in (2 / 3, 3 / 2):
        off = discrete_gaussian(sigma * wrong, 10_000, SeededRandom(17))
        assert same(off, theirs, 2 * sigma) < FALSE_ALARM


def test_the_published_sampler_tells_a_rounded_gaussian_apart():
    """At sigma = 1/2 a tenth of the values is at fault; our own samples agree.

    Their proposal is a discrete Laplace of an integer scale, so sigma^2 may be any fraction.
    """
    source = python_random.Random(20)  # noqa: S311 - an oracle's seed, not a key
    theirs = np.array([oracle(Fraction(1, 2), source) for _ in range(10_000)])
    assert same(discrete_gaussian(0.5, 10_000, SeededRandom(21)), theirs, 2) > FALSE_ALARM
    assert same(rounded_gaussian(0.5, 10_000), theirs, 2) < FALSE_ALARM


def test_a_release_adds_the_noise_that_it_claims():
    """Sums of zero leave the noise alone: z UNITS on every entry, and fresh on each call."""
    plan = PooledPlan(clients=1, honest=1, entries=10_000, noise=1.081)
    empty = Bounded(np.zeros(plan.entries, dtype=np.int64), l2=UNITS)
    noise = [plan.perturb(empty, SeededRandom(seed)) for seed in (18, 19)]
    sigma = plan.noise * UNITS
    assert fit(noise[0], sigma) > FALSE_ALARM
    assert fit(noise[0] * 2 // 3, sigma) < FALSE_ALARM
    assert abs(np.corrcoef(noise[0], noise[1])[0, 1]) < 5 / math.sqrt(noise[0].size)
