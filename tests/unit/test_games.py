"""Small membership games of the comparison: the protocol is the row's, the records digits."""

from dataclasses import replace
from functools import cache

import pytest
import torch

from attacks import PLAYED
from attacks.core.base import AttackResult
from attacks.on_run import POSITIVE
from experiments.compare import games
from experiments.compare import leakage_rows as small
from experiments.compare.comparison import GAMES
from experiments.compare.games import BY_LABELS, BY_PROBABILITIES, SERVER, Baselines
from experiments.core.rows import RowSpec, Terms
from secure_fd.data.partition import Split
from secure_fd.errors import MissingCapabilityError
from secure_fd.training.recipes import Schedule

TERMS = Terms("digits", Split("strong"), 10, 2, Schedule(), epsilon=4.0)
SOFT = RowSpec("selective-fd", "soft")
HARD = RowSpec("selective-fd", "hard")
MASKED = RowSpec("selective-fd", "hard", "masks")


@cache
def known() -> Baselines:
    return Baselines(
        {key: games.play(games.UNPROTECTED[key], 0, PLAYED, quick=True) for key in GAMES}
    )


@cache
def server(spec: RowSpec) -> AttackResult:
    found = games.played(TERMS, spec, 0, known(), PLAYED, quick=True)
    assert found[BY_LABELS] == found[BY_PROBABILITIES] == "not run: a quick look"
    result = found[SERVER]
    assert isinstance(result, AttackResult)
    return result


@pytest.mark.parametrize(
    ("spec", "masks", "epsilon"),
    [
        (RowSpec("fedavg"), False, None),
        (RowSpec("fedavg", secure="masks"), True, None),
        (RowSpec("fedavg", unit="record"), False, 4.0),
        (RowSpec("fedmd", "soft"), False, None),
        (MASKED, True, None),
        (RowSpec("selective-fd", "hard", "he"), True, None),
        (RowSpec("selective-fd", "hard", "masks", "label"), True, 4.0),
        (RowSpec("heads", "hard", "masks", "record"), True, 4.0),
        (RowSpec("heads", "hard", None, "record"), False, 4.0),
    ],
)
def test_a_row_is_played_under_its_own_protections(spec, *, masks, epsilon):
    row = games.row_of(TERMS, spec, 0)
    assert (row.masks, row.epsilon) == (masks, epsilon)
    if spec.kind == "selective-fd":
        votes = "counted" if spec.unit else "weighed"
        assert (row.method.labels, row.method.votes) == ("hard", votes)


@pytest.mark.parametrize("secure", ["masks", "he", "prio3"])
def test_a_row_is_played_under_its_own_sum(secure):
    row = games.row_of(TERMS, RowSpec("selective-fd", "hard", secure), 0)
    records = tuple(own.take(torch.arange(0, 220, 20)) for own in small.digits().clients)
    short = replace(small._SCHEDULE, warmup_steps=2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(small, "_SCHEDULE", short)
        run = small.votes(row, records, 0)
    assert run.aggregation.name == secure
    assert all(one.uploads is None for one in run.transcript.distillation)


def test_pooled_heads_without_masks_are_played_with_noise_of_each_client():
    row = games.row_of(TERMS, RowSpec("heads", "hard", None, "record"), 0)
    run = small.class_sums(row, small.digits().clients, 0)
    assert run.protection.local
    assert run.protection.plan.honest == 1
    assert run.aggregation.name == "plain"


@pytest.mark.parametrize(
    "spec",
    [
        RowSpec("dafkd"),
        RowSpec("selective-fd", unit="client"),
        RowSpec("selective-fd", unit="record"),
        RowSpec("fedmd", unit="record"),
    ],
)
def test_what_no_game_plays_is_said(spec):
    with pytest.raises(MissingCapabilityError, match="missing a small game"):
        games.row_of(TERMS, spec, 0)
    found = games.played(TERMS, spec, 0, Baselines({}), PLAYED, quick=True)
    assert all(str(why).startswith("not applicable: missing") for why in found.values())


def test_masks_take_from_the_server_most_of_what_votes_tell_of_members():
    clear, masked = server(HARD), server(MASKED)
    assert clear.interval[0] > masked.interval[1]  # the twin: the same votes without masks
    assert masked.details[POSITIVE] == server(SOFT).figure > clear.figure
    assert masked.name == SERVER
    assert "6 runs of three clients" in masked.caveats[-1]


def test_a_row_without_protection_is_not_played_twice():
    assert tuple(games.UNPROTECTED) == GAMES
    assert known().of(games.row_of(TERMS, SOFT, 0)) is known().found["votes"]
    assert known().of(games.row_of(TERMS, RowSpec("fedavg"), 0)) is known().found["fedavg"]
    assert known().of(games.row_of(TERMS, HARD, 0)) is None


def test_an_outsider_finds_members_of_networks_that_know_records_by_heart():
    found = games.play(small.ALONE, 0, PLAYED, quick=False)
    assert str(found[SERVER]).startswith("not applicable")
    for name in (BY_PROBABILITIES, BY_LABELS):
        result = found[name]
        assert isinstance(result, AttackResult)
        assert result.interval[0] > 0.6
        assert abs(result.control - 0.5) < 0.03


def test_nothing_is_played_where_nothing_was_asked_for():
    assert games.played(TERMS, HARD, 0, known(), (), quick=False) == {}
