"""Figures of attacks against scikit-learn, scikit-image and closed forms; bounds by a claim."""

import math

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from scipy.stats import norm
from skimage.metrics import peak_signal_noise_ratio
from sklearn.metrics import roc_auc_score, roc_curve

from attacks.core.base import AttackResult, Images, Labelled, Scores
from attacks.core.images import CEILING, Originals, compare, psnr
from attacks.core.scoring import score_scores
from attacks.core.statistics import auc_bound, gaussian_auc
from attacks.membership.label_only import LabelOnlyGap
from secure_fd.privacy.accountants import accountant_for
from secure_fd.privacy.events import Gaussian

NO_ATTACK = LabelOnlyGap(Labelled(torch.zeros(1, 1), torch.zeros(1)))  # names and titles alone


def normals(seed: int, shift: float, n: int = 60) -> tuple[np.ndarray, np.ndarray]:
    """[2 n] whether each is a member, and its score, with ties."""
    rng = np.random.default_rng(seed)
    scores = np.concatenate([rng.normal(shift, 1, n), rng.normal(0, 1, n)]).round(1)
    return np.arange(2 * n) < n, scores


def scored(inside: np.ndarray, scores: np.ndarray, seed: int = 0) -> AttackResult:
    return score_scores(NO_ATTACK, Scores(scores), inside, seed)


# Membership.


def test_auc_and_low_rates_agree_with_scikit_learn():
    member, scores = normals(0, 1.0, 1000)
    found = scored(member, scores)
    assert found.figure == pytest.approx(roc_auc_score(member, scores), abs=1e-12)
    false_rates, true_rates, _ = roc_curve(member, scores, drop_intermediate=False)
    for fpr in (0.01, 0.001):
        name = f"tpr_at_{fpr:g}_fpr"
        assert found.details[name] == true_rates[false_rates <= fpr + 1e-12].max()
        assert found.details[f"{name}_low"] <= found.details[name] <= found.details[f"{name}_high"]
    for count in (99, 100):  # a rate of 1 % takes 100 non-members
        few = scored(*normals(0, 1.0, count)).details
        assert ("tpr_at_0.01_fpr" in few) == (count == 100)


def test_the_interval_of_an_area_covers_the_truth():
    """At 95 %: P[Bin(100, .95) < 86] < 1e-3; a percentile bootstrap is slightly liberal."""
    truth = norm.cdf(0.8 / np.sqrt(2))
    intervals = [scored(*normals(seed, 0.8), seed).interval for seed in range(100)]
    assert sum(low <= truth <= high for low, high in intervals) >= 86
    assert max(high - low for low, high in intervals) < 0.25  # wide ones would cover anything


def inclusion(runs: int, candidates: int, seed: int) -> np.ndarray:
    """[R, N] with a fair coin for each pair of runs and candidate."""
    first = np.random.default_rng(seed).random((runs // 2, candidates)) < 0.5
    return np.stack([first, ~first], axis=1).reshape(runs, candidates)


def test_false_alarms_of_tables_of_runs_are_as_many_as_stated():
    """60 null tables: an interval misses 1/2 three times on average.

    More than nine have a chance of .001 (binomial, 60, .05). Scores of a candidate share a part, as
    those of an attack do.
    """
    missed = 0
    for seed in range(60):
        rng = np.random.default_rng(seed)
        inside = inclusion(8, 40, seed)
        made = scored(inside, 2 * rng.normal(size=40) + rng.normal(size=inside.shape), seed)
        missed += not made.interval[0] <= 0.5 <= made.interval[1]
    assert missed <= 9
    assert scored(inside, np.where(inside, 1.0, -1.0)).figure == 1.0
    assert scored(inside, np.zeros(inside.shape)).figure == 0.5


# What a claim bounds.


def tpr_bound(fpr: float, epsilon: float, delta: float) -> float:
    """1 - f(fpr): the curve that (epsilon, delta) allows, as the docstring of auc_bound has it."""
    shrunk, grown = math.exp(-epsilon), math.exp(epsilon)
    return 1 - max(0.0, 1 - delta - grown * fpr, shrunk * (1 - delta - fpr))


@pytest.mark.parametrize("epsilon", [0.0, 0.1, 1.0, 4.0, 8.0])
@pytest.mark.parametrize("delta", [0.0, 1e-5, 0.1, 1.0])
def test_the_area_is_the_integral_of_the_curve(epsilon, delta):
    kink = (1 - delta) / (1 + math.exp(epsilon))
    area, _ = quad(tpr_bound, 0, 1, args=(epsilon, delta), points=[kink, 1 - delta], epsabs=1e-12)
    assert auc_bound(epsilon, delta) == pytest.approx(area, abs=1e-9)


@pytest.mark.parametrize("mu", [0.3, 0.86, 2.0])
def test_the_area_of_gaussian_noise_is_exact_and_below_the_bound_of_its_epsilon(mu):
    assert gaussian_auc(1 / mu) == pytest.approx(norm.cdf(mu / math.sqrt(2)))
    for delta in (1e-7, 1e-5, 1e-2):
        noise = Gaussian(1 / mu)
        epsilon = accountant_for(noise).epsilon(noise, delta)
        assert gaussian_auc(1 / mu) < auc_bound(epsilon, delta)


# Images.


def images(count: int, seed: int) -> Labelled:
    made = torch.rand(count, 1, 8, 8, generator=torch.Generator().manual_seed(seed))
    return Labelled(made, torch.arange(count) % 5 + 5)


def test_psnr_of_every_pair_is_scikit_images_and_is_not_lost_to_rounding():
    a, b = images(4, 0).images.double(), images(5, 1).images.double()
    expected = [
        [peak_signal_noise_ratio(y.numpy(), x.numpy(), data_range=1.0) for y in b] for x in a
    ]
    np.testing.assert_allclose(psnr(a, b), expected, atol=1e-10)
    assert psnr(a[:1], a[:1] + 1e-5)[0, 0] == pytest.approx(100.0, abs=1e-3)
    assert psnr(a[:1], a[:1])[0, 0] == CEILING


def test_copies_of_private_images_leak_and_images_made_without_access_do_not():
    """Means of 40 fair p-values have deviation .046; P[Bin(40, .05) > 9] < 1e-4."""
    originals = Originals(images(100, 0), images(100, 1))

    def compared(made: Labelled, seed: int = 0) -> dict[str, float]:
        return dict(compare(Images(made.images, made.labels), originals, seed).details)

    copied = compared(originals.private.take(torch.arange(20)))
    assert copied["delta_low"] > 80
    assert copied["delta_p_value"] < 0.01
    assert compared(originals.held_out.take(torch.arange(20)))["delta_high"] < -80
    blind = [compared(images(20, seed), seed) for seed in range(10, 50)]
    p_values = np.array([made["delta_p_value"] for made in blind])
    assert p_values.mean() == pytest.approx(0.5, abs=0.2)
    assert (p_values <= 0.05).sum() <= 9
    assert np.mean([made["delta"] for made in blind]) == pytest.approx(0.0, abs=0.05)
