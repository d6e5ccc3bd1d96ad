"""Selectors of clients on real images, against Bayes, and their thresholds."""

from functools import cache

import numpy as np
import pytest
from scipy.linalg import cho_factor
from scipy.stats import norm
from sklearn.metrics import roc_auc_score

from secure_fd.data.federated import federate
from secure_fd.data.partition import Split
from secure_fd.data.sources import load
from secure_fd.selection.density_ratio import (
    FourierFeatures,
    RatioSolver,
    class_means,
    class_shares,
    posterior,
)
from secure_fd.selection.selectors import (
    KulsifSelector,
    ProxyRatioSelector,
    Selection,
    otsu_thresholds,
)


@cache
def mnist5k():
    return federate(load("mnist5k"), Split("strong"), 10, 0)


@cache
def selections(selector):
    return [selector.select(c, mnist5k().proxies.pixels) for c in mnist5k().clients]


def own(client):
    """[P] whether a proxy is of the client's one class."""
    return np.asarray(mnist5k().proxies.labels == client)


def test_the_ratio_to_proxies_finds_a_clients_own_class_better_than_kulsif():
    """On 1,000 real proxies; KuLSIF against uniform noise must be of use, or it is no rival."""
    ratio, kulsif = (
        np.mean([roc_auc_score(own(k), s.scores) for k, s in enumerate(selections(selector))])
        for selector in (ProxyRatioSelector(), KulsifSelector())
    )
    assert ratio > 0.98
    assert 0.85 < kulsif < ratio - 0.05


def test_otsu_accepts_most_of_the_own_class_and_little_else():
    found = enumerate(selections(ProxyRatioSelector()))
    shares = [(s.accepted[own(k)].mean(), s.accepted[~own(k)].mean()) for k, s in found]
    hits, false = np.mean(shares, axis=0)
    assert hits > 0.8
    assert false < 0.05


def test_the_quantile_is_the_share_of_its_own_class_that_a_client_gives_up():
    """30 held-back records a client set each line: the mean over ten clients varies by 0.03.

    Ratios at the proxies that H was fitted on are smaller than at other records: without the
    leave-one-out correction a client accepts far fewer of its own than it asked for.
    """
    in_sample = selections(ProxyRatioSelector())
    for quantile in (0.1, 0.25, 0.5):
        found = selections(ProxyRatioSelector(quantile))
        hits = np.mean([s.accepted[own(k)].mean() for k, s in enumerate(found)])
        assert abs(hits - (1 - quantile)) < 0.08
        pairs = enumerate(zip(in_sample, found, strict=True))
        mutant = [(plain.ratios >= s.thresholds)[own(k)].mean() for k, (plain, s) in pairs]
        assert np.mean(mutant) < hits - 0.02


def test_leverage_is_leave_one_out():
    """Against a second moment refitted without the proxy, with the same weight on the others."""
    rng = np.random.default_rng(0)
    features, means = rng.normal(size=(30, 8)) / 3, rng.normal(size=(2, 8))
    moment, ridge = features.T @ features / 30, 0.05 * np.eye(8)
    solver = RatioSolver(cho_factor(moment + ridge))
    ratios = features @ solver.solve(means.T)
    left_out = ratios / (1 - solver.leverage(features))[:, None]
    for i in (0, 17, 29):
        without = moment - np.outer(features[i], features[i]) / 30 + ridge
        assert left_out[i] == pytest.approx(features[i] @ np.linalg.solve(without, means.T))


def test_the_posterior_of_fitted_ratios_is_near_bayes():
    """From samples alone; reading the ratios without dividing by the shares must fall short.

    Records of classes 0 (70 %) and 1; 6,000 balanced proxies of three classes.
    """
    rng = np.random.default_rng(1)
    labels = (rng.random(4000) > 0.7).astype(np.int64)
    local = rng.normal(2.0 * labels, 0.7)[:, None]
    proxies = rng.normal(2.0 * np.repeat([0, 1, 2], 2000), 0.7)[:, None]
    fourier = FourierFeatures.draw(proxies, 400)
    at_proxies = fourier(proxies)
    moment = at_proxies.T @ at_proxies / len(proxies)
    solver = RatioSolver(cho_factor(moment + np.eye(400) / len(proxies)))
    ratios = at_proxies @ solver.solve(class_means(fourier(local), labels, (0, 1)).T)
    densities = norm.pdf(proxies, 2.0 * np.arange(3), 0.7)
    bayes = densities[:, :2] / densities.sum(axis=1, keepdims=True)
    assert np.abs(posterior(ratios, 3, class_shares(ratios)) - bayes).mean() < 0.05
    assert np.abs(np.clip(ratios / 3, 0, 1) - bayes).mean() > 0.1
    # The mean ratio at the proxies estimates the share of a class.
    assert ratios.mean(axis=0) == pytest.approx([0.7, 0.3], abs=0.03)


def test_otsu_is_within_a_bin_of_the_best_split():
    """Against every split of the sorted sample, by within-class variance."""
    rng = np.random.default_rng(1)
    values = np.sort(np.concatenate([rng.normal(0, 1, 300), rng.normal(3, 0.5, 60)]))

    def within(line):
        low, high = values[values < line], values[values >= line]
        return float(low.var() * len(low) + high.var() * len(high))

    best = min(within(line) for line in (values[1:] + values[:-1]) / 2)
    found, scaled = otsu_thresholds(np.stack([values, 50 * values - 7], axis=1))
    assert scaled == pytest.approx(50 * found - 7)  # columns are judged apart
    assert within(found) <= 1.005 * best
    same = np.full((10, 1), 3.0)
    assert (same >= otsu_thresholds(same)).all()


def test_a_selection_accepts_where_any_class_does():
    selection = Selection(
        classes=(1, 3),
        ratios=np.array([[0.5, 0.1], [0.2, 2.0], [0.1, 0.9], [0.6, 1.0]]),
        thresholds=np.array([0.5, 1.0]),
        posterior=np.array([[0.5, 0.1], [0.2, 1.0], [0.1, 0.9], [0.6, 1.0]]),
    )
    assert selection.evidence(4)[1].tolist() == [0.0, 0.2, 0.0, 1.0]
    assert selection.scores == pytest.approx([0.0, 1.0, -0.1, 0.1])
    assert selection.accepted.tolist() == [True, True, False, True]
    assert np.argwhere(selection.allowed(4)).tolist() == [[0, 1], [1, 3], [3, 1], [3, 3]]
