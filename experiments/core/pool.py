"""Tasks over an executor, with their progress; own workers end when their parent does."""

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor, as_completed
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from multiprocessing import resource_tracker
from typing import Any, TypeAlias

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

from experiments.report.tables import human_seconds

Call: TypeAlias = tuple[Any, Callable[..., Any], tuple[Any, ...]]
"""An item, and a function with its arguments that makes it in a worker."""


@dataclass(frozen=True, slots=True)
class Tasks:
    """Tasks of an executor; a bar in a terminal, and a line for each finished task."""

    pool: Executor
    shown: Progress
    pending: dict["Future[Any]", Any] = field(default_factory=dict)

    def each(self, calls: Iterable[Call]) -> Iterator[tuple[Any, Any, Any]]:
        """Yield every item as it finishes: the item, what its function returned, and a reference.

        The reference may stand for what was returned in later calls.
        """
        with undisturbed():  # a task may start a worker
            for item, call, given in calls:
                self.pending[self.pool.submit(call, *given)] = item
        bar, start, count = self.shown.tasks[0], time.monotonic(), len(self.pending)
        last = bar.completed + count == bar.total  # how long others take is not known yet
        for done, future in enumerate(as_completed(self.pending), 1):
            # A result that a cluster holds for longer would be made again if its worker ended.
            item, found = self.pending.pop(future), future.result()
            left = last * (time.monotonic() - start) * (count / done - 1)
            self._finish(str(getattr(item, "label", item)), found, left)
            yield item, found, getattr(future, "reference", found)
            del future, found

    def cancel(self) -> None:
        """Cancel every task that has not begun, or whose result a cluster can drop."""
        for future in self.pending:
            future.cancel()

    def _finish(self, label: str, found: object, left: float) -> None:
        """Print a line about a finished task: its figures, and the time left at the same pace."""
        self.shown.advance(self.shown.task_ids[0])
        bar = self.shown.tasks[0]
        made = getattr(found, "value", None)
        accuracy = getattr(made, "figures", {}).get("accuracy")
        parts = [label] if accuracy is None else [f"{label}: {100 * accuracy:.1f} %"]
        if isinstance(made, Exception):
            parts.append(f"failed: {made}")
        if hasattr(found, "seconds"):
            parts.append(f"{human_seconds(found.seconds)} of CPU")
        line = f"{bar.completed:.0f}/{bar.total:.0f} {', '.join(parts)}"
        line += f"; about {human_seconds(left)} left" if left else ""
        self.shown.console.print(line, markup=False, highlight=False, soft_wrap=True)


@contextmanager
def working(
    workers: int | None,
    total: int,
    executor: Executor | None = None,
    console: Console | None = None,
) -> Iterator[Tasks]:
    """Run tasks on an executor, and show progress; by default on worker processes, one a core.

    workers: number of processes. total: number of tasks. An early end of the block ends own workers
    at once, and cancels the tasks of another executor, which stays open.
    """
    count, console = workers or os.cpu_count() or 1, console or Console(stderr=True)
    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    shown = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
    shown.add_task("", total=total)
    context = multiprocessing.get_context("spawn")
    opened: AbstractContextManager[Executor] = (
        nullcontext(executor) if executor else ProcessPoolExecutor(count, context, _start_worker)
    )
    with shown, opened as pool:
        tasks = Tasks(pool, shown)
        try:
            yield tasks
        except BaseException:
            if isinstance(opened, ProcessPoolExecutor):
                _stop(opened)
            else:
                tasks.cancel()
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


def use_one_thread() -> None:
    """Limit the libraries to the calling thread: tasks that run side by side would only wait."""
    import scipy.linalg  # noqa: F401 - its own BLAS must be loaded before it can be limited
    import torch
    from threadpoolctl import threadpool_limits

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
