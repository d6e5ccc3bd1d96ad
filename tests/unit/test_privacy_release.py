"""The record release: its sensitivity, its refusals, and the claim that travels with it."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from secure_fd.errors import ConfigurationError, LocalError
from secure_fd.knowledge import FloatArray, IntArray
from secure_fd.privacy.calibration import epsilon
from secure_fd.privacy.events import DiscreteGaussian
from secure_fd.privacy.plans import UNIT
from secure_fd.privacy.release import class_sums, record_plan, release_class_means, to_units
from secure_fd.privacy.samplers import SeededRandom

DELTA = 1e-5


def unit_rows(n: int, d: int, seed: int = 0) -> FloatArray:
    rows: FloatArray = np.random.default_rng(seed).normal(size=(n, d))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return rows


def forbidden(count: int) -> bytes:
    raise AssertionError(f"{count} random bytes were drawn where none may be")


LABELS: IntArray = np.arange(60) % 3


@settings(max_examples=200)
@given(
    row=arrays(np.float64, st.integers(1, 40), elements=st.floats(-1, 1)),
    label=st.integers(0, 2),
    at=st.integers(0, 59),
)
def test_any_record_moves_one_block_by_at_most_the_sensitivity(
    row: FloatArray, label: int, at: int
) -> None:
    """Zeroing out any record with a norm of at most 1, as near to 1 as floats come."""
    features, labels = unit_rows(60, row.size), LABELS.copy()
    norm = float(np.linalg.norm(row))
    features[at], labels[at] = row / norm if norm > 1e-9 else row, label
    present = class_sums(features, labels, 3)
    features[at] = 0
    moved = present.values - class_sums(features, labels, 3).values
    assert int((moved**2).sum()) <= present.l2**2
    assert set(np.flatnonzero(moved.any(axis=1))) <= {label}


def test_the_worst_record_uses_the_whole_sensitivity() -> None:
    """So a twin that declares a unit less is caught, and one that declares more wastes noise."""
    moved = class_sums(np.array([[0.0, -1.0]]), np.array([1]), 2)
    assert moved.values.tolist() == [[0, 0], [0, -UNIT]]
    assert int((moved.values**2).sum()) == moved.l2**2 > (moved.l2 - 1) ** 2


def test_rounding_to_nearest_would_break_the_sensitivity() -> None:
    """The twin, on rows of norm 1: truncation never exceeds it, nearest rounding often does."""
    rows = unit_rows(100, 200)
    nearest = (np.rint(rows * UNIT) ** 2).sum(axis=1)
    assert 20 < np.count_nonzero(nearest > UNIT**2) < 80
    assert (to_units(rows) ** 2).sum(axis=1).max() <= UNIT**2


@pytest.mark.parametrize("bad", [1.0001, 3.0, -1.5, math.nan, math.inf, 1e300])
def test_a_row_that_the_noise_would_not_cover_is_refused(bad: float) -> None:
    features = unit_rows(4, 3)
    features[2] = [bad, 0, 0]
    with pytest.raises(LocalError, match="features"):
        release_class_means(features, np.zeros(4, dtype=np.int64), 2, epsilon=1.0, delta=DELTA)


def test_a_long_row_of_small_entries_is_refused_too() -> None:
    with pytest.raises(LocalError, match="norm above 1"):
        to_units(np.full((1, 100), 0.11))


def test_infinite_epsilon_gives_the_exact_means() -> None:
    features = unit_rows(60, 50)
    released = release_class_means(
        features, LABELS, 3, epsilon=math.inf, delta=DELTA, random=forbidden
    )
    exact = class_sums(features, LABELS, 3).values / (60 * UNIT)
    assert released.means.tobytes() == exact.tobytes()
    means = [features[c == LABELS].sum(axis=0) / 60 for c in range(3)]
    np.testing.assert_allclose(released.means, means, atol=1 / UNIT)
    assert released.guarantee.sentence() == (
        "No differential privacy at the record unit: no noise is added."
    )


def test_float32_features_are_taken_as_they_are() -> None:
    features = unit_rows(60, 50).astype(np.float32)
    assert (to_units(features) == to_units(features.astype(np.float64))).all()


def test_the_claim_is_made_with_the_noise() -> None:
    released = release_class_means(unit_rows(60, 5), LABELS, 3, epsilon=4.0, delta=DELTA)
    assert released.noise_multiplier == pytest.approx(1.081, abs=1e-3)
    assert released.event == DiscreteGaussian(released.noise_multiplier)
    assert released.guarantee.epsilon == epsilon(record_plan(4.0, DELTA, 60), DELTA)
    assert released.guarantee.epsilon == pytest.approx(4.0)
    assert released.guarantee.delta == DELTA
    assert released.n_records == 60
    assert "means" not in repr(released)


def test_seeded_noise_carries_no_epsilon() -> None:
    released = release_class_means(
        unit_rows(60, 5), LABELS, 3, epsilon=4.0, delta=DELTA, random=SeededRandom(0)
    )
    assert released.guarantee.unmet == ("the noise was drawn from a seeded generator",)
    assert math.isinf(released.guarantee.epsilon)


def test_only_declared_blocks_are_released() -> None:
    features = unit_rows(60, 5)
    released = release_class_means(
        features, LABELS, 3, epsilon=4.0, delta=DELTA, declared_classes=(0, 2)
    )
    assert released.classes == (0, 2)
    assert not released.means[1].any()
    assert released.means[[0, 2]].all()
    assert any("declares" in item for item in released.guarantee.not_covered)
    undeclared = release_class_means(features, LABELS, 3, epsilon=4.0, delta=DELTA)
    assert undeclared.means.all()
    assert not any("declares" in item for item in undeclared.guarantee.not_covered)


def test_an_empty_class_is_noised_like_any_other() -> None:
    nothing = np.zeros(60, dtype=np.int64)
    released = release_class_means(unit_rows(60, 400), nothing, 3, epsilon=4.0, delta=DELTA)
    spread = released.means[1:].std() * 60
    assert spread == pytest.approx(released.noise_multiplier, rel=0.2)


@pytest.mark.parametrize(
    ("features", "labels"),
    [
        (np.zeros((0, 3)), np.zeros(0, dtype=np.int64)),
        (np.zeros((2, 3)), np.zeros(3, dtype=np.int64)),
        (np.zeros(3), np.zeros(3, dtype=np.int64)),
        (np.zeros((2, 3)), np.array([0, 2])),
        (np.zeros((2, 3)), np.array([0, -1])),
    ],
)
def test_bad_input_is_refused(features: FloatArray, labels: IntArray) -> None:
    with pytest.raises(LocalError):
        release_class_means(features, labels, 2, epsilon=1.0, delta=DELTA)


def test_bad_budgets_are_refused() -> None:
    for budget, delta in [(0.0, DELTA), (-1.0, DELTA), (1.0, 0.0), (1.0, 0.1)]:
        with pytest.raises(ConfigurationError):
            release_class_means(unit_rows(60, 5), LABELS, 3, epsilon=budget, delta=delta)
