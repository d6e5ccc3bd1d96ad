"""Label-only membership: the gap attack catches a memorising target, and no other.

Targets learn digits under wrong labels, which cannot be guessed.
"""

import math
from functools import cache

import numpy as np
import pytest
import torch
from torch import Tensor

from attacks.core.base import (
    AttackResult,
    Challenge,
    FloatArray,
    Labelled,
    Scores,
    draw_challenge,
    match_classes,
)
from attacks.core.fit import Fit, fit, label_function
from attacks.core.view import Capability, LabelFunction, LabelOracle, Public, outsider_view
from attacks.membership.hop_skip_jump import NOISE_STARTS, HopSkipJump, boundary_distances
from attacks.membership.label_only import LabelOnlyGap
from secure_fd.errors import LocalError
from tests.attack_games import digits, perceptron

FOUR_SIGMA = 0.15  # of an area with 120 a side at chance: deviation .037


@cache
def wrong() -> Labelled:
    """All records under wrong labels drawn at random, which cannot be guessed."""
    off = torch.randint(1, 10, (1797,), generator=torch.Generator().manual_seed(0))
    return Labelled(digits(8).images, (digits(8).labels + off) % 10)


def network(seed: int) -> torch.nn.Module:
    return perceptron(64, 64, 10, seed)


@cache
def challenge() -> Challenge:
    inside, outside = (wrong().take(torch.arange(*part)) for part in ((400, 600), (600, 1300)))
    return draw_challenge(*match_classes(inside, outside, seed=0, most=12), seed=0)


def memorising(known: Labelled) -> LabelFunction:
    """A network that knows some records by heart."""
    training = Fit(epochs=60, learning_rate=1e-2)
    return label_function(fit(network, known.images, known.labels, training, seed=3))


def asked(target: LabelFunction) -> Scores:
    shared = wrong().take(torch.arange(400))
    known = Public(shared.images, 2, 10, network, shared.labels)
    oracle = LabelOracle(target, 100_000)
    view = outsider_view(known, {Capability.QUERY_FINAL_MODEL: oracle})
    return LabelOnlyGap(challenge().candidates).estimate(view, 0)


def scored(estimate: Scores) -> AttackResult:
    attack = LabelOnlyGap(challenge().candidates).with_truth(challenge().is_member)
    return attack.score(estimate, 0)


def test_a_memorising_target_is_caught():
    members = challenge().candidates.take(torch.from_numpy(challenge().is_member))
    result = scored(asked(memorising(members)))
    assert result.figure > 0.9
    assert result.interval[0] > 0.85
    assert (result.n_members, result.n_non_members, result.queries) == (120, 120, 240)


def test_a_target_that_memorised_other_records_is_a_coin():
    estimate = asked(memorising(wrong().take(torch.arange(1300, 1540))))
    assert len(np.unique(estimate.values)) > 1
    assert scored(estimate).figure == pytest.approx(0.5, abs=FOUR_SIGMA)


def test_a_constant_predictor_is_named_and_leaves_a_coin():
    result = scored(asked(lambda images: torch.zeros(len(images), dtype=torch.int64)))
    assert any("constant predictor" in words for words in result.caveats)
    assert result.figure == 0.5  # classes are matched: exactly chance


def test_candidates_must_be_matched_and_disjoint():
    some = digits(8).take(torch.arange(20))
    for others in (digits(8).take(torch.arange(20, 41)), some):
        with pytest.raises(LocalError):
            draw_challenge(some, others, 0)


# HopSkipJump against boundaries whose distance is known in closed form.

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
