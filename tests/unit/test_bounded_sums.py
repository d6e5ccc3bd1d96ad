"""Noise meets a value that carries its sensitivity, in integers."""

import math
import pickle
from collections.abc import Callable

import numpy as np
import pytest

import secure_fd.privacy.record
from secure_fd.errors import LocalError
from secure_fd.privacy.record import UNITS, Bounded, PooledPlan
from secure_fd.privacy.samplers import Random, SeededRandom
from secure_fd.votes.codec import IntArray

VALUES: IntArray = np.arange(-6, 6).reshape(3, 4)


@pytest.mark.parametrize("l2", [0, -1, math.nan])
def test_a_sensitivity_that_is_none_is_refused(l2):
    with pytest.raises(LocalError, match="is no sensitivity"):
        Bounded(VALUES, l2)


def test_values_without_noise_are_neither_shown_nor_pickled():
    bounded = Bounded(VALUES, 7)
    assert repr(bounded) == "Bounded(l2=7)"
    with pytest.raises(LocalError, match="cannot be pickled"):
        pickle.dumps(bounded)


def test_floats_are_refused_before_the_noise():
    with pytest.raises(LocalError, match="float64 is not allowed"):
        Bounded(VALUES.astype(np.float64), 7)


# A release whose mechanism is broken leaves a trace that a check finds.


def rounded_noise(sigma: float, size: int, random: Random) -> IntArray:
    """Broken on purpose: continuous noise rounded to even units, a coarser grid than the values."""
    rng = np.random.default_rng(int.from_bytes(random(8), "big"))
    halved = np.rint(rng.normal(0.0, sigma / 2, size))
    return 2 * np.asarray(halved, dtype=np.int64)


def released(monkeypatch: pytest.MonkeyPatch, twin: Callable[..., IntArray] | None) -> IntArray:
    """20,000 entries, of which a client's only record adds one to each odd one."""
    if twin is not None:
        monkeypatch.setattr(secure_fd.privacy.record, "discrete_gaussian", twin)
    plan = PooledPlan(clients=1, honest=1, entries=20_000, noise=1.081)
    sums = Bounded(np.arange(20_000) % 2, l2=UNITS)
    return plan.perturb(sums, SeededRandom(3))


def test_the_low_bit_of_a_release_tells_nothing(monkeypatch):
    """The share of odd entries at odd places: 1/2, within 6 standard errors (2e-9)."""
    tolerance = 6 * 0.5 / math.sqrt(10_000)
    fair = (released(monkeypatch, None)[1::2] % 2).mean()
    bent = (released(monkeypatch, rounded_noise)[1::2] % 2).mean()
    assert abs(fair - 0.5) < tolerance < abs(bent - 0.5)
