"""The bounds that (epsilon, delta) puts on membership, and mechanisms held against them."""

import math

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import norm

from attacks.audit.bounds import gaussian_epsilon
from attacks.statistics import auc_bound, gaussian_auc, gaussian_tpr, tpr_bound
from secure_fd.errors import ConfigurationError
from secure_fd.privacy.response import RandomizedResponse

EPSILONS = (0.0, 0.1, 1.0, 4.0, 8.0)


@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize("delta", [0.0, 1e-5, 0.1, 1.0])
def test_the_area_is_the_integral_of_the_curve(epsilon: float, delta: float) -> None:
    kink = (1 - delta) / (1 + math.exp(epsilon))
    area, _ = quad(tpr_bound, 0, 1, args=(epsilon, delta), points=[kink, 1 - delta], epsabs=1e-12)
    assert auc_bound(epsilon, delta) == pytest.approx(area, abs=1e-9)


def test_the_ends() -> None:
    assert auc_bound(0.0, 0.0) == 0.5
    assert auc_bound(math.inf, 0.0) == 1.0
    assert auc_bound(0.0, 1.0) == 1.0
    assert tpr_bound(0.3, 0.0, 0.0) == pytest.approx(0.3)
    assert tpr_bound(0.0, 4.0, 0.0) == 0.0
    assert tpr_bound(0.0, 4.0, 1e-5) == pytest.approx(1e-5)
    assert tpr_bound(1.0, 0.0, 0.0) == 1.0
    assert tpr_bound(0.01, 1e4, 0.0) == 1.0
    assert tpr_bound(0.0, math.inf, 0.0) == gaussian_tpr(0.0, 0.0) == 1.0
    assert gaussian_auc(0.0) == 1.0
    assert gaussian_auc(math.inf) == 0.5


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 4.0])
def test_binary_randomised_response_attains_the_bounds(epsilon: float) -> None:
    mechanism = RandomizedResponse(epsilon, 2)
    p, q = mechanism.p, mechanism.q
    # Its curve has one corner, (q, p); ties count one half.
    assert p / 2 + (1 - q) / 2 == pytest.approx(auc_bound(epsilon, 0.0), abs=1e-12)
    assert tpr_bound(q, epsilon, 0.0) == pytest.approx(p, abs=1e-12)


@pytest.mark.parametrize("mu", [0.3, 0.86, 2.0])
def test_gaussian_noise_stays_below_the_bounds_of_its_epsilon(mu: float) -> None:
    rates = np.linspace(0.0, 1.0, 201)
    for delta in (1e-7, 1e-5, 1e-2):
        epsilon = gaussian_epsilon(mu, delta)
        assert gaussian_auc(1 / mu) < auc_bound(epsilon, delta)
        slack = [tpr_bound(a, epsilon, delta) - gaussian_tpr(a, 1 / mu) for a in rates]
        assert min(slack) >= -1e-9
        # The bound touches the curve where the likelihood ratio is e^eps; less would be wrong.
        touch = float(norm.sf(epsilon / mu + mu / 2))
        assert tpr_bound(touch, epsilon, delta) == pytest.approx(gaussian_tpr(touch, 1 / mu))
        assert tpr_bound(touch, 0.95 * epsilon, delta) < gaussian_tpr(touch, 1 / mu)


def test_the_gaussian_area_is_that_of_two_normals() -> None:
    rng = np.random.default_rng(0)
    out, present = rng.normal(size=200_000), rng.normal(1 / 1.16, 1.0, 200_000)
    assert gaussian_auc(1.16) == pytest.approx((present > out).mean(), abs=0.005)
    for a in (0.01, 0.3):
        caught = (present > np.quantile(out, 1 - a)).mean()
        assert gaussian_tpr(a, 1.16) == pytest.approx(caught, abs=0.01)


def test_bounds_grow_with_either_budget() -> None:
    areas = [auc_bound(e, 1e-5) for e in EPSILONS]
    assert areas == sorted(areas)
    assert auc_bound(1.0, 1e-2) > auc_bound(1.0, 1e-5)
    assert auc_bound(4.0, 1e-5) == pytest.approx(0.98201, abs=1e-5)


def test_what_is_no_budget_is_refused() -> None:
    for epsilon, delta in ((-1.0, 0.0), (math.nan, 0.0), (1.0, -0.1), (1.0, 1.1), (1.0, math.nan)):
        with pytest.raises(ConfigurationError):
            auc_bound(epsilon, delta)
        with pytest.raises(ConfigurationError):
            tpr_bound(0.1, epsilon, delta)
    for rate in (-0.1, 1.1, math.nan):
        with pytest.raises(ConfigurationError, match="fpr"):
            tpr_bound(rate, 1.0, 0.0)
        with pytest.raises(ConfigurationError, match="fpr"):
            gaussian_tpr(rate, 1.0)
    with pytest.raises(ConfigurationError, match="noise_multiplier"):
        gaussian_auc(-1.0)
