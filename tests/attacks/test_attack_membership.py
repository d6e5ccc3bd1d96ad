"""Membership with shadow runs: memorising and unprotected runs are caught, others are not."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial

import numpy as np
import pytest
import torch
from torch import Tensor

from attacks.core.base import AttackResult, Labelled
from attacks.core.view import (
    Capability,
    LabelOracle,
    Oracle,
    Public,
    View,
    outsider_view,
    server_view,
)
from attacks.membership.label_shadows import ProbeSettings, ShadowedLabels
from attacks.membership.shadows import (
    RMIA,
    Game,
    LiRA,
    LossThreshold,
    ShadowAttack,
    mean_votes,
    play_all,
)
from secure_fd.protocol.transcript import Transcript
from secure_fd.votes.codec import Ensemble
from tests import attack_games as games
from tests.attack_games import add_round, client_view

CLIENTS, RUNS, PROXIES = 3, 10, 150
SETTINGS = ProbeSettings(rotation=2, samples=1, starts=60)


digits = partial(games.digits, 8)
mlp = partial(games.perceptron, 64, 32, 10)


@cache
def game() -> Game:
    """40 candidates of each of three clients, four of each class, of which two are mislabelled.

    A wrong label cannot be guessed, so it separates members best.
    """
    rest = digits().take(torch.arange(PROXIES, len(digits())))
    by_class = [(rest.labels == c).nonzero()[:, 0] for c in range(10)]
    owned = [
        rest.take(torch.cat([rows[4 * k : 4 * k + 4] for rows in by_class])) for k in range(CLIENTS)
    ]
    return Game.of([replace(own, labels=mislabelled(own.labels)) for own in owned], RUNS, seed=0)


def mislabelled(labels: Tensor) -> Tensor:
    """Mislabel two of each class's four records: the second and the last, with other classes."""
    position = torch.arange(len(labels)) % 4
    return torch.where(odd(len(labels)), (labels + position) % 10, labels)


def odd(count: int) -> Tensor:
    return torch.arange(count) % 2 == 1


@cache
def public() -> Public:
    shared = digits().take(torch.arange(PROXIES))
    return Public(shared.images, CLIENTS, 10, mlp, shared.labels)


def scored(attack: ShadowAttack, views: list[View], *, canaries: bool = False) -> AttackResult:
    """Score one client's candidates, or only those that are mislabelled."""
    estimate, own = play_all(attack, views, game(), 0), game().owned(attack.client)
    chosen = odd(len(own)).numpy() | (not canaries)
    inside = game().inside[:, own][:, chosen]
    return attack.with_truth(inside).score(replace(estimate, values=estimate.values[:, chosen]), 0)


def memorising(records: Labelled, seed: int) -> Callable[[Tensor], Tensor]:
    """Answers with the label of the nearest record, a little unsure, as a network of 1-NN would."""

    def answer(images: Tensor) -> Tensor:
        near = torch.cdist(images.flatten(1), records.images.flatten(1)).argmin(dim=1)
        chance = torch.Generator().manual_seed(seed)
        logits = 0.5 * torch.randn(len(images), 10, generator=chance, dtype=torch.float64)
        logits[torch.arange(len(images)), records.labels[near]] += 4.0
        return torch.softmax(logits, dim=1)

    return answer


def queried(records: Callable[[int], Labelled], *, labels: bool = False) -> list[View]:
    """An outsider's view of every run, whose target memorised the records given for it."""
    views = []
    for run in game().runs:
        target = memorising(records(run), run)
        if labels:
            oracle = LabelOracle(lambda images, ask=target: ask(images).argmax(dim=1), 10_000)
            views.append(outsider_view(public(), {Capability.QUERY_FINAL_MODEL: oracle}))
        else:
            oracles = {Capability.QUERY_SCORES: Oracle(target, 1000)}
            views.append(outsider_view(public(), oracles))
    return views


def strangers(_run: int) -> Labelled:
    return digits().take(torch.arange(PROXIES))


def own_records(run: int) -> Labelled:
    return game().records(run, 0)


def candidates() -> Labelled:
    return game().candidates_of(0)


@pytest.mark.parametrize("kind", [LiRA, RMIA, LossThreshold])
def test_a_memorising_target_is_caught_and_one_that_saw_other_records_is_a_coin(kind):
    """400 scores, if independent, have an area of deviation .029; the seeds are fixed."""
    caught = scored(kind(candidates(), 0), queried(own_records), canaries=True)
    coin = scored(kind(candidates(), 0), queried(strangers))
    assert caught.figure > 0.9
    assert caught.interval[0] > 0.8
    assert coin.figure == pytest.approx(0.5, abs=0.12)


def test_a_memoriser_is_caught_by_labels_alone_and_one_that_saw_others_is_not():
    attack = ShadowedLabels.prepare(public(), candidates(), 0, SETTINGS)
    caught, coin = (scored(attack, queried(of, labels=True)) for of in (own_records, strangers))
    assert caught.figure > 0.75
    assert caught.interval[0] > 0.5
    assert caught.queries > 0
    assert coin.figure == pytest.approx(0.5, abs=0.12)


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


# The game, and what votes show of a client.


def test_runs_hold_half_of_each_label_pairs_are_complements_and_shadows_are_balanced():
    made = game()
    assert (made.inside[::2] ^ made.inside[1::2]).all()
    assert not np.array_equal(made.inside[0], made.inside[2])
    labels = made.candidates_of(0).labels
    for run in made.runs:
        held = made.records(run, 0).labels
        assert torch.equal(torch.bincount(held, minlength=10) * 2, torch.bincount(labels))
        assert set(made.shadows(run)) == set(made.runs) - {run, run ^ 1}
        assert (made.inside[made.shadows(run)].sum(axis=0) == RUNS / 2 - 1).all()


def voted(masked: bool) -> Transcript:
    """Two clients that answer two proxies a round, with three units a vote; client 1 once."""
    made = Transcript(2)
    for index, proxies in enumerate((np.array([0, 1]), np.array([1, 2]))):
        present = (0, 1) if index == 0 else (0,)
        uploads = {k: np.zeros(20, dtype=np.uint64) for k in present}
        uploads[0][[0, 11]] = 3  # class 0 for the first proxy, class 1 for the second
        if 1 in uploads:
            uploads[1][[2, 12]] = 3
        answer = Ensemble(proxies, np.full((2, 10), 0.1), np.array([True, False]))
        seen = {"uploads": None if masked else uploads, "answer": answer, "survivors": present}
        total = np.stack(list(uploads.values())).sum(axis=0)
        add_round(made, total, 10, proxies=proxies, levels=3, **seen)
    return made


def test_votes_are_the_most_telling_ones_in_view():
    known = Public(torch.rand(6, 1, 4, 4), 2, 10, lambda _: torch.nn.Identity())
    clear = mean_votes(server_view(voted(masked=False), known), 1)
    assert clear[:3, 2].tolist() == [1.0, 0.5, 0.0]  # away in the second round
    assert clear[:, :2].sum() == 0
    summed = mean_votes(server_view(voted(masked=True), known), 1)
    assert summed[:3, :3].tolist() == [[1.0, 0.0, 1.0], [0.5, 0.5, 0.5], [0.0, 1.0, 0.0]]
    received = mean_votes(client_view(voted(masked=False), known), 1)
    assert received[:3, 0] == pytest.approx([0.1, 0.05, 0.0])  # only what was kept is sent on
    assert not clear[3:].any()
