"""Output for operators: one line for each site, and the journal as sentences."""

import json
import time
from dataclasses import asdict

import pytest
from rich.console import Console

from secure_fd.deployment import screen
from secure_fd.deployment.loop import RoundOutcome
from secure_fd.deployment.screen import Board, Status, read_status, sentence

NAMES = ["north", "south", "west"]


def test_the_status_in_the_home_is_that_of_each_site_and_the_time_left(tmp_path):
    board = Board(tmp_path, Status.of(NAMES, 8))
    assert read_status(tmp_path) is board.status.left is None
    board.note("west", screen.TRAINING)
    since = board.status.sites["west"][1]
    for k in range(100):
        board.note("north", (screen.SENT, screen.MISSING)[k % 2])
        board.note("west", screen.TRAINING)
    for seconds in (100.0, *[10.0] * 5):
        board.ended(seconds)
    found = read_status(tmp_path)
    assert found.sites["west"] == ["training", since]  # a state that lasts keeps its beginning
    assert found.left == 20.0  # at the pace of the last rounds
    shown = dict(found.lines())
    for name, state in {
        "west": "training ",
        "north": "missing since ",
        "south": "not seen",
    }.items():
        assert shown[name].startswith(state)
    assert (tmp_path / screen.STATUS).stat().st_mode & 0o077 == 0


def _round(**changed):
    return {"event": "round", **json.loads(json.dumps(asdict(RoundOutcome(2, **changed))))}


@pytest.mark.parametrize(
    ("line", "has", "has_not"),
    [
        (_round(survivors=((0, 1),), silent=(2,)), ["3 of 8", "north, south", "west"], "2"),
        (_round(aborted=True, why="too few"), ["too few"], "north"),
        (_round(refused={1: "its tag is wrong"}), ["south", "its tag is wrong"], "west"),
        (_round(survivors=((0, 1),), accuracy=0.5), ["50.0%"], "west"),
        ({"event": "sites", "here": ["north"]}, ["north", "south, west"], "8"),
        ({"event": "sites", "refused": "west has another roster"}, ["west has another"], "8"),
        ({"event": "failed", "reason": "the disk is full"}, ["the disk is full"], "round"),
    ],
)
def test_a_line_of_the_journal_names_the_sites(line, has, has_not):
    shown = sentence(line, NAMES, Status.of(NAMES, 8))
    assert all(part in shown for part in has)
    assert has_not not in shown.replace("3 of 8", "")


@pytest.mark.parametrize("plain", [True, False])
def test_outside_a_terminal_there_is_a_line_with_the_time_or_json(tmp_path, capsys, plain):
    with screen.shown(tmp_path, NAMES, plain=plain) as say:
        say({"event": "ended", "digest": "ab12"})
    [line] = capsys.readouterr().out.splitlines()
    if plain:
        assert json.loads(line) == {"event": "ended", "digest": "ab12"}
    else:
        assert time.strptime(line.split()[0], "%H:%M:%S")
        assert "ab12" in line


def test_a_site_s_own_screen_has_its_round_and_the_time_left():
    own = screen.OwnScreen()
    with own.live("west"):
        for step in ((screen.TRAINING, 0, 0), (screen.TRAINING, 1, 4), (screen.SENT, 2, 4)):
            own.note(*step)
    console = Console(width=60)
    with console.capture() as shown:
        console.print(screen.table(own._status))
    first, second = shown.get().splitlines()
    assert first.startswith("round 2 of 4; about ")
    assert second.split() == ["west", "answer", "sent", "0", "s"]
