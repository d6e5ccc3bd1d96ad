"""The discrete Gaussian: exact tables and comparisons, and statistics."""

import math
from bisect import bisect_right
from decimal import Decimal
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from scipy.stats import chi2, chisquare, ncx2, norm

from secure_fd.privacy.record import UNITS, Bounded, PooledPlan
from secure_fd.privacy.samplers import (
    MAX_SIGMA,
    TOTAL_VARIATION,
    Random,
    SeededRandom,
    Thresholds,
    _accepted,
    _below_exp,
    _proposal,
    _reach,
    _scaled_exp,
    _whole,
    discrete_gaussian,
)
from secure_fd.votes.codec import FloatArray, IntArray
from tests.refusals import refused


def edges_of(table: Thresholds) -> list[int]:
    """First and last values of a table's entries, in units of 2^-128."""
    upper, lower = table.leading.tolist(), table.trailing.tolist()
    return [0, *(high << 64 | low for high, low in zip(upper, lower, strict=True)), 1 << 128]


def law_of(table: Thresholds) -> FloatArray:
    """[n] the probabilities that a table gives its entries."""
    return np.array([(b - a) / 2**128 for a, b in pairwise(edges_of(table))])


def low_word(value: int) -> Random:
    return lambda _: value.to_bytes(8, "little")


@pytest.mark.parametrize("sigma", [0.05, 0.4, 3.0, 15.99])
def test_one_table_is_the_distribution_of_a_small_sigma(sigma):
    x = np.arange(-_reach(sigma), _reach(sigma) + 1)
    ideal = np.exp(-(x**2) / (2 * sigma**2))
    np.testing.assert_allclose(law_of(_whole(sigma)), ideal / ideal.sum(), rtol=1e-10, atol=1e-35)


