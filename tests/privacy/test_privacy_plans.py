"""Plans: the event that each makes, laws of its price, and calibration as the inverse of it."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secure_fd.privacy.accountants import accountant_for
from secure_fd.privacy.calibration import calibrate, epsilon
from secure_fd.privacy.client import ClientPlan
from secure_fd.privacy.dp_sgd import TrainingPlan
from secure_fd.privacy.events import DistributedGaussian, Event, Gaussian, Repeated, SampledGaussian
from secure_fd.privacy.record import PooledPlan
from tests.refusals import refused

DELTA = 1e-5
SUMS = PooledPlan(clients=1, honest=1, entries=10_000)
FLEET = ClientPlan(clients=1000, proxies=512, rounds=10, classes=10, absent=100, corrupt=50)
PLANS = (SUMS, TrainingPlan(300, 64, 330), FLEET)


def cost(event: Event) -> float:
    return accountant_for(event).epsilon(event, DELTA)


@pytest.mark.parametrize("plan", PLANS)
def test_no_noise_is_an_infinite_epsilon_and_the_other_way_round(plan):
    assert plan.noise == 0
    assert epsilon(plan, DELTA) == math.inf
    assert calibrate(math.inf, DELTA, plan) == 0
    assert 0 < epsilon(plan.with_noise(0.5), DELTA) < math.inf


def test_training_is_sampled_unless_a_batch_is_everything():
    sampled = Repeated(SampledGaussian(2.0, 64 / 5400), 7)
    assert TrainingPlan(5400, 64, 7, noise=2.0).event() == sampled
    for batch in (300, 1000):
        assert TrainingPlan(300, batch, 7, noise=2.0).event() == Repeated(Gaussian(2.0), 7)


@pytest.mark.parametrize("noise", [0.3, 0.5, 0.7, 1.0, 1.158, 4.0, 30.0])
def test_units_are_priced_as_if_as_coarse_as_they_may_be(noise):
    """Compare equal noise in votes: the unit is never finer than the one that clients count in."""
    plan = ClientPlan(1000, 512, 1, 10, noise=noise)
    one, otherwise = plan.event().event, plan.replaced().event
    assert one.l2 <= plan.l2
    assert one.l2**2 / one.variance == pytest.approx(plan.l2**2 / plan.share_variance)
    assert one.variance >= 4 * (1 - 1e-12)
    assert one.dimension == 512 * min(10, plan.scale)
    assert otherwise.dimension == 512 * min(10, 2 * plan.scale)
    assert otherwise.l2 == pytest.approx(math.sqrt(2) * one.l2)
    for clients, proxies in ((10, 1), (1000, 512), (10_000, 512)):
        plan = ClientPlan(clients, proxies, 1, 10, noise=noise)
        assert plan.share_variance >= 4 * (1 - 1e-12)
        coarser = (plan.scale - 1) ** 2 * proxies * noise**2 / clients
        assert plan.scale == 1 or coarser < 4


def test_noise_that_counts_on_clients_that_are_gone_does_not_keep_its_epsilon():
    """Ten clients whose shares make up the noise together, and seven that send theirs."""
    naive, planned = (ClientPlan(10, 512, 1, 10, absent=absent) for absent in (0, 3))
    naive, planned = (p.with_noise(calibrate(4.0, DELTA, p)) for p in (naive, planned))
    left = DistributedGaussian(naive.share_variance, 7, naive.l2, 5120)
    assert cost(left) == pytest.approx(4.92, abs=0.005)
    assert planned.share_variance / planned.scale**2 == pytest.approx(
        naive.share_variance / naive.scale**2 * 10 / 7, rel=1e-6
    )


@pytest.mark.parametrize(
    ("field", "make"),
    [
        *(("epsilon", lambda bad=bad: calibrate(bad, DELTA, SUMS)) for bad in (0.0, math.nan)),
        *(("delta", lambda bad=bad: calibrate(1.0, bad, FLEET)) for bad in (0.0, 1.0, math.nan)),
        ("epsilon", lambda: calibrate(1e-4, DELTA, TrainingPlan(5400, 64, 100))),  # none is enough
        *(("noise", lambda bad=bad: SUMS.with_noise(bad)) for bad in (-1.0, math.nan, math.inf)),
        ("honest", lambda: PooledPlan(clients=3, honest=4, entries=10)),
        ("n_records", lambda: TrainingPlan(0, 5, 5)),
        ("rounds", lambda: ClientPlan(5, 1, 0, 1)),
        ("absent", lambda: ClientPlan(5, 1, 1, 1, absent=-1)),
        ("corrupt", lambda: ClientPlan(5, 1, 1, 1, absent=2, corrupt=3)),
    ],
)
def test_impossible_plans_and_budgets_are_refused(field, make):
    with refused(field):
        make()


# Laws: noise buys privacy, releases spend it, and calibration inverts the price.

law = settings(max_examples=60, deadline=None)
DELTAS = st.floats(1e-12, 1e-2)
SIZES = st.integers(1, 5000)
RECORDS = st.builds(PooledPlan, clients=st.just(1), honest=st.just(1), entries=SIZES)
WHOLE_BATCHES = st.builds(lambda n, steps: TrainingPlan(n, n, steps), SIZES, st.integers(1, 2000))
FLEETS = st.builds(
    ClientPlan,
    clients=st.integers(10, 10_000),
    proxies=st.integers(1, 6000),
    rounds=st.integers(1, 300),
    classes=st.integers(2, 20),
    absent=st.integers(0, 5),
    corrupt=st.integers(0, 4),
)
CLOSED = st.one_of(RECORDS, WHOLE_BATCHES, FLEETS)
MOST = 40.0


@given(plan=CLOSED, claimed=st.floats(0.05, 30), delta=DELTAS)
@law
def test_calibration_inverts_the_price_and_never_overspends(plan, claimed, delta):
    spent = epsilon(plan.with_noise(calibrate(claimed, delta, plan)), delta)
    assert 0.999 * claimed < spent <= claimed


@given(plan=CLOSED, level=st.floats(0.02, 0.98), more=st.floats(1.001, 10), delta=DELTAS)
@law
def test_more_noise_never_costs_more(plan, level, more, delta):
    """Shares are drawn anew in other units; of Gaussians that shows below 1e-9."""
    less, greater = plan.with_noise(level * MOST), plan.with_noise(min(level * more, 1) * MOST)
    assert epsilon(greater, delta) <= epsilon(less, delta) * (1 + 1e-9)
    assert epsilon(less, delta) <= epsilon(less, delta / 10)
