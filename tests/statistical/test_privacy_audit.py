"""Audits of both mechanisms on worst-case neighbours: what an observer can prove, at least.

A bound holds with confidence 1 - 1e-6, so a right mechanism exceeds its claim once in a million
seeds. It must also reach 0.6 of the claim: an audit that could not is no audit.
"""

import math
from collections.abc import Callable

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.stats import beta, norm

from secure_fd.knowledge import FloatArray, IntArray
from secure_fd.privacy.entropy import SeededRandom
from secure_fd.privacy.randomized_response import RandomizedResponse
from secure_fd.privacy.record_release import release_class_means

N = 10_000
CONFIDENCE = 1e-6
CLAIM = 4.0
DELTA = 1e-5


def interval(hits: int, trials: int, miss: float) -> tuple[float, float]:
    """Clopper and Pearson: each side is missed with probability at most `miss`."""
    low = beta.ppf(miss, hits, trials - hits + 1) if hits else 0.0
    high = beta.ppf(1 - miss, hits + 1, trials - hits) if hits < trials else 1.0
    return float(low), float(high)


def gaussian_bound(without: FloatArray, present: FloatArray) -> float:
    """Epsilon at DELTA of the mu that the errors of a threshold test prove (Dong et al., 2019).

    The threshold comes from the first tenth, the errors from the rest.
    """
    cut = len(without) // 10
    threshold = (without[:cut].mean() + present[:cut].mean()) / 2
    false_alarms = int((without[cut:] > threshold).sum())
    misses = int((present[cut:] <= threshold).sum())
    trials = len(without) - cut
    errors = [interval(count, trials, CONFIDENCE / 2)[1] for count in (false_alarms, misses)]
    mu = -float(norm.ppf(errors[0]) + norm.ppf(errors[1]))

    def excess(epsilon: float) -> float:
        below = norm.logcdf(-mu / 2 - epsilon / mu)
        return float(norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon + below) - DELTA)

    return float(brentq(excess, 0.0, 100.0))


def observed(epsilon: float, feature: float, seed: int) -> FloatArray:
    """N releases of a client's only record, whose feature is 1, or zeroed out."""
    random, label = SeededRandom(seed), np.zeros(1, dtype=np.int64)
    features = np.array([[feature]])
    return np.array([
        release_class_means(
            features, label, 1, epsilon=epsilon, delta=DELTA, random=random
        ).means[0, 0]
        for _ in range(N)
    ])  # fmt: skip


@pytest.fixture(scope="module")
def worlds() -> tuple[FloatArray, FloatArray]:
    return observed(CLAIM, 0.0, 1), observed(CLAIM, 1.0, 2)


def test_the_record_release_keeps_its_claim(worlds: tuple[FloatArray, FloatArray]) -> None:
    assert 0.6 * CLAIM <= gaussian_bound(*worlds) <= CLAIM


@pytest.mark.parametrize("factor", [0.5, 2 / 3])
def test_too_little_noise_exceeds_the_claim(
    worlds: tuple[FloatArray, FloatArray], factor: float
) -> None:
    """The twin: the same releases with the noise scaled down after the claim was made."""
    without, present = worlds
    assert gaussian_bound(without * factor, (present - 1) * factor + 1) > CLAIM


def test_a_row_of_twice_the_norm_would_exceed_the_claim(
    worlds: tuple[FloatArray, FloatArray],
) -> None:
    """The twin: sensitivity taken as half of what it is."""
    without, present = worlds
    assert gaussian_bound(without, present + 1) > CLAIM


Respond = Callable[[IntArray, SeededRandom], IntArray]


def response_bound(respond: Respond, truths: tuple[int, int], symbols: int) -> float:
    """The largest log ratio of one answer's probabilities that the frequencies prove."""
    first, second = (
        np.bincount(respond(np.full(N, truth), SeededRandom(seed)), minlength=symbols)
        for seed, truth in enumerate(truths)
    )
    miss = CONFIDENCE / (4 * symbols)  # two sides, two directions, each symbol
    bounds = [0.0]
    for one, other in [(first, second), (second, first)]:
        lows = [interval(int(count), N, miss)[0] for count in one]
        highs = [interval(int(count), N, miss)[1] for count in other]
        bounds += [math.log(lo / hi) for lo, hi in zip(lows, highs, strict=True) if lo > 0]
    return max(bounds)


@pytest.mark.parametrize("truths", [(3, 10), (3, 7)])
def test_an_answer_keeps_its_claim(truths: tuple[int, int]) -> None:
    mechanism = RandomizedResponse(CLAIM, 11)
    assert 0.6 * CLAIM <= response_bound(mechanism.respond, truths, 11) <= CLAIM


def test_an_unprotected_abstention_exceeds_the_claim() -> None:
    classes = RandomizedResponse(CLAIM, 10)

    def respond(symbols: IntArray, random: SeededRandom) -> IntArray:
        return np.where(symbols == 10, 10, classes.respond(np.minimum(symbols, 9), random))

    assert response_bound(respond, (3, 10), 11) > CLAIM


def test_noise_of_a_larger_epsilon_exceeds_the_claim() -> None:
    louder = RandomizedResponse(1.5 * CLAIM, 11)
    assert response_bound(louder.respond, (3, 10), 11) > CLAIM
