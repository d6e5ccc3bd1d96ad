"""Membership of the records behind a selector, for a server that injects proxies; label noise.

Noise is seeded, so every figure is the same each time; false-alarm rates are those over other
seeds.
"""

from fractions import Fraction
from math import exp

import numpy as np
import pytest
import torch

from attacks.audit.bounds import symbol_bound
from experiments.suite.scenes import Cell
from experiments.suite.scenes.selector import members
from experiments.suite.scenes.shared import federated
from secure_fd.data.federated import FederatedData
from secure_fd.data.image_sets import Sizes
from secure_fd.privacy.label import LabelUnit
from secure_fd.privacy.samplers import SeededRandom
from secure_fd.votes.codec import Contribution, one_hot

EPSILON, DELTA = 4.0, 1e-5
CLASSES = 3


@pytest.fixture(scope="module")
def three() -> FederatedData:
    """Three clients of one class each."""
    sizes = Sizes(proxies=30, test=5, held_out=20, local=110)
    return federated(Cell("selector", "", 0, "digits"), None, CLASSES, sizes)


@pytest.mark.parametrize("row", ["kulsif", "kulsif-masks"])
def test_kulsif_gives_members_away_with_or_without_masks(three, row):
    found = members(Cell("selector", row, 0, "digits", quick=True), three)
    assert found.figure >= 0.95


def test_the_default_selector_does_not(three):
    found = members(Cell("selector", "proxy-ratio", 0, "digits", quick=True), three)
    assert found.interval[0] < 0.6


def test_no_answer_of_the_label_unit_is_likelier_than_its_epsilon_allows():
    unit = LabelUnit(EPSILON, DELTA)
    unit.agree(300, CLASSES)
    unit.client(0)
    noise = unit.mechanism
    # The sampler's own integers: no rounding is between this ratio and the claim.
    truth = (1 << 64) - (noise.alphabet_size - 1) * noise._wrong
    assert Fraction(truth, noise._wrong) <= Fraction(exp(EPSILON)) * (1 + Fraction(1, 10**12))
    assert noise.p / noise.q == pytest.approx(exp(EPSILON), rel=1e-9)
    assert noise.p + CLASSES * noise.q <= 1


@pytest.mark.parametrize(("spent", "caught"), [(EPSILON, False), (7.0, True)])
def test_counted_answers_prove_no_more_than_epsilon(spent, caught):
    """False alarm 1e-6; a unit of epsilon 7 sold as one of 4 is caught."""
    trials = 20_000
    images = torch.zeros(trials, 1, 1, 1)
    counts = []
    for accepted in (0.0, 1.0):
        unit = LabelUnit(spent, DELTA, random=SeededRandom(int(accepted)))
        unit.agree(len(images), CLASSES)
        unit.client(0)
        answer = Contribution(np.full(trials, accepted), one_hot([0] * trials, CLASSES))
        votes = unit.parts[0].release(np.arange(trials), lambda _, answer=answer: answer)
        symbol = np.where(votes.weights > 0, votes.predictions.argmax(axis=1), CLASSES)
        counts.append(np.bincount(symbol, minlength=CLASSES + 1))
    proven = symbol_bound(counts[0], counts[1], 1e-6)
    assert (proven > EPSILON) == caught
    assert proven > 0.6 * EPSILON  # the count has the power to see what there is
