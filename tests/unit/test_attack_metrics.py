"""Membership metrics against scikit-learn and closed forms; bounds that a claim puts on them."""

import math

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from scipy.stats import norm, t
from sklearn.metrics import roc_auc_score, roc_curve

from attacks.core.base import AttackResult, Labelled, Scores
from attacks.core.scoring import score_scores
from attacks.core.statistics import auc_bound, gaussian_auc, over_seeds
from attacks.membership.label_only import LabelOnlyGap
from secure_fd.privacy.accountants import accountant_for
from secure_fd.privacy.events import Gaussian
from secure_fd.privacy.label import RandomizedResponse

NO_ATTACK = LabelOnlyGap(Labelled(torch.zeros(1, 1), torch.zeros(1)))  # names and titles alone


def normals(seed: int, shift: float, n: int = 60) -> tuple[np.ndarray, np.ndarray]:
    """[2 n] whether each is a member, and its score, with ties."""
    rng = np.random.default_rng(seed)
    scores = np.concatenate([rng.normal(shift, 1, n), rng.normal(0, 1, n)]).round(1)
    return np.arange(2 * n) < n, scores


def scored(seed: int, shift: float, n: int = 60) -> AttackResult:
    member, scores = normals(seed, shift, n)
    return score_scores(NO_ATTACK, Scores(scores), member, seed)


@pytest.mark.parametrize("seed", range(5))
def test_auc_and_low_rates_agree_with_scikit_learn(seed):
    member, scores = normals(seed, 1.0, 1000)
    found = scored(seed, 1.0, 1000)
    assert found.figure == pytest.approx(roc_auc_score(member, scores), abs=1e-12)
    false_rates, true_rates, _ = roc_curve(member, scores, drop_intermediate=False)
    for fpr in (0.01, 0.001):
        name = f"tpr_at_{fpr:g}_fpr"
        assert found.details[name] == true_rates[false_rates <= fpr + 1e-12].max()
        assert found.details[f"{name}_low"] <= found.details[name] <= found.details[f"{name}_high"]


def test_a_rate_is_not_resolvable_with_too_few_non_members():
    assert "tpr_at_0.01_fpr" not in scored(0, 1.0, 99).details
    assert "tpr_at_0.01_fpr" in scored(0, 1.0, 100).details


def test_auc_interval_covers_the_truth():
    truth = norm.cdf(0.8 / np.sqrt(2))
    covered = 0
    for seed in range(100):
        low, high = scored(seed, 0.8).interval
        covered += low <= truth <= high
        assert high - low < 0.25  # wide intervals would cover anything
    # At 95 %: P[Bin(100, .95) < 86] < 1e-3; a percentile bootstrap is slightly liberal.
    assert covered >= 86


def test_interval_over_seeds_is_students():
    values = np.array([0.61, 0.66, 0.58, 0.7])
    expected = t.interval(0.95, 3, values.mean(), values.std(ddof=1) / 2)
    found = over_seeds(values)
    assert found.value == values.mean()
    assert found.interval == pytest.approx(expected)


def tpr_bound(fpr: float, epsilon: float, delta: float) -> float:
    """1 - f(fpr): the curve that (epsilon, delta) allows, as the docstring of auc_bound has it."""
    shrunk, grown = math.exp(-epsilon), math.exp(epsilon)
    return 1 - max(0.0, 1 - delta - grown * fpr, shrunk * (1 - delta - fpr))


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
        noise = Gaussian(1 / mu)
        epsilon = accountant_for(noise).epsilon(noise, delta)
        assert gaussian_auc(1 / mu) < auc_bound(epsilon, delta)
        slack = [tpr_bound(a, epsilon, delta) - norm.cdf(mu + norm.ppf(a)) for a in rates]
        assert min(slack) >= -1e-9
        # The bound touches the curve where the likelihood ratio is e^eps; less would be wrong.
        touch = float(norm.sf(epsilon / mu + mu / 2))
        assert tpr_bound(touch, epsilon, delta) == pytest.approx(norm.cdf(mu + norm.ppf(touch)))
        assert tpr_bound(touch, 0.95 * epsilon, delta) < norm.cdf(mu + norm.ppf(touch))
