"""Membership with shadow runs: memorising and unprotected runs are caught, others are not."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial

import numpy as np
import pytest
import torch
from torch import Tensor

from attacks.core.base import AttackResult, FloatArray, Labelled, Scores
from attacks.core.scoring import score_scores
from attacks.core.view import Capability, LabelOracle, Oracle, Public, View, outsider_view
from attacks.membership.label_shadows import ProbeSettings, ShadowedLabels
from attacks.membership.shadows import (
    RMIA,
    Game,
    LiRA,
    LossThreshold,
    ShadowAttack,
    Shadows,
    play_all,
)
from secure_fd.errors import MissingCapabilityError
from tests import attack_games as games

CLIENTS, RUNS, PROXIES = 3, 10, 150
SETTINGS = ProbeSettings(rotation=2, samples=1, starts=60)


digits = partial(games.digits, 8)
mlp = partial(games.perceptron, 64, 32, 10)


@cache
def game() -> Game:
    """40 candidates of each of three clients, four of each class, of which two are mislabelled.

    Nobody guesses a wrong label: it tells members best.
    """
    rest = digits().take(torch.arange(PROXIES, len(digits())))
    by_class = [(rest.labels == c).nonzero()[:, 0] for c in range(10)]
    owned = [
        rest.take(torch.cat([rows[4 * k : 4 * k + 4] for rows in by_class])) for k in range(CLIENTS)
    ]
    return Game.of([replace(own, labels=mislabelled(own.labels)) for own in owned], RUNS, seed=0)


def mislabelled(labels: Tensor) -> Tensor:
    """Of four records of a class, the second and the last, under labels of two other classes."""
    position = torch.arange(len(labels)) % 4
    return torch.where(odd(len(labels)), (labels + position) % 10, labels)


def odd(count: int) -> Tensor:
    return torch.arange(count) % 2 == 1


@cache
def public() -> Public:
    shared = digits().take(torch.arange(PROXIES))
    return Public(shared.images, CLIENTS, 10, mlp, shared.labels)


def scored(
    attack: ShadowAttack, views: list[View], *, canaries: bool = False, shift: int = 0
) -> AttackResult:
    """Of one client's candidates. shift: membership of runs so far away, which nobody asked."""
    estimate = play_all(attack, views, game(), 0)
    own = game().owned(attack.client)
    inside = np.roll(game().inside[:, own], shift, axis=0)
    chosen = odd(len(own)).numpy() if canaries else np.ones(len(own), dtype=np.bool_)
    return attack.with_truth(inside[:, chosen]).score(
        replace(estimate, values=estimate.values[:, chosen]), 0
    )


# Direct queries


@dataclass(frozen=True, slots=True, eq=False)
class Memoriser:
    """Answers with the label of the nearest record, a little unsure, as a network of 1-NN would."""

    records: Labelled
    seed: int

    def __call__(self, images: Tensor) -> Tensor:
        near = torch.cdist(images.flatten(1), self.records.images.flatten(1)).argmin(dim=1)
        chance = torch.Generator().manual_seed(self.seed)
        logits = 0.5 * torch.randn(len(images), 10, generator=chance, dtype=torch.float64)
        logits[torch.arange(len(images)), self.records.labels[near]] += 4.0
        return torch.softmax(logits, dim=1)


def queried(records: Callable[[int], Labelled], budget: int = 1000) -> list[View]:
    """An outsider's view of every run, whose target memorised the records given for it."""
    return [
        outsider_view(
            public(),
            {Capability.QUERY_SCORES: Oracle(Memoriser(records(run), run), budget)},
        )
        for run in game().runs
    ]


def asked_for_labels(records: Callable[[int], Labelled]) -> list[View]:
    """The same targets, which answer with labels alone."""

    def labels(run: int) -> LabelOracle:
        memoriser = Memoriser(records(run), run)
        return LabelOracle(lambda images: memoriser(images).argmax(dim=1), 10_000)

    made = [{Capability.QUERY_FINAL_MODEL: labels(run)} for run in game().runs]
    return [outsider_view(public(), oracle) for oracle in made]


