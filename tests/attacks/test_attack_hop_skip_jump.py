"""Distances to a network's boundary, by labels alone, against those known in closed form."""

import math

import numpy as np
import torch
from torch import Tensor

from attacks.core.base import FloatArray, Labelled
from attacks.membership.hop_skip_jump import NOISE_STARTS, HopSkipJump, boundary_distances

SIDE, CLASSES, N = 8, 4, 30
FULL = HopSkipJump(budget=2000, evaluations=40, coarseness=1)


class Linear:
    """argmax of W x + b around the grey image, where [0, 1] cuts no shortest way to a boundary."""

    def __init__(self) -> None:
        random = torch.Generator().manual_seed(0)
        self.weights = torch.randn(CLASSES, 1, SIDE, SIDE, generator=random).flatten(1)
        self.bias = -self.weights.sum(dim=1) / 2
        noise = 0.05 * torch.randn(N, 1, SIDE, SIDE, generator=random)
        images = (0.5 + noise).clamp(0, 1)
        self.records = Labelled(images, self(images))
        self.starts = torch.rand(50, 1, SIDE, SIDE, generator=random)
        self.asked = 0

    def __call__(self, images: Tensor) -> Tensor:
        self.asked = getattr(self, "asked", 0) + len(images)
        return (images.flatten(1) @ self.weights.T + self.bias).argmax(dim=1)

    def truth(self) -> FloatArray:
        """[N] margin to the nearest other class over the norm of the weights' difference."""
        scores = self.records.images.flatten(1) @ self.weights.T + self.bias
        own = self.records.labels
        margins = scores.gather(1, own[:, None]) - scores
        spans = (self.weights[own][:, None] - self.weights[None]).norm(dim=2)
        nearest = (margins / spans).masked_fill(spans == 0, math.inf).min(dim=1).values
        return np.asarray(nearest.double().numpy())

    def measured(self, settings: HopSkipJump, seed: int = 0) -> FloatArray:
        return boundary_distances(self, self.records, self.starts, settings, seed)


def test_distances_are_upper_bounds_within_a_tenth_of_the_truth():
    linear = Linear()
    ratio = linear.measured(FULL) / linear.truth()
    assert ratio.min() > 0.999  # a point on the other side cannot be nearer than the boundary
    assert np.median(ratio) < 1.1
    assert ratio.max() < 1.5


def test_a_budget_is_kept_and_the_seed_decides():
    linear = Linear()
    for settings in (HopSkipJump(), FULL):
        linear.asked = 0
        first = linear.measured(settings)
        most = N * settings.budget + len(linear.starts) + NOISE_STARTS
        assert N * sum(settings.schedule) < linear.asked <= most
        assert np.array_equal(first, linear.measured(settings))
        assert not np.array_equal(first, linear.measured(settings, seed=1))
