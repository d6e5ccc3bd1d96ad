"""What operators see: a line a site, and the journal as sentences."""

import json
import time
from dataclasses import asdict

import pytest
from rich.console import Console

from secure_fd.deployment import screen
from secure_fd.deployment.loop import RoundOutcome
from secure_fd.deployment.screen import Board, Screen, Status, read_status, sentence

NAMES = ["north", "south", "west"]


@pytest.fixture
def board(tmp_path):
    return Board(tmp_path, Status.of(NAMES, 8))


def test_a_site_s_state_lasts_from_its_first_note(board, tmp_path):
    assert read_status(tmp_path) is None
    board.note("west", screen.TRAINING)
    since = board.status.sites["west"][1]
    board.note("west", screen.TRAINING)
    board.note("north", screen.MISSING)
    board.write()
    found = read_status(tmp_path)
    assert found is not None
    assert list(found.sites["west"]) == ["training", since]
    shown = dict(found.lines())
    assert shown["west"].startswith("training ")
    assert shown["north"] == f"missing since {time.strftime('%H:%M:%S', time.localtime())}"
    assert shown["south"].startswith("not seen yet")
    assert (tmp_path / screen.STATUS).stat().st_mode & 0o077 == 0


def test_the_time_left_is_that_of_the_last_rounds(board):
    assert board.status.left is None
    for seconds in (100.0, *[10.0] * 5):
        board.ended(seconds)
    assert board.status.left == 20.0


def test_the_file_is_not_written_at_every_change(board, monkeypatch):
    written = []
    monkeypatch.setattr(screen, "write_atomically", lambda *_, **__: written.append(1))
    for k in range(1000):
        board.note("west", (screen.TRAINING, screen.SENT)[k % 2])
    assert len(written) < 20


def _round(**changed):
    return {"event": "round", **json.loads(json.dumps(asdict(RoundOutcome(2, **changed))))}


@pytest.mark.parametrize(
    ("line", "has", "has_not"),
    [
        (_round(survivors=((0, 1),), silent=(2,)), ["round 3 of 8", "north, south", "west"], "2"),
        (_round(aborted=True, why="too few"), ["no sum", "too few"], "north"),
        (_round(refused={1: "its tag is wrong"}), ["south", "its tag is wrong"], "west"),
        ({"event": "sites", "here": ["north"]}, ["here: north", "south, west"], "8"),
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
    with Screen(tmp_path, NAMES, plain).shown() as say:
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
        own.note(screen.TRAINING, 0, 0)
        own.note(screen.TRAINING, 1, 4)
        own.note(screen.SENT, 2, 4)
    console = Console(width=60)
    with console.capture() as shown:
        console.print(screen.table(own._status))
    first, second = shown.get().splitlines()
    assert first.startswith("round 2 of 4; about ")
    assert second.split() == ["west", "answer", "sent", "0", "s"]
