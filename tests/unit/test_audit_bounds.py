"""Bounds against published values, exact intervals, and tests whose true epsilon is known."""

import math

import numpy as np
import pytest
from scipy.stats import binom, norm

from attacks.audit import bounds
from attacks.audit.bounds import Errors
from secure_fd.errors import LocalError


@pytest.mark.parametrize(
    ("canaries", "guesses", "right", "epsilon"),
    [
        (100, 100, 60, 0.052),
        (100, 100, 75, 0.702),
        (100, 100, 100, 3.490),
        (1000, 100, 90, 1.626),
        (1000, 1000, 600, 0.297),
        (1000, 1000, 1000, 5.782),
    ],
)
def test_one_run_matches_the_published_values(
    canaries: int, guesses: int, right: int, epsilon: float
) -> None:
    found = bounds.one_run_bound(canaries, guesses, right, 1e-5, 0.05)
    assert found == pytest.approx(epsilon, abs=5e-4)


def test_one_run_proves_nothing_from_coin_tosses() -> None:
    assert bounds.one_run_bound(1000, 1000, 500, 1e-5) == 0.0
    assert bounds.one_run_bound(1000, 0, 0, 1e-5) == 0.0


def test_one_run_bound_is_where_p_crosses() -> None:
    found = bounds.one_run_bound(500, 200, 180, 1e-5, 0.01)
    assert bounds.one_run_p(500, 200, 180, found - 1e-6, 1e-5) < 0.01
    assert bounds.one_run_p(500, 200, 180, found + 1e-6, 1e-5) >= 0.01


@pytest.mark.parametrize(("hits", "low", "high"), [(0, 0.0, 0.3085), (5, 0.1871, 0.8129)])
def test_clopper_pearson_at_ten_trials(hits: int, low: float, high: float) -> None:
    assert bounds.clopper_pearson(hits, 10, 0.025) == pytest.approx((low, high), abs=1e-4)


@pytest.mark.parametrize(("trials", "most"), [(100, 3.28), (1000, 5.60), (10_000, 7.90)])
def test_the_most_a_perfect_attack_can_show(trials: int, most: float) -> None:
    perfect = Errors(0, 0, trials, trials)
    assert bounds.any_shape(0.0)(*perfect.at_most(0.05)) == pytest.approx(most, abs=0.01)


@pytest.mark.parametrize(("hits", "trials", "miss"), [(3, 2, 0.1), (-1, 2, 0.1), (1, 2, 0.0)])
def test_impossible_counts_are_refused(hits: int, trials: int, miss: float) -> None:
    with pytest.raises(LocalError):
        bounds.clopper_pearson(hits, trials, miss)


@pytest.mark.parametrize("counts", [(1, 2, 1), (1, 1, -1)])
def test_more_right_guesses_than_guesses_are_refused(counts: tuple[int, int, int]) -> None:
    with pytest.raises(LocalError):
        bounds.one_run_bound(*counts, 1e-5)


def test_errors_outside_their_trials_are_refused() -> None:
    with pytest.raises(LocalError):
        Errors(3, 0, 2, 2)


@pytest.mark.parametrize("mu", [0.5, 0.864, 2.0])
def test_gaussian_epsilon_solves_its_equation(mu: float) -> None:
    epsilon = bounds.gaussian_epsilon(mu, 1e-5)
    delta = norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu)
    assert delta == pytest.approx(1e-5, rel=1e-6)


def test_gaussian_shape_returns_the_epsilon_of_exact_rates() -> None:
    mu, threshold = 1.3, 0.4
    rates = norm.sf(threshold), norm.cdf(threshold - mu)
    found = bounds.gaussian_shape(1e-5)(*map(float, rates))
    assert found == pytest.approx(bounds.gaussian_epsilon(mu, 1e-5), rel=1e-9)
    assert bounds.any_shape(1e-5)(*map(float, rates)) < found


def test_a_sampled_loss_without_sampling_is_gaussian() -> None:
    """Never above the exact value, and below it by the rounding of four steps and a cell."""
    loss = bounds.SampledLoss.of(1.0, 4, 2.0)  # mu 1
    exact = bounds.gaussian_epsilon(1.0, 1e-5)
    assert exact - 5 * 2.0**-8 <= loss.epsilon(1e-5) <= exact
    power = norm.cdf(1.0 + norm.ppf(0.1))
    assert power <= loss.power(0.1) <= power + 0.005


PRV = [(0.85205078125, 4.0), (1.5, 1.2983)]
"""Noise, and Opacus' PRV epsilon at delta 1e-5, of ten steps at a rate of a tenth."""


@pytest.mark.parametrize(("noise", "exact"), PRV)
def test_sampled_epsilon_is_just_below_the_prv_accountant(noise: float, exact: float) -> None:
    found = bounds.SampledLoss.of(0.1, 10, noise).epsilon(1e-5)
    assert exact - 11 * 2.0**-8 <= found <= exact


def sum_test(noise: float, threshold: float) -> tuple[float, float]:
    """Exact error rates of the test that adds up ten sampled steps at a rate of a tenth."""
    times = np.arange(11)
    spread = noise * math.sqrt(10)
    caught = binom.pmf(times, 10, 0.1) @ norm.sf((threshold - times) / spread)
    return float(norm.sf(threshold / spread)), float(1 - caught)


@pytest.mark.parametrize(("noise", "exact"), PRV)
@pytest.mark.parametrize("threshold", [1.0, 3.0])
def test_sampled_shape_proves_no_more_than_is_true(
    noise: float, exact: float, threshold: float
) -> None:
    """Exact rates of a test that exists prove some of the true epsilon, and never more."""
    found = bounds.sampled_shape(0.1, 10, 1e-5)(*sum_test(noise, threshold))
    assert 0.4 * exact < found <= exact


@pytest.mark.parametrize("alarm", [0.01, 0.5, 0.9])
def test_a_coin_proves_nothing_of_sampled_steps(alarm: float) -> None:
    assert bounds.sampled_shape(0.1, 10, 1e-5)(alarm, 1 - alarm) == 0.0


@pytest.mark.parametrize("noise", [0.0625, 0.3, 1.0, 8.0])
def test_a_sampled_loss_is_a_pair_of_distributions(noise: float) -> None:
    """Sums that leave the grid must not come back at its other end, where exp(64) awaits them."""
    loss = bounds.SampledLoss.of(0.1, 10, noise)
    assert loss.present.sum() == pytest.approx(1, abs=1e-8)
    assert loss.without.sum() <= 1 + 1e-8
    assert loss.power(0.0) <= 1


def test_symbol_bound_finds_the_symbol_and_its_direction() -> None:
    first, second = np.array([100, 100, 800]), np.array([100, 500, 400])
    bound, where = bounds.symbol_bound(first, second, 1e-3)
    assert where == (1, False)
    assert 0 < bound < math.log(5)


def test_equal_counts_prove_nothing() -> None:
    counts = np.array([300, 700])
    assert bounds.symbol_bound(counts, counts, 0.05) == (0.0, None)


def test_confidence_is_kept_over_many_binomials() -> None:
    """2,000 draws at miss 0.05: with seed 3, more than 130 wrong has probability below 2 in 1,000.

    Power: bounds at miss 0.10 under the name of 0.05 would be wrong about 180 times or more.
    """
    hits = np.random.default_rng(3).binomial(400, 0.3, 2000)
    wrong = sum(bounds.clopper_pearson(int(h), 400, 0.05)[1] < 0.3 for h in hits)
    loose = sum(bounds.clopper_pearson(int(h), 400, 0.10)[1] < 0.3 for h in hits)
    assert wrong <= 130 < loose
