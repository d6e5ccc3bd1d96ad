"""Each accountant against exact curves, dp-accounting, and mutations with a wrong constant.

Nothing here draws at random.
"""

import math

import numpy as np
import pytest
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution
from scipy.integrate import quad
from scipy.special import logsumexp
from scipy.stats import norm

from secure_fd.errors import LocalError
from secure_fd.privacy.accountants import (
    ACCOUNTANTS,
    ANALYTIC_GAUSSIAN,
    NEARLY_GAUSSIAN,
    PRIVACY_LOSS,
    RENYI,
    accountant_for,
    cost,
    divergence,
    excess,
    rho,
    sampled_cost,
    zcdp_epsilon,
)
from secure_fd.privacy.events import (
    Composed,
    DistributedGaussian,
    Gaussian,
    Primitive,
    Repeated,
    Response,
    SampledGaussian,
    primitives,
)
from secure_fd.votes.codec import FloatArray
from tests.privacy.noise_laws import dp_sgd_bounds, noise_law, shift_losses
from tests.refusals import refused

DELTA = 1e-5


# Which accountant prices which event.

WIDE = DistributedGaussian(variance=1e10, shares=7, l2=2.6e5, dimension=1000)
"""Event of a pooled sum: a unit is very small against the noise."""
SAMPLED, ANSWER = SampledGaussian(1.0, 0.1), Response(2.0, 11)
GAUSSIANS = [ANALYTIC_GAUSSIAN, PRIVACY_LOSS]
KNOWN = [
    (ANSWER, []),
    (Repeated(ANSWER, 5), []),
    (Gaussian(2.0), GAUSSIANS),
    (Composed((Gaussian(2.0), Gaussian(3.0))), GAUSSIANS),
    (DistributedGaussian(4.0, 50, 10.0, 40), [NEARLY_GAUSSIAN]),
    (WIDE, [NEARLY_GAUSSIAN]),
    (Repeated(WIDE, 3), [NEARLY_GAUSSIAN]),
    (Composed((WIDE, Gaussian(3.0))), []),
    (Composed((WIDE, ANSWER)), []),
    (Repeated(SAMPLED, 20), [PRIVACY_LOSS]),
    (Composed((SAMPLED, Gaussian(2.0))), [PRIVACY_LOSS]),
    (Composed((SAMPLED, ANSWER)), []),
    (Composed((SAMPLED, DistributedGaussian(4.0, 1, 1.0, 1))), []),
]
"""An event, and the accountants that know it besides Renyi's, tightest first."""


@pytest.mark.parametrize(("event", "known"), KNOWN)
def test_each_accountant_prices_what_it_knows_and_the_tightest_is_taken(event, known):
    taken = accountant_for(event)
    assert taken is [*known, RENYI][0]
    spent = taken.epsilon(event, DELTA)
    for accountant in ACCOUNTANTS:
        assert accountant.supports(event) is (accountant in [*known, RENYI])
        if accountant.supports(event):
            assert 0 < spent <= accountant.epsilon(event, DELTA) * (1 + 1e-9) < math.inf
        else:
            with pytest.raises(LocalError, match="no bound is known"):
                accountant.epsilon(event, DELTA)


def test_nesting_is_undone_and_equal_releases_are_counted_together():
    inner = Composed((Gaussian(1.0), Repeated(Response(1.0, 3), 4), Gaussian(1.0)))
    event = Composed((Repeated(inner, 3), Response(1.0, 3), Repeated(Gaussian(9.0), 0)))
    assert primitives(event) == {Gaussian(1.0): 6, Response(1.0, 3): 13}


@pytest.mark.parametrize("accountant", ACCOUNTANTS, ids=lambda a: a.name)
def test_nothing_costs_nothing_and_no_noise_is_no_privacy(accountant):
    for nothing in (Composed(()), Repeated(Gaussian(1.0), 0)):
        assert accountant.epsilon(nothing, DELTA) == 0
    none = (
        *(Gaussian(0.0), SampledGaussian(0.0, 0.1), Response(math.inf, 11)),
        DistributedGaussian(0.0, 5, 1.0, 1),
    )
    for event in none:
        for spoilt in (event, Repeated(event, 3), Composed((event, Gaussian(100.0)))):
            if accountant.supports(spoilt):
                assert accountant.epsilon(spoilt, DELTA) == math.inf


