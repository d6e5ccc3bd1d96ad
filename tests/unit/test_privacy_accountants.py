"""Each accountant against exact curves, an independent library, and twins with a wrong constant."""

import math

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.optimize import brentq
from scipy.special import gammaln, logsumexp, xlogy
from scipy.stats import norm

from secure_fd.privacy.accountants import (
    ANALYTIC_GAUSSIAN,
    PRIVACY_LOSS,
    RENYI,
    divergence,
    excess,
    rho,
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
)
from secure_fd.votes.codec import FloatArray
from tests.dp_sgd_bounds import dp_sgd_bounds

DELTA = 1e-5
REACH = np.arange(-150, 151)


def gaussian_weights(sigma: float, shares: int = 1) -> FloatArray:
    """[n] log-probabilities of a sum of discrete Gaussians, centred."""
    one = np.exp(-(np.arange(-60, 61) ** 2) / (2 * sigma**2))
    total = np.ones(1)
    for _ in range(shares):
        total = np.convolve(total, one / one.sum())
    kept = total > 1e-250
    return np.asarray(np.log(total[kept]))


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
    for accountant in (ANALYTIC_GAUSSIAN, PRIVACY_LOSS):
        assert accountant.epsilon(several, DELTA) == pytest.approx(
            accountant.epsilon(one, DELTA), rel=0.005
        )


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
    """The twin that takes a sum of narrow discrete Gaussians for one is below the truth."""
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
            ours = bound(Response(epsilon, symbols), order)
            assert ours == pytest.approx(textbook, rel=1e-9)


def exact_answers(answer: Response, releases: int, delta: float) -> float:
    """The exact composed curve: each answer's privacy loss is epsilon, 0 or -epsilon."""
    epsilon, q = answer.epsilon, 1 / (math.exp(answer.epsilon) + answer.alphabet_size - 1)
    up, down = np.meshgrid(np.arange(releases + 1), np.arange(releases + 1), indexing="ij")
    up, down = up[up + down <= releases], down[up + down <= releases]
    still = releases - up - down
    rest = xlogy(still, (answer.alphabet_size - 2) * q)
    ways = gammaln(releases + 1) - gammaln(up + 1) - gammaln(down + 1) - gammaln(still + 1)
    mass = np.exp(ways + up * (epsilon + math.log(q)) + down * math.log(q) + rest)
    loss = epsilon * (up - down)

    def gain(claimed: float) -> float:
        return float((mass * -np.expm1(np.minimum(claimed - loss, 0))).sum() - delta)

    return float(brentq(gain, 0.0, epsilon * releases))


@pytest.mark.parametrize(
    ("answer", "releases"),
    [
        *((Response(4.0, 11), 20), (Response(1.0, 11), 60), (Response(0.3, 3), 200)),
        *((Response(0.5, 2), 100), (Response(0.1, 11), 300)),
    ],
)
def test_composed_answers_bound_the_exact_curve(answer, releases):
    exact = exact_answers(answer, releases, DELTA)
    assert exact <= RENYI.epsilon(Repeated(answer, releases), DELTA) <= 1.2 * exact


@pytest.mark.parametrize("spent", [1e-5, 0.01, 1.0, 100.0])
def test_no_order_beats_the_one_that_is_chosen(spent):
    orders = 1 + np.logspace(-4, 4, 2000)
    slack = (-math.log(DELTA) - np.log(orders)) / (orders - 1) + np.log1p(-1 / orders)
    assert zcdp_epsilon(spent, DELTA) <= max(0.0, float((orders * spent + slack).min()))


PLANNED = [(0.72, 64 / 5400, 500), (1.0, 0.01, 500), (4.0, 64 / 300, 330), (30.0, 0.2, 100)]


@pytest.mark.parametrize(("noise", "rate", "steps"), PLANNED)
def test_dp_sgd_is_bounded_by_an_independent_accountant(noise, rate, steps):
    """dp-accounting's bound is no larger, and ours within a hundredth of it.

    A twentieth more noise is caught.
    """
    lower, upper = dp_sgd_bounds(noise, rate, steps, DELTA, 1e-4)
    event = Repeated(SampledGaussian(noise, rate), steps)
    ours = PRIVACY_LOSS.epsilon(event, DELTA)
    assert upper <= ours <= 1.01 * upper
    wrong = PRIVACY_LOSS.epsilon(Repeated(SampledGaussian(1.05 * noise, rate), steps), DELTA)
    assert wrong < 0.99 * lower


def test_sampled_steps_of_two_kinds_cost_more_than_either_and_less_than_both():
    kinds = [Repeated(SampledGaussian(2.0, 0.1), 100), Repeated(SampledGaussian(1.0, 0.01), 200)]
    alone = [PRIVACY_LOSS.epsilon(kind, DELTA) for kind in kinds]
    assert max(alone) < PRIVACY_LOSS.epsilon(Composed(tuple(kinds)), DELTA) < sum(alone)
    assert PRIVACY_LOSS.epsilon(Composed(()), DELTA) == 0


@pytest.mark.parametrize("noise", [0.05, 0.07, 0.1, 0.3, 1000.0])
def test_dp_sgd_is_priced_at_the_extremes(noise):
    """Where exponentials overflow, and where the grid is coarser than the answer."""
    steps = Repeated(SampledGaussian(noise, 0.5), 30)
    spent = PRIVACY_LOSS.epsilon(steps, DELTA)
    whole, less = (
        ANALYTIC_GAUSSIAN.epsilon(Repeated(Gaussian(z), 30), DELTA) for z in (noise, 2 * noise)
    )
    assert less - 0.002 < spent <= whole + 0.002
