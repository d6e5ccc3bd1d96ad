"""Membership with shadow runs: the game is fair, and no score of a target reads its truth."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from torch import Tensor

from attacks.core.base import Labelled
from attacks.core.view import Capability, Oracle, Public, View, outsider_view, server_view
from attacks.membership.shadows import RMIA, Game, LiRA, LossThreshold, mean_votes, play_all
from secure_fd.protocol.transcript import Transcript
from secure_fd.votes.codec import Ensemble
from tests.attack_games import add_round, linear

RUNS = 10


def records(count: int, seed: int) -> Labelled:
    chance = torch.Generator().manual_seed(seed)
    return Labelled(torch.rand(count, 1, 4, 4, generator=chance), torch.arange(count) % 10)


@cache
def game() -> Game:
    """40 candidates of each of three clients, four of each class."""
    return Game.of([records(40, k) for k in range(3)], RUNS, seed=0)


def queried(run: int, known: Labelled) -> View:
    """An outsider's view of a run, whose target answers with the label of the nearest record."""
    chance = torch.Generator().manual_seed(run)

    def answer(images: Tensor) -> Tensor:
        near = torch.cdist(images.flatten(1), known.images.flatten(1)).argmin(dim=1)
        logits = 0.5 * torch.randn(len(images), 10, generator=chance, dtype=torch.float64)
        logits[torch.arange(len(images)), known.labels[near]] += 4.0
        return torch.softmax(logits, dim=1)

    shared = records(50, 9)
    public = Public(shared.images, 3, 10, lambda seed: linear(16, 10, seed), shared.labels)
    return outsider_view(public, {Capability.QUERY_SCORES: Oracle(answer, 1000)})


@pytest.mark.parametrize("kind", [LiRA, RMIA, LossThreshold])
def test_a_targets_own_inclusion_is_never_used(kind):
    """Exchange the two runs of a pair in the truth, and nothing in the scores of either moves."""
    attack = kind(game().candidates_of(0), 0)
    views = [queried(run, game().records(run, 0)) for run in game().runs]
    before = play_all(attack, views, game(), 0).values
    swapped = game().inside.copy()
    swapped[[4, 5]] = swapped[[5, 4]]
    after = play_all(attack, views, replace(game(), inside=swapped), 0).values
    assert np.array_equal(before[[4, 5]], after[[4, 5]])
    if kind is LiRA:  # RMIA's references and the loss's midpoint know no candidates
        assert not np.array_equal(before[[0, 1]], after[[0, 1]])


@pytest.mark.parametrize("kind", [LiRA, RMIA, LossThreshold])
def test_a_target_that_saw_other_records_is_a_coin(kind):
    """400 scores, if independent, have an area of deviation .029; the seeds are fixed."""
    attack = kind(game().candidates_of(0), 0)
    views = [queried(run, records(20, 7)) for run in game().runs]
    inside = game().inside[:, game().owned(0)]
    found = attack.with_truth(inside).score(play_all(attack, views, game(), 0), 0)
    assert found.figure == pytest.approx(0.5, abs=0.12)


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
    assert not clear[3:].any()
