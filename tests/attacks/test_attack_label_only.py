"""Label-only membership: the gap attack catches a memorising target, and no other.

Targets learn digits under wrong labels, which nobody guesses.
"""

from functools import cache

import numpy as np
import pytest
import torch

from attacks.core.base import Challenge, Labelled, Scores, draw_challenge, match_classes
from attacks.core.fit import Fit, fit, label_function
from attacks.core.view import Capability, LabelFunction, LabelOracle, Public, outsider_view
from attacks.membership.label_only import LabelOnlyGap
from secure_fd.errors import LocalError
from tests.attack_games import digits, perceptron

FOUR_SIGMA = 0.15  # of an area with 120 a side at chance: deviation .037


@cache
def wrong() -> Labelled:
    """All records under wrong labels drawn at random: nobody guesses those."""
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


def scored(estimate: Scores, members: np.ndarray | None = None) -> object:
    truth = challenge().is_member if members is None else members
    return LabelOnlyGap(challenge().candidates).with_truth(truth).score(estimate, 0)


def test_a_memorising_target_is_caught_and_shuffled_members_are_a_coin():
    members = challenge().candidates.take(torch.from_numpy(challenge().is_member))
    estimate = asked(memorising(members))
    result = scored(estimate)
    assert result.figure > 0.9
    assert result.interval[0] > 0.85
    assert (result.n_members, result.n_non_members, result.queries) == (120, 120, 240)
    coin = scored(estimate, np.random.default_rng(0).permutation(challenge().is_member))
    assert coin.figure == pytest.approx(0.5, abs=FOUR_SIGMA)
    assert coin.interval[0] < 0.5 < coin.interval[1]


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
