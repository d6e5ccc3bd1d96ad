"""Accounting against published values, exact oracles, and its own inverses."""

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import brentq
from scipy.special import gammaln, xlogy
from scipy.stats import norm

from secure_fd.errors import ConfigurationError
from secure_fd.privacy.accounting import (
    REPLACE_ONE,
    gaussian_epsilon,
    gaussian_noise_multiplier,
    gaussian_rho,
    response_calibration,
    response_divergence,
    response_epsilon,
    zcdp_epsilon,
)

DELTA = 1e-5


def exact_gaussian_epsilon(mu: float, delta: float) -> float:
    """The continuous Gaussian's exact curve (Balle and Wang, 2018, theorem 8)."""

    def excess(epsilon: float) -> float:
        above, below = norm.cdf(mu / 2 - epsilon / mu), norm.logcdf(-mu / 2 - epsilon / mu)
        return float(above - math.exp(epsilon + below) - delta)

    return float(brentq(excess, 0.0, 200.0))


def exact_response_epsilon(
    epsilon: float, alphabet_size: int, releases: int, delta: float
) -> float:
    """The exact composed curve: each answer's privacy loss is epsilon, 0 or -epsilon."""
    q = 1 / (math.exp(epsilon) + alphabet_size - 1)
    up, down = np.meshgrid(np.arange(releases + 1), np.arange(releases + 1), indexing="ij")
    up, down = up[up + down <= releases], down[up + down <= releases]
    still = releases - up - down
    rest = xlogy(still, (alphabet_size - 2) * q)
    ways = gammaln(releases + 1) - gammaln(up + 1) - gammaln(down + 1) - gammaln(still + 1)
    mass = np.exp(ways + up * (epsilon + math.log(q)) + down * math.log(q) + rest)
    loss = epsilon * (up - down)

    def excess(claimed: float) -> float:
        return float((mass * -np.expm1(np.minimum(claimed - loss, 0))).sum() - delta)

    return float(brentq(excess, 0.0, epsilon * releases))


@pytest.mark.parametrize(
    ("epsilon", "noise_multiplier", "replaced"),
    [(1, 4.045, 2.139), (2, 2.149, 4.354), (4, 1.158, 8.983), (8, 0.638, 18.847)],
)
def test_known_gaussian_values(epsilon: float, noise_multiplier: float, replaced: float) -> None:
    z = gaussian_noise_multiplier(epsilon, DELTA)
    assert z == pytest.approx(noise_multiplier, abs=5e-4)
    assert gaussian_epsilon(z, DELTA, REPLACE_ONE) == pytest.approx(replaced, abs=5e-4)


@pytest.mark.parametrize("noise_multiplier", [0.2, 0.638, 1.158, 4.045, 40.0])
def test_the_gaussian_bound_is_sound_and_tight(noise_multiplier: float) -> None:
    exact = exact_gaussian_epsilon(1 / noise_multiplier, DELTA)
    assert exact <= gaussian_epsilon(noise_multiplier, DELTA) <= 1.15 * exact


@given(
    rho=st.floats(1e-6, 1e3),
    delta=st.floats(1e-12, 0.1),
    order=st.floats(1.0001, 1e4),
)
def test_no_order_beats_the_chosen_one(rho: float, delta: float, order: float) -> None:
    slack = (-math.log(delta) - math.log(order)) / (order - 1) + math.log1p(-1 / order)
    assert zcdp_epsilon(rho, delta) <= max(0.0, order * rho + slack) * (1 + 1e-9) + 1e-9


@given(epsilon=st.floats(0.01, 50), delta=st.floats(1e-12, 1e-2))
def test_calibration_inverts_epsilon_and_never_overspends(epsilon: float, delta: float) -> None:
    z = gaussian_noise_multiplier(epsilon, delta)
    assert epsilon * (1 - 1e-9) <= gaussian_epsilon(z, delta) <= epsilon