@pytest.mark.parametrize("sigma", [16.0, 20.3, 300.0])
def test_table_times_acceptance_is_the_distribution(sigma):
    """The law that the two steps give, worked out without sampling, against the definition."""
    proposal = _proposal(sigma)
    k = 1 << proposal.shift
    buckets = law_of(proposal.table)
    x = np.arange(len(buckets) * k)
    fine = x % k
    accepted = np.exp(-fine * (fine + 2 * (x - fine)) / (2 * sigma**2))
    ours = buckets[x // k] / k * accepted
    ours /= 2 * ours.sum() - ours[0]
    ideal = np.exp(-(x**2) / (2 * sigma**2))
    ideal /= 2 * ideal.sum() - ideal[0]
    np.testing.assert_allclose(ours, ideal, rtol=1e-10, atol=1e-35)


def given(*values: int) -> Random:
    """A generator that gives these 64-bit words, one a call, and then fails."""
    stream = iter(values)
    return lambda _: next(stream).to_bytes(8, "little")


@pytest.mark.parametrize(
    ("fine", "bucket"), [(0, 0), (1, 0), (3, 5), (31, 1), (31, 40), (0, 7), (17, 60)]
)
@pytest.mark.parametrize("negative", [False, True])
def test_a_proposal_is_accepted_with_what_its_exponent_lacks(fine, bucket, negative):
    """Chosen words for the three draws, with the last next to exp(-(x^2 - (kQ)^2) / 2 sigma^2)."""
    sigma, k = 300.0, 32
    proposal, x = _proposal(sigma), k * bucket + fine
    assert proposal.shift == 5
    edges = edges_of(proposal.table)
    inside = (edges[bucket] + edges[bucket + 1] >> 1) >> 64
    limit = math.exp(-(x**2 - (k * bucket) ** 2) / (2 * sigma**2)) * 2**64
    outcomes = []
    for last in (limit * (1 - 1e-9), limit * (1 + 1e-9)):
        last_word = min(int(last), 2**64 - 1)
        drawn = _accepted(proposal, 1, given(inside, fine | negative << 63, last_word, 0))
        outcomes.append(drawn.tolist())
    kept = [] if negative and x == 0 else [-x if negative else x]
    assert outcomes == [kept, [] if fine else kept]


@pytest.mark.parametrize("sigma", [16.0, 17.1, 1000.0, 2.0**19, MAX_SIGMA])
def test_the_table_stays_small_and_reaches_the_tail(sigma):
    proposal = _proposal(sigma)
    edges = edges_of(proposal.table)
    assert len(edges) <= 227
    assert (len(edges) - 1 << proposal.shift) > 13.9 * sigma
    assert edges == sorted(edges)


@pytest.mark.parametrize(
    "table", [_whole(3.0), _whole(15.99), _proposal(20.0).table, _proposal(2.0**26).table]
)
def test_a_tie_of_the_first_64_bits_is_settled_by_the_rest(table):
    """At every threshold: the number itself has reached it, the one below has not."""
    edges = edges_of(table)
    for threshold in edges[1:-1][:: 1 + len(edges) // 400]:
        upper, lower = np.array([threshold >> 64], dtype=np.uint64), threshold % 2**64
        for low in (lower, lower - 1) if lower else (lower,):
            reached = bisect_right(edges, (threshold >> 64 << 64) + low) - 1
            assert table.look_up(upper, low_word(low)) == [reached]


def test_a_uniform_next_to_the_exponential_is_settled_exactly():
    proposal = _proposal(500.0)
    for exponent in (1, 17, 4321, 99_999):
        exact = _scaled_exp(Decimal(-exponent), proposal.twice_variance)
        assert exact / 2**128 == pytest.approx(math.exp(-exponent / 500_000), rel=1e-14)
        leading, low = np.array([exact >> 64], dtype=np.uint64), exact % 2**64
        exponents = np.array([exponent])
        assert not _below_exp(leading, exponents, proposal, low_word(low))[0]
        assert _below_exp(leading, exponents, proposal, low_word(low - 1))[0]


def test_what_a_float_cannot_tell_apart_is_settled_exactly():
    """Words 300 / 2^64 from the threshold: floats there are 2^-53 apart, and would guess."""
    proposal, exponents = _proposal(500.0), np.arange(1, 400_000, 2000)
    exact = [_scaled_exp(-Decimal(int(e)), proposal.twice_variance) >> 64 for e in exponents]
    for offset, below in ((-300, True), (300, False)):
        leading = np.array([word + offset for word in exact], dtype=np.uint64)
        assert (_below_exp(leading, exponents, proposal, low_word(0)) == below).all()


def test_no_noise_draws_nothing_and_noise_far_below_one_unit_is_none():
    def forbidden(count: int) -> bytes:
        raise AssertionError(f"{count} bytes drawn")

    assert discrete_gaussian(0.0, 7, forbidden).tolist() == [0] * 7
    for tiny in (5e-324, 1e-160, 1e-9):
        assert not discrete_gaussian(tiny, 1000, SeededRandom(6)).any()
    for sigma in (-1.0, math.nan, math.inf, MAX_SIGMA * 1.01):
        with refused("sigma"):
            discrete_gaussian(sigma, 1, SeededRandom(0))


def test_the_stated_distance_covers_thresholds_and_tail():
    """n 2^-129 for the largest table that is drawn from, and its tail."""
    entries = len(_whole(15.999).leading) + 1
    assert Fraction(entries, 2**129) + Fraction(1, 2**139) < Fraction(TOTAL_VARIATION)


FALSE_ALARM = 1e-6
"""Level below which every test rejects; seeds are fixed, so a verdict never changes."""


SIGMAS = [0.6, 1.0, 4.0, 15.5, 37.5, 1.158 * 2.0**16, 2.0**19]
SAMPLES = 20_000


def edges_for(sigma: float, bins: int) -> FloatArray:
    """The upper ends of all bins but the last, about equally likely under sigma."""
    return np.asarray(np.unique(np.floor(norm.ppf(np.arange(1, bins) / bins) * sigma)))


def binned(edges: FloatArray, sigma: float) -> FloatArray:
    """Mass of a discrete Gaussian in each bin; for large sigma the continuous one agrees
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


@pytest.mark.parametrize("sigma", [0.5, 2.342, 9.0, 100.0])
def test_the_sampler_has_the_probabilities_of_the_definition(sigma):
    """400,000 samples, each integer that is expected 40 times in a cell of its own.

    The check has power: samples of a sigma that is 2 % off, and rounded continuous ones of equal
    sigma where the two laws differ, are rejected.
    """
    drawn = discrete_gaussian(sigma, 400_000, SeededRandom(7))
    assert fit(drawn, sigma, bins=10_000) > FALSE_ALARM
    off = discrete_gaussian(1.02 * sigma, 400_000, SeededRandom(7))
    assert fit(off, sigma, bins=10_000) < FALSE_ALARM
    rounded = np.rint(np.random.default_rng(7).normal(0, sigma, 400_000)).astype(np.int64)
    assert (fit(rounded, sigma, bins=10_000) < FALSE_ALARM) == (sigma < 5)


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


def test_a_release_adds_the_noise_that_it_claims():
    """Sums of zero leave the noise alone: z UNITS on every entry, and fresh on each call."""
    plan = PooledPlan(clients=1, honest=1, entries=10_000, noise=1.081)
    empty = Bounded(np.zeros(plan.entries, dtype=np.int64), l2=UNITS)
    noise = [plan.perturb(empty, SeededRandom(seed)) for seed in (18, 19)]
    sigma = plan.noise * UNITS
    assert fit(noise[0], sigma) > FALSE_ALARM
    assert fit(noise[0] * 2 // 3, sigma) < FALSE_ALARM
    assert abs(np.corrcoef(noise[0], noise[1])[0, 1]) < 5 / math.sqrt(noise[0].size)
