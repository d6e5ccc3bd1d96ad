"""Membership metrics against scikit-learn and closed forms; bounds that a claim puts on them."""

import math

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import norm, t
from sklearn.metrics import roc_auc_score
from sklearn.metrics import roc_curve as reference_curve

from attacks.audit.bounds import gaussian_epsilon
from attacks.core.base import Scores
from attacks.core.statistics import (
    GRID,
    auc,
    auc_bound,
    gaussian_auc,
    gaussian_tpr,
    mean_roc,
    over_seeds,
    paired,
    rank,
    roc_curve,
    shuffled_auc,
    tpr_at_fpr,
    tpr_bound,
)
from secure_fd.errors import ConfigurationError, LocalError
from secure_fd.privacy.label import RandomizedResponse


def normals(seed: int, shift: float, n: int = 60, k: int = 80) -> Scores:
    rng = np.random.default_rng(seed)
    return rank(rng.normal(shift, 1, n), rng.normal(0, 1, k), seed)


def joined(scores: Scores) -> tuple[np.ndarray, np.ndarray]:
    truth = np.repeat([1, 0], [scores.members.size, scores.non_members.size])
    return truth, np.concatenate([scores.members, scores.non_members])


@pytest.mark.parametrize("seed", range(5))
def test_auc_and_curve_agree_with_scikit_learn(seed):
    scores = normals(seed, 0.7)
    truth, values = joined(scores)
    assert auc(scores, 0).value == pytest.approx(roc_auc_score(truth, values), abs=1e-12)
    fpr, tpr, _ = reference_curve(truth, values, drop_intermediate=False)
    curve = roc_curve(scores)
    np.testing.assert_allclose(curve.fpr, fpr, atol=1e-12)
    np.testing.assert_allclose(curve.tpr, tpr, atol=1e-12)


@pytest.mark.parametrize("fpr", [0.02, 0.1, 0.5])
def test_tpr_at_fpr_is_the_highest_point_of_the_curve_up_to_that_fpr(fpr):
    scores = normals(1, 1.0)
    false_rates, true_rates, _ = reference_curve(*joined(scores), drop_intermediate=False)
    rate = tpr_at_fpr(scores, fpr, 0)
    assert rate is not None
    assert rate.value == true_rates[false_rates <= fpr + 1e-12].max()
    assert rate.interval[0] <= rate.value <= rate.interval[1]


def test_tpr_is_not_resolvable_with_too_few_non_members():
    assert tpr_at_fpr(rank(np.arange(500), np.arange(99), 0), 0.01, 0) is None
    assert tpr_at_fpr(rank(np.arange(500), np.arange(100), 0), 0.01, 0) is not None


def test_ties_are_broken_at_random_by_the_seed():
    def area(seed: int) -> float:
        curve = roc_curve(rank(np.zeros(50), np.zeros(50), seed))
        return float(np.trapezoid(curve.tpr, curve.fpr))

    ties = [area(seed) for seed in range(200)]
    # Each area has deviation sqrt(101 / 12 / 2500) = .058, their mean .0041: five of those.
    assert np.mean(ties) == pytest.approx(0.5, abs=0.021)
    assert np.std(ties) == pytest.approx(0.058, rel=0.3)
    assert ties[0] == area(0)
    assert ties[0] == pytest.approx(auc(rank(np.zeros(50), np.zeros(50), 0), 0).value)


def test_auc_interval_covers_the_truth():
    truth = norm.cdf(0.8 / np.sqrt(2))
    covered = 0
    for seed in range(100):
        low, high = auc(normals(seed, 0.8), seed).interval
        covered += low <= truth <= high
        assert high - low < 0.25  # wide intervals would cover anything
    # At 95 %: P[Bin(100, .95) < 86] < 1e-3; a percentile bootstrap is slightly liberal.
    assert covered >= 86


def test_shuffled_membership_is_a_coin_and_finds_shifts():
    def p_value(shift: float, seed: int) -> float:
        scores = normals(seed, shift)
        return float((shuffled_auc(scores, seed) >= auc(scores, seed).value).mean())

    assert shuffled_auc(normals(0, 3.0), 0).mean() == pytest.approx(0.5, abs=0.01)
    # P[Bin(60, .05) > 11] < 1e-4.
    assert sum(p_value(0.0, seed) < 0.05 for seed in range(60)) <= 11
    assert sum(p_value(1.0, seed) < 0.05 for seed in range(20)) == 20


