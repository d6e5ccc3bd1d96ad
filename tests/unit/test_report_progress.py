"""Progress of workers: bars or lines on stderr, and a thread that always ends."""

import io
import queue
import re
import threading
import time

import pytest
from experiments.core.progress import Event, board
from rich.console import Console

from experiments.core import progress


def _console(*, terminal: bool = False) -> tuple[Console, io.StringIO]:
    out = io.StringIO()
    return Console(file=out, width=100, force_terminal=terminal), out


def _alive() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "progress"]


@pytest.mark.parametrize("terminal", [True, False])
def test_all_events_are_shown(monkeypatch, *, terminal):
    monkeypatch.setattr(progress, "GRACE", 60.0)  # a busy machine draws slowly
    console, out = _console(terminal=terminal)
    events: queue.Queue[Event] = queue.Queue()
    with board(events, (100, 300), console):
        for done in range(101):
            events.put(("1", "[task] a", 100, done))
            events.put(("2", "[task] b", 300, done))
    assert events.empty()
    assert not _alive()
    assert "[task] b" in out.getvalue()
    hidden, shown = out.getvalue().count("\x1b[?25l"), out.getvalue().count("\x1b[?25h")
    assert hidden == shown == int(terminal)
    if not terminal:
        left = r"about \d.* left"
        assert re.search(rf"1 of 2 done, 50 %, {left}\n  \[task\] b: 33 %, {left}", out.getvalue())


@pytest.mark.parametrize("terminal", [True, False])
def test_interrupt_passes_through_and_ends_the_thread(*, terminal):
    console, out = _console(terminal=terminal)
    events: queue.Queue[Event] = queue.Queue()
    with pytest.raises(KeyboardInterrupt), board(events, (3,), console):
        events.put(("1", "FedAvg", 3, 0))
        raise KeyboardInterrupt
    assert not _alive()
    assert "FedAvg" in out.getvalue()
    assert out.getvalue().count("\x1b[?25h") == int(terminal)


class Endless:
    """A queue whose producer never stops."""

    def get(self, block: bool = True, timeout: float | None = None) -> Event:  # noqa: ARG002
        return ("1", "a", 3, 1)


class Broken:
    """A queue whose other end is gone."""

    def get(self, block: bool = True, timeout: float | None = None) -> Event:  # noqa: ARG002
        raise EOFError


@pytest.mark.parametrize("source", [Endless(), Broken()])
def test_thread_ends_for_any_queue(monkeypatch, source):
    monkeypatch.setattr(progress, "GRACE", 0.2)
    began = time.monotonic()
    with board(source, (3,), _console()[0]):
        pass
    assert not _alive()
    assert time.monotonic() - began < 5


def test_default_console_is_stderr(capsys):
    events: queue.Queue[Event] = queue.Queue()
    with board(events, (3,)):
        events.put(("1", "FedAvg", 3, 0))
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "FedAvg" in captured.err
