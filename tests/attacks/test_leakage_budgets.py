"""Leakage limits of each protocol row, and mutations that must exceed them.

A figure is the mean AUC of games with seeds 1 to 5; the tests play seed 0. `SPREAD` is the standard
deviation of a game's AUC between seeds, pooled over rows (28 degrees of freedom). A game misses the
mean of five others by Student's t with that spread times sqrt(1 + 1/5), so `TOLERANCE` takes the
quantile at which all rows together, each on both sides, raise a false alarm in fewer than 1 % of
reseedings; on one machine the seed is fixed and nothing is left to chance. Each mutant is further
above its limit than the tolerance: it is caught at nearly every seed (power over 99 %).
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from unittest.mock import patch

import numpy as np
import pytest
import torch
from scipy.stats import t as student
from torch import Tensor, nn

from attacks.core.base import AttackResult, Labelled
from attacks.core.view import View
from attacks.membership.budgets import LeakageBudget, LeakageError, LeakageGame, server_sees
from attacks.membership.overfitted import all_training
from experiments.compare import games
from experiments.compare.games import METHODS, asked, factory, game
from experiments.core import runs
from experiments.core.run_config import RunConfig
from secure_fd.errors import LocalError, MissingCapabilityError
from secure_fd.methods.selective_fd import SelectiveFD
from secure_fd.training.models import flatten, load_flat
from secure_fd.training.trainer import Learner, run_each
from tests.refusals import refused
from tests.small_federation import federation

HARD = asked("selective-fd-hard", masks=False, epsilon=None)
ROWS = {
    **{name: asked(name, masks=False, epsilon=None) for name in METHODS},
    "selective-fd-hard-masks": asked("selective-fd-hard", masks=True, epsilon=None),
    "selective-fd-hard-dp-label": replace(
        asked("selective-fd-hard", masks=False, epsilon=4.0), variant="", server_threshold=None
    ),
    "pooled-dp-record": asked("pooled-heads", masks=True, epsilon=4.0),
}
FIGURES = {
    "fedavg": 0.593,
    "fedmd-soft": 0.623,
    "selective-fd-soft": 0.756,
    "selective-fd-hard": 0.677,
    "selective-fd-hard-masks": 0.580,
    "selective-fd-hard-dp-label": 0.543,
    "pooled-dp-record": 0.510,
}
CALIBRATED = 5
SPREAD = 0.0073
FALSE_ALARMS = 0.01
_TAILS = 2 * len(FIGURES)
TOLERANCE = float(
    student.isf(FALSE_ALARMS / _TAILS, len(FIGURES) * (CALIBRATED - 1))
    * SPREAD
    * np.sqrt(1 + 1 / CALIBRATED)
)
BUDGETS = {name: LeakageBudget(name, figure, TOLERANCE) for name, figure in FIGURES.items()}
ATTACKS = {
    "fedavg": "lira-upload",
    "pooled-dp-record": "lira-traced",
}
"""Attack on the server's view, by row; all other rows: votes on nearby proxies."""


@pytest.fixture(scope="module", autouse=True)
def one_warm_up_for_all_rows():
    """Equal records are one object: selectors are fitted, and networks warm up, once for all."""
    clients, warmed, warm_up = {}, {}, Learner.warm_up

    def client(records, n_classes):
        made = all_training(records, n_classes)
        return clients.setdefault(made.train.pixels.numpy().tobytes(), made)

    def once(learner):
        start = flatten(learner.model).numpy().tobytes()
        key = (start, id(learner._train), learner._seed, learner.schedule)
        if key not in warmed:
            run_each([*warm_up(learner)])
            # The records are kept, so that no others get their identity.
            warmed[key] = flatten(learner.model), learner._train
        load_flat(learner.model, warmed[key][0])
        yield from ()

    with patch.object(games, "all_training", client), patch.object(Learner, "warm_up", once):
        yield


@cache
def seen(row: RunConfig) -> list[View]:
    """What the server saw in eight runs."""
    return game().views(factory(row))


@cache
def played(row: RunConfig) -> AttackResult:
    return game().read(seen(row))


