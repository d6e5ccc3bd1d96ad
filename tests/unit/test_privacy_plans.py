"""Plans: the unit in the type, the event that each makes, and the noise that each needs."""

import math

import pytest

from secure_fd.errors import ConfigurationError
from secure_fd.privacy.accountants import accountant_for
from secure_fd.privacy.calibration import calibrate, epsilon
from secure_fd.privacy.client import ClientPlan
from secure_fd.privacy.dp_sgd import TrainingPlan
from secure_fd.privacy.events import (
    DistributedGaussian,
    Event,
    Gaussian,
    Repeated,
    SampledGaussian,
)
from secure_fd.privacy.record import PooledPlan

DELTA = 1e-5
SUMS = PooledPlan(clients=1, honest=1, entries=10_000)
FLEET = ClientPlan(clients=1000, proxies=512, rounds=10, classes=10, absent=100, corrupt=50)
PLANS = (
    SUMS,
    TrainingPlan(300, 64, 330),
    FLEET,
)


def cost(event: Event) -> float:
    return accountant_for(event).epsilon(event, DELTA)


@pytest.mark.parametrize("plan", PLANS)
def test_no_noise_is_an_infinite_epsilon_and_the_other_way_round(plan):
    assert plan.noise == 0
    assert epsilon(plan, DELTA) == math.inf
    assert calibrate(math.inf, DELTA, plan) == 0
    assert 0 < epsilon(plan.with_noise(0.5), DELTA) < math.inf


def test_noise_is_never_passed_by_position():
    with pytest.raises(TypeError):
        PooledPlan(1, 1, 10_000, 1, 0, 1.0)


def test_a_record_that_is_replaced_or_counted_often_moves_more():
    """Epsilon itself is tested in test_printed_epsilons."""
    plan = SUMS.with_noise(calibrate(4.0, DELTA, SUMS))
    assert cost(plan.moved_by(2.0)) == pytest.approx(9.085, abs=5e-4)
    assert priced(plan.moved_by(5400.0))[0].l2 == 5400 * priced(plan.event())[0].l2


def test_training_is_sampled_unless_a_batch_is_everything():
    assert TrainingPlan(5400, 64, 7, noise=2.0).event() == Repeated(
        SampledGaussian(2.0, 64 / 5400), 7
    )
    for batch in (300, 1000):
        assert TrainingPlan(300, batch, 7, noise=2.0).event() == Repeated(Gaussian(2.0), 7)


def test_the_fleets_event_has_the_honest_shares_and_the_right_sensitivity():
    plan = FLEET.with_noise(3.0)
    assert (plan.survivors, plan.honest, plan.scale) == (900, 850, 1)
    assert plan.share_variance == pytest.approx(9.0 * 512 / 850)
    one, ten = priced(plan.event())
    assert (ten, one.shares, one.dimension) == (10, 850, 512)
    assert one.variance == pytest.approx(plan.share_variance)
    assert one.l2 == pytest.approx(math.sqrt(512))
    small = ClientPlan(100, 4, 3, 10, noise=1.0)
    assert small.scale == 10  # 2 sqrt(100 / 4)
    assert small.event() == Repeated(DistributedGaussian(4.0, 100, 20.0, 40), 3)


def priced(event: Event) -> tuple[DistributedGaussian, int]:
    """The sum of a round, and how many there are."""
    return event.event, event.times


@pytest.mark.parametrize("noise", [0.3, 0.5, 0.7, 1.0, 4.0])
def test_units_are_priced_as_if_as_coarse_as_they_may_be(noise):
    """Of the same noise in votes, and never finer than those that a client counts in."""
    plan = ClientPlan(1000, 512, 1, 10, noise=noise)
    one, _ = priced(plan.event())
    assert one.l2 <= plan.l2
    assert one.l2**2 / one.variance == pytest.approx(plan.l2**2 / plan.share_variance)
    assert one.variance >= 4 * (1 - 1e-12)
    assert one.dimension == 512 * min(10, plan.scale)
    otherwise, _ = priced(plan.replaced())
    assert otherwise.dimension == 512 * min(10, 2 * plan.scale)
    assert otherwise.l2 == pytest.approx(math.sqrt(2) * one.l2)


