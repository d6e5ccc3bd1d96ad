"""Membership with shadow runs: formulas against direct computation, and the game's own laws."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from attacks.core.base import AttackResult, BoolArray, FloatArray, Labelled, Scores
from attacks.core.scoring import score_scores
from attacks.core.view import Public, server_view
from attacks.membership.shadows import Game, LiRA, mean_votes
from secure_fd.errors import LocalError
from secure_fd.protocol.transcript import Transcript
from secure_fd.votes.codec import Ensemble, WordArray
from tests.attack_games import add_round, client_view
from tests.refusals import refused

NO_ATTACK = LiRA(Labelled(torch.zeros(1, 1), torch.zeros(1)))  # names and titles alone


def records(count: int, seed: int = 0) -> Labelled:
    """Different images with each of ten labels equally often."""
    images = torch.rand(count, 1, 4, 4, generator=torch.Generator().manual_seed(seed))
    return Labelled(images, torch.arange(count) % 10)


def inclusion(runs: int, candidates: int, seed: int) -> BoolArray:
    """[R, N] with a fair coin a pair and candidate."""
    first = np.random.default_rng(seed).random((runs // 2, candidates)) < 0.5
    return np.stack([first, ~first], axis=1).reshape(runs, candidates)


def public(proxies: int = 6, clients: int = 2) -> Public:
    shared = records(proxies, 99)
    return Public(shared.images, clients, 10, lambda _: torch.nn.Identity(), shared.labels)


# The game


def played(clients: int = 3, each: int = 60, runs: int = 8) -> Game:
    return Game.of([records(each, k) for k in range(clients)], runs, seed=1)


def test_every_run_holds_half_of_each_label_and_pairs_are_complements():
    game = played()
    assert (game.inside[::2] ^ game.inside[1::2]).all()
    for run in game.runs:
        for k in range(3):
            held = game.records(run, k)
            assert len(held) == 30
            assert torch.bincount(held.labels, minlength=10).tolist() == [3] * 10
    assert not np.array_equal(game.inside[0], game.inside[2])


def test_shadows_hold_each_candidate_as_often_whatever_the_target_did():
    game = played()
    for target in game.runs:
        shadows = game.shadows(target)
        assert set(shadows) == set(game.runs) - {target, target ^ 1}
        assert (game.inside[shadows].sum(axis=0) == 3).all()


def test_a_game_that_would_tell_is_refused():
    one = played(1, 20)
    with pytest.raises(LocalError):
        replace(one, inside=np.ones((4, 20), dtype=np.bool_))
    with refused("runs"):
        replace(one, inside=inclusion(2, 20, 0))
    with pytest.raises(LocalError):
        Game.of([records(20), records(20)], 4, 0)
    with pytest.raises(LocalError):
        Game.of([records(30)], 4, 0)


# LiRA


# RMIA


# Votes about other points


def transcript(masked: bool) -> Transcript:
    """Two clients that answer two proxies a round, with three units a vote; client 1 once."""
    made = Transcript(2)
    for index, proxies in enumerate((np.array([0, 1]), np.array([1, 2]))):
        uploads = {0: np.zeros(20, dtype=np.uint64), 1: np.zeros(20, dtype=np.uint64)}
        uploads[0][[0, 11]] = 3  # class 0 for the first proxy, class 1 for the second
        uploads[1][[2, 12]] = 3
        present = (0, 1) if index == 0 else (0,)
        uploads = {k: uploads[k] for k in present}
        total: WordArray = np.stack(list(uploads.values())).sum(axis=0)
        add_round(
            made,
            total,
            10,
            proxies=proxies,
            levels=3,
            uploads=None if masked else uploads,
            answer=Ensemble(proxies, np.full((2, 10), 0.1), np.array([True, False])),
            survivors=present,
        )
    return made


def test_votes_are_the_most_telling_ones_in_view():
    clear = mean_votes(server_view(transcript(masked=False), public()), 1)
    assert clear[:3, 2].tolist() == [1.0, 0.5, 0.0]  # away in the second round
    assert clear[:, :2].sum() == 0
    summed = mean_votes(server_view(transcript(masked=True), public()), 1)
    assert summed[:3, :3].tolist() == [[1.0, 0.0, 1.0], [0.5, 0.5, 0.5], [0.0, 1.0, 0.0]]
    taught = mean_votes(client_view(transcript(masked=False), public()), 1)
    assert taught[:3, 0] == pytest.approx([0.1, 0.05, 0.0])  # only what was kept is sent on
    assert not clear[3:].any()


# The report


def report(scores: FloatArray, inside: BoolArray, seed: int = 0) -> AttackResult:
    return score_scores(NO_ATTACK, Scores(scores), inside, seed)


def test_an_oracle_attack_scores_one_and_a_constant_a_half():
    inside = inclusion(4, 200, 0)
    known = report(np.where(inside, 1.0, -1.0), inside)
    assert known.figure == 1.0
    assert known.details["tpr_at_0.01_fpr"] == 1.0
    blind = report(np.zeros(inside.shape), inside)
    assert blind.figure == 0.5


def test_null_attacks_cry_wolf_no_more_often_than_they_say():
    """60 null tables: an interval that misses 1/2, three times on average.

    More than nine have a chance of .001 (binomial, 60, .05). Scores of a candidate share a part, as
    those of an attack do.
    """
    missed = 0
    for seed in range(60):
        rng = np.random.default_rng(seed)
        inside = inclusion(8, 40, seed)
        scores = 2 * rng.normal(size=40) + rng.normal(size=inside.shape)
        made = report(scores, inside, seed)
        missed += not made.interval[0] <= 0.5 <= made.interval[1]
    assert missed <= 9
