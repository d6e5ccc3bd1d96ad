"""The client unit: shares of noise in every vector, and an epsilon for no more than was planned."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import chi2

from secure_fd.aggregation.base import Stage
from secure_fd.aggregation.masked import MaskedSum
from secure_fd.aggregation.plain import PlainSum
from secure_fd.data.federated import FederatedData
from secure_fd.errors import BudgetError, ConfigurationError, LocalError
from secure_fd.knowledge import Contribution, FloatArray, IntArray, Sums, one_hot
from secure_fd.privacy.calibration import epsilon
from secure_fd.privacy.client_shares import ClientShares
from secure_fd.privacy.entropy import SeededRandom
from secure_fd.privacy.plans import ClientPlan
from secure_fd.protection.client_unit import ClientUnit
from tests.small_federation import BRIEF, faults, federation, parameters, run

DELTA = 1e-5
PLAN = ClientPlan(clients=10, proxies=32, rounds=2, classes=10, absent=3, corrupt=1)

FOUR = replace(PLAN, clients=4, absent=1)


def unit(
    plan: ClientPlan = PLAN, budget: float = 4.0, random: SeededRandom | None = None
) -> ClientUnit:
    chosen = {} if random is None else {"random": random}
    return ClientUnit(budget, DELTA, plan, small_fleet=True, **chosen)


def test_a_small_fleet_must_be_asked_for_twice() -> None:
    with pytest.raises(ConfigurationError, match=r"clients: 10 .*300 or more.*small_fleet"):
        ClientUnit(4.0, DELTA, PLAN)
    assert ClientUnit(4.0, DELTA, replace(PLAN, clients=300)).plan.noise > 0


def test_a_sum_in_clear_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"aggregation: 'plain' .*use masks"):
        unit().check_sum(PlainSum(10))
    unit(budget=math.inf).check_sum(PlainSum(10))


def test_another_number_of_clients_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"clients: 10 .*the sum has 4"):
        unit().check_sum(MaskedSum(4))


def answer(indices: IntArray) -> Contribution:
    return Contribution(np.ones(len(indices)), one_hot(indices % 10, 10))


def test_more_proxies_than_planned_are_refused() -> None:
    with pytest.raises(LocalError, match="33 proxies exceeds the planned 32"):
        unit().release(0, np.arange(33), answer)


def test_more_rounds_than_planned_are_refused() -> None:
    made, votes = unit(), np.zeros(320, dtype=np.uint64)
    for _ in range(2):
        made.perturb(0, votes)
    with pytest.raises(BudgetError, match="planned for 2 rounds"):
        made.perturb(0, votes)
    made.perturb(1, votes)  # another client's own rounds


def test_every_round_is_paid_for() -> None:
    made, votes = unit(), np.zeros(320, dtype=np.uint64)
    assert made.guarantee() is None
    spent = []
    for _ in range(2):
        for client in range(10):
            made.perturb(client, votes)
        given = made.guarantee()
        assert given is not None
        spent.append(given.epsilon)
    assert 0 < spent[0] < spent[1] <= 4.0
    assert spent[1] == pytest.approx(epsilon(made.plan, DELTA)) == pytest.approx(4.0, rel=0.01)


@pytest.mark.parametrize("kind", ["gaussian", "skellam"])
def test_the_shares_of_the_honest_make_up_the_whole_noise(kind: str) -> None:
    """False alarms at 1e-6; a deviation off by a fifth is found with a probability above .999."""
    plan = unit(replace(PLAN, noise_kind=kind)).plan
    shares = ClientShares(plan, SeededRandom(1))
    noise = sum(shares.draw(4000) for _ in range(plan.honest))
    wanted = (plan.noise * plan.sensitivity.value) ** 2

    def p_value(values: FloatArray) -> float:
        tail = chi2.cdf((values**2).sum() / wanted, len(values))
        return 2 * min(tail, 1 - tail)

    assert p_value(noise) > 1e-6
    assert p_value(noise * 0.8) < 1e-6
    assert p_value(noise + shares.draw(4000) * 2) < 1e-6


def test_a_coin_drops_votes_and_never_noise() -> None:
    """1,000 tosses at a quarter: 250 give or take 5 deviations, a false alarm in a million."""
    plan = unit(replace(PLAN, sample_rate=0.25, proxies=1)).plan
    shares = ClientShares(plan, SeededRandom(2))
    vote = np.full(10, 10**9, dtype=np.uint64)
    sent = np.stack([shares.perturb(vote) for _ in range(1000)])
    heads = sent[:, 0] > 10**8
    assert 182 <= heads.sum() <= 318
    assert (sent[~heads].std(axis=0) > 1).all()


def test_what_noise_alone_would_give_teaches_nothing() -> None:
    made = unit()
    floor = ClientShares(made.plan).deviation * math.sqrt(2 * math.log(10))
    votes = np.array([[floor * 0.99, -floor, floor * 1.01, *([0.0] * 7)]])
    sums = made.debias(Sums(votes.sum(axis=1), votes), range(10))
    assert sums.total.tolist() == [[0.0, 0.0, floor * 1.01, *([0.0] * 7)]]
    assert sums.count.tolist() == [floor * 1.01]


def test_too_few_shares_void_the_claim() -> None:
    made, votes = unit(), np.zeros(320, dtype=np.uint64)
    made.perturb(0, votes)
    made.debias(Sums(np.zeros(1), np.zeros((1, 10))), range(6))
    given = made.guarantee()
    assert given is not None
    assert not given.holds
    assert "a sum of 6 inputs was opened, where 7 carry enough noise" in given.sentence()


def test_seeded_noise_voids_the_claim() -> None:
    made = unit(random=SeededRandom(3))
    made.perturb(0, np.zeros(320, dtype=np.uint64))
    given = made.guarantee()
    assert given is not None
    assert not given.holds


def test_an_infinite_epsilon_changes_no_bit(digits: FederatedData) -> None:
    bare = run(federation(digits, aggregation=MaskedSum(4, public_seed=0)))
    same = run(
        federation(
            digits, aggregation=MaskedSum(4, public_seed=0), protection=unit(FOUR, budget=math.inf)
        )
    )
    assert np.array_equal(parameters(bare), parameters(same))


def test_masked_sums_carry_exactly_the_noise_of_all(digits: FederatedData) -> None:
    """Two rounds under masks, one client lost after its input: noise of four, sums exact.

    The residuals are total less votes, in units: false alarm 1e-6 for noise as planned.
    """
    made = unit(FOUR)
    script = {1: {3: Stage.UNMASK}}
    federated = run(
        federation(
            digits,
            aggregation=MaskedSum(4, public_seed=0),
            protection=made,
            schedule=BRIEF,
            dropouts=faults(script),
        )
    )
    seen = federated.transcript.distillation
    assert len(seen) == 2
    for record in seen:
        residuals = record.total.astype(np.int64)
        spread = chi2.cdf((residuals**2).sum() / (4 * made.plan.share_variance), residuals.size)
        assert spread > 1e-6  # at least the noise; votes come on top
        assert (residuals < 0).any()
    given = made.guarantee()
    assert given is not None
    assert given.holds
    assert given.epsilon == pytest.approx(epsilon(made.plan, DELTA))
    assert given.parts[0].times == 2
