"""Choices of the record unit: a threshold that keeps its claim, and fair figures."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from experiments.measures import HARD_KEPT, KEPT_ONCE, RIGHT_OF_ALL, RIGHT_ONCE, STUDENT
from experiments.record_rules import (
    hardest_half,
    judge,
    private_thresholds,
    response_epsilon,
    utility,
)
from secure_fd.data.federated import FederatedData
from secure_fd.data.images import Images
from secure_fd.knowledge import FloatArray, IntArray, Released, one_hot
from secure_fd.protection.record import RecordUnit, told

PROXIES: FloatArray = np.random.default_rng(0).normal(size=(2000, 1))


def draws(own: FloatArray, epsilon: float, count: int = 1, seed: int = 0) -> FloatArray:
    rng, columns = np.random.default_rng(seed), np.zeros(len(own), dtype=np.int64)
    return np.array([
        private_thresholds(PROXIES, own[:, None], columns, 0.25, epsilon, rng)[0]
        for _ in range(count)
    ])  # fmt: skip


def test_a_threshold_without_noise_is_the_quantile_up_to_the_grid() -> None:
    own = np.random.default_rng(1).normal(1.0, 0.3, 400)
    assert draws(own, math.inf)[0] == pytest.approx(np.quantile(own, 0.25), abs=0.02)
    assert draws(own, 5.0)[0] == pytest.approx(np.quantile(own, 0.25), abs=0.1)


@given(
    own=arrays(np.float64, st.integers(1, 12), elements=st.floats(-3, 3)),
    quantile=st.floats(0.01, 0.99),
    at=st.integers(0, 11),
)
@settings(deadline=None)
def test_a_record_moves_a_utility_by_less_than_one(
    own: FloatArray, quantile: float, at: int
) -> None:
    points = np.linspace(-3, 3, 30)
    moved = utility(points, own, quantile) - utility(
        points, np.delete(own, at % len(own)), quantile
    )
    assert np.abs(moved).max() <= max(quantile, 1 - quantile) + 1e-9


def test_some_record_moves_a_utility_by_nearly_one() -> None:
    """So a twin that takes the sensitivity for a half is caught."""
    own, points = np.array([-5.0]), np.array([0.0])
    moved = utility(points, own, 0.01) - utility(points, own[:0], 0.01)
    assert abs(moved[0]) == pytest.approx(0.99)


def test_the_response_and_the_head_share_the_budget() -> None:
    """(epsilon^2 / 8) + 1 / (2 z'^2) with z' = z / sqrt(share) is 1 / (2 z^2) again."""
    for z, share in ((1.158, 0.9), (4.045, 0.5)):
        answer = response_epsilon(z, 1 - share)
        assert answer**2 / 8 + share / (2 * z**2) == pytest.approx(1 / (2 * z**2))
    assert response_epsilon(0.0, 0.1) == math.inf


def test_the_hard_half_is_the_one_between_the_classes() -> None:
    inputs = np.array([[0.0], [0.1], [0.9], [1.0], [3.0], [3.1], [2.2], [2.1]])
    labels: IntArray = np.array([4, 4, 4, 4, 6, 6, 6, 6])
    between = [False, False, True, True]
    assert hardest_half(inputs, labels).tolist() == between * 2


def votes_of(labels: IntArray, weights: FloatArray) -> list[Released]:
    silent = Released(np.zeros(len(labels)), one_hot(labels, 10))
    return [Released(weights, one_hot(labels, 10)), silent]


def test_figures_follow_the_votes(digits: FederatedData) -> None:
    truth = digits.proxies.labels.numpy()
    everyone = np.ones(len(truth))
    perfect = judge(digits, votes_of(truth, everyone))
    shares = (KEPT_ONCE, HARD_KEPT, RIGHT_ONCE, RIGHT_OF_ALL)
    assert [perfect[name] for name in shares] == [1, 1, 1, 1]
    assert perfect[STUDENT] > 0.7
    wrong = judge(digits, votes_of((truth + 1) % 10, everyone))
    assert [wrong[name] for name in shares] == [1, 1, 0, 0]
    assert wrong[STUDENT] < 0.2
    half = judge(digits, votes_of(truth, (np.arange(len(truth)) % 2).astype(float)))
    assert (half[KEPT_ONCE], half[RIGHT_ONCE], half[RIGHT_OF_ALL]) == (0.5, 1, 0.5)


# All classes are released; those within their noise cast no votes.


def test_a_class_of_one_record_shows_in_nothing_that_is_declared(digits: FederatedData) -> None:
    """The twin declares what it holds: the set of classes tells of its only record of one."""
    train = digits.clients[0].train
    labels = train.labels.clone()
    labels[0] = 7  # the only record of its class
    worlds = (train, Images(train.pixels, labels))
    for classes, tells in (("all", False), ("declared", True)):
        unit = RecordUnit(4.0, 1e-5, classes=classes)  # type: ignore[arg-type]
        assert (unit.declares(worlds[0]) != unit.declares(worlds[1])) is tells


def test_classes_within_their_noise_cast_no_votes() -> None:
    common = np.full(100, 0.09)  # norm .9
    means = np.outer([0.6, 0.35, 0.05, 0.0], common)
    assert told(means, common, noise=0.03) == (0, 1)
    assert told(means, common, noise=0.001) == (0, 1, 2)
    assert told(means, common, noise=10.0) == (0, 1, 2, 3)
