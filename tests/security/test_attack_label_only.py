"""Label-only membership: the gap attack catches a memorising target, and the probes' parts.

Targets learn digits under wrong labels, which nobody guesses.
"""

from functools import cache, partial

import numpy as np
import pytest
import torch

from attacks.core.base import Challenge, Labelled, Scores, draw_challenge, match_classes
from attacks.core.fit import Fit, fit, label_function
from attacks.core.view import Capability, LabelFunction, LabelOracle, Public, outsider_view
from attacks.membership.label_only import LabelOnlyGap
from secure_fd.errors import LocalError
from tests import attack_games as games

digits = partial(games.digits, 8)
mlp = partial(games.perceptron, 64, 64, 10)


@cache
def wrong() -> Labelled:
    """All records under wrong labels drawn at random: nobody guesses those."""
    off = torch.randint(1, 10, (1797,), generator=torch.Generator().manual_seed(0))
    return Labelled(digits().images, (digits().labels + off) % 10)


@cache
def public() -> Public:
    shared = wrong().take(torch.arange(400))  # as the target's records are, so shadows resemble it
    return Public(shared.images, 2, 10, mlp, shared.labels)


def challenged(records: Labelled) -> Challenge:
    inside, outside = (records.take(torch.arange(*part)) for part in ((400, 600), (600, 1300)))
    return draw_challenge(*match_classes(inside, outside, seed=0, most=12), seed=0)


@cache
def challenge() -> Challenge:
    return challenged(wrong())


def attack(candidates: Labelled | None = None) -> LabelOnlyGap:
    return LabelOnlyGap(candidates or challenge().candidates)


@cache
def memorising(records: str) -> LabelFunction:
    """A network that knows some records by heart: the challenge's members, or others."""
    known = {
        "members": lambda: challenge().candidates.take(torch.from_numpy(challenge().is_member)),
        "others": lambda: wrong().take(torch.arange(1300, 1540)),
        "others, rightly labelled": lambda: digits().take(torch.arange(1300, 1420)),
    }[records]()
    training = Fit(epochs=60, learning_rate=1e-2)
    return label_function(fit(mlp, known.images, known.labels, training, seed=3))


def run(made: LabelOnlyGap, target: LabelFunction, budget: int = 100_000) -> Scores:
    oracle = LabelOracle(target, budget)
    view = outsider_view(public(), {Capability.QUERY_FINAL_MODEL: oracle})
    return made.estimate(view, 0)


@cache
def memorised() -> Scores:
    return run(attack(), memorising("members"))


FOUR_SIGMA = 0.15  # of an area with 120 a side at chance: deviation .037


def test_a_memorising_target_is_caught():
    result = attack().with_truth(challenge().is_member).score(memorised(), 0)
    assert result.figure > 0.9
    assert result.interval[0] > 0.85
    assert (result.n_members, result.n_non_members) == (120, 120)
    assert result.queries == 240


def test_shuffled_membership_is_a_coin():
    shuffled = np.random.default_rng(0).permutation(challenge().is_member)
    result = attack().with_truth(shuffled).score(memorised(), 0)
    low, high = result.interval
    assert result.figure == pytest.approx(0.5, abs=FOUR_SIGMA)
    assert low < 0.5 < high


@pytest.mark.parametrize("right", [False, True])
def test_a_target_that_memorised_other_records_is_a_coin(right):
    posed = challenged(digits()) if right else challenge()
    target = memorising("others, rightly labelled" if right else "others")
    made = attack(posed.candidates)
    estimate = run(made, target)
    assert len(np.unique(estimate.values)) > 1
    result = made.with_truth(posed.is_member).score(estimate, 0)
    assert result.figure == pytest.approx(0.5, abs=FOUR_SIGMA)


def test_a_constant_predictor_is_named_and_leaves_a_coin():
    estimate = run(attack(), lambda images: torch.zeros(len(images), dtype=torch.int64))
    result = attack().with_truth(challenge().is_member).score(estimate, 0)
    assert any("constant predictor" in words for words in result.caveats)
    assert result.figure == 0.5  # classes are matched: exactly chance


def test_candidates_must_be_matched_and_disjoint():
    some = digits().take(torch.arange(20))
    with pytest.raises(LocalError):
        draw_challenge(some, digits().take(torch.arange(20, 41)), 0)
    with pytest.raises(LocalError):
        draw_challenge(some, some, 0)