def test_empty_and_infinite_scores_are_refused():
    with pytest.raises(LocalError, match="0 members and 1 non-members"):
        rank([], [1.0], 0)
    with pytest.raises(LocalError, match="finite"):
        rank([np.inf], [1.0], 0)


def test_interval_over_seeds_is_students():
    values = np.array([0.61, 0.66, 0.58, 0.7])
    expected = t.interval(0.95, 3, values.mean(), values.std(ddof=1) / 2)
    found = over_seeds(values)
    assert found.value == values.mean()
    assert found.interval == pytest.approx(expected)


def test_sign_of_a_difference():
    assert paired([0.9, 0.92, 0.91], [0.5, 0.51, 0.5]).sign == 1
    assert paired([0.1, 0.12, 0.11], [0.5, 0.51, 0.5]).sign == -1
    assert paired([0.5, 0.6], [0.6, 0.5]).sign == 0
    assert paired([0.1 + 0.2] * 3, [0.3] * 3).sign == 0  # a rounding error is no leakage


@pytest.mark.parametrize("values", [[], [0.5, np.nan], [[0.5]]])
def test_figures_over_seeds_are_finite_and_one_a_seed(values):
    with pytest.raises(LocalError, match="finite one a seed"):
        over_seeds(values)


def test_paired_figures_must_match():
    with pytest.raises(LocalError, match="2 for 1 figures"):
        paired([0.5], [0.5, 0.6])


def test_mean_curve_is_the_mean_of_rates_at_each_threshold():
    curves = [roc_curve(normals(seed, 1.0, 60, 100)) for seed in range(3)]
    found = mean_roc(curves)
    for fpr, tpr in zip(found.fpr[::7], found.tpr[::7], strict=True):
        scores = [normals(seed, 1.0, 60, 100) for seed in range(3)]
        rates = [tpr_at_fpr(s, fpr, 0) for s in scores]
        assert tpr == pytest.approx(np.mean([r.value for r in rates if r]), abs=1e-12)
    assert (np.diff(found.tpr) >= 0).all()
    assert found.tpr[-1] == 1.0


def test_mean_curve_starts_where_every_curve_resolves():
    few, many = roc_curve(normals(0, 1.0, 50, 100)), roc_curve(normals(1, 1.0, 50, 1000))
    assert mean_roc([many]).fpr[0] == pytest.approx(1e-3)
    assert mean_roc([few, many]).fpr[0] == pytest.approx(1e-2)
    assert {1e-3, 1e-2, 1e-1} <= set(np.round(GRID, 12))
    with pytest.raises(LocalError, match="0 have no mean"):
        mean_roc([])


EPSILONS = (0.0, 0.1, 1.0, 4.0, 8.0)


@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize("delta", [0.0, 1e-5, 0.1, 1.0])
def test_the_area_is_the_integral_of_the_curve(epsilon, delta):
    kink = (1 - delta) / (1 + math.exp(epsilon))
    area, _ = quad(tpr_bound, 0, 1, args=(epsilon, delta), points=[kink, 1 - delta], epsabs=1e-12)
    assert auc_bound(epsilon, delta) == pytest.approx(area, abs=1e-9)


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 4.0])
def test_binary_randomised_response_attains_the_bounds(epsilon):
    mechanism = RandomizedResponse(epsilon, 2)
    p, q = mechanism.p, mechanism.q
    # Its curve has one corner, (q, p); ties count one half.
    assert p / 2 + (1 - q) / 2 == pytest.approx(auc_bound(epsilon, 0.0), abs=1e-12)
    assert tpr_bound(q, epsilon, 0.0) == pytest.approx(p, abs=1e-12)


@pytest.mark.parametrize("mu", [0.3, 0.86, 2.0])
def test_gaussian_noise_stays_below_the_bounds_of_its_epsilon(mu):
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


def test_what_is_no_budget_is_refused():
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