def strangers(_run: int) -> Labelled:
    return digits().take(torch.arange(PROXIES))


def own_records(run: int) -> Labelled:
    return game().records(run, 0)


def candidates() -> Labelled:
    return game().candidates_of(0)


@pytest.mark.parametrize("kind", [LiRA, RMIA, LossThreshold])
def test_a_memorising_target_is_caught_by_its_canaries(kind):
    result = scored(kind(candidates(), 0), queried(own_records), canaries=True)
    assert result.figure > 0.9
    assert result.interval[0] > 0.8


@pytest.mark.parametrize("kind", [LiRA, RMIA, LossThreshold])
def test_a_target_that_saw_other_records_is_a_coin(kind):
    result = scored(kind(candidates(), 0), queried(strangers))
    # 400 scores, if independent, have an area of deviation .029; the seeds are fixed.
    assert result.figure == pytest.approx(0.5, abs=0.12)


def test_a_memoriser_is_caught_by_labels_alone_and_one_that_saw_others_is_not():
    attack = ShadowedLabels.prepare(public(), candidates(), 0, SETTINGS)
    caught, coin = (scored(attack, asked_for_labels(of)) for of in (own_records, strangers))
    assert caught.figure > 0.75
    assert caught.interval[0] > 0.5
    assert caught.queries > 0
    assert coin.figure == pytest.approx(0.5, abs=0.12)  # four deviations of 400 scores


def test_membership_of_another_run_is_a_coin():
    result = scored(LiRA(candidates(), 0), queried(own_records), shift=4)
    assert result.figure == pytest.approx(0.5, abs=0.12)


def test_a_run_is_judged_by_shadows_alone():
    """One target scores as in the round of all; a run without shadows has no score."""
    views, attack = queried(own_records), LiRA(candidates(), 0)
    everyone = play_all(attack, views, game(), 0)
    shadows = game().shadows(3)
    inside = game().inside[:, game().owned(0)]
    seen = np.stack([attack.observe(views[s], 0) for s in shadows])
    found = attack.judge(attack.observe(views[3], 0), Shadows(seen, inside[shadows]))
    assert found == pytest.approx(everyone.values[3])
    with pytest.raises(MissingCapabilityError):
        attack.estimate(views[3], 0)
    with pytest.raises(MissingCapabilityError):
        attack.observe(outsider_view(public()), 0)


@pytest.mark.parametrize("kind", [LiRA, RMIA, LossThreshold])
def test_a_targets_own_inclusion_is_never_used(kind):
    """Exchange the two runs of a pair in the truth, and nothing in the scores of either moves."""
    views = queried(own_records)
    before = play_all(kind(candidates(), 0), views, game(), 0).values
    swapped = game().inside.copy()
    swapped[[4, 5]] = swapped[[5, 4]]
    after = play_all(kind(candidates(), 0), views, replace(game(), inside=swapped), 0).values
    assert np.array_equal(before[[4, 5]], after[[4, 5]])
    if kind is LiRA:  # RMIA's references and the loss's midpoint know no candidates
        assert not np.array_equal(before[[0, 1]], after[[0, 1]])


def test_shadows_that_keep_the_targets_partner_betray_it():
    """The twin: among all other runs, the number with a candidate tells what the target did."""

    def told(shadows: Callable[[int], list[int]]) -> FloatArray:
        counts = [-game().inside[shadows(t)].sum(axis=0, dtype=np.float64) for t in game().runs]
        return np.stack(counts)

    def area(scores: FloatArray) -> float:
        inside = game().inside
        named = LiRA(Labelled(torch.zeros(1, 1), torch.zeros(1)))
        return score_scores(named, Scores(scores), inside, 0).figure

    assert area(told(lambda t: [r for r in game().runs if r != t])) == 1.0
    assert area(told(lambda t: list(game().shadows(t)))) == pytest.approx(0.5, abs=0.1)
