"""The pooled record unit: exact sensitivity, shares inside masks, and no more sums than planned."""

import math
import os
import pickle
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2

from attacks.audit.shares import StandInForMasks
from secure_fd.data.federated import FederatedData
from secure_fd.errors import BudgetError, ConfigurationError, LocalError
from secure_fd.methods.pooled_heads import PooledHeads
from secure_fd.privacy.calibration import calibrate, epsilon
from secure_fd.privacy.guarantee import PrivacyUnit
from secure_fd.privacy.ledger import Ledger
from secure_fd.privacy.record import (
    FEATURE_UNITS,
    RESIDUAL_UNITS,
    UNITS,
    Bounded,
    NoisyClassSums,
    PooledPlan,
    PooledRecordUnit,
    feature_units,
    pooled_sums,
    residual_units,
    significant_classes,
)
from secure_fd.privacy.samplers import SeededRandom
from secure_fd.secure_sum.base import SumGuarantee
from secure_fd.secure_sum.masked import MaskedSum
from secure_fd.secure_sum.plain import PlainSum
from secure_fd.selection.density_ratio import ReferenceSettings
from secure_fd.simulation.federation import Federation
from secure_fd.votes.codec import FloatArray
from secure_fd.wire import Stage
from tests.refusals import refused
from tests.small_federation import SMALL, STILL, faults, federation, record_unit

DELTA = 1e-5
PLAN = PooledPlan(clients=10, honest=7, entries=2000)


def pooled(
    data: FederatedData,
    unit: PooledRecordUnit | None,
    residual_rounds: int = 0,
    absent: dict[int, dict[int, Stage]] | None = None,
) -> Federation:
    """Under masks, with nothing but the sums."""
    return federation(
        data,
        PooledHeads(residual_rounds, features=SMALL),
        aggregation=MaskedSum(len(data.clients), public_seed=0),
        protection=unit,
        schedule=STILL,
        dropouts=faults(absent) if absent else None,
    )


def head_of(run: Federation) -> FloatArray:
    return run.server.role.head


# What one record can move.


@given(st.integers(0, 2**32 - 1), st.integers(2, 40), st.sampled_from([0.3, 1.0, 50.0]))
@settings(max_examples=40, deadline=None)
def test_no_record_moves_a_sum_by_more_than_its_units(seed, size, spread):
    """Whatever its features and however wrong a head is about it, alone or among others."""
    rng = np.random.default_rng(seed)
    features = rng.standard_normal((5, size))
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    residuals = spread * rng.standard_normal((5, 3))
    residuals[0] = (1.0, 0.0, 0.0)
    every = pooled_sums([(features, residuals)], (size, 3)).values
    for k in range(5):
        others = np.arange(5) != k
        without = pooled_sums([(features[others], residuals[others])], (size, 3)).values
        assert int(((every - without) ** 2).sum()) <= UNITS**2


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e9])
def test_values_that_no_noise_covers_are_refused(bad):
    with pytest.raises(LocalError, match="not finite, or far too large"):
        feature_units(np.array([[bad, 0.0]]))
    with pytest.raises(LocalError, match="not finite, or far too large"):
        residual_units(np.array([[bad, 0.0]]))
    with pytest.raises(LocalError, match="more than its noise covers"):
        feature_units(np.array([[1.0, 0.5]]))  # norm above 1: the map's duty
    shortened = residual_units(np.array([[30.0, 40.0]]))
    assert np.linalg.norm(shortened) <= RESIDUAL_UNITS
    assert UNITS == FEATURE_UNITS * RESIDUAL_UNITS


# The plan and its epsilon.


def test_shares_of_all_ten_are_too_little_where_three_tell_theirs():
    """The mutation counts on all ten clients, of which only seven keep their shares."""
    naive = PooledPlan(clients=10, honest=10, entries=2000)
    planned = naive.with_noise(calibrate(4.0, DELTA, naive))
    assert epsilon(planned.with_honest(7), DELTA) > 4.5
    careful = PLAN.with_noise(calibrate(4.0, DELTA, PLAN))
    assert epsilon(careful, DELTA) <= 4.0
    assert careful.share_variance == pytest.approx(planned.share_variance * 10 / 7, rel=0.01)
    assert epsilon(careful.with_honest(10), DELTA) < 3.4


# In a federation.


def test_without_noise_the_head_is_the_one_of_plain_sums(digits):
    quiet, plain = (pooled(digits, unit) for unit in (record_unit(digits, math.inf), None))
    for run in (quiet, plain):
        run.fit(1)
    assert quiet.guarantee() is None
    answers = [run.clients[0].role.terms.scores(head_of(run)) for run in (quiet, plain)]
    assert (answers[0].argmax(axis=1) == answers[1].argmax(axis=1)).mean() > 0.97


def test_a_sum_carries_the_noise_of_every_client(digits):
    """Chi-square on 2,000 entries: false alarms at 1e-6; half the variance is caught."""
    totals = []
    for budget in (4.0, math.inf):
        unit = record_unit(digits, budget)
        unit.features = SMALL  # one map for every noise, so that sums can be compared
        run = pooled(digits, unit)
        run.fit(1)
        totals.append((unit, run.server.last.total.astype(np.float64)))
    (unit, noisy), (_, exact) = totals
    variance = len(digits.clients) * unit.plan.share_variance
    found = float(((noisy - exact) ** 2).sum()) / variance
    entries = unit.plan.entries
    low, high = chi2.ppf([5e-7, 1 - 5e-7], entries)
    assert low < found < high
    assert not low < found / 2 < high


