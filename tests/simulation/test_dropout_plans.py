"""Plans of simulated faults: every client by itself, at any stage, the same again from a seed."""

import numpy as np
import pytest
from scipy import stats

from secure_fd.simulation.federation import Dropouts
from secure_fd.wire import Stage
from tests.refusals import refused

ROUNDS, CLIENTS, RATE = 400, 25, 0.2


def test_every_client_drops_out_by_itself_at_any_stage():
    """Four tests at 1e-6 each: false-alarm rate of about 4e-6 over seeds."""
    plans = [Dropouts(RATE, seed=3).plan(index, CLIENTS) for index in range(ROUNDS)]
    stages = [stage for plan in plans for stage in plan.values()]
    by_client = np.bincount([k for plan in plans for k in plan], minlength=CLIENTS)
    sizes, expected = np.array([len(plan) for plan in plans]), CLIENTS * RATE
    spread = ((sizes - expected) ** 2).sum() / (expected * (1 - RATE))
    together = 2 * min(stats.chi2.sf(spread, ROUNDS), stats.chi2.cdf(spread, ROUNDS))
    assert stats.binomtest(len(stages), ROUNDS * CLIENTS, RATE).pvalue > 1e-6
    assert stats.chisquare([stages.count(stage) for stage in Stage]).pvalue > 1e-6
    assert stats.chisquare(by_client).pvalue > 1e-6
    assert together > 1e-6


def test_a_plan_is_the_same_again_and_another_for_another_round_or_seed():
    plan = Dropouts(0.5, seed=1)
    assert plan.plan(4, 30) == Dropouts(0.5, seed=1).plan(4, 30)
    assert plan.plan(4, 30) != plan.plan(5, 30)
    assert plan.plan(4, 30) != Dropouts(0.5, seed=2).plan(4, 30)
    assert Dropouts(0.0, seed=1).plan(4, 1000) == {}


@pytest.mark.parametrize("rate", [1.0, -0.1, float("nan")])
def test_a_rate_is_a_chance_below_one(rate):
    with refused("rate"):
        Dropouts(rate, seed=0)