def test_only_a_single_answer_has_no_delta():
    assert RENYI.epsilon(ANSWER, 0.0) == 2.0
    for accountant in ACCOUNTANTS:
        event = next(e for e in (Gaussian(2.0), WIDE) if accountant.supports(e))
        for delta in (0.0, 1.0, math.nan):
            with refused("delta"):
                accountant.epsilon(event, delta)
    with refused("delta"):  # floating point ends at 1e-11
        PRIVACY_LOSS.epsilon(Repeated(SAMPLED, 20), 1e-12)


# Exact curves.


def gaussian_weights(sigma: float, shares: int = 1) -> FloatArray:
    """[n] log-probabilities of a sum of discrete Gaussians, centred."""
    law = noise_law(sigma**2, shares, 60 * shares)
    return np.asarray(np.log(law[law > 1e-250]))


def exact_divergence(weights: FloatArray, shift: int, order: float, rate: float = 1.0) -> float:
    """Between log-weights that are shifted with probability `rate`, and not; the larger way."""
    moved = np.concatenate([np.full(shift, -np.inf), weights])
    still = np.concatenate([weights, np.full(shift, -np.inf)])
    stays = math.log1p(-rate) if rate < 1 else -math.inf
    mixed = np.logaddexp(math.log(rate) + moved, stays + still)
    both = np.isfinite(mixed) & np.isfinite(still)
    p, q = mixed[both], still[both]
    ways = (logsumexp(order * p + (1 - order) * q), logsumexp(order * q + (1 - order) * p))
    return float(max(ways)) / (order - 1)


def bound(part: Primitive, order: float) -> float:
    return float(divergence(part, np.array([order]))[0])


@pytest.mark.parametrize("mu", [0.05, 0.5, 1.0, 3.0, 20.0])
def test_the_analytic_gaussian_is_the_integral_of_the_densities(mu):
    """Excess probability mass by numeric integration; five per cent less sensitivity is caught."""
    claimed = ANALYTIC_GAUSSIAN.epsilon(Gaussian(1 / mu), DELTA)

    def excess_mass(mean: float) -> float:
        gain = lambda x: max(0.0, norm.pdf(x - mean) - math.exp(claimed) * norm.pdf(x))  # noqa: E731
        edge = claimed / mean + mean / 2
        return float(quad(gain, edge, max(edge, mean) + 12, epsabs=1e-14, limit=200)[0])

    assert excess_mass(mu) == pytest.approx(DELTA, rel=1e-5)
    assert excess_mass(1.05 * mu) > 1.05 * DELTA


def test_gaussians_compose_by_the_sum_of_squares():
    several = Composed((Repeated(Gaussian(4.0), 7), Gaussian(2.0)))
    one = Gaussian(1 / math.sqrt(7 / 16 + 1 / 4))
    for accountant in GAUSSIANS:
        exact = pytest.approx(accountant.epsilon(one, DELTA), rel=0.005)
        assert accountant.epsilon(several, DELTA) == exact


@pytest.mark.parametrize("order", [1.01, 2.0, 9.0])
@pytest.mark.parametrize("sigma", [1.0, 2.0, 7.0])
def test_a_discrete_gaussian_diverges_no_faster_than_a_continuous_one(sigma, order):
    for shift in (1, 3):
        exact = exact_divergence(gaussian_weights(sigma), shift, order)
        claimed = bound(DistributedGaussian(sigma**2, 1, shift, 1), order)
        assert 0.999 * claimed <= exact <= claimed * (1 + 1e-6)


