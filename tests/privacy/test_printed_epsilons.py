"""Every epsilon that is printed, recomputed by other code from the noise that the claim asks for.

By dp-accounting: the exact curve of a Gaussian (Balle and Wang, 2018) and privacy-loss
distributions, which are upper bounds; or by enumeration of what the mechanism gives. A claim must
be no less than what its noise costs. Where the accountant is exact, a hundredth less noise must
cost more than the claim; where it is not, the test says by how much it is above.
"""

import math
import re
from collections.abc import Sequence

import dp_accounting
import numpy as np
import pytest
from dp_accounting.pld.privacy_loss_distribution import from_randomized_response

from secure_fd.privacy.calibration import calibrate, epsilon
from secure_fd.privacy.client import ClientPlan
from secure_fd.privacy.dp_sgd import TrainingPlan, group_epsilons
from secure_fd.privacy.guarantee import GROUP_SIZES, Guarantee, PrivacyUnit
from secure_fd.privacy.label import RandomizedResponse
from secure_fd.privacy.record import UNITS, PooledPlan, PooledRecordUnit
from secure_fd.privacy.samplers import FloatGaussian, SeededRandom
from secure_fd.secagg.session import Group, PinnedRoster, Session
from secure_fd.secure_sum.masked import masked_guarantee
from secure_fd.selection.density_ratio import ReferenceSettings
from tests.privacy.noise_laws import dp_sgd_bounds, shift_losses

DELTA = 1e-5
FAR = 300
"""Deviations of a client's records from none; only that a claim is no smaller is asked there."""

each_claim = pytest.mark.parametrize("claimed", (0.1, 1.0, 4.0, 20.0))


def gaussian(mu: float) -> float:
    """Epsilon of Gaussian noise where neighbours lie mu deviations apart, exact."""
    return float(dp_accounting.get_epsilon_gaussian(1 / mu, DELTA))


def exact_noise(claimed: float) -> float:
    """The least noise multiplier of one Gaussian release."""
    return float(dp_accounting.get_sigma_gaussian(claimed, DELTA))


def in_caveats(made: Guarantee) -> list[float]:
    """The figures that caveats name, as a reader would read them."""
    text = "\n".join(made.caveats)
    found = re.findall(r"epsilon (infinite|[\d.,]*\d)", text)
    return [math.inf if one == "infinite" else float(one.replace(",", "")) for one in found]


def composed(made: Guarantee, unit: PrivacyUnit) -> float:
    (found,) = [part.epsilon for part in made.composes_to if part.unit is unit]
    return found


def at_least(printed: Sequence[float], exact: Sequence[float], slack: float) -> None:
    """None is below the exact one, nor far above it: printed ones are rounded up to hundredths.

    An infinite one is a price that no sampler's tail would be worth.
    """
    for shown, true in zip(printed, exact, strict=True):
        assert true * (1 - 1e-9) <= shown
        assert shown <= true * (1 + slack) + 0.01 or math.isinf(shown)


# Nearly exact: noise within a hundredth of what the Gaussian's curve asks.


@each_claim
def test_the_local_record_unit(claimed):
    plan = PooledPlan(clients=10, honest=1, entries=1000)
    plan = plan.with_noise(calibrate(claimed, DELTA, plan))
    made = plan.guarantee(DELTA, (300,) * 10, plan.sums)
    assert gaussian(1 / plan.noise) <= made.epsilon <= claimed
    assert exact_noise(claimed) <= plan.noise <= 1.01 * exact_noise(claimed)
    at_least(in_caveats(made), [gaussian(2 / plan.noise)], slack=0.02)
    assert composed(made, PrivacyUnit.CLIENT) >= gaussian(300 / plan.noise)
    # Records of one person move a sum together; 1 is one record, 2 also one that is replaced.
    groups = dict(made.groups)
    at_least(groups.values(), [gaussian(size / plan.noise) for size in groups], slack=0.004)
    assert (made.epsilon, made.epsilon_replace_one) == (groups[1], groups[2])
    assert not made.invalidated_by(("why",)).groups


@each_claim
@pytest.mark.parametrize("sums", [1, 2])
def test_the_pooled_record_unit(claimed, sums):
    """Noise within a hundredth of the exact curve's, though it is a sum of discrete shares."""
    plan = PooledPlan(clients=10, honest=7, entries=10_000, sums=sums)
    plan = plan.with_noise(calibrate(claimed, DELTA, plan))
    mu = math.sqrt(sums) / plan.noise
    made = plan.guarantee(DELTA, (300, 200), plan.sums)
    assert gaussian(mu) <= made.epsilon <= claimed < gaussian(1.01 * mu)
    fewer = mu * math.sqrt(7 / 5)
    at_least(in_caveats(made), [gaussian(2 * mu), gaussian(fewer)], slack=0.01)
    assert composed(made, PrivacyUnit.CLIENT) >= gaussian(FAR * mu)


