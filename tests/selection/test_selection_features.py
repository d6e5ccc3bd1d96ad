"""Feature maps: bounded rows, unit variance, and nothing private in them."""

import numpy as np
import pytest
import torch

from secure_fd.errors import LocalError
from secure_fd.privacy.record import FEATURE_UNITS, feature_units, shrink
from secure_fd.selection.density_ratio import (
    FourierFeatures,
    ProxyReference,
    ReferenceSettings,
    class_means,
)

SMALL = ReferenceSettings(20, 200)


def pictures(count, seed):
    """Smooth random images, [count, 1, 16, 16] in [0, 1]."""
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.rand(count, 1, 6, 6, generator=generator)
    return torch.nn.functional.interpolate(coarse, size=16, mode="bilinear")


PROXIES = pictures(300, 0)
REFERENCE = ProxyReference.fit(PROXIES, SMALL)
HOSTILE = {
    "black": torch.zeros(4, 1, 16, 16),
    "white": torch.ones(4, 1, 16, 16),
    "noise": torch.rand(50, 1, 16, 16, generator=torch.Generator().manual_seed(1)),
    "huge": torch.full((4, 1, 16, 16), 1e6).tril(),
    "negative": -1e3 * torch.eye(16).expand(4, 1, 16, 16),
    "tiny": torch.full((4, 1, 16, 16), 1e-38),
    "proxies": PROXIES,
}


@pytest.mark.parametrize("pixels", HOSTILE.values(), ids=HOSTILE)
def test_rows_have_norm_one_and_the_release_takes_them(pixels):
    """Whatever the record; rows a hundredth longer, or not finite, are refused."""
    features = REFERENCE.features(pixels)
    assert np.linalg.norm(features, axis=1) == pytest.approx(np.ones(len(pixels)), abs=1e-12)
    exact = features * FEATURE_UNITS * shrink(features.shape[1])
    assert np.abs(feature_units(features) - exact).max() <= 0.5
    for wrong in (features * 1.01, np.full_like(features, np.nan)):
        with pytest.raises(LocalError):
            feature_units(wrong)


def test_a_record_moves_its_class_mean_by_at_most_one_over_n():
    features = REFERENCE.features(torch.cat([PROXIES[:99], HOSTILE["huge"][:1]]))
    labels = np.arange(100) % 3
    means = class_means(features, labels, (0, 1, 2))
    for record in (0, 50, 99):
        without = features.copy()
        without[record] = 0
        moved = np.linalg.norm(class_means(without, labels, (0, 1, 2)) - means)
        assert moved == pytest.approx(0.01, rel=1e-9)


def test_fourier_features_approach_the_gaussian_kernel():
    """Inner products of D = 20,000 features: deviation below 1 / sqrt(D / 2) = 0.01."""
    inputs = np.random.default_rng(0).normal(size=(40, 5))
    fourier = FourierFeatures.draw(inputs, 20_000)
    rows = fourier(inputs)
    squared = ((inputs[:, None] - inputs[None]) ** 2).sum(axis=2)
    apart = np.sqrt(squared[np.triu_indices(40, 1)])
    width = np.median(apart)  # `draw` takes it from a random sample of pairs
    assert np.abs(rows @ rows.T - np.exp(-squared / (2 * width**2))).max() < 0.06
    wrong = np.exp(-squared / (2 * (1.3 * width) ** 2))
    assert np.abs(rows @ rows.T - wrong).max() > 0.1


def test_the_map_is_a_function_of_the_public_proxies():
    again = ProxyReference.fit(PROXIES.clone(), SMALL)
    probe = pictures(30, 5)
    assert np.array_equal(REFERENCE.features(probe), again.features(probe))
    assert np.array_equal(REFERENCE.second_moment, again.second_moment)
    other = ProxyReference.fit(pictures(300, 9), SMALL)
    assert not np.allclose(REFERENCE.features(probe), other.features(probe), atol=0.01)
