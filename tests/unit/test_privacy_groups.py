"""What a person with several records pays, what replacing one costs, and where noise ends."""

import math

import numpy as np
import pytest

from secure_fd.privacy.accountants import ANALYTIC_GAUSSIAN
from secure_fd.privacy.calibration import calibrate, epsilon
from secure_fd.privacy.dp_sgd import TrainingPlan, group_epsilons
from secure_fd.privacy.events import Gaussian
from secure_fd.privacy.guarantee import GROUP_SIZES, Guarantee
from secure_fd.privacy.record import PooledPlan
from secure_fd.privacy.samplers import FloatGaussian, SeededRandom

DELTA = 1e-5


SUMS = PooledPlan(clients=10, honest=1, entries=2000)


def record(claimed: float = 4.0) -> Guarantee:
    """Of class sums on which each client's own noise is enough."""
    plan = SUMS.with_noise(calibrate(claimed, DELTA, SUMS))
    return plan.guarantee(DELTA, (300,) * 10, released=1)


def test_records_of_one_person_move_a_sum_together():
    """By the exact curve of a Gaussian, of which discrete noise is within .3 %."""
    claim, noise = record(), calibrate(4.0, DELTA, SUMS)
    for size, found in claim.groups:
        exact = ANALYTIC_GAUSSIAN.epsilon(Gaussian(noise / size), DELTA)
        assert found == pytest.approx(exact, rel=4e-3) or (math.isinf(found) and exact > 50)
    known = dict(claim.groups)
    assert claim.epsilon_replace_one == known[2]
    assert known[1] == claim.epsilon
    assert not claim.invalidated_by(("why",)).groups


def test_the_general_bound_holds_where_the_exact_price_is_known():
    """Nearly whole batches cost nearly what whole ones do; the bound is above, for every size."""
    whole, sampled = (TrainingPlan(1000, batch, 20, noise=12.0) for batch in (1000, 999))
    exact, bound = (dict(group_epsilons(plan, DELTA)) for plan in (whole, sampled))
    assert exact[1] == epsilon(whole, DELTA)
    assert all(exact[size] <= bound[size] for size in GROUP_SIZES[1:])
    assert bound[2] < 3 * exact[2]


def test_dp_sgd_states_a_person_and_refuses_a_delta_beyond_its_noise():
    plan = TrainingPlan(300, 64, 30)
    plan = plan.with_noise(calibrate(4.0, DELTA, plan))
    claim = plan.guarantee(epsilon=4.0, delta=DELTA)
    known = dict(claim.groups)
    assert known[1] <= 4.0 < known[2] < known[3]
    assert claim.delta > DELTA
    void = plan.guarantee(epsilon=20.0, delta=1e-11)
    assert not void.holds
    assert "tail ends" in void.sentence()


def test_the_tail_goes_on_where_a_step_of_53_bits_would_end_it(monkeypatch):
    """The lowest step is divided once more; the twin without that ends at 8.65."""
    drawn = [np.array([2.0**-54]), np.array([2.0**-54]), np.array([2.0**-54])]
    monkeypatch.setattr(FloatGaussian, "uniform", lambda _, count: drawn.pop(0)[:count])
    (found,) = FloatGaussian(SeededRandom(0)).normal(1)
    ended = math.sqrt(-2 * math.log(2.0**-54))
    assert ended < 8.66
    assert found > 12.1
