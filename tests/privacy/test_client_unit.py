"""The client unit: shares of noise in every vector, and an epsilon for no more than was planned."""

import copy
import math
import os
import pickle
import secrets
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import chi2

from secure_fd.crypto.keys import insecure_bytes
from secure_fd.errors import BudgetError, LocalError
from secure_fd.privacy.calibration import epsilon
from secure_fd.privacy.client import ClientPlan, ClientUnit, NoisyVotes
from secure_fd.privacy.samplers import Random, SeededRandom
from secure_fd.secure_sum.masked import MaskedSum
from secure_fd.secure_sum.plain import PlainSum
from secure_fd.votes.codec import Sums
from secure_fd.wire import Stage
from tests.refusals import refused
from tests.small_federation import faults, federation, run

DELTA = 1e-5
PLAN = ClientPlan(clients=10, proxies=32, rounds=2, classes=10, absent=3, corrupt=1)

FOUR = replace(PLAN, clients=4, absent=1)


MASKS = {clients: MaskedSum(clients) for clients in (4, 10)}


NONE = np.zeros(320, dtype=np.uint64)
"""Votes of a client that abstains everywhere."""


def unit(
    plan: ClientPlan = PLAN, budget: float = 4.0, delta: float = DELTA, random: Random = os.urandom
) -> ClientUnit:
    made = ClientUnit(budget, delta, plan, small_fleet=True, random=random)
    made.check_sum(MASKS[plan.clients])
    return made


@pytest.mark.parametrize(
    ("field", "make"),
    [
        ("clients", lambda: ClientUnit(4.0, DELTA, PLAN)),  # 300 or more, unless asked for fewer
        ("aggregation", lambda: unit().check_sum(PlainSum(10))),
        ("clients", lambda: unit().check_sum(MaskedSum(4))),
        ("delta", lambda: unit(delta=0.1)),
        ("epsilon", lambda: unit(budget=math.inf)),
    ],
)
def test_settings_that_the_noise_does_not_cover_are_refused(field, make):
    with refused(field):
        make()
    assert ClientUnit(4.0, DELTA, replace(PLAN, clients=300)).plan.noise > 0
    assert unit().terms != unit(replace(PLAN, corrupt=2)).terms  # such clients do not sum


@pytest.mark.parametrize(
    "votes",
    [
        np.zeros(330, np.uint64),  # of 33 proxies, where 32 are planned
        np.zeros(315, np.uint64),
        np.full(320, 1, np.uint64),
        np.full(320, -(10**6)),
        np.full(320, 2**63, np.uint64),
    ],
)
def test_votes_that_the_noise_would_not_cover_are_refused(votes):
    with pytest.raises(LocalError):
        unit().client(0).perturb(votes)


def test_more_proxies_than_planned_are_refused_and_a_guard_has_no_copy():
    with pytest.raises(LocalError, match="33 proxies"):
        NoisyVotes(unit()).release(np.arange(33), lambda _: None)
    for attempt in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(LocalError, match="cannot be pickled or copied"):
            attempt(unit().client(0))


def test_more_rounds_than_planned_are_refused():
    made, votes = unit(), NONE
    guard = made.client(0)
    for _ in range(2):
        guard.perturb(votes)
    with pytest.raises(BudgetError, match="planned for 2 rounds"):
        guard.perturb(votes)
    with pytest.raises(BudgetError, match="client 0 has its part"):
        made.client(0)
    made.client(1).perturb(votes)  # another client's own rounds


def test_every_round_is_paid_for():
    made, votes = unit(), NONE
    assert made.guarantee() is None
    spent = []
    for done in range(1, 3):
        for client in range(10):
            (made.parts.get(client) or made.client(client)).perturb(votes)
        given = made.guarantee()
        # Whenever the run stops, the planned guarantee holds.
        assert given.epsilon == pytest.approx(epsilon(made.plan, DELTA))
        assert given.parts[0].times == done
        spent.append(given.parts[0].epsilon)
    assert 0 < spent[0] < spent[1] <= 4.0
    assert spent[1] == pytest.approx(4.0, rel=0.01)


def weak_masks() -> ClientUnit:
    made = unit(FOUR)
    made.check_sum(MaskedSum(4, random=secrets.token_bytes))
    return made


@pytest.mark.parametrize(
    "make",
    [
        weak_masks,
        lambda: ClientUnit(4.0, DELTA, PLAN, small_fleet=True),  # no sum was checked
        lambda: unit(random=SeededRandom(3)),
        lambda: unit(random=insecure_bytes(1)),
        lambda: unit(random=np.random.default_rng(0).bytes),
    ],
)
def test_unconfirmed_masks_and_noise_invalidate_the_claim(make):
    made = make()
    made.client(0).perturb(NONE[: 10 * made.plan.proxies])
    assert not made.guarantee().holds


def test_too_few_shares_invalidate_the_claim():
    made = unit()
    made.client(0).perturb(NONE)
    assert made.guarantee().holds
    made.debias(Sums(np.zeros(1), np.zeros((1, 10))), range(6))  # seven carry enough noise
    assert not made.guarantee().holds


def test_what_noise_alone_would_give_teaches_nothing():
    made = unit()
    floor = math.sqrt(made.plan.sum_variance) / made.plan.scale * math.sqrt(2 * math.log(10))
    votes = np.array([[floor * 0.99, -floor, floor * 1.01, *([0.0] * 7)]])
    sums = made.debias(Sums(votes.sum(axis=1), votes), range(10))
    assert sums.total.tolist() == [[0.0, 0.0, floor * 1.01, *([0.0] * 7)]]
    assert sums.count.tolist() == [floor * 1.01]


def test_masked_sums_carry_exactly_the_noise_of_all(digits):
    """Two rounds under masks, one client lost after its input: sums exact, noise of four.

    The first round's votes are those of a run without protection; what is left of the sum is noise
    of the planned variance, with a false alarm in a million, and neither half of it nor twice.
    """
    made = unit(FOUR)
    masks, lost = MaskedSum(4, public_seed=0), faults({1: {3: Stage.UNMASK}})
    federated = run(federation(digits, aggregation=masks, protection=made, dropouts=lost))
    seen = federated.transcript.distillation
    assert len(seen) == 2
    bare = run(federation(digits, aggregation=MaskedSum(4, public_seed=0)), 1)
    votes = bare.transcript.distillation[0].total.astype(np.int64)
    noise = seen[0].total.astype(np.int64) - made.plan.scale * votes

    def fits(variance: float) -> bool:
        spread = chi2.cdf((noise**2).sum() / variance, noise.size)
        return bool(1e-6 < spread < 1 - 1e-6)

    assert fits(4 * made.plan.share_variance)
    assert not fits(2 * made.plan.share_variance)
    assert not fits(8 * made.plan.share_variance)
    given = made.guarantee()
    assert given.holds
    assert given.epsilon == pytest.approx(epsilon(made.plan, DELTA))
    assert given.parts[0].times == 2
