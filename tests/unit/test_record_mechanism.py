"""Noise meets a value that carries its sensitivity, in integers, and the event comes with it."""

import math
import pickle
from collections.abc import Callable

import numpy as np
import pytest

import secure_fd.privacy.release
from secure_fd.errors import ConfigurationError, LocalError
from secure_fd.knowledge import FloatArray, IntArray
from secure_fd.privacy.events import DiscreteGaussian
from secure_fd.privacy.release import Bounded, Noisy, add_discrete_gaussian, release_class_means
from secure_fd.privacy.samplers import Random, SeededRandom

VALUES: IntArray = np.arange(-6, 6).reshape(3, 4)
DELTA = 1e-5


def test_the_noise_scales_with_the_sensitivity_and_the_event_does_not() -> None:
    """Deviations of 10^5 draws: within 1.5 % of sigma, 6.7 standard errors (2e-11)."""
    zeros = np.zeros(100_000, dtype=np.int64)
    for l2, z in ((50, 2.0), (1 << 16, 2.0), (1 << 16, 0.7)):
        noisy = add_discrete_gaussian(Bounded(zeros, l2), z, SeededRandom(l2))
        assert noisy.event == DiscreteGaussian(z)
        assert noisy.values.std() == pytest.approx(z * l2, rel=0.015)
        for wrong in (2 / 3, 3 / 2):
            assert noisy.values.std() != pytest.approx(wrong * z * l2, rel=0.015)


def test_no_noise_changes_nothing_and_draws_nothing() -> None:
    def forbidden(count: int) -> bytes:
        raise AssertionError(f"{count} random bytes were drawn where none may be")

    noisy = add_discrete_gaussian(Bounded(VALUES, 3), 0.0, forbidden)
    assert noisy.values.tolist() == VALUES.tolist()
    assert noisy.event == DiscreteGaussian(0.0)


def test_leaving_rows_out_keeps_the_sensitivity() -> None:
    some = Bounded(VALUES, 7).rows((0, 2))
    assert some.values.tolist() == VALUES[[0, 2]].tolist()
    assert some.l2 == 7


@pytest.mark.parametrize("l2", [0, -1, math.nan])
def test_a_sensitivity_that_is_none_is_refused(l2: int) -> None:
    with pytest.raises(LocalError, match="is no sensitivity"):
        Bounded(VALUES, l2)


@pytest.mark.parametrize("z", [-1.0, math.nan])
def test_a_noise_multiplier_that_is_none_is_refused(z: float) -> None:
    with pytest.raises(ConfigurationError, match="noise_multiplier"):
        add_discrete_gaussian(Bounded(VALUES, 7), z, SeededRandom(0))


def test_values_without_noise_are_neither_shown_nor_pickled() -> None:
    bounded = Bounded(VALUES, 7)
    assert repr(bounded) == "Bounded(l2=7)"
    with pytest.raises(LocalError, match="cannot be pickled"):
        pickle.dumps(bounded)


def test_floats_are_refused_before_and_after_the_noise() -> None:
    with pytest.raises(LocalError, match="float64 is not allowed"):
        Bounded(VALUES.astype(np.float64), 7)
    with pytest.raises(LocalError, match="float64 is not allowed"):
        Noisy(VALUES.astype(np.float64), DiscreteGaussian(1.0))


# A release whose mechanism is broken is refused, or leaves a trace that a check finds.


def float_noise(sigma: float, size: int, random: Random) -> FloatArray:
    """Broken on purpose: continuous noise, whose low bits tell the value that it was added to."""
    rng = np.random.default_rng(int.from_bytes(random(8), "big"))
    return rng.normal(0.0, sigma, size)


def rounded_noise(sigma: float, size: int, random: Random) -> IntArray:
    """Broken on purpose: continuous noise rounded to even units, a coarser grid than the values."""
    halved = np.rint(float_noise(sigma / 2, size, random))
    return 2 * np.asarray(halved, dtype=np.int64)


def released(
    monkeypatch: pytest.MonkeyPatch, twin: Callable[..., FloatArray | IntArray] | None
) -> IntArray:
    """Units of 20,000 entries, of which a client's only record adds one to each odd one."""
    if twin is not None:
        monkeypatch.setattr(secure_fd.privacy.release, "discrete_gaussian", twin)
    row = np.zeros((1, 20_000))
    row[0, 1::2] = 2.0**-16
    made = release_class_means(
        row, np.zeros(1, dtype=np.int64), 1, epsilon=4.0, delta=DELTA, random=SeededRandom(3)
    )
    units: IntArray = np.rint(made.means[0] * 2**16).astype(np.int64)
    return units


def test_float_noise_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(LocalError, match="float64 is not allowed"):
        released(monkeypatch, float_noise)


def test_the_low_bit_of_a_release_tells_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The share of odd entries at odd places: 1/2, within 6 standard errors (2e-9)."""
    tolerance = 6 * 0.5 / math.sqrt(10_000)
    fair = (released(monkeypatch, None)[1::2] % 2).mean()
    bent = (released(monkeypatch, rounded_noise)[1::2] % 2).mean()
    assert abs(fair - 0.5) < tolerance < abs(bent - 0.5)
