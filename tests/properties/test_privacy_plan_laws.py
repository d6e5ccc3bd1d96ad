"""Laws of every plan: noise buys privacy, releases spend it, and calibration inverts the price."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secure_fd.privacy.calibration import Plan, calibrate, epsilon
from secure_fd.privacy.client import ClientPlan
from secure_fd.privacy.dp_sgd import TrainingPlan
from secure_fd.privacy.record import PooledPlan

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


GROWING: list[tuple[str, st.SearchStrategy[Plan]]] = [
    ("steps", WHOLE_BATCHES),
    ("rounds", FLEETS),
]


@pytest.mark.parametrize(("field", "plans"), GROWING)
@given(data=st.data(), level=st.floats(0.1, 0.9), times=st.integers(2, 20))
@law
def test_more_releases_never_cost_less(field, plans, data, level, times):
    plan = data.draw(plans)
    plan = plan.with_noise(level * MOST)
    longer: Plan = replace(plan, **{field: times * getattr(plan, field)})
    assert epsilon(plan, 1e-5) < epsilon(longer, 1e-5)
    assert epsilon(longer, 1e-5) < times * epsilon(plan, 1e-5) * 1.05 + 0.1


@given(plan=FLEETS, noise=st.floats(0.3, 40), times=st.integers(2, 20))
@law
def test_more_proxies_under_the_same_votes_noise_cost_more(plan, noise, times):
    """The noise on each sum stays as it is, so it is less of the sensitivity."""
    more = replace(plan, proxies=times * plan.proxies, noise=noise / times**0.5)
    assert epsilon(plan.with_noise(noise), 1e-5) < epsilon(more, 1e-5)


@pytest.mark.parametrize("change", [lambda z: 2 * z, lambda z: 1.05 * z])
def test_dp_sgd_falls_with_noise_and_grows_with_steps(change):
    plan = TrainingPlan(300, 64, 330, noise=4.0)
    spent = epsilon(plan, 1e-5)
    assert epsilon(plan.with_noise(change(4.0)), 1e-5) < spent
    assert epsilon(replace(plan, steps=round(change(330))), 1e-5) > spent
    assert epsilon(replace(plan, batch=round(change(64))), 1e-5) > spent
