"""Progress of workers in other processes, on stderr, from small events in a queue."""

import queue
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol, TypeAlias

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    Task,
    TaskID,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from experiments.report.tables import human_seconds

Event: TypeAlias = tuple[str, str, int, int]
"""A task's own name, what it is called, its total, and how much of that is done."""
TICK, GRACE, EVERY = 0.2, 1.0, 5.0
"""Seconds: between two looks at the queue; for the last events; between two lines in a file."""


class EventQueue(Protocol):
    """A queue.Queue, a multiprocessing.Queue or a manager's proxy of one."""

    def get(self, block: bool = ..., timeout: float | None = ...) -> Event:
        """The next event; raises queue.Empty after `timeout` seconds."""


@contextmanager
def board(
    events: EventQueue, totals: Sequence[int], console: Console | None = None
) -> Iterator[Progress]:
    """Show the events of a queue while the `with` block runs: bars, or in a file a line at times.

    totals: of the tasks to come. The queue is drained by a daemon thread that ends at most `GRACE`
    seconds after the block does, even if a killed worker left the queue unusable.
    """
    console = console or Console(stderr=True)
    columns = (BarColumn(), TaskProgressColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    name = TextColumn("{task.description}", markup=False)
    shown = Progress(name, *columns, console=console, disable=not console.is_terminal)
    shown.add_task("overall", total=max(1, sum(totals)))
    stop = threading.Event()
    drain = threading.Thread(
        target=_drain, args=(events, shown, len(totals), stop), name="progress", daemon=True
    )
    with shown:
        drain.start()
        try:
            yield shown
        finally:
            stop.set()
            drain.join(timeout=2 * GRACE)
            if shown.disable:
                _print(shown, len(totals))


def _drain(events: EventQueue, shown: Progress, expected: int, stop: threading.Event) -> None:
    """Take events until the block has ended and the queue is empty, or the grace is over."""
    tasks: dict[str, TaskID] = {}
    last, printed = None, time.monotonic()
    while last is None or time.monotonic() < last:
        if last is None and stop.is_set():
            last = time.monotonic() + GRACE
        try:
            name, label, total, done = events.get(timeout=TICK)
        except queue.Empty:
            if last is not None:
                return
        except (OSError, EOFError):
            return  # the other end of the queue is gone
        else:
            if name not in tasks:
                tasks[name] = shown.add_task(label, total=total)
            shown.update(tasks[name], completed=done)
            overall, *each = shown.tasks
            shown.update(overall.id, completed=sum(task.completed for task in each))
        if shown.disable and time.monotonic() >= printed:
            printed = time.monotonic() + EVERY
            _print(shown, expected)


def _print(shown: Progress, expected: int) -> None:
    """How far all is, and each task that is running."""
    overall, *each = shown.tasks
    running = [task for task in each if not task.finished]
    lines = [f"{len(each) - len(running)} of {expected} done, {_far(overall)}"]
    lines += [f"  {task.description}: {_far(task)}" for task in running]
    shown.console.print(Text("\n".join(lines)), soft_wrap=True)


def _far(task: Task) -> str:
    """The share done, and the time left at the mean pace so far."""
    share, elapsed = task.percentage / 100, task.elapsed or 0.0
    left = f", about {human_seconds(elapsed * (1 - share) / share)} left" if 0 < share < 1 else ""
    return f"{task.percentage:.0f} %{left}"
