"""Tasks over worker processes that report progress, and that end when their parent does."""

# ruff: noqa: ANN401 - futures, queues and their tasks are untyped by nature here

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing import resource_tracker
from multiprocessing.managers import SyncManager
from typing import Any

from experiments.core.progress import board

_events: Any = None  # the queue that this worker reports progress to


@dataclass(slots=True)
class Tasks:
    """Tasks on their way; what each one's end leads to runs here, in the parent."""

    pool: ProcessPoolExecutor
    pending: dict[Future[Any], Callable[[Any], None]] = field(default_factory=dict)
    submitted: int = 0

    def submit(self, then: Callable[[Any], None], label: str, total: int, *task: Any) -> None:
        """Run `task` (a function and its arguments) in a worker; `then` gets its result here.

        The function gets one more argument, to which it tells how much of `total` is done.
        """
        self.submitted += 1
        name = f"{self.submitted} {label}"
        with undisturbed():  # a task may start a worker
            self.pending[self.pool.submit(_reported, name, label, total, *task)] = then

    def drain(self) -> None:
        """Wait until nothing is pending; what `then` submits is waited for as well."""
        while self.pending:
            done, _ = wait(self.pending, return_when=FIRST_COMPLETED)
            for future in done:
                self.pending.pop(future)(future.result())


@contextmanager
def working(workers: int | None, totals: Sequence[int]) -> Iterator[Tasks]:
    """A pool of so many processes, one a core by default, and a board. totals: of tasks to come.

    Whatever ends the block early ends the workers at once.
    """
    context = multiprocessing.get_context("spawn")
    with undisturbed():
        manager = SyncManager(ctx=context)
        manager.start(_watch_parent)
        events = manager.Queue()
    count = workers or os.cpu_count() or 1
    with (
        board(events, totals),
        ProcessPoolExecutor(count, context, _start_worker, (events,)) as pool,
    ):
        try:
            with undisturbed():
                for _ in range(min(count, len(totals))):
                    pool.submit(_start_early)  # what a worker imports takes seconds
            yield Tasks(pool)
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


def _start_worker(events: Any) -> None:
    global _events  # noqa: PLW0603 - a worker process has one queue for its life
    _events = events
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # where there is no mask to inherit
    _watch_parent()
    import scipy.linalg  # noqa: F401 - its own BLAS must be loaded before it can be limited
    import torch
    from threadpoolctl import threadpool_limits

    # Tasks run side by side: more threads a worker would only wait for each other.
    torch.set_num_threads(1)
    threadpool_limits(1)


def _start_early() -> None:
    """Nothing to do: a pool starts a worker for each task that finds none idle."""


def _watch_parent() -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """End this process with its parent, even where the parent is killed."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _reported(name: str, label: str, total: int, task: Callable[..., Any], *arguments: Any) -> Any:
    """Call a task in a worker, telling the board how far it is."""
    total = max(1, total)
    _events.put((name, label, total, 0))
    result = task(*arguments, lambda done: _events.put((name, label, total, min(done, total - 1))))
    _events.put((name, label, total, total))
    return result


def _stop(pool: ProcessPoolExecutor) -> None:
    """End the workers at once: whatever they hold is lost, and nothing of it was written."""
    processes = list((pool._processes or {}).values())
    pool.shutdown(wait=False, cancel_futures=True)
    for process in processes:
        process.terminate()
