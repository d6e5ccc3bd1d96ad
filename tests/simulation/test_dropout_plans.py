"""Plans of simulated faults: every client by itself, at any stage, the same again from a seed."""

import numpy as np
import pytest
from scipy import stats

from secure_fd.simulation.federation import Dropouts
from secure_fd.wire import Stage
from tests.refusals import refused

ROUNDS, CLIENTS = 400, 25


def p_values(plans: list[dict[int, Stage]], rate: float) -> dict[str, float]:
    """Return p values of the dropouts, their stages, and the dropouts in the same round."""
    sizes = np.array([len(plan) for plan in plans])
    stages = [stage for plan in plans for stage in plan.values()]
    by_client = np.bincount([k for plan in plans for k in plan], minlength=CLIENTS)
    total = len(plans) * CLIENTS
    spread = ((sizes - CLIENTS * rate) ** 2).sum() / (CLIENTS * rate * (1 - rate))
    return {
        "rate": float(stats.binomtest(len(stages), total, rate).pvalue),
        "stages": float(stats.chisquare([stages.count(stage) for stage in Stage]).pvalue),
        "clients": float(stats.chisquare(by_client).pvalue),
        "together": float(2 * min(stats.chi2.sf(spread, ROUNDS), stats.chi2.cdf(spread, ROUNDS))),
    }


def test_every_client_drops_out_by_itself_at_any_stage():
    """Four tests at 1e-6 each: false-alarm rate of about 4e-6 over seeds."""
    plan = Dropouts(0.2, seed=3)
    found = p_values([plan.plan(r, CLIENTS) for r in range(ROUNDS)], 0.2)
    assert min(found.values()) > 1e-6, found


def test_a_plan_that_is_not_independent_or_not_uniform_is_caught():
    plan = Dropouts(0.2, seed=3)
    plans = [plan.plan(r, CLIENTS) for r in range(ROUNDS)]
    early: list[dict[int, Stage]] = [
        {k: s for k, s in p.items() if s is not Stage.UNMASK} for p in plans
    ]
    rng = np.random.default_rng(0)
    crowds = [
        dict.fromkeys(range(CLIENTS) if rng.random() < 0.2 else (), Stage.INPUT) for _ in plans
    ]
    first = [{k // 2: s for k, s in p.items()} for p in plans]
    assert p_values(early, 0.2)["stages"] < 1e-6
    assert p_values(crowds, 0.2)["together"] < 1e-6
    assert p_values(first, 0.2)["clients"] < 1e-6
    assert p_values(plans, 0.25)["rate"] < 1e-6


def test_a_plan_is_the_same_again_and_another_for_another_round_or_seed():
    plan = Dropouts(0.5, seed=1)
    assert plan.plan(4, 30) == Dropouts(0.5, seed=1).plan(4, 30)
    assert plan.plan(4, 30) != plan.plan(5, 30)
    assert plan.plan(4, 30) != Dropouts(0.5, seed=2).plan(4, 30)
    assert Dropouts(0.0, seed=1).plan(4, 1000) == {}


@pytest.mark.parametrize("rate", [1.0, -0.1, 1.5, float("nan")])
def test_a_rate_is_a_chance_below_one(rate):
    with refused("rate"):
        Dropouts(rate, seed=0)