@pytest.mark.parametrize("shares", [2, 3, 5])
@pytest.mark.parametrize("sigma", [0.5, 0.6, 1.0, 2.0])
def test_sums_of_discrete_gaussians_are_charged_for_not_being_one(sigma, shares):
    for shift in (1, 2):
        claimed = DistributedGaussian(sigma**2, shares, shift, 1)
        for order in (1.0001, 1.5, 5.0):
            exact = exact_divergence(gaussian_weights(sigma, shares), shift, order)
            assert exact <= bound(claimed, order) * (1 + 1e-6)


def test_the_charge_is_needed_and_vanishes_where_shares_are_wide():
    """The mutation that takes a sum of narrow discrete Gaussians for one is below the truth."""
    exact = exact_divergence(gaussian_weights(0.5, 5), 1, 1.5)
    assert exact > 1.05 * 1.5 * 1 / (2 * 5 * 0.25)
    narrow, wide = excess(0.25, 5), excess(4.0, 10_000)
    summed = sum(10 * math.exp(-2 * math.pi**2 * 0.25 * k / (k + 1)) for k in range(1, 5))
    assert narrow == pytest.approx(summed, rel=1e-12)
    assert wide < 1e-15
    entries = DistributedGaussian(0.25, 5, 1.0, 1000)
    tau_d = (2 * narrow * 1000, 2 * narrow * math.sqrt(1000 * 0.8) + narrow**2 * 1000)
    assert rho(entries) == pytest.approx((0.8 + min(tau_d)) / 2)


@pytest.mark.parametrize("rate", [0.01, 0.1, 0.5, 0.9])
@pytest.mark.parametrize("order", [2.0, 3.0, 8.0, 20.0])
def test_sampled_gaussians_diverge_as_the_exact_mixture(rate, order):
    """Integer noise of deviation 1 or more has the continuous moments; half the rate has not."""
    for sigma in (1.0, 4.0):
        exact = exact_divergence(gaussian_weights(sigma), 1, order, rate)
        assert bound(SampledGaussian(sigma, rate), order) == pytest.approx(exact, rel=1e-6)
        assert bound(SampledGaussian(sigma, rate / 2), order) < 0.99 * exact


@pytest.mark.parametrize("symbols", [2, 5, 11])
def test_the_curve_of_answers_is_the_sum_over_all_symbols(symbols):
    for epsilon in (0.01, 1.0, 4.0):
        weigh = [np.exp(epsilon * (np.arange(symbols) == truth)) for truth in (0, 1)]
        p, q = (w / w.sum() for w in weigh)
        for order in (1.5, 2.0, 7.0):
            textbook = math.log((p**order * q ** (1 - order)).sum()) / (order - 1)
            assert bound(Response(epsilon, symbols), order) == pytest.approx(textbook, rel=1e-9)


@pytest.mark.parametrize("spent", [1e-5, 0.01, 1.0, 100.0])
def test_no_order_beats_the_one_that_is_chosen(spent):
    orders = 1 + np.logspace(-4, 4, 2000)
    slack = (-math.log(DELTA) - np.log(orders)) / (orders - 1) + np.log1p(-1 / orders)
    assert zcdp_epsilon(spent, DELTA) <= max(0.0, float((orders * spent + slack).min()))


# Sampled steps.


@pytest.mark.parametrize(
    ("noise", "rate", "steps"),
    [(0.72, 64 / 5400, 500), (1.0, 0.01, 500), (4.0, 64 / 300, 330), (30.0, 0.2, 100)],
)
def test_dp_sgd_is_bounded_by_an_independent_accountant(noise, rate, steps):
    """dp-accounting's bound is no larger, and ours within a hundredth of it.

    A twentieth more noise is caught.
    """
    lower, upper = dp_sgd_bounds(noise, rate, steps, DELTA, 1e-4)
    event = Repeated(SampledGaussian(noise, rate), steps)
    assert upper <= PRIVACY_LOSS.epsilon(event, DELTA) <= 1.01 * upper
    wrong = PRIVACY_LOSS.epsilon(Repeated(SampledGaussian(1.05 * noise, rate), steps), DELTA)
    assert wrong < 0.99 * lower


