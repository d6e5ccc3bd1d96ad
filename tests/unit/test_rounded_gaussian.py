"""The bound on sums of discrete Gaussians against exact curves, over the range that it accepts.

Probabilities are sums and products of positive numbers, so that tails are right relative to
themselves; nothing here draws at random.
"""

import math
from functools import cache

import numpy as np
import pytest
from dp_accounting.pld.privacy_loss_distribution import (
    PrivacyLossDistribution,
    from_two_probability_mass_functions,
)

from secure_fd.privacy.accountants import ANALYTIC_GAUSSIAN, NEARLY_GAUSSIAN
from secure_fd.privacy.events import Composed, DistributedGaussian, Event, Gaussian, Repeated
from secure_fd.votes.codec import FloatArray

DELTAS = (1e-9, 1e-5, 1e-2)
SHIFTS = (0.05, 1.0, 4.0, 16.0)
"""How far neighbours are apart, in deviations of the sum."""


@cache
def summed(variance: float, shares: int, reach: int) -> FloatArray:
    """[2 n + 1] probabilities of a sum of discrete Gaussians, to `reach` or where they are 0."""
    reach = min(reach, math.ceil(38 * math.sqrt(variance * shares)))
    if shares == 1:
        single = np.exp(-(np.arange(-reach, reach + 1.0) ** 2) / (2 * variance))
        return np.asarray(single / single.sum())
    total = summed(variance, shares // 2, reach)
    total = np.convolve(total, total)
    if shares % 2:
        total = np.convolve(total, summed(variance, 1, reach))
    cut = max(0, len(total) // 2 - reach)
    return np.asarray(total[cut : len(total) - cut])


def exact_delta(chances: FloatArray, shift: int, epsilon: float) -> float:
    """Of one integer that neighbours move by `shift`; both directions are equal by symmetry."""
    moved = np.pad(chances, (shift, 0))
    still = np.pad(chances, (0, shift))
    return float(np.maximum(0.0, moved - math.exp(min(epsilon, 700.0)) * still).sum())


@pytest.mark.parametrize("shares", [1, 2, 7, 33, 300])
@pytest.mark.parametrize("variance", [0.25, 1.0, 4.0, 50.0, 2500.0])
def test_one_entry_against_its_exact_convolution(variance, shares):
    deviation = math.sqrt(variance * shares)
    chances = summed(variance, shares, math.ceil(24 * deviation))
    for shift in {max(1, round(far * deviation)) for far in SHIFTS}:
        event = DistributedGaussian(variance, shares, shift, 1)
        for delta in DELTAS:
            claimed = NEARLY_GAUSSIAN.epsilon(event, delta)
            assert exact_delta(chances, shift, claimed) <= delta * (1 + 1e-9)


@pytest.mark.parametrize("shift", [1, 7])
def test_a_gaussian_of_equal_variance_is_no_bound(shift):
    """The simple reading is caught, so that the test above can fail."""
    chances = summed(4.0, 1, 40)
    deltas = np.logspace(-6, -1, 40)
    claims = (ANALYTIC_GAUSSIAN.epsilon(Gaussian(2.0 / shift), delta) for delta in deltas)
    exact = [exact_delta(chances, shift, claimed) for claimed in claims]
    assert (exact > deltas * 1.001).any()


def losses(variance: float, shares: int, shift: int) -> PrivacyLossDistribution:
    """Of one entry; composed, its delta is below the true one, by rounding to a grid."""
    reach = math.ceil(12 * math.sqrt(variance * shares)) + shift
    logs = np.log(summed(variance, shares, reach))
    still = dict(enumerate(logs))
    moved = {place + shift: value for place, value in still.items()}
    return from_two_probability_mass_functions(
        still,
        moved,
        pessimistic_estimate=False,
        value_discretization_interval=1e-4,
    )


def composed_delta(parts: list[tuple[PrivacyLossDistribution, int]], epsilon: float) -> float:
    first, *others = [entry.self_compose(times) for entry, times in parts]
    for other in others:
        first = first.compose(other)
    return float(first.get_delta_for_epsilon(epsilon))


VECTORS: dict[str, tuple[Event, list[tuple[float, int, int, int]]]] = {
    # each: the event, and (variance, shares, shift, number of such entries)
    "one entry of many": (DistributedGaussian(9.0, 4, 6.0, 10_000), [(9.0, 4, 6, 1)]),
    "all ones": (DistributedGaussian(9.0, 4, 10.0, 100), [(9.0, 4, 1, 100)]),
    "ten thousand ones": (DistributedGaussian(100.0, 7, 100.0, 10_000), [(100.0, 7, 1, 10_000)]),
    "mixed": (
        DistributedGaussian(9.0, 4, math.sqrt(100 + 40 + 36), 111),
        [(9.0, 4, 1, 100), (9.0, 4, 2, 10), (9.0, 4, 6, 1)],
    ),
    "two unlike sums": (
        Composed((DistributedGaussian(9.0, 4, 6.0, 20), DistributedGaussian(2.0, 30, 5.0, 25))),
        [(9.0, 4, 6, 1), (2.0, 30, 1, 25)],
    ),
}


@pytest.mark.parametrize("name", VECTORS)
def test_vectors_and_unlike_sums_against_composed_losses(name):
    """The claim is sound, and not so far above the truth that anything would pass."""
    event, entries = VECTORS[name]
    parts = [(losses(variance, shares, shift), n) for variance, shares, shift, n in entries]
    for delta in (1e-6, 1e-3):
        claimed = NEARLY_GAUSSIAN.epsilon(event, delta)
        assert composed_delta(parts, claimed) <= delta
        assert composed_delta(parts, 0.85 * claimed) > delta


@pytest.mark.parametrize("variance", [4.0, 9.0, 30.0])
def test_an_adversary_who_chooses_each_round_by_the_last(variance):
    """Three rounds; each shift, up to four units, is chosen by all losses so far, for the worst.

    A loss is a whole number of 1 / 2v, so that the best choice is found exactly, last round first.
    """
    most, rounds = 4, 3
    reach = math.ceil(9 * math.sqrt(variance))
    chances, noise = summed(variance, 1, reach), np.arange(-reach, reach + 1)
    edge = rounds * (most**2 + 2 * most * reach)
    places = np.arange(-edge, edge + 1)
    event = Repeated(DistributedGaussian(variance, 1, most, 1), rounds)
    for delta in (1e-6, 1e-3):
        claimed = NEARLY_GAUSSIAN.epsilon(event, delta)
        worst = np.maximum(0.0, -np.expm1(claimed - places / (2 * variance)))
        for _ in range(rounds):
            expected = []
            for shift in range(most + 1):
                ends = np.clip(places[:, None] + shift**2 + 2 * shift * noise, -edge, edge)
                expected.append(worst[ends + edge] @ chances)
            worst = np.max(expected, axis=0)
        assert 0.1 * delta < worst[edge] <= delta
