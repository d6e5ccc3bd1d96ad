"""Membership of the records behind a selector, for a server that injects proxies; label noise.

Images are of 16 x 16 pixels with a dark margin. Noise is seeded, so every figure is the same each
time; false-alarm rates are those over other seeds.
"""

from fractions import Fraction
from functools import cache
from math import exp

import numpy as np
import pytest
import torch
from torch import nn

from attacks.audit.bounds import symbol_bound
from attacks.core.base import AttackResult, draw_challenge
from attacks.core.view import Capability, Oracle, Public, View, server_view
from attacks.server.selector import (
    Answers,
    FlipRadius,
    Victim,
    behind,
)
from secure_fd.data.federated import ClientData
from secure_fd.data.images import Images
from secure_fd.errors import LocalError, MissingCapabilityError
from secure_fd.methods.selective_fd import SelectiveFD
from secure_fd.privacy.label import LabelUnit
from secure_fd.privacy.samplers import SeededRandom
from secure_fd.protocol.transcript import Transcript
from secure_fd.selection.selectors import KulsifSelector
from secure_fd.votes.codec import Contribution, Released, one_hot

EPSILON, DELTA = 4.0, 1e-5
CLASSES, RECORDS = 3, 40


def drawn(n: int, label: int, seed: int) -> Images:
    """Blots on a dark 16 x 16 field; each class has its own place for most of its ink."""
    rng = np.random.default_rng([seed, label])
    pixels = np.zeros((n, 1, 16, 16))
    bright = rng.random((n, 12, 12)) < 0.35
    bright[:, 4 * label : 4 * label + 4] |= rng.random((n, 4, 12)) < 0.5
    pixels[:, 0, 2:14, 2:14] = bright * rng.uniform(0.6, 1.0, bright.shape)
    return Images(torch.from_numpy(pixels).float(), torch.full((n,), label))


@cache
def public() -> Public:
    parts = [drawn(40, c, 1) for c in range(CLASSES)]
    images = torch.cat([p.pixels for p in parts])
    labels = torch.cat([p.labels for p in parts])
    return Public(images, CLASSES, CLASSES, lambda _: nn.Identity(), labels)


def view(victim: Victim) -> View:
    oracle = Oracle(victim.votes(CLASSES), 10**6)
    return server_view(Transcript(CLASSES), public(), {Capability.INJECT_PROXIES: oracle})


SELECTOR = KulsifSelector(share=0.25, width=4.0)


def answering(label: int) -> Answers:
    """A client of one class."""
    records = drawn(RECORDS, label, 2)
    client = ClientData(records, drawn(4, label, 3), CLASSES)
    judge = SELECTOR.fit(client, public().proxies).predict

    def answers(images: torch.Tensor) -> Released:
        opinion = SelectiveFD("hard", SELECTOR, votes="counted").policy_of(judge(images), CLASSES)
        every = np.arange(len(images))
        said = np.full((len(images), CLASSES), 1 / CLASSES)
        honest = opinion.contribution(every, said, "hard")
        return Released.of(honest)

    return answers


def kulsif_victim(label: int, *, masked: bool) -> Victim:
    train = drawn(RECORDS, label, 2)
    client = ClientData(train, drawn(4, label, 3), CLASSES)
    held = behind(SELECTOR.fit(client, public().proxies), train, label)
    cohort = range(CLASSES) if masked else [label]
    return Victim(label, tuple(answering(k) for k in cohort), held)


def told(victim: Victim) -> AttackResult:
    challenge = draw_challenge(*victim.sides(drawn(RECORDS, victim.column, 4), 10), 0)
    attack = FlipRadius.prepare(public(), challenge.candidates.images, victim.column)
    estimate = attack.estimate(view(victim), 0)
    return attack.with_truth(challenge.is_member).score(estimate, 0)


@pytest.mark.parametrize("masked", [False, True])
def test_kulsif_gives_members_away_with_or_without_masks(masked):
    members = told(kulsif_victim(0, masked=masked))
    assert members.figure >= 0.95
    assert members.queries == (20 + 20) * 48
    assert abs(members.control - 0.5) < 0.35  # ten against ten: a coin is further off 1 time in 100


def test_no_answer_of_the_label_unit_is_likelier_than_its_epsilon_allows():
    unit = LabelUnit(EPSILON, DELTA)
    unit.agree(len(public().proxies), CLASSES)
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
        said = Contribution(np.full(trials, accepted), one_hot([0] * trials, CLASSES))
        votes = unit.parts[0].release(np.arange(trials), lambda _, said=said: said)
        symbol = np.where(votes.weights > 0, votes.predictions.argmax(axis=1), CLASSES)
        counts.append(np.bincount(symbol, minlength=CLASSES + 1))
    proven = symbol_bound(counts[0], counts[1], 1e-6)
    assert (proven > EPSILON) == caught
    assert proven > 0.6 * EPSILON  # the count has the power to see what there is


def test_without_injection_the_attack_is_refused():
    flip = FlipRadius.prepare(public(), public().proxies[:1], 0)
    with pytest.raises(MissingCapabilityError, match="injection of proxy images"):
        flip.estimate(server_view(Transcript(CLASSES), public()), 0)


def test_a_class_without_public_images_has_no_control():
    with pytest.raises(LocalError, match="class 3 has 0 public images"):
        FlipRadius.prepare(public(), public().proxies[:1], 3)
