"""Attacks on sums, on transcripts that are written down: exact where they must be, else chance."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from attacks.base import ABSTAIN, NEVER
from attacks.label_distribution import Participation
from attacks.rounds import Differencing
from attacks.view import Public, client_view, server_view
from attacks.votes import (
    Said,
)
from secure_fd.errors import LocalError, MissingCapabilityError
from secure_fd.knowledge import FloatArray, IntArray, one_hot
from secure_fd.transcript import Transcript
from tests.attack_games import add_round

K, C, P = 4, 3, 30
Votes = Mapping[int, IntArray]
"""By client of a sum, the class [m] that it names, or ABSTAIN."""


def public(labels: Tensor | None = None) -> Public:
    return Public(torch.zeros(P, 1, 4, 4), K, C, lambda _: nn.Linear(1, 1), labels)


def units(classes: IntArray) -> FloatArray:
    return one_hot(np.maximum(classes, 0), C) * (classes >= 0)[:, None]


def sums(rounds: Sequence[tuple[IntArray, Votes]]) -> Transcript:
    """A transcript of hard votes: by round its proxies, and what each of its clients says."""
    history = Transcript(K)
    for proxies, said in rounds:
        uploads = {k: units(c).reshape(-1).astype(np.uint64) for k, c in said.items()}
        total = np.sum(list(uploads.values()), axis=0, dtype=np.uint64)
        add_round(history, total, C, proxies=proxies, survivors=tuple(said))
    return history


def truth(rounds: Sequence[tuple[IntArray, Votes]]) -> tuple[Said, ...]:
    return tuple(Said(proxies, said, said) for proxies, said in rounds)


def random_votes(rng: np.random.Generator, present: Sequence[int], m: int = P) -> Votes:
    return {k: rng.integers(ABSTAIN, C, m) for k in present}


def own_class(rng: np.random.Generator, present: Sequence[int], m: int) -> Votes:
    """Client k names class k mod C about some proxies, and nothing else."""
    return {k: np.where(rng.random(m) < 0.5, k % C, ABSTAIN) for k in present}


EVERY = np.arange(P)
ALL = tuple(range(K))


def test_the_difference_of_two_sums_is_the_vote_of_the_client_between_them():
    said = random_votes(np.random.default_rng(0), ALL)
    rounds = [(EVERY, said), (EVERY, {k: said[k] for k in ALL if k != 2})]
    attack = Differencing()
    estimate = attack.run(server_view(sums(rounds), public()), 0)
    np.testing.assert_array_equal(estimate.others["shown"].rows[2], said[2])
    assert (estimate.others["shown"].rows[[0, 1, 3]] == NEVER).all()
    result = attack.score(estimate, truth(rounds), 0)
    assert result.details["shown_precision"] == 1.0
    assert result.figure > result.control


def test_a_change_of_mind_that_no_vote_makes_is_dropped():
    said = {k: np.zeros(P, np.int64) for k in ALL}
    changed = {**said, 0: np.where(EVERY < 10, 1, 0)}
    rounds = [(EVERY, said), (EVERY, {k: changed[k] for k in ALL if k != 2})]
    estimate = Differencing().run(server_view(sums(rounds), public()), 0)
    assert (estimate.details["differences"], estimate.details["dropped"]) == (P, 10 / P)
    assert (estimate.others["shown"].rows[2, 10:] == 0).all()
    assert (estimate.others["shown"].rows[2, :10] == NEVER).all()


@pytest.mark.parametrize(
    "second", [dict.fromkeys(ALL, EVERY % C), {0: EVERY % C, 1: EVERY % C}], ids=["none", "two"]
)
def test_rounds_that_do_not_differ_by_one_client_leave_the_guess(second):
    rounds = [(EVERY, dict.fromkeys(ALL, EVERY % C)), (EVERY, second)]
    attack = Differencing()
    estimate = attack.run(server_view(sums(rounds), public()), 0)
    result = attack.score(estimate, truth(rounds), 0)
    assert result.figure == result.control
    assert any("nothing to subtract" in words for words in result.caveats)


def taken_part(rounds: int, away: float, seed: int = 0) -> list[tuple[IntArray, Votes]]:
    rng = np.random.default_rng(seed)
    drawn = []
    for _ in range(rounds):
        present = [k for k in ALL if rng.random() >= away] or [0]
        drawn.append((EVERY, own_class(rng, present, P)))
    return drawn


HISTOGRAMS = np.stack([np.eye(C)[k % C] for k in ALL])


def participation(rounds: Sequence[tuple[IntArray, Votes]]) -> tuple[float, float, float]:
    """Figure, control, and clients told apart."""
    attack = Participation()
    result = attack.score(attack.run(server_view(sums(rounds), public()), 0), HISTOGRAMS, 0)
    return result.figure, result.control, result.details["clients_told_apart"]


def test_who_took_part_gives_each_client_its_labels():
    figure, control, apart = participation(taken_part(60, away=0.3))
    assert apart == K
    assert figure < 0.1
    assert control > 0.5


def test_without_dropouts_every_client_gets_the_guess():
    figure, control, apart = participation(taken_part(60, away=0.0))
    assert apart == 0
    assert figure == pytest.approx(control, abs=0.02)


def test_it_is_no_better_than_the_guess_where_it_is_told_the_wrong_participants():
    history = sums(taken_part(60, away=0.3))
    rng, records = np.random.default_rng(1), history.distillation
    order = rng.permutation(len(records))
    history.distillation = [
        replace(r, survivors=records[o].survivors) for r, o in zip(records, order, strict=True)
    ]
    attack = Participation()
    result = attack.score(attack.run(server_view(history, public()), 0), HISTOGRAMS, 0)
    assert result.figure > result.control - 0.2


@pytest.mark.parametrize(
    "attack",
    [
        Differencing(),
        Participation(),
    ],
)
def test_a_client_can_run_none_of_them(attack):
    with pytest.raises(MissingCapabilityError, match=r"missing .*\(client\)"):
        attack.run(
            client_view(sums([(EVERY, random_votes(np.random.default_rng(0), ALL))]), public()), 0
        )


def test_truth_of_another_number_of_rounds_is_refused():
    rounds = [(EVERY, random_votes(np.random.default_rng(0), ALL))]
    estimate = Differencing().run(server_view(sums(rounds), public()), 0)
    with pytest.raises(LocalError, match="said"):
        Differencing().score(estimate, (), 0)