@given(z=st.floats(0.05, 100), more=st.floats(1.001, 10), delta=st.floats(1e-12, 1e-2))
def test_more_noise_never_costs_more(z: float, more: float, delta: float) -> None:
    assert gaussian_epsilon(z * more, delta) <= gaussian_epsilon(z, delta)
    assert gaussian_epsilon(z, delta) <= gaussian_epsilon(z, delta / 10)


def test_rhos_of_two_releases_add_up() -> None:
    both = gaussian_rho(2.0) + gaussian_rho(2.0)
    assert both == pytest.approx(gaussian_rho(math.sqrt(2)))
    assert gaussian_rho(2.0, sensitivity=3.0) == pytest.approx(9 * gaussian_rho(2.0))


def test_six_thousand_answers_at_four() -> None:
    assert response_epsilon(4, 11, 6000, DELTA) == pytest.approx(20_511, abs=1)
    assert response_calibration(4, 11, 6000, DELTA) == pytest.approx(0.026, abs=5e-4)


@pytest.mark.parametrize(
    ("epsilon", "alphabet_size", "releases"),
    [(4.0, 11, 20), (1.0, 11, 60), (0.3, 3, 200), (0.5, 2, 100), (0.1, 11, 300)],
)
def test_composed_answers_bound_the_exact_curve(
    epsilon: float, alphabet_size: int, releases: int
) -> None:
    exact = exact_response_epsilon(epsilon, alphabet_size, releases, DELTA)
    assert exact <= response_epsilon(epsilon, alphabet_size, releases, DELTA) <= 1.2 * exact


def test_the_divergence_is_the_textbook_sum() -> None:
    p, q = math.e / (math.e + 4), 1 / (math.e + 4)
    for order in (1.5, 2.0, 7.0):
        moment = p**order * q ** (1 - order) + q**order * p ** (1 - order) + 3 * q
        (ours,) = response_divergence(1.0, 5, np.array([order]))
        assert ours == pytest.approx(math.log(moment) / (order - 1), rel=1e-12)


def test_composition_is_monotone_and_never_above_the_plain_sum() -> None:
    by_count = [response_epsilon(2.0, 11, m, DELTA) for m in (0, 1, 2, 10, 100, 10_000)]
    assert all(a < b for a, b in pairwise(by_count))
    assert by_count[:2] == [0.0, pytest.approx(2.0, rel=1e-3)]
    assert by_count[1] <= 2.0
    assert response_epsilon(1e-3, 11, 1, 1e-12) <= 1e-3
    by_noise = [response_epsilon(e, 11, 500, DELTA) for e in (0.01, 0.1, 1.0, 4.0)]
    assert all(a < b for a, b in pairwise(by_noise))


@given(total=st.floats(0.1, 1000), releases=st.integers(1, 5000))
def test_response_calibration_inverts_and_never_overspends(total: float, releases: int) -> None:
    each = response_calibration(total, 11, releases, DELTA)
    spent = response_epsilon(each, 11, releases, DELTA)
    assert total * (1 - 1e-6) <= spent <= total


def test_infinite_epsilon_needs_no_noise() -> None:
    assert gaussian_noise_multiplier(math.inf, DELTA) == 0
    assert math.isinf(gaussian_epsilon(0.0, DELTA))
    assert math.isinf(response_epsilon(math.inf, 11, 3, DELTA))
    assert math.isinf(response_calibration(math.inf, 11, 3, DELTA))


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan])
def test_impossible_budgets_are_refused(bad: float) -> None:
    for call in (gaussian_noise_multiplier, zcdp_epsilon):
        with pytest.raises(ConfigurationError):
            call(1.0, bad)
    with pytest.raises(ConfigurationError):
        gaussian_noise_multiplier(bad, DELTA)
    with pytest.raises(ConfigurationError):
        response_epsilon(bad, 11, 5, DELTA)