@pytest.mark.parametrize("noise", [0.05, 0.07, 0.1, 0.3, 1000.0])
def test_dp_sgd_is_priced_at_the_extremes(noise):
    """Ranges in which exponentials overflow, or the grid is coarser than the answer."""
    spent = PRIVACY_LOSS.epsilon(Repeated(SampledGaussian(noise, 0.5), 30), DELTA)
    whole, less = (
        ANALYTIC_GAUSSIAN.epsilon(Repeated(Gaussian(z), 30), DELTA) for z in (noise, 2 * noise)
    )
    assert less - 0.002 < spent <= whole + 0.002


# The bound on sums of discrete Gaussians, over the range that it accepts.


@pytest.mark.parametrize("times", [1, 4])
def test_shares_in_wide_units_cost_what_one_gaussian_does(times):
    event, like = Repeated(WIDE, times), Gaussian(math.sqrt(7e10 / times) / 2.6e5)
    found = NEARLY_GAUSSIAN.epsilon(event, DELTA)
    exact = ANALYTIC_GAUSSIAN.epsilon(like, DELTA)
    assert exact < found < exact + 0.002
    assert found < 0.95 * zcdp_epsilon(times * rho(WIDE), DELTA)


def exact_delta(chances: FloatArray, shift: int, epsilon: float) -> float:
    """Delta of one integer that neighbours move by `shift`, the same in both directions."""
    moved = np.pad(chances, (shift, 0))
    still = np.pad(chances, (0, shift))
    return float(np.maximum(0.0, moved - math.exp(min(epsilon, 700.0)) * still).sum())


@pytest.mark.parametrize("shares", [1, 2, 7, 33, 300])
@pytest.mark.parametrize("variance", [0.25, 1.0, 4.0, 50.0, 2500.0])
def test_one_entry_against_its_exact_convolution(variance, shares):
    """Neighbours are between .05 and 16 deviations of the sum apart."""
    deviation = math.sqrt(variance * shares)
    chances = noise_law(variance, shares, math.ceil(24 * deviation))
    for shift in {max(1, round(far * deviation)) for far in (0.05, 1.0, 4.0, 16.0)}:
        event = DistributedGaussian(variance, shares, shift, 1)
        for delta in (1e-9, 1e-5, 1e-2):
            claimed = NEARLY_GAUSSIAN.epsilon(event, delta)
            assert exact_delta(chances, shift, claimed) <= delta * (1 + 1e-9)


@pytest.mark.parametrize("shift", [1, 7])
def test_a_gaussian_of_equal_variance_is_no_bound(shift):
    """The simple reading is caught, so that the test above can fail."""
    chances = noise_law(4.0, 1, 40)
    deltas = np.logspace(-6, -1, 40)
    claims = (ANALYTIC_GAUSSIAN.epsilon(Gaussian(2.0 / shift), delta) for delta in deltas)
    exact = [exact_delta(chances, shift, claimed) for claimed in claims]
    assert (exact > deltas * 1.001).any()


def composed_delta(parts: list[tuple[PrivacyLossDistribution, int]], epsilon: float) -> float:
    """Return a lower bound of the true delta, since losses are rounded to a grid."""
    first, *others = [entry.self_compose(times) for entry, times in parts]
    for other in others:
        first = first.compose(other)
    return float(first.get_delta_for_epsilon(epsilon))


VECTORS = {
    # each: the event, and (variance, shares, shift, number of such entries)
    "one entry of many": (DistributedGaussian(9.0, 4, 6.0, 10_000), [(9.0, 4, 6, 1)]),
    "all ones": (DistributedGaussian(9.0, 4, 10.0, 100), [(9.0, 4, 1, 100)]),
    "ten thousand ones": (DistributedGaussian(100.0, 7, 100.0, 10_000), [(100.0, 7, 1, 10_000)]),
    "mixed": (
        DistributedGaussian(9.0, 4, math.sqrt(100 + 40 + 36), 111),
        [(9.0, 4, 1, 100), (9.0, 4, 2, 10), (9.0, 4, 6, 1)],
    ),
    "two unlike sums": (
        Composed((DistributedGaussian(9.0, 4, 6.0, 20), DistributedGaussian(2.0, 30, 5.0, 25))),
        [(9.0, 4, 6, 1), (2.0, 30, 1, 25)],
    ),
}