@pytest.mark.parametrize("noise", [0.3, 1.0, 1.158, 4.0, 30.0])
def test_each_share_is_wide_enough_for_its_sum(noise):
    for clients, proxies in ((10, 1), (1000, 512), (10_000, 512)):
        plan = ClientPlan(clients, proxies, 1, 10, noise=noise)
        assert plan.share_variance >= 4 * (1 - 1e-12)
        coarser = (plan.scale - 1) ** 2 * proxies * noise**2 / clients
        assert plan.scale == 1 or coarser < 4


def test_noise_that_counts_on_clients_that_are_gone_does_not_keep_its_epsilon():
    """Ten clients whose shares make up the noise together, and seven that send theirs."""
    naive = ClientPlan(clients=10, proxies=512, rounds=1, classes=10)
    naive = naive.with_noise(calibrate(4.0, DELTA, naive))
    sensitivity = naive.l2
    left = DistributedGaussian(naive.share_variance, 7, sensitivity, 5120)
    assert cost(left) == pytest.approx(4.92, abs=0.005)
    planned = ClientPlan(clients=10, proxies=512, rounds=1, classes=10, absent=3)
    planned = planned.with_noise(calibrate(4.0, DELTA, planned))
    assert planned.share_variance / planned.scale**2 == pytest.approx(
        naive.share_variance / naive.scale**2 * 10 / 7, rel=1e-6
    )


def test_a_client_that_votes_otherwise_costs_more():
    plan = ClientPlan(1000, 512, 10, 10)
    plan = plan.with_noise(calibrate(4.0, DELTA, plan))
    gaussian = cost(Repeated(Gaussian(plan.noise / math.sqrt(2)), 10))
    assert cost(plan.replaced()) == pytest.approx(gaussian, rel=0.001)
    assert cost(plan.replaced()) > 5.8


@pytest.mark.parametrize(
    ("claimed", "delta", "field"),
    [
        *((bad, DELTA, "epsilon") for bad in (0.0, -1.0, math.nan)),
        *((1.0, bad, "delta") for bad in (0.0, 1.0, math.nan)),
    ],
)
@pytest.mark.parametrize("plan", [SUMS, TrainingPlan(300, 64, 30), FLEET])
def test_impossible_budgets_are_refused(claimed, delta, field, plan):
    with pytest.raises(ConfigurationError, match=f"^{field}: "):
        calibrate(claimed, delta, plan)


def test_an_epsilon_that_no_noise_reaches_is_refused():
    """Integer orders end at 2,048, and their conversion with them."""
    with pytest.raises(ConfigurationError, match=r"^epsilon: 0\.0001.*larger"):
        calibrate(1e-4, DELTA, TrainingPlan(5400, 64, 100))


@pytest.mark.parametrize(
    ("field", "make"),
    [
        ("noise", lambda: SUMS.with_noise(-1.0)),
        ("noise", lambda: SUMS.with_noise(math.nan)),
        ("noise", lambda: SUMS.with_noise(math.inf)),
        ("honest", lambda: PooledPlan(clients=3, honest=4, entries=10)),
        ("n_records", lambda: TrainingPlan(0, 5, 5)),
        ("batch", lambda: TrainingPlan(5, 0, 5)),
        ("steps", lambda: TrainingPlan(5, 5, 0)),
        ("clients", lambda: ClientPlan(0, 1, 1, 1)),
        ("proxies", lambda: ClientPlan(5, 0, 1, 1)),
        ("rounds", lambda: ClientPlan(5, 1, 0, 1)),
        ("absent", lambda: ClientPlan(5, 1, 1, 1, absent=-1)),
        ("corrupt", lambda: ClientPlan(5, 1, 1, 1, absent=2, corrupt=3)),
    ],
)
def test_impossible_plans_are_refused(field, make):
    with pytest.raises(ConfigurationError, match=f"^{field}: ") as caught:
        make()
    assert caught.value.field == field
