"""Tasks over worker processes, with their progress; workers end when their parent does."""

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import resource_tracker
from typing import Any, TypeAlias

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

from experiments.report.tables import human_seconds

Call: TypeAlias = tuple[Any, Callable[..., Any], tuple[Any, ...]]
"""An item, and a function with its arguments that makes it in a worker."""


@dataclass(frozen=True, slots=True)
class Tasks:
    """Tasks in worker processes; a bar in a terminal, and a line for each finished task."""

    pool: Executor
    shown: Progress

    def each(self, calls: Iterable[Call]) -> Iterator[tuple[Any, Any]]:
        """Yield every item with what its function returned in a worker, as they finish."""
        with undisturbed():  # a task may start a worker
            pending = {self.pool.submit(_timed, call, *given): item for item, call, given in calls}
        bar, start = self.shown.tasks[0], time.monotonic()
        last = bar.completed + len(pending) == bar.total  # how long others take is not known yet
        for done, future in enumerate(as_completed(pending), 1):
            item, (seconds, found) = pending[future], future.result()
            left = last * (time.monotonic() - start) * (len(pending) / done - 1)
            self._finish(str(getattr(item, "label", item)), seconds, found, left)
            yield item, found

    def _finish(self, label: str, seconds: float, found: object, left: float) -> None:
        """Print a line about a finished task: its accuracy, and the time left at the same pace."""
        self.shown.advance(self.shown.task_ids[0])
        bar = self.shown.tasks[0]
        accuracy = getattr(found, "figures", {}).get("accuracy")
        score = "" if accuracy is None else f"{100 * accuracy:.1f} %, "
        line = f"{bar.completed:.0f}/{bar.total:.0f} {label}: {score}{human_seconds(seconds)}"
        line += f"; about {human_seconds(left)} left" if left else ""
        self.shown.console.print(line, markup=False, highlight=False, soft_wrap=True)


def _timed(call: Callable[..., Any], *given: Any) -> tuple[float, Any]:  # noqa: ANN401 - of the function
    """Seconds of a call, and what it returned."""
    start = time.monotonic()
    found = call(*given)
    return time.monotonic() - start, found


@contextmanager
def working(workers: int | None, total: int, console: Console | None = None) -> Iterator[Tasks]:
    """Start worker processes, one a core by default, and show progress.

    workers: number of processes. total: number of tasks. An early end of the block ends the
    workers at once.
    """
    count, console = workers or os.cpu_count() or 1, console or Console(stderr=True)
    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    shown = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
    shown.add_task("", total=total)
    context = multiprocessing.get_context("spawn")
    with shown, ProcessPoolExecutor(count, context, _start_worker) as pool:
        try:
            yield Tasks(pool, shown)
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