@pytest.mark.parametrize("name", VECTORS)
def test_vectors_and_unlike_sums_against_composed_losses(name):
    """The claim is sound, and not so far above the truth that anything would pass."""
    event, entries = VECTORS[name]
    parts = [(shift_losses(*entry, pessimistic=False), times) for *entry, times in entries]
    for delta in (1e-6, 1e-3):
        claimed = NEARLY_GAUSSIAN.epsilon(event, delta)
        assert composed_delta(parts, claimed) <= delta
        assert composed_delta(parts, 0.85 * claimed) > delta


@pytest.mark.parametrize("variance", [4.0, 9.0, 30.0])
def test_an_adversary_who_chooses_each_round_by_the_last(variance):
    """Three rounds; each shift, up to four units, is chosen by all losses so far, for the worst.

    A loss is a whole number of 1 / 2v, so that the best choice is found exactly, last round first.
    """
    most, rounds = 4, 3
    reach = math.ceil(9 * math.sqrt(variance))
    chances, noise = noise_law(variance, 1, reach), np.arange(-reach, reach + 1)
    edge = rounds * (most**2 + 2 * most * reach)
    places = np.arange(-edge, edge + 1)
    event = Repeated(DistributedGaussian(variance, 1, most, 1), rounds)
    for delta in (1e-6, 1e-3):
        claimed = NEARLY_GAUSSIAN.epsilon(event, delta)
        worst = np.maximum(0.0, -np.expm1(claimed - places / (2 * variance)))
        for _ in range(rounds):
            expected = []
            for shift in range(most + 1):
                ends = np.clip(places[:, None] + shift**2 + 2 * shift * noise, -edge, edge)
                expected.append(worst[ends + edge] @ chances)
            worst = np.max(expected, axis=0)
        assert 0.1 * delta < worst[edge] <= delta


@pytest.mark.parametrize("times", [1, 3])
def test_what_rounding_costs_is_what_was_proved(times):
    """Narrow noise, where eta shows: the formulas of the proof, written down a second time."""
    part, rest = DistributedGaussian(4.0, 5, 4.0, 50), 1e-4
    total, entries, beta = 20.0, 50 * times, DELTA * rest
    v = (6 * total + math.sqrt(36 * total**2 - 12 * total)) / 12
    odds = math.log(4 * entries / beta)
    largest, squares = 2 * odds, entries + 2 * math.sqrt(entries * odds) + 2 * odds
    fourths = min(squares, entries * largest) * largest  # in deviations, as the two before
    eta = total * squares / (320 * v**3) + total**2 * fourths / (1152 * v**4)
    moved, left = 2 * (eta + beta), DELTA * (1 - 2 * rest)
    like = Gaussian(math.sqrt(v / (16.0 * times)))
    exact = ANALYTIC_GAUSSIAN.epsilon(like, left * math.exp(-moved))
    found = NEARLY_GAUSSIAN.epsilon(Repeated(part, times), DELTA)
    assert moved > 0.01
    assert found == pytest.approx(exact + moved, rel=1e-7)


def test_a_sampler_adds_its_distance_to_delta_up_to_a_hundredth_of_it():
    spent = cost(ANSWER, DELTA)
    claimed, total = sampled_cost(ANSWER, DELTA, 2**80)
    assert claimed == spent
    assert total - DELTA == pytest.approx(2.0**-30 * (1 + math.exp(spent)), rel=1e-6)
    assert sampled_cost(ANSWER, DELTA, 2**84) == (math.inf, DELTA)