def group_of(members: int, roster: int) -> Group:
    listed = PinnedRoster({k: (k + 1).to_bytes(32, "little") for k in range(roster)})
    session = Session(listed, b"", b"", b"", bytes([9]) + bytes(31))
    return Group(session, tuple(range(members)), b"", bytes(32))


@each_claim
@pytest.mark.parametrize("clients", [3, 4, 5, 10, 33, 301, 1000])
def test_the_smallest_pooled_sum_with_all_corrupt_clients_that_the_masks_name(claimed, clients):
    """As many inputs as a sum must have, less the corrupt clients of the sum's own guarantee."""
    group = group_of(clients, clients)
    (named,) = re.findall(r"together with up to (\d+) of", masked_guarantee(group, None))
    unit = PooledRecordUnit(
        claimed,
        DELTA,
        records=(300,) * clients,
        n_proxies=40,
        n_classes=2,
        sums=2,
        features=ReferenceSettings(rank=5, n_features=10),
    )
    least = max(unit.noise_terms.survivors, group.quorum)
    assert least == group.quorum  # no tolerance of drop-outs is lost
    assert int(named) == group.corrupt == unit.plan.corrupt
    honest = (least - int(named)) * unit.plan.share_variance
    mu = math.sqrt(2) * UNITS / math.sqrt(honest)
    made = unit.plan.guarantee(DELTA, unit.records, unit.plan.sums)
    assert gaussian(mu) <= made.epsilon <= claimed < gaussian(1.01 * mu)
    assert f"{least:,} of {clients:,} clients or more, and at most {named}" in made.sentence()


@each_claim
def test_the_client_unit_is_enumerated(claimed):
    """One vote a proxy and round; a client that votes otherwise moves two entries for each.

    Its noise is so coarse that what it costs can be enumerated.
    """
    plan = ClientPlan(clients=20, proxies=8, rounds=2, classes=10, absent=4, corrupt=2)
    plan = plan.with_noise(calibrate(claimed, DELTA, plan))
    made = plan.guarantee(DELTA, released=1)
    votes = plan.proxies * plan.rounds
    grid = 5e-5 * claimed
    one = shift_losses(plan.share_variance, plan.honest, plan.scale, grid=grid, pessimistic=True)
    cast, otherwise = (
        one.self_compose(times).get_epsilon_for_delta(DELTA) for times in (votes, 2 * votes)
    )
    assert cast - votes * grid <= made.epsilon <= claimed  # every loss was rounded up to the grid
    assert claimed <= 1.02 * cast
    record = composed(made, PrivacyUnit.RECORD)
    assert otherwise - 2 * votes * grid <= record <= 1.02 * otherwise
    at_least(in_caveats(made), [record], slack=0.0)


@each_claim
def test_dp_sgd(claimed):
    """Within a hundredth in noise of what dp-accounting asks at the least."""
    plan = TrainingPlan(n_records=300, batch=30, steps=100)
    plan = plan.with_noise(calibrate(claimed, DELTA, plan))
    made = plan.guarantee(epsilon=claimed, delta=DELTA)

    def bounds(noise: float) -> tuple[float, float]:
        return dp_sgd_bounds(noise, plan.sample_rate, plan.steps, DELTA, 1e-4 * claimed)

    assert made.epsilon == claimed
    assert bounds(plan.noise)[1] <= claimed
    assert bounds(0.99 * plan.noise)[0] > claimed


@each_claim
def test_the_label_unit(claimed):
    """One answer is its own odds; many are enumerated, and the printed sum is no smaller."""
    mechanism = RandomizedResponse(claimed, 11)
    made = mechanism.guarantee(releases=50, delta=DELTA)
    assert math.log(mechanism.p / mechanism.q) <= claimed * (1 + 1e-12)
    assert made.epsilon == claimed
    wrong = 10 * mechanism.q
    odds = math.log((1 - 0.99 * wrong) / (0.99 * wrong / 10))
    assert odds > claimed
    answer = from_randomized_response(wrong * 11 / 10, 11, value_discretization_interval=1e-3)
    exact = answer.self_compose(50).get_epsilon_for_delta(DELTA)
    printed = composed(made, PrivacyUnit.CLIENT)
    assert 0.995 * exact <= printed <= 1.2 * exact


# Persons with several records, and where noise ends, under DP-SGD.


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
    assert not plan.guarantee(epsilon=20.0, delta=1e-11).holds


def test_the_tail_goes_on_where_a_step_of_53_bits_would_end_it(monkeypatch):
    """The lowest step is divided once more; the mutation without that ends at 8.65."""
    drawn = [np.array([2.0**-54]), np.array([2.0**-54]), np.array([2.0**-54])]
    monkeypatch.setattr(FloatGaussian, "uniform", lambda _, count: drawn.pop(0)[:count])
    (found,) = FloatGaussian(SeededRandom(0)).normal(1)
    assert math.sqrt(-2 * math.log(2.0**-54)) < 8.66
    assert found > 12.1
