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
from secure_fd.errors import BudgetError, ConfigurationError, LocalError
from secure_fd.privacy.accountants import accountant_for
from secure_fd.privacy.base import IN_CLEAR
from secure_fd.privacy.calibration import epsilon
from secure_fd.privacy.client import ClientPlan, ClientUnit, NoisyVotes
from secure_fd.privacy.samplers import Random, SeededRandom
from secure_fd.secure_sum.masked import MaskedSum
from secure_fd.secure_sum.plain import PlainSum
from secure_fd.votes.codec import Contribution, FloatArray, IntArray, Sums, one_hot
from secure_fd.wire import Stage
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
    ("make", "why"),
    [
        (lambda: ClientUnit(4.0, DELTA, PLAN), r"clients: 10 .*300 or more.*small_fleet"),
        (lambda: unit().check_sum(PlainSum(10)), r"aggregation: 'plain' .*use masks"),
        (lambda: unit().check_sum(MaskedSum(4)), r"clients: 10 .*the sum has 4"),
        (lambda: unit(delta=0.1), "one over the number of clients"),
        (lambda: unit(budget=math.inf), "use a finite number"),
    ],
)
def test_what_its_noise_does_not_cover_is_refused(make, why):
    with pytest.raises(ConfigurationError, match=why):
        make()
    assert ClientUnit(4.0, DELTA, replace(PLAN, clients=300)).plan.noise > 0


def answer(indices: IntArray) -> Contribution:
    return Contribution(np.ones(len(indices)), one_hot(indices % 10, 10))


def test_more_proxies_than_planned_are_refused():
    with pytest.raises(LocalError, match="33 proxies exceeds the planned 32"):
        NoisyVotes(unit()).release(np.arange(33), answer)


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
        # Whenever somebody stops, what was planned is what holds.
        assert given.epsilon == pytest.approx(epsilon(made.plan, DELTA))
        assert given.parts[0].times == done
        spent.append(given.parts[0].epsilon)
    assert 0 < spent[0] < spent[1] <= 4.0
    assert spent[1] == pytest.approx(4.0, rel=0.01)


def test_the_shares_of_the_honest_make_up_the_whole_noise():
    """False alarms at 1e-6; a deviation off by a fifth is found with a probability above .999."""
    plan, random = unit().plan, SeededRandom(1)
    noise = sum(plan.share(4000, random) for _ in range(plan.honest))
    wanted = (plan.noise * plan.l2) ** 2

    def p_value(values: FloatArray) -> float:
        tail = chi2.cdf((values**2).sum() / wanted, len(values))
        return 2 * min(tail, 1 - tail)

    assert p_value(noise) > 1e-6
    assert p_value(noise * 0.8) < 1e-6
    assert p_value(noise + plan.share(4000, random) * 2) < 1e-6


@pytest.mark.parametrize(
    ("votes", "message"),
    [
        (np.zeros(330, dtype=np.uint64), "330 votes are not those of up to 32 proxies"),
        (np.zeros(315, dtype=np.uint64), "315 votes are not those"),
        (np.full(320, 1, dtype=np.uint64), "more than one vote"),
        (np.full(320, -(10**6), dtype=np.int64), "int64; use uint64"),
        (np.full(320, 2**63, dtype=np.uint64), "more than one vote"),
    ],
)
def test_votes_that_the_noise_would_not_cover_are_refused(votes, message):
    with pytest.raises(LocalError, match=message):
        unit().client(0).perturb(votes)


def test_a_record_costs_what_a_client_costs_that_votes_otherwise():
    """One record can turn all votes of its client."""
    made = unit()
    made.client(0).perturb(NONE)
    given = made.guarantee()
    (record,) = given.composes_to
    event = made.plan.replaced()
    assert record.epsilon == accountant_for(event).epsilon(event, DELTA)
    assert record.epsilon > 1.4 * given.epsilon


def test_masks_that_nobody_vouches_for_void_the_claim():
    made = unit(FOUR)
    made.check_sum(MaskedSum(4, random=secrets.token_bytes))
    made.client(0).perturb(NONE)
    assert not made.guarantee().holds


@pytest.mark.parametrize(
    "source", [SeededRandom(3), insecure_bytes(1), np.random.default_rng(0).bytes]
)
def test_noise_from_any_other_generator_voids_the_claim(source):
    made = unit(random=source)
    made.client(0).perturb(NONE)
    assert not made.guarantee().holds


def test_without_a_checked_sum_there_is_no_epsilon():
    made = ClientUnit(4.0, DELTA, PLAN, small_fleet=True)
    made.client(0).perturb(NONE)
    assert made.guarantee().unmet == (IN_CLEAR,)


def test_clients_with_different_plans_do_not_sum():
    assert unit().terms != unit(replace(PLAN, corrupt=2)).terms


def test_what_noise_alone_would_give_teaches_nothing():
    made = unit()
    floor = math.sqrt(made.plan.sum_variance) / made.plan.scale * math.sqrt(2 * math.log(10))
    votes = np.array([[floor * 0.99, -floor, floor * 1.01, *([0.0] * 7)]])
    sums = made.debias(Sums(votes.sum(axis=1), votes), range(10))
    assert sums.total.tolist() == [[0.0, 0.0, floor * 1.01, *([0.0] * 7)]]
    assert sums.count.tolist() == [floor * 1.01]


def test_too_few_shares_void_the_claim():
    made, votes = unit(), NONE
    made.client(0).perturb(votes)
    made.debias(Sums(np.zeros(1), np.zeros((1, 10))), range(6))
    given = made.guarantee()
    assert not given.holds
    assert "a sum of 6 inputs was opened, where 7 carry enough noise" in given.sentence()


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


@pytest.mark.parametrize("attempt", [pickle.dumps, copy.copy, copy.deepcopy])
def test_a_guard_that_counts_its_rounds_has_no_copy(attempt):
    with pytest.raises(LocalError, match="cannot be pickled or copied"):
        attempt(unit().client(0))