def test_no_more_sums_than_planned(digits):
    unit = record_unit(digits, sums=2)
    run = pooled(digits, unit, residual_rounds=1)
    run.fit(2)
    claim, sent, head = run.guarantee(), sum(run.transcript.up), head_of(run)
    assert claim.unit is PrivacyUnit.RECORD
    assert claim.epsilon == pytest.approx(4.0, rel=1e-6)
    assert claim.epsilon <= 4.0
    run.fit(2)  # nothing is asked any more
    assert (run.guarantee(), sum(run.transcript.up)) == (claim, sent)
    assert head_of(run) is head
    with pytest.raises(BudgetError):
        unit.parts[0].release_sums([], (200, 10))
    seeded = pooled(digits, record_unit(digits, random=SeededRandom(1)))
    seeded.fit(1)
    assert not seeded.guarantee().holds


def test_a_sum_with_too_few_shares_is_not_opened(digits):
    """Three of four must be there: two of them carry too little noise."""
    gone = {0: {0: Stage.INPUT, 1: Stage.INPUT}}
    run = pooled(digits, record_unit(digits), absent=gone)
    run.fit(1)
    assert run.server.last is None
    assert not head_of(run).any()


class Silent(SumGuarantee):
    """A sum that does not say that it hides."""

    name, n_clients, guarantee = "silent", 4, ""


class MoreCorrupt(StandInForMasks):
    """Two corrupt clients of four may disclose their noise, where one is planned for."""

    corrupt = 2


def test_sums_and_methods_that_the_noise_was_not_planned_for_are_refused(digits):
    unit = record_unit(digits)
    unit.check_sum(StandInForMasks(4))
    record_unit(digits, math.inf).check_sum(PlainSum(4))
    for sums in (PlainSum(4), Silent(), MaskedSum(10), MoreCorrupt(4)):
        with pytest.raises(ConfigurationError):
            unit.check_sum(sums)
    with refused("residual_rounds"):
        pooled(digits, record_unit(digits, sums=2), residual_rounds=0)
    plan = replace(PLAN, entries=4, noise=1.0)
    for values in (
        Bounded(np.zeros(5, np.int64), UNITS),
        Bounded(np.zeros(4, np.int64), 2 * UNITS),
    ):
        with pytest.raises(LocalError, match="use 4"):
            plan.perturb(values, os.urandom)
    assert plan.room(10) > 3 * UNITS > plan.room(1) > 2 * UNITS


@pytest.mark.parametrize("honest", [1, None])
def test_noise_that_no_sampler_draws_is_refused_before_anything_is_booked(honest):
    """Epsilon .01 at delta 1e-8, of three clients; at .02 the noise is drawn."""
    ledger = Ledger()

    def made(epsilon: float) -> NoisyClassSums:
        features = ReferenceSettings(rank=5, n_features=10)
        known = {"records": (30,) * 3, "n_proxies": 40, "n_classes": 2, "features": features}
        unit = PooledRecordUnit(epsilon, 1e-8, honest=honest, ledgers={0: ledger}, **known)
        return unit.client(0)

    with refused("epsilon"):
        made(0.01)
    assert not ledger.bookings
    assert made(0.02).release_sums([(np.eye(30, 10), np.eye(30, 2))], (10, 2)).any()


# The local unit: each client's own noise is enough.


def test_a_local_release_is_private_in_clear(digits):
    """Check each upload that the server reads; the mutation keeps a share of pooled noise alone."""
    unit = record_unit(digits, honest=1)
    run = federation(digits, PooledHeads(0), protection=unit, schedule=STILL)
    run.fit(1)
    claim = run.guarantee()
    assert claim.holds
    assert claim.epsilon <= 4
    assert len(run.transcript.heads[0].uploads or {}) == 4
    assert unit.plan.share_variance == pytest.approx((unit.plan.noise * UNITS) ** 2)
    mutant = record_unit(digits)  # two honest shares of three: one alone has half of the variance
    assert mutant.plan.share_variance < 0.6 * unit.plan.share_variance
    alone = replace(mutant.plan, honest=1, noise=math.sqrt(mutant.plan.share_variance) / UNITS)
    assert epsilon(alone, DELTA) > 5.5


@pytest.mark.parametrize(("deviation", "kept"), [(10.0, [0]), (1.0, [0, 1])])
def test_classes_within_their_noise_are_left_out(deviation, kept):
    """With 200 records of one class and 20 of another, noise of 12 records hides the second.

    Nothing is left out where most of the records would be.
    """
    rng = np.random.default_rng(0)
    common = np.full(400, 0.04)  # norm .8
    clean = np.outer(common, [200.0, 20.0, *[0.0] * 8])
    noisy = np.rint((clean + rng.normal(0, deviation, clean.shape)) * UNITS).astype(np.int64)
    sums = significant_classes(noisy.ravel(), UNITS * common, 220, 10, deviation * UNITS)
    sums = sums.reshape(400, 10)
    assert np.flatnonzero(sums.any(axis=0)).tolist() == kept
    assert np.array_equal(sums[:, kept], noisy[:, kept])
    few = np.rint(np.outer(common, np.full(10, 30.0)) * UNITS).astype(np.int64).ravel()
    assert significant_classes(few, UNITS * common, 300, 10, 20.0 * UNITS) is few


def test_noise_meets_integers_that_carry_their_sensitivity_and_do_not_show():
    values = np.arange(-6, 6).reshape(3, 4)
    for wrong, l2 in ((values, 0), (values, -1), (values, math.nan), (values.astype(float), 7)):
        with pytest.raises(LocalError):
            Bounded(wrong, l2)
    bounded = Bounded(values, 7)
    assert repr(bounded) == "Bounded(l2=7)"
    with pytest.raises(LocalError):
        pickle.dumps(bounded)
