"""Output for operators: one line for each site, and the journal as sentences."""

import json
from dataclasses import asdict

import pytest

from secure_fd.deployment import screen
from secure_fd.deployment.loop import RoundOutcome
from secure_fd.deployment.screen import Board, Status, read_status, sentence

NAMES = ["north", "south", "west"]


def test_the_status_in_the_home_is_that_of_each_site_and_the_time_left(tmp_path):
    board = Board(tmp_path, Status.of(NAMES, 8))
    assert read_status(tmp_path) is board.status.left is None
    board.note("west", screen.TRAINING)
    since = board.status.sites["west"][1]
    board.note("north", screen.MISSING)
    board.note("west", screen.TRAINING)
    for seconds in (100.0, *[10.0] * 5):
        board.ended(seconds)
    found = read_status(tmp_path)
    assert found.sites["west"] == ["training", since]  # a state that lasts keeps its beginning
    expected = [screen.MISSING, screen.UNSEEN, screen.TRAINING]
    assert [state for state, _ in found.sites.values()] == expected
    assert found.left == 20.0  # at the pace of the last rounds
    assert (tmp_path / screen.STATUS).stat().st_mode & 0o077 == 0


def _round(**changed):
    return {"event": "round", **json.loads(json.dumps(asdict(RoundOutcome(2, **changed))))}


@pytest.mark.parametrize(
    ("line", "has", "has_not"),
    [
        (_round(survivors=((0, 1),), silent=(2,)), ["3 of 8", "north, south", "west"], "2"),
        (_round(aborted=True, why="too few"), ["too few"], "north"),
        (_round(refused={1: "its tag is wrong"}), ["south", "its tag is wrong"], "west"),
        ({"event": "sites", "here": ["north"]}, ["north", "south, west"], "8"),
        ({"event": "failed", "reason": "the disk is full"}, ["the disk is full"], "round"),
    ],
)
def test_a_line_of_the_journal_names_the_sites(line, has, has_not):
    shown = sentence(line, NAMES, Status.of(NAMES, 8))
    assert all(part in shown for part in has)
    assert has_not not in shown.replace("3 of 8", "")


def test_outside_a_terminal_there_is_a_line_or_json(tmp_path, capsys):
    for plain in (True, False):
        with screen.shown(tmp_path, NAMES, plain=plain) as say:
            say({"event": "ended", "digest": "ab12"})
    first, second = capsys.readouterr().out.splitlines()
    assert json.loads(first) == {"event": "ended", "digest": "ab12"}
    assert "ab12" in second
