"""Progress of workers in other processes, on stderr, from small events in a queue."""

import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Literal, Protocol, Self, TypeAlias

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.text import Text

from experiments.tables import human_seconds

Event: TypeAlias = (
    tuple[Literal["start"], str, str, int]
    | tuple[Literal["advance"], str, int]
    | tuple[Literal["done"], str]
)
"""("start", task_id, label, total), ("advance", task_id, done so far), ("done", task_id)."""


class EventQueue(Protocol):
    """A queue.Queue, a multiprocessing.Queue or a manager's proxy of one."""

    def get(self, block: bool = ..., timeout: float | None = ...) -> Event:
        """The next event; raises queue.Empty after `timeout` seconds."""


@dataclass(slots=True)
class TaskState:
    """One task: how far it is, in its own units, and when it started and ended, in seconds."""

    label: str
    total: int
    started: float
    done: int = 0
    ended: float | None = None

    @property
    def fraction(self) -> float:
        """Share done, in [0, 1]."""
        if self.ended is not None:
            return 1.0
        return min(1.0, self.done / self.total) if self.total > 0 else 0.0

    def elapsed(self, now: float) -> float:
        """Seconds from the start to the end, or until now."""
        return (now if self.ended is None else self.ended) - self.started


def times(fraction: float, elapsed: float) -> str:
    """Time spent, and time left at the mean pace so far."""
    spent = f"{human_seconds(elapsed)} elapsed"
    if not 0 < fraction < 1:
        return spent
    return f"{spent}, about {human_seconds(elapsed * (1 - fraction) / fraction)} left"


@dataclass(slots=True)
class BoardState:
    """All tasks by id. expected: how many there will be, and units: their totals together.

    The overall share counts units; where these are not known, 0, it counts each task alike.
    """

    expected: int
    started: float
    units: int = 0
    tasks: dict[str, TaskState] = field(default_factory=dict)

    def apply(self, event: Event, now: float) -> None:
        """Take in one event; an event of a task that never started changes nothing."""
        match event:
            case ("start", task_id, label, total):
                self.tasks[task_id] = TaskState(label, total, now)
            case ("advance", task_id, done) if task_id in self.tasks:
                self.tasks[task_id].done = done
            case ("done", task_id) if task_id in self.tasks:
                self.tasks[task_id].ended = now

    @property
    def count(self) -> int:
        """Tasks that there will be, as far as is known."""
        return max(self.expected, len(self.tasks))

    @property
    def fraction(self) -> float:
        """Share done over all tasks."""
        if self.units:
            done = sum(task.fraction * task.total for task in self.tasks.values())
            return done / max(self.units, sum(task.total for task in self.tasks.values()))
        return sum(task.fraction for task in self.tasks.values()) / max(self.count, 1)


class Display(Protocol):
    """Shows a board. `show` is called from one thread, between `start` and `stop`."""

    def start(self) -> None:
        """Begin."""

    def show(self, state: BoardState, now: float) -> None:
        """Show the state at `now` seconds."""

    def stop(self, state: BoardState, now: float) -> None:
        """Show the last state and leave the terminal as it was."""


class Bars:
    """One bar a task and one overall, redrawn in place."""

    def __init__(self, console: Console) -> None:
        name, when = "{task.description}", "{task.fields[when]}"
        share = TextColumn("{task.percentage:>3.0f} %")
        columns = (TextColumn(name, markup=False), BarColumn(), share, TextColumn(when))
        self._progress = Progress(*columns, console=console, auto_refresh=False)
        self._overall = self._progress.add_task("overall", total=1.0, when="")
        self._bars: dict[str, TaskID] = {}

    def start(self) -> None:
        """Begin drawing."""
        self._progress.start()

    def show(self, state: BoardState, now: float) -> None:
        """Move every bar, then draw once."""
        for task_id, task in state.tasks.items():
            if task_id not in self._bars:
                self._bars[task_id] = self._progress.add_task(task.label, total=1.0, when="")
            self._move(self._bars[task_id], task.fraction, task.elapsed(now))
        self._move(self._overall, state.fraction, now - state.started)
        self._progress.refresh()

    def stop(self, state: BoardState, now: float) -> None:
        """Draw once more and give the cursor back."""
        try:
            self.show(state, now)
        finally:
            self._progress.stop()

    def _move(self, bar: TaskID, fraction: float, elapsed: float) -> None:
        self._progress.update(bar, completed=fraction, when=times(fraction, elapsed))


class PlainLines:
    """A few lines every `every` seconds, for files and pipes."""

    def __init__(self, console: Console, every: float = 5.0) -> None:
        self._console = console
        self._every = every
        self._next = 0.0

    def start(self) -> None:
        """Nothing to prepare."""

    def show(self, state: BoardState, now: float) -> None:
        """Print the running tasks, unless the last lines are younger than `every` seconds."""
        elapsed = now - state.started
        if elapsed < self._next:
            return
        self._next = elapsed + self._every
        self._print(state, now)

    def stop(self, state: BoardState, now: float) -> None:
        """Print how far it came."""
        self._print(state, now)

    def _print(self, state: BoardState, now: float) -> None:
        running = [task for task in state.tasks.values() if task.ended is None]
        ended, elapsed = len(state.tasks) - len(running), now - state.started
        lines = [f"{ended} of {state.count} done, {_share(state.fraction, elapsed)}"]
        lines += [f"  {task.label}: {_share(task.fraction, task.elapsed(now))}" for task in running]
        self._console.print(Text("\n".join(lines)), soft_wrap=True)


def _share(fraction: float, elapsed: float) -> str:
    return f"{100 * fraction:.0f} %, {times(fraction, elapsed)}"


class ProgressBoard:
    """Shows the events of a queue while its `with` block runs, then ends, whatever happens.

    expected: number of tasks to come; units: their totals together, 0 where that is not known. The
    queue is drained by a daemon thread that ends at most `GRACE` seconds after the block does, even
    if a killed worker left the queue unusable.
    """

    TICK = 0.2
    GRACE = 1.0

    def __init__(
        self,
        events: EventQueue,
        expected: int,
        *,
        units: int = 0,
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        console = console or Console(stderr=True)
        self._events = events
        self._clock = clock
        self._display: Display = Bars(console) if console.is_terminal else PlainLines(console)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._drain, name="progress", daemon=True)
        self.state = BoardState(expected, clock(), units)

    def __enter__(self) -> Self:
        self._display.start()
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        try:
            self._thread.join(timeout=2 * self.GRACE)
        finally:
            self._display.stop(self.state, self._clock())

    def _drain(self) -> None:
        """Take events until the block has ended and the queue is empty, or the grace is over."""
        last = None
        while last is None or self._clock() < last:
            if last is None and self._stop.is_set():
                last = self._clock() + self.GRACE
            try:
                self.state.apply(self._events.get(timeout=self.TICK), self._clock())
            except queue.Empty:
                if last is not None:
                    return
            except (OSError, EOFError):
                return  # the other end of the queue is gone
            self._display.show(self.state, self._clock())
