"""Rivals of the pooled heads and the fleet: sensitivity, the cost of plans, and their noise."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2

from experiments.privacy.private_rivals import DELTA
from experiments.privacy.rival_heads import (
    CentredFeatures,
    Records,
    gradient_sums,
    noise_of,
    planned,
)
from experiments.rivals.fleet import (
    ABSTAIN,
    released_sums,
)
from experiments.rivals.fleet import (
    planned as fleet_planned,
)
from secure_fd.privacy.base import IN_CLEAR
from secure_fd.privacy.calibration import epsilon
from secure_fd.privacy.client import ClientPlan, ClientUnit
from secure_fd.privacy.record import FEATURE_UNITS, UNITS
from secure_fd.privacy.samplers import SeededRandom

MANY = 400
RANDOM = SeededRandom(1)


def public(seed: int = 0, n_features: int = 60) -> CentredFeatures:
    return CentredFeatures.fit(np.random.default_rng(seed).standard_normal((200, 4)), n_features)


def records(seed: int = 0, count: int = MANY, n_features: int = 60) -> tuple[float, Records]:
    """Three classes around three points, as seen by the public map; and the map's rate."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(3, size=count)
    inputs = 0.7 * rng.standard_normal((count, 4)) + 2 * np.eye(3, 4)[labels]
    seen = public(n_features=n_features)
    return seen.rate, Records(seen.units(inputs), labels, 3)


def without(of: Records, k: int) -> Records:
    """Of all records but one."""
    kept = np.arange(len(of)) != k
    return replace(of, units=of.units[kept], labels=of.labels[kept])


# What one record can move.


@given(st.integers(0, 2**32 - 1), st.sampled_from([0.0, 1.0, 1000.0]), st.sampled_from([1.0, 1e3]))
@settings(max_examples=25, deadline=None)
def test_no_record_moves_a_sum_by_more_than_its_noise_counts_on(seed, steep, far):
    """Whatever its image, its label, and the head that it is asked about."""
    rng = np.random.default_rng(seed)
    seen = public(seed % 7)
    units = seen.units(far * rng.standard_normal((4, 4)))
    assert int((units.astype(np.int64) ** 2).sum(axis=1).max()) <= FEATURE_UNITS**2
    every = Records(units, rng.integers(3, size=4), 3)
    head = steep * rng.standard_normal(every.shape)
    for k in range(4):
        others = without(every, k)
        moved = gradient_sums(every, head) - gradient_sums(others, head)
        assert math.sqrt(float((moved.astype(float) ** 2).sum())) <= UNITS


# What a plan costs, by an accountant of another make.


def other_epsilon(*events: Any) -> float:
    pytest.importorskip("dp_accounting")
    from dp_accounting import pld

    accountant = pld.PLDAccountant(value_discretization_interval=1e-3)
    for event in events:
        accountant.compose(event)
    return float(accountant.get_epsilon(DELTA))


@pytest.mark.parametrize("budget", [0.25, 1.0, 4.0])
def test_every_plan_costs_what_it_claims(budget):
    """dp_accounting's privacy loss distribution bounds the same noise from above, on its grid."""
    dp = pytest.importorskip("dp_accounting")
    plan = planned(budget, (1000, 10), 10, 7)(5)
    theirs = other_epsilon(dp.SelfComposedDpEvent(dp.GaussianDpEvent(plan.noise), 5))
    assert epsilon(plan, DELTA) == pytest.approx(budget, rel=1e-3)
    assert theirs == pytest.approx(budget, rel=0.002, abs=0.002)


def test_all_clients_add_their_share():
    """10 / 7 of the variance that is needed. False alarms: 1e-6; seven shares are always caught."""
    plan, size = planned(4.0, (300, 10), 10, 7)(2), 3000
    low, high = chi2.ppf([5e-7, 1 - 5e-7], size)
    needed = (plan.noise * UNITS) ** 2

    def spread(clients: int) -> float:
        drawn = noise_of(replace(plan, clients=clients), SeededRandom(3)).astype(float)
        return float((drawn**2).sum() / (needed * 10 / 7))

    assert low <= spread(10) <= high
    assert not low <= spread(7) <= high


# Without noise each is the method that it is named after.


# The study.


# The fleet.


# Votes.


def fleet_of(clients: int, absent: int, corrupt: int = 0) -> ClientPlan:
    """Four classes; the number of proxies is still to be planned."""
    return ClientPlan(
        clients=clients, proxies=1, rounds=1, classes=4, absent=absent, corrupt=corrupt
    )


def some_votes(clients: int = 400, proxies: int = 40) -> np.ndarray:
    """Everybody is right about class index mod 4, but for one in four, who abstains."""
    rng = np.random.default_rng(3)
    labels = np.tile(np.arange(proxies) % 4, (clients, 1))
    labels[rng.random(labels.shape) < 0.25] = ABSTAIN
    return labels.astype(np.int8)


def tallied(cast: np.ndarray, present: np.ndarray) -> np.ndarray:
    return np.stack([(cast[present] == c).sum(axis=0) for c in range(4)], axis=1)


def noises(unit: ClientUnit, cast: np.ndarray, present: np.ndarray) -> np.ndarray:
    """What the released sums add to the tally, before anything is clipped, in votes."""
    kept: list[np.ndarray] = []
    whole = unit.debias
    unit.debias = lambda sums, who: kept.append(sums.total) or whole(sums, who)
    released_sums(cast, unit.plan, unit, present)
    return kept[0] - tallied(cast, present)


@pytest.mark.parametrize("absent", [0, 40])
def test_every_present_client_adds_its_share_and_no_other_does(absent):
    """Two-sided 4-sigma test of the variance of 16,000 noises: false alarm 6e-5.

    The same test must reject the variance of 40 shares more or fewer.
    """
    cast = some_votes(400, 4000)
    plan = fleet_planned(fleet_of(400, 40, corrupt=40), 1.0, 4.0, DELTA, 4000)
    plan = replace(plan, proxies=4000)
    unit = ClientUnit(4.0, DELTA, plan, random=SeededRandom(absent))
    present = np.arange(400 - absent)
    share = unit.plan.share_variance / unit.plan.scale**2
    found = noises(unit, cast, present).var()
    tolerance = 4 * math.sqrt(2 / 16_000)
    assert abs(found / (share * len(present)) - 1) < tolerance
    for other in (len(present) - 40, len(present) + 40):
        assert abs(found / (share * other) - 1) > tolerance


def test_a_sum_of_too_few_voids_the_guarantee():
    """A simulation adds up in clear, and says so."""
    plan = fleet_planned(fleet_of(400, 40), 1.0, 4.0, DELTA, 40)
    for present, why in ((360, IN_CLEAR), (359, "a sum of 359 inputs was opened")):
        unit = ClientUnit(4.0, DELTA, plan)
        released_sums(some_votes(), unit.plan, unit, np.arange(present))
        assert any(why in reason for reason in unit.guarantee().unmet)


# The rule.
