"""The simulated fleet: votes against a loop, the sum against its parts, the rule."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from experiments.rivals.fleet import (
    ABSTAIN,
    ACCEPTED,
    cast_votes,
    deal,
    planned,
    released_sums,
)
from secure_fd.data.images import Images, concatenate
from secure_fd.errors import ConfigurationError
from secure_fd.privacy.base import IN_CLEAR
from secure_fd.privacy.calibration import epsilon as price
from secure_fd.privacy.client import ClientPlan, ClientUnit
from secure_fd.privacy.samplers import SeededRandom
from secure_fd.selection.density_ratio import ProxyReference, RatioSolver, ReferenceSettings

DELTA = 1e-5


@pytest.fixture(scope="module")
def records(digits):
    return concatenate([c.train for c in digits.clients])


@pytest.fixture(scope="module")
def reference(digits):
    return ProxyReference.fit(digits.proxies.pixels, ReferenceSettings(20, 60))


# Votes.


def by_hand(
    records: Images, parts: list[np.ndarray], reference: ProxyReference, indices: np.ndarray
) -> np.ndarray:
    """One client after another, with the means and the solver of the selector itself."""
    labels = records.labels.numpy()
    n_clients = len(parts)
    ridge = max(1 / len(reference.proxy_features), n_clients / (20 * len(labels)))
    solver = RatioSolver.with_ridge(reference.second_moment, ridge)
    made = np.full((n_clients, len(indices)), ABSTAIN)
    for k, own in enumerate(parts):
        classes = tuple(np.unique(labels[own]).tolist())
        features = reference.features(records.pixels[torch.from_numpy(own)])
        means = np.stack([(features * (labels[own] == c)[:, None]).mean(axis=0) for c in classes])
        ratios = reference.proxy_features[indices] @ solver.solve(means.T)
        share = len(classes) / (labels.max() + 1)
        best = np.argsort(-ratios.max(axis=1))[: round(ACCEPTED * share * len(indices))]
        made[k, best] = np.asarray(classes)[ratios[best].argmax(axis=1)]
    return made


def test_votes_are_those_of_each_client_on_its_own(records, reference):
    parts = deal(records.labels.numpy(), "iid", 9, 4, np.random.default_rng(1))
    indices = np.random.default_rng(2).permutation(200)[:120]
    made = cast_votes(records, parts, reference, indices)
    expected = by_hand(records, parts, reference, indices)
    # 32-bit scores may order two nearly equal proxies otherwise.
    assert (made == expected).mean() > 0.995
    assert (made == np.roll(expected, 1, axis=0)).mean() < 0.9  # the power of that check
    with pytest.raises(ConfigurationError, match="would hold none"):
        deal(records.labels.numpy(), "iid", len(records) + 1, 4, np.random.default_rng(1))


@pytest.mark.parametrize("split", ["iid", "strong"])
def test_every_record_is_dealt_to_one_client_and_evenly(split):
    labels = np.arange(1000) % 4
    parts = deal(labels, split, 30, 4, np.random.default_rng(1))
    assert sorted(np.concatenate(parts)) == list(range(1000))
    assert {len(part) for part in parts} <= {31, 32, 33, 34, 35, 36}
    if split == "strong":
        assert [set(labels[part]) for part in parts] == [{k % 4} for k in range(30)]


# The sum.


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
    plan = planned(fleet_of(400, 40, corrupt=40), 1.0, 4.0, DELTA, 4000)
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
    plan = planned(fleet_of(400, 40), 1.0, 4.0, DELTA, 40)
    for present, why in ((360, IN_CLEAR), (359, "a sum of 359 inputs was opened")):
        unit = ClientUnit(4.0, DELTA, plan)
        released_sums(some_votes(), unit.plan, unit, np.arange(present))
        assert any(why in reason for reason in unit.guarantee().unmet)


# The rule.


@pytest.mark.parametrize("epsilon", [1.0, 4.0])
def test_the_rule_takes_the_most_proxies_whose_noise_is_a_quarter_of_the_margin(epsilon):
    plan = planned(fleet_of(3000, 300), 1.0, epsilon, DELTA, 10**6)
    margin = ACCEPTED * 2700 / 4
    fits = plan.noise * math.sqrt(plan.proxies)
    assert fits <= margin / 4 * 1.01
    assert plan.noise * math.sqrt(1.05 * plan.proxies) > margin / 4
    assert price(plan, DELTA) <= epsilon
