"""The progress board: states, both displays, and a thread that always ends."""

import io
import multiprocessing
import queue
import threading
import time

import pytest
from rich.console import Console

from experiments.progress import BoardState, Event, PlainLines, ProgressBoard, times


def _console(*, terminal: bool = False) -> tuple[Console, io.StringIO]:
    out = io.StringIO()
    return Console(file=out, width=100, force_terminal=terminal), out


def _alive() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "progress"]


@pytest.fixture
def events() -> "queue.Queue[Event]":
    return queue.Queue()


def test_state_follows_the_events() -> None:
    state = BoardState(expected=4, started=0.0)
    state.apply(("start", "a", "FedAvg", 10), 1.0)
    state.apply(("start", "b", "FedMD", 4), 2.0)
    state.apply(("advance", "a", 5), 3.0)
    state.apply(("advance", "b", 9), 3.0)
    assert [task.fraction for task in state.tasks.values()] == [0.5, 1.0]
    assert state.fraction == 1.5 / 4
    state.apply(("done", "a"), 6.0)
    assert state.tasks["a"].fraction == 1.0
    assert state.tasks["a"].elapsed(100.0) == 5.0
    assert state.fraction == 0.5


def test_a_long_task_counts_more_than_a_short_one() -> None:
    state = BoardState(expected=2, started=0.0, units=100)
    state.apply(("start", "short", "Pooled heads", 10), 0.0)
    state.apply(("done", "short"), 1.0)
    assert state.fraction == 0.1
    state.apply(("start", "long", "FedAvg", 90), 1.0)
    state.apply(("advance", "long", 45), 2.0)
    assert state.fraction == 0.55


def test_events_of_unknown_tasks_change_nothing() -> None:
    state = BoardState(expected=1, started=0.0)
    state.apply(("advance", "ghost", 5), 1.0)
    state.apply(("done", "ghost"), 1.0)
    assert state.tasks == {}
    assert state.fraction == 0.0


def test_a_task_without_steps_counts_only_when_done() -> None:
    state = BoardState(expected=1, started=0.0)
    state.apply(("start", "a", "Independent", 0), 0.0)
    assert state.fraction == 0.0
    state.apply(("done", "a"), 1.0)
    assert state.fraction == 1.0


def test_time_left_is_at_the_mean_pace() -> None:
    assert times(0.25, 30.0) == "30 s elapsed, about 90 s left"
    assert times(0.0, 30.0) == "30 s elapsed"
    assert times(1.0, 30.0) == "30 s elapsed"


def test_plain_lines_come_every_five_seconds() -> None:
    console, out = _console()
    state, display = BoardState(expected=2, started=100.0), PlainLines(console)
    state.apply(("start", "a", "[b]FedAvg[/b]", 10), 100.0)
    state.apply(("advance", "a", 5), 104.0)
    for now in (100.0, 101.0, 104.9):
        display.show(state, now)
    assert out.getvalue().count("of 2 done") == 1
    display.show(state, 105.1)
    display.show(state, 109.0)
    display.show(state, 110.2)
    assert out.getvalue().count("of 2 done") == 3
    assert "[b]FedAvg[/b]: 50 %, 5.1 s elapsed, about 5.1 s left" in out.getvalue()
    assert "0 of 2 done, 25 %, 5.1 s elapsed, about 15 s left" in out.getvalue()


@pytest.mark.parametrize("terminal", [True, False])
def test_board_drains_all_events(
    events: "queue.Queue[Event]", monkeypatch: pytest.MonkeyPatch, *, terminal: bool
) -> None:
    monkeypatch.setattr(ProgressBoard, "GRACE", 60.0)  # a busy machine draws slowly
    console, out = _console(terminal=terminal)
    with ProgressBoard(events, expected=2, console=console) as board:
        for key in ("a", "b"):
            events.put(("start", key, f"[task] {key}", 100))
            for done in range(1, 101):
                events.put(("advance", key, done))
        events.put(("done", "a"))
    assert events.empty()
    assert board.state.tasks["a"].ended is not None
    assert board.state.fraction == 1.0
    assert not _alive()
    assert "[task] b" in out.getvalue()
    hidden, shown = out.getvalue().count("\x1b[?25l"), out.getvalue().count("\x1b[?25h")
    assert hidden == shown == int(terminal)


@pytest.mark.parametrize("terminal", [True, False])
def test_interrupt_passes_through_and_ends_the_thread(
    events: "queue.Queue[Event]", *, terminal: bool
) -> None:
    console, out = _console(terminal=terminal)
    with pytest.raises(KeyboardInterrupt), ProgressBoard(events, expected=1, console=console):
        events.put(("start", "a", "FedAvg", 3))
        raise KeyboardInterrupt
    assert not _alive()
    assert "FedAvg" in out.getvalue()
    assert out.getvalue().count("\x1b[?25h") == int(terminal)


class Endless:
    """A queue whose producer never stops."""

    def get(self, block: bool = True, timeout: float | None = None) -> Event:  # noqa: ARG002
        return ("advance", "a", 1)


class Broken:
    """A queue whose other end is gone."""

    def get(self, block: bool = True, timeout: float | None = None) -> Event:  # noqa: ARG002
        raise EOFError


@pytest.mark.parametrize("source", [Endless(), Broken()])
def test_thread_ends_for_any_queue(
    monkeypatch: pytest.MonkeyPatch, source: Endless | Broken
) -> None:
    monkeypatch.setattr(ProgressBoard, "GRACE", 0.2)
    began = time.monotonic()
    with ProgressBoard(source, expected=1, console=_console()[0]):
        pass
    assert not _alive()
    assert time.monotonic() - began < 5


def _worker(events: "multiprocessing.Queue[Event]", key: str) -> None:
    events.put(("start", key, f"worker {key}", 3))
    for done in range(1, 4):
        events.put(("advance", key, done))
    events.put(("done", key))


def test_workers_in_other_processes() -> None:
    context = multiprocessing.get_context("spawn")
    events = context.Queue()
    console, out = _console()
    with ProgressBoard(events, expected=2, console=console) as board:
        workers = [context.Process(target=_worker, args=(events, key)) for key in "ab"]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join(60)
    events.close()
    assert [worker.exitcode for worker in workers] == [0, 0]
    assert board.state.fraction == 1.0
    assert "2 of 2 done, 100 %" in out.getvalue()


def test_default_console_is_stderr(
    events: "queue.Queue[Event]", capsys: pytest.CaptureFixture[str]
) -> None:
    with ProgressBoard(events, expected=1):
        events.put(("start", "a", "FedAvg", 3))
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "FedAvg" in captured.err
