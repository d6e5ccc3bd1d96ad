"""The game behind budgets of leakage: what it refuses, its false alarms, and its power."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from attacks.core.base import Labelled
from attacks.core.view import View
from attacks.membership.budgets import (
    Factory,
    LeakageBudget,
    LeakageError,
    LeakageGame,
    bundled_digits,
    server_sees,
)
from secure_fd.errors import LocalError, MissingCapabilityError
from tests.refusals import refused
from tests.small_federation import federation

GAMES = 40


class Remembers(nn.Module):
    """Answers by its nearest record, so much surer the nearer that is, and with noise."""

    def __init__(self, records: Labelled, seed: int, surer: float) -> None:
        super().__init__()
        self.records, self.seed, self.surer = records, seed, surer

    def forward(self, images: Tensor) -> Tensor:
        apart = torch.cdist(images.flatten(1), self.records.images.flatten(1)).min(dim=1)
        chance = torch.Generator().manual_seed(self.seed)
        logits = torch.randn(len(images), 2, generator=chance)
        labels = self.records.labels[apart.indices]
        logits[torch.arange(len(images)), labels] += self.surer * (apart.values < 1e-3)
        return logits


def remembering(surer: float) -> Factory:
    def factory(records: Sequence[Labelled], seed: int) -> nn.Module:
        return Remembers(records[0], seed, surer)

    return factory


def some_records(count: int, seed: int) -> Labelled:
    chance = torch.Generator().manual_seed(seed)
    return Labelled(torch.rand(count, 1, 4, 4, generator=chance), torch.arange(count) % 2)


def game(seed: int, count: int = 60) -> LeakageGame:
    return LeakageGame.of([some_records(count, seed)], seed=seed)


def test_chance_exceeds_the_least_limit_about_as_often_as_stated():
    # At 1 % a game, more than 3 of 40 has probability 7e-4; the seeds are fixed.
    found = [game(seed).play(remembering(0.0)).figure for seed in range(GAMES)]
    assert sum(figure > game(0).least for figure in found) <= 3
    assert sum(found) / GAMES == pytest.approx(0.5, abs=0.02)


def test_a_network_that_remembers_its_records_is_caught():
    # One logit of two deviations tells members with an AUC near .76: caught in every game.
    found = [game(seed).play(remembering(2.0)) for seed in range(5)]
    assert all(result.interval[0] > game(0).least for result in found)


def test_half_of_each_clients_records_of_each_label_take_part():
    seen: list[Sequence[Labelled]] = []

    def factory(records: Sequence[Labelled], seed: int) -> nn.Module:
        seen.append(records)
        return Remembers(records[0], seed, 1.0)

    LeakageGame.of([some_records(41, 0), some_records(12, 1)]).play(factory)
    assert len(seen) == 8
    assert {tuple(map(len, run)) for run in seen} == {(20, 6)}  # an odd record is left out
    assert all(int(run[0].labels.sum()) == 10 for run in seen)


def test_a_budget_is_exceeded_above_its_limit_alone():
    found, budget = game(0).play(remembering(0.0)), LeakageBudget("mine", 0.6, 0.05)
    budget.check(replace(found, figure=0.65))
    with pytest.raises(LeakageError):
        budget.check(replace(found, figure=0.651))


@pytest.mark.parametrize(
    ("field", "made"),
    [
        ("figure", lambda: LeakageBudget("mine", 0.4)),
        ("figure", lambda: LeakageBudget("mine", float("nan"))),
        ("tolerance", lambda: LeakageBudget("mine", 0.6, -0.1)),
        ("members", lambda: game(0).check_limit(0.5)),  # what chance exceeds
        ("members", lambda: game(0).check_limit(float("nan"))),
        ("factory", lambda: game(0).play(lambda _records, _seed: 0.5)),
        ("runs", lambda: LeakageGame.of([some_records(8, 0)], runs=4)),
        ("runs", lambda: LeakageGame.of([some_records(8, 0)], runs=7)),
        ("clients", lambda: LeakageGame.of([some_records(2, 0)])),
    ],
)
def test_a_game_or_budget_that_means_nothing_is_refused(field, made):
    with refused(field):
        made()


def test_a_candidate_of_two_clients_is_refused():
    with pytest.raises(LocalError):
        LeakageGame.of([some_records(8, 0), some_records(8, 0)])


def test_a_run_that_shows_nothing_is_refused_and_not_passed(digits):
    def blind(records: Sequence[Labelled], seed: int) -> View:  # noqa: ARG001 - it never runs
        return server_sees(federation(digits), None)

    with pytest.raises(MissingCapabilityError):
        game(0).play(blind)


def test_candidates_and_proxies_of_the_bundled_digits_are_different_images():
    made = bundled_digits()
    every = [*made.clients, made.proxies]
    images = {image.numpy().tobytes() for own in every for image in own.images}
    assert len(images) == sum(map(len, every)) == 3 * 220 + 500
