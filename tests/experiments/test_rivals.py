"""Rivals of the pooled heads and the fleet: sensitivity, the cost of plans, and their noise."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2

from experiments.core.measures import ACCURACY, NETWORK
from experiments.core.study import Result, gathered
from experiments.privacy import dp_utility, fleet, private_rivals, rival_heads
from experiments.privacy.fleet import ABSTAIN, released_sums
from experiments.privacy.fleet import planned as planned_fleet
from experiments.privacy.private_rivals import DELTA, HEAD, HONEST
from experiments.privacy.rival_heads import (
    CentredFeatures,
    Records,
    gradient_sums,
    noise_of,
    planned,
)
from secure_fd.privacy.base import IN_CLEAR
from secure_fd.privacy.calibration import epsilon
from secure_fd.privacy.client import ClientPlan, ClientUnit
from secure_fd.privacy.record import FEATURE_UNITS, UNITS
from secure_fd.privacy.samplers import SeededRandom


def without(of: Records, k: int) -> Records:
    """Return all records but those of unit k."""
    kept = np.arange(len(of)) != k
    return replace(of, units=of.units[kept], labels=of.labels[kept])


# What one record can move.


@given(st.integers(0, 2**32 - 1), st.sampled_from([0.0, 1.0, 1000.0]), st.sampled_from([1.0, 1e3]))
@settings(max_examples=25, deadline=None)
def test_no_record_moves_a_sum_by_more_than_its_noise_counts_on(seed, steep, far):
    """Whatever its image, its label, and the head that it is asked about."""
    rng = np.random.default_rng(seed)
    seen = CentredFeatures.fit(np.random.default_rng(seed % 7).standard_normal((200, 4)), 60)
    units = seen.units(far * rng.standard_normal((4, 4)))
    assert int((units.astype(np.int64) ** 2).sum(axis=1).max()) <= FEATURE_UNITS**2
    every = Records(units, rng.integers(3, size=4), 3)
    head = steep * rng.standard_normal(every.shape)
    for k in range(4):
        others = without(every, k)
        moved = gradient_sums(every, head) - gradient_sums(others, head)
        assert math.sqrt(float((moved.astype(float) ** 2).sum())) <= UNITS


# What a plan costs, by an accountant of another make, and its noise.


@pytest.mark.parametrize("budget", [0.25, 1.0, 4.0])
def test_every_plan_costs_what_it_claims(budget):
    """dp_accounting's privacy loss distribution bounds the same noise from above, on its grid."""
    dp = pytest.importorskip("dp_accounting")
    from dp_accounting import pld

    plan = planned(budget, (1000, 10), 10, 7)(5)
    accountant = pld.PLDAccountant(value_discretization_interval=1e-3)
    accountant.compose(dp.SelfComposedDpEvent(dp.GaussianDpEvent(plan.noise), 5))
    assert epsilon(plan, DELTA) == pytest.approx(budget, rel=1e-3)
    assert accountant.get_epsilon(DELTA) == pytest.approx(budget, rel=0.002, abs=0.002)


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


# Rows of the tables.


def test_one_client_of_each_architecture_trains_on_the_labels_of_the_heads(monkeypatch):
    """Five of ten; the head is the same where no network is trained."""
    brief = rival_heads.distil_once(400, image_set="digits")
    brief = replace(brief, schedule=replace(brief.schedule, proxy_steps=1))
    monkeypatch.setattr(rival_heads, "distil_once", lambda *_, **__: brief)
    trained: list[object] = []
    monkeypatch.setattr(rival_heads, "run_each", trained.extend)
    made = {
        row: rival_heads.measure(None, private_rivals.Cell("digits", "strong", row, "1", 0)).figures
        for row in ("networks", "heads", "local")
    }
    assert len(trained) == 5
    assert {NETWORK, ACCURACY} <= made["networks"].keys()
    assert made["networks"][HEAD] == made["heads"][HEAD]
    assert (made["heads"][HONEST], made["local"][HONEST]) == (4, 1)


def test_the_sentence_about_the_loss_follows_from_the_accuracies():
    made = [
        Result(cell, dict.fromkeys((HEAD, NETWORK, ACCURACY), x) | spent, 0.0)
        for epsilon, x in (("0.25", 0.5), ("inf", 0.75))
        for cell in [private_rivals.Cell("mnist", "strong", "networks", epsilon, 20)]
        for spent in [dict.fromkeys((HONEST, "noisy sums"), 4.0)]
    ]
    shown = private_rivals.shown(gathered(private_rivals.STUDY, made))
    assert "MNIST, strong, networks 25.0" in str(shown[1])


# The fleet.


def test_a_fleet_is_measured_and_can_be_repeated(monkeypatch):
    monkeypatch.setattr(fleet, "_SIZES", {True: (1, 256)})
    cell = dp_utility.Cell("client", "mnist5k", "iid", 300, "1", 0, quick=True)
    (part,) = dp_utility.needs(cell)
    made = {part: dp_utility.prepare(None, part)}
    one, other = (dp_utility.measure(None, cell, made) for _ in range(2))
    assert one.figures == other.figures


def fleet_of(corrupt: int, proxies: int) -> ClientPlan:
    """400 clients, four classes, and as many proxies as are asked about."""
    bare = ClientPlan(clients=400, proxies=1, rounds=1, classes=4, absent=40, corrupt=corrupt)
    return replace(planned_fleet(bare, 1.0, 4.0, DELTA, proxies), proxies=proxies)


def released(unit: ClientUnit, present: int) -> np.ndarray:
    """Return the released sums before clipping, in votes, where all clients abstain."""
    kept: list[np.ndarray] = []
    whole = unit.debias
    unit.debias = lambda sums, who: kept.append(sums.total) or whole(sums, who)
    cast = np.full((400, unit.plan.proxies), ABSTAIN, dtype=np.int8)
    released_sums(cast, unit.plan, unit, np.arange(present))
    return kept[0]


@pytest.mark.parametrize("absent", [0, 40])
def test_every_present_client_adds_its_share_and_no_other_does(absent):
    """Two-sided 4-sigma test of the variance of 16,000 noises: false alarm 6e-5.

    The same test must reject the variance of 40 shares more or fewer.
    """
    unit = ClientUnit(4.0, DELTA, fleet_of(corrupt=40, proxies=4000), random=SeededRandom(absent))
    present = 400 - absent
    share = unit.plan.share_variance / unit.plan.scale**2
    found = released(unit, present).var()
    tolerance = 4 * math.sqrt(2 / 16_000)
    assert abs(found / (share * present) - 1) < tolerance
    for other in (present - 40, present + 40):
        assert abs(found / (share * other) - 1) > tolerance


def test_a_sum_of_too_few_ends_the_guarantee():
    """A simulation adds up in clear, and says so."""
    for present, why in ((360, IN_CLEAR), (359, "a sum of 359 inputs was opened")):
        unit = ClientUnit(4.0, DELTA, fleet_of(corrupt=0, proxies=40))
        released(unit, present)
        assert any(why in reason for reason in unit.guarantee().unmet)