def caught(declared: str, found: AttackResult) -> None:
    """Assert that what was sent in place of the declared row does not pass its budget."""
    with pytest.raises(LeakageError, match=declared):
        BUDGETS[declared].check(found)
    assert found.figure > BUDGETS[declared].limit + TOLERANCE


@pytest.mark.parametrize("name", FIGURES)
def test_a_row_tells_no_more_than_its_budget_and_no_less(name):
    # A row that really tells less gets a new figure; otherwise the attack has gone blind.
    found = played(ROWS[name])
    BUDGETS[name].check(found)
    assert found.figure >= BUDGETS[name].figure - TOLERANCE
    assert found.name == ATTACKS.get(name, "indirect")


@pytest.mark.parametrize(
    ("declared", "sent"),
    [
        ("selective-fd-hard", ROWS["selective-fd-soft"]),  # confidence, for hard votes of two bits
        ("selective-fd-hard-masks", HARD),
        ("selective-fd-hard-dp-label", HARD),
        # As many sums as under noise.
        ("pooled-dp-record", replace(asked("pooled-heads", masks=True, epsilon=None), rounds=2)),
    ],
    ids=["soft labels", "no masks", "no label noise", "no noise in sums"],
)
def test_a_row_without_its_protection_is_caught(declared, sent):
    caught(declared, played(sent))


def test_weights_of_six_bits_are_caught_where_two_are_declared(monkeypatch):
    monkeypatch.setattr(runs, "selective", lambda _: SelectiveFD("hard", bits=6))
    caught("selective-fd-hard", game().play(factory(HARD)))


def test_uploads_of_all_rounds_tell_more_than_the_newest():
    """A mutant server that forgets understates the leak to one that keeps what it received."""
    forgotten = [replace(view, models=view.models[-1:]) for view in seen(ROWS["fedavg"])]
    assert played(ROWS["fedavg"]).figure > game().read(forgotten).figure + 2 * SPREAD


# The game: what it refuses, its false alarms, and its power.

GAMES = 40


class Guessing(nn.Module):
    """Noise in place of answers."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.seed = seed

    def forward(self, images: Tensor) -> Tensor:
        return torch.randn(len(images), 2, generator=torch.Generator().manual_seed(self.seed))


def guessing(_records: Sequence[Labelled], seed: int) -> nn.Module:
    return Guessing(seed)


def some_records(count: int, seed: int) -> Labelled:
    chance = torch.Generator().manual_seed(seed)
    return Labelled(torch.rand(count, 1, 4, 4, generator=chance), torch.arange(count) % 2)


def toy_game(seed: int, count: int = 60) -> LeakageGame:
    return LeakageGame.of([some_records(count, seed)], seed=seed)


def test_chance_exceeds_the_least_limit_about_as_often_as_stated():
    # At 1 % a game, more than 3 of 40 has probability 7e-4; the seeds are fixed.
    found = [toy_game(seed).play(guessing).figure for seed in range(GAMES)]
    assert sum(figure > toy_game(0).least for figure in found) <= 3
    assert sum(found) / GAMES == pytest.approx(0.5, abs=0.02)


def test_a_budget_is_exceeded_above_its_limit_alone():
    found, budget = toy_game(0).play(guessing), LeakageBudget("mine", 0.6, 0.05)
    budget.check(replace(found, figure=0.65))
    with pytest.raises(LeakageError):
        budget.check(replace(found, figure=0.651))


@pytest.mark.parametrize(
    ("field", "made"),
    [
        ("figure", lambda: LeakageBudget("mine", 0.4)),
        ("figure", lambda: LeakageBudget("mine", float("nan"))),
        ("tolerance", lambda: LeakageBudget("mine", 0.6, -0.1)),
        ("members", lambda: toy_game(0).check_limit(0.5)),  # what chance exceeds
        ("members", lambda: toy_game(0).check_limit(float("nan"))),
        ("factory", lambda: toy_game(0).play(lambda _records, _seed: 0.5)),
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
        toy_game(0).play(blind)
