"""The discrete Gaussian must accept sigma and must reject 2 sigma / 3 and 3 sigma / 2.

Every test here has a fixed seed and a false-alarm rate of at most 1e-6 over seeds.
"""

import math
import random as python_random
from fractions import Fraction

import numpy as np
import pytest
from scipy.stats import chi2_contingency, chisquare, norm

from secure_fd.knowledge import IntArray
from secure_fd.privacy.discrete_gaussian import discrete_gaussian
from secure_fd.privacy.entropy import SeededRandom
from secure_fd.privacy.record_release import UNIT, release_class_means

FALSE_ALARM = 1e-6


def fit(samples: IntArray, sigma: float, bins: int = 24) -> float:
    """p-value of a chi-square test that the samples are a discrete Gaussian's."""
    edges = np.unique(np.floor(norm.ppf(np.arange(1, bins) / bins) * sigma))
    support = np.arange(-math.ceil(12 * sigma), math.ceil(12 * sigma) + 1)
    mass = np.exp(-(support**2) / (2 * sigma**2))
    expected = np.bincount(np.searchsorted(edges, support), mass, len(edges) + 1) / mass.sum()
    observed = np.bincount(np.searchsorted(edges, samples), minlength=len(edges) + 1)
    return float(chisquare(observed, expected * len(samples)).pvalue)


@pytest.mark.parametrize("sigma", [1.0, 4.0, 37.5, 1.158 * UNIT, 2.0**19])
def test_accepts_sigma_and_rejects_its_neighbours(sigma: float) -> None:
    samples = discrete_gaussian(sigma, 20_000, SeededRandom(11))
    assert fit(samples, sigma) > FALSE_ALARM
    for wrong in (2 / 3, 3 / 2):
        assert fit(discrete_gaussian(sigma * wrong, 20_000, SeededRandom(12)), sigma) < FALSE_ALARM


def test_single_values_of_a_two_level_draw_are_right() -> None:
    """sigma = 40 has k = 4: the fine digit must follow the curve inside each bucket."""
    samples = discrete_gaussian(40.0, 200_000, SeededRandom(13))
    assert fit(samples, 40.0, bins=10_000) > FALSE_ALARM
    flat = samples // 4 * 4 + np.random.default_rng(0).integers(0, 4, samples.size)
    assert fit(flat, 40.0, bins=10_000) < FALSE_ALARM


def test_samples_are_independent_of_each_other() -> None:
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


def oracle(sigma: int, source: python_random.Random) -> int:
    """Their algorithms 2 and 3: a discrete Laplace proposal and a rejection, in fractions."""
    t = sigma + 1
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
        if bernoulli_exp(Fraction((y * t - sigma**2) ** 2, 2 * (sigma * t) ** 2), source):
            return -y if negative else y


def same(one: IntArray, other: IntArray, reach: int) -> float:
    """p-value of a chi-square test that two samples have one distribution."""
    clipped = [np.bincount(np.clip(x, -reach, reach) + reach, minlength=1) for x in (one, other)]
    return float(chi2_contingency(np.array(clipped)).pvalue)


@pytest.mark.parametrize("sigma", [3, 10])
def test_agrees_with_the_published_rejection_sampler(sigma: int) -> None:
    source = python_random.Random(15)  # noqa: S311 - an oracle's seed, not a key
    theirs = np.array([oracle(sigma, source) for _ in range(10_000)])
    ours = discrete_gaussian(sigma, 10_000, SeededRandom(16))
    assert same(ours, theirs, 2 * sigma) > FALSE_ALARM
    for wrong in (2 / 3, 3 / 2):
        off = discrete_gaussian(sigma * wrong, 10_000, SeededRandom(17))
        assert same(off, theirs, 2 * sigma) < FALSE_ALARM


def test_the_release_adds_the_noise_that_it_claims() -> None:
    """Features of zero leave the noise alone: z UNIT on every entry, and fresh on each call."""
    empty, labels = np.zeros((60, 1000)), np.zeros(60, dtype=np.int64)
    first, second = (
        release_class_means(empty, labels, 10, epsilon=4.0, delta=1e-5, random=SeededRandom(s))
        for s in (18, 19)
    )
    noise = [np.rint(r.means * 60 * UNIT).astype(np.int64).ravel() for r in (first, second)]
    sigma = first.noise_multiplier * UNIT
    assert fit(noise[0], sigma) > FALSE_ALARM
    assert fit(noise[0] * 2 // 3, sigma) < FALSE_ALARM
    assert abs(np.corrcoef(noise[0], noise[1])[0, 1]) < 5 / math.sqrt(noise[0].size)
