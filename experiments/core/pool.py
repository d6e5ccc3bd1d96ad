"""Tasks over worker processes, with the time left; workers end when their parent does."""

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing import resource_tracker
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

from experiments.report.tables import human_seconds

_TICK = 0.5
"""Seconds between two looks at the running tasks."""
_MOST = 0.95
"""Largest share of a running task that counts as done, however long it takes."""


@dataclass(slots=True)
class Task:
    """A task. cost: seconds, about. then: called with its result, in the parent."""

    label: str
    cost: float
    then: Callable[[Any], None]
    start: float | None = None


@dataclass(slots=True)
class Board:
    """Progress on stderr: a bar in a terminal, and a line for each finished task.

    total: cost of all tasks, those that are still to come included.
    """

    total: float
    workers: int
    shown: Progress
    finished: float = 0.0
    spent: float = 0.0

    @property
    def pace(self) -> float:
        """Seconds for a second of cost: the mean of the finished tasks."""
        return self.spent / self.finished if self.finished else 1.0

    def far(self, running: list[Task]) -> tuple[float, str]:
        """Return the cost that is done, and the time left in words."""
        now, done = time.monotonic(), self.finished
        for task in running:
            if task.start is not None:
                done += min(_MOST * task.cost, (now - task.start) / self.pace)
        left = (self.total - done) * self.pace / self.workers
        return done, f"about {human_seconds(max(left, 0.0))} left"

    def tick(self, running: list[Task]) -> None:
        """Move the bar; the first tasks of the queue are those that run."""
        for task in running[: self.workers]:
            task.start = task.start or time.monotonic()
        done, left = self.far(running)
        names = ", ".join(task.label for task in running[: self.workers])
        self.shown.update(self.shown.task_ids[0], completed=done, description=f"{left}  {names}")

    def finish(self, task: Task, running: list[Task], found: object = None) -> None:
        """Count a finished task, and print a line about it, with the accuracy that it found."""
        now = time.monotonic()
        seconds = now - (task.start or now)
        self.finished, self.spent = self.finished + task.cost, self.spent + seconds
        accuracy = getattr(found, "figures", {}).get("accuracy")
        score = "" if accuracy is None else f"accuracy {100 * accuracy:.1f} %, "
        done = f"{100 * self.finished / self.total:3.0f} %"
        line = f"{done}  {task.label}: {score}{human_seconds(seconds)}"
        if running or self.finished < self.total:
            line += f"; {self.far(running)[1]}"
        self.shown.console.print(line, markup=False, highlight=False, soft_wrap=True)


@dataclass(slots=True)
class Tasks:
    """Tasks in worker processes; what follows from a result runs in the parent."""

    pool: Executor
    board: Board
    pending: dict[Future[Any], Task] = field(default_factory=dict)

    @property
    def full(self) -> bool:
        """Whether every worker has work, and more is waiting."""
        return len(self.pending) > self.board.workers

    def submit(
        self,
        then: Callable[[Any], None],
        label: str,
        cost: float,
        call: Callable[..., Any],
        *given: Any,  # noqa: ANN401 - of the function
    ) -> None:
        """Call a function in a worker; `then` receives its result here."""
        with undisturbed():  # a task may start a worker
            self.pending[self.pool.submit(call, *given)] = Task(label, cost, then)

    def drain(self) -> None:
        """Wait until nothing is pending; what `then` submits is waited for as well."""
        if self.board.shown.disable:
            self.board.shown.console.print(f"  0 %  {self.board.far([])[1]}", highlight=False)
        while self.pending:
            done, _ = wait(self.pending, timeout=_TICK, return_when=FIRST_COMPLETED)
            for future in [future for future in self.pending if future in done]:
                task, found = self.pending.pop(future), future.result()
                self.board.finish(task, list(self.pending.values()), found)
                task.then(found)
            self.board.tick(list(self.pending.values()))


@contextmanager
def working(workers: int | None, total: float, console: Console | None = None) -> Iterator[Tasks]:
    """Start so many processes, one a core by default, and show progress.

    total: cost of all tasks. Whatever ends the block early ends the workers at once.
    """
    count, console = workers or os.cpu_count() or 1, console or Console(stderr=True)
    columns = (BarColumn(), TaskProgressColumn(), TextColumn("{task.description}", markup=False))
    shown = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
    shown.add_task("", total=max(1.0, total))
    context = multiprocessing.get_context("spawn")
    with shown, ProcessPoolExecutor(count, context, _start_worker) as pool:
        try:
            yield Tasks(pool, Board(max(1.0, total), count, shown))
        except BaseException:
            _stop(pool)
            raise


@contextmanager
def undisturbed() -> Iterator[None]:
    """Start processes that ignore Ctrl-C, or import what must not be interrupted.

    A Ctrl-C or SIGTERM that arrives in this block takes effect at its end.

    It reaches every process of the terminal, and the parent alone decides what it means. A child
    inherits the mask, so it is blocked while the child still imports. An exception between the
    start of a child and what is written to it would leave a child that reads half a message.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    caught: list[int] = []
    before = {
        ending: signal.signal(ending, lambda number, _: caught.append(number))
        for ending in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        with _masked():
            yield
    finally:
        for ending, handler in before.items():
            signal.signal(ending, handler)
    for number in caught:
        signal.raise_signal(number)


@contextmanager
def _masked() -> Iterator[None]:
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    resource_tracker.ensure_running()  # its own start would lift the block
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _start_worker() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # where there is no mask to inherit
    threading.Thread(target=_end_with_parent, daemon=True).start()
    import scipy.linalg  # noqa: F401 - its own BLAS must be loaded before it can be limited
    import torch
    from threadpoolctl import threadpool_limits

    # Tasks run side by side: more threads a worker would only wait for each other.
    torch.set_num_threads(1)
    threadpool_limits(1)


def _end_with_parent() -> None:
    """End this process with its parent, even where the parent is killed."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _stop(pool: ProcessPoolExecutor) -> None:
    """End the workers at once: whatever they hold is lost, and nothing of it was written."""
    processes = list((pool._processes or {}).values())
    pool.shutdown(wait=False, cancel_futures=True)
    for process in processes:
        process.terminate()
