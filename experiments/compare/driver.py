"""Rows and attacks over worker processes, each as soon as what it needs is there."""

# ruff: noqa: ANN401 - futures, queues and their tasks are untyped by nature here

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import resource_tracker
from typing import Any

from attacks.result import AttackResult
from experiments.compare import attacking, run
from experiments.compare.rows import RowSpec, row_specs
from experiments.compare.settings import Plan
from experiments.report.progress import ProgressBoard

Outcome = tuple[run.RowRun, dict[str, AttackResult | str]]

_events: Any = None  # the queue that this worker reports progress to


@dataclass(slots=True)
class _Work:
    """What is done and what is on its way."""

    plan: Plan
    pool: ProcessPoolExecutor
    arsenal: attacking.Arsenal | None = None
    waiting: list[run.RowRun] = field(default_factory=list)
    outcomes: list[Outcome] = field(default_factory=list)
    pending: dict[Future[Any], Callable[[Any], None]] = field(default_factory=dict)
    submitted: int = 0

    def submit(self, then: Callable[[Any], None], label: str, total: int, *task: Any) -> None:
        """Run `task` in a worker; `then` gets its result here."""
        self.submitted += 1
        name = f"{self.submitted} {label}"
        self.pending[self.pool.submit(_reported, name, label, total, *task)] = then


def compare(plan: Plan) -> list[Outcome]:
    """Every row of every seed, attacked where its seed is the first, in the table's order."""
    context = multiprocessing.get_context("spawn")
    with _deaf_children():
        events = context.Manager().Queue()
    workers = plan.settings.workers or os.cpu_count() or 1
    specs, seeds = row_specs(plan), plan.seeds
    tasks = len(seeds) * (len(specs) + 1) + (len(specs) + 1) * bool(plan.attacks)
    with (
        ProgressBoard(events, tasks),
        ProcessPoolExecutor(workers, context, _start_worker, (events,)) as pool,
    ):
        work = _Work(plan, pool)
        try:
            with _deaf_children():  # the first task starts every worker
                _submit_first(work, specs, seeds)
            while work.pending:
                done, _ = wait(work.pending, return_when=FIRST_COMPLETED)
                for future in done:
                    work.pending.pop(future)(future.result())
        except BaseException:
            _stop(pool)
            raise
    order = {spec: place for place, spec in enumerate(specs)}
    return sorted(work.outcomes, key=lambda made: (made[0].seed, order[made[0].spec]))


def _submit_first(work: _Work, specs: tuple[RowSpec, ...], seeds: range) -> None:
    """What needs nothing: warm-ups, the attacks' preparation, and FedAvg, longest first."""
    plan = work.plan
    for seed in seeds:
        work.submit(
            partial(_warmed, work, specs, seed),
            f"warm-up{_of(plan, seed)}",
            plan.settings.clients,
            run.warm_up,
            plan,
            seed,
        )
    if plan.attacks:
        work.submit(partial(_armed, work), "attacks", 100, attacking.prepare, plan, plan.seeds[0])
    for seed in seeds:
        for spec in reversed([s for s in specs if s.kind == "fedavg"]):
            _submit_row(work, spec, seed, None)


def _warmed(work: _Work, specs: tuple[RowSpec, ...], seed: int, warm: run.WarmUp) -> None:
    for spec in specs:
        if spec.kind != "fedavg":
            _submit_row(work, spec, seed, warm)


def _submit_row(work: _Work, spec: RowSpec, seed: int, warm: run.WarmUp | None) -> None:
    plan = work.plan
    label = f"{spec.label}{_of(plan, seed)}"
    work.submit(partial(_trained, work), label, plan.rounds, run.run_row, plan, spec, seed, warm)


def _trained(work: _Work, made: run.RowRun) -> None:
    if not work.plan.attacks or made.seed != work.plan.seeds[0]:
        work.outcomes.append((made, {}))
    elif work.arsenal is None:
        work.waiting.append(made)
    else:
        _submit_attacks(work, work.arsenal, made)


def _armed(work: _Work, arsenal: attacking.Arsenal) -> None:
    work.arsenal = arsenal
    for made in work.waiting:
        _submit_attacks(work, arsenal, made)
    work.waiting.clear()


def _submit_attacks(work: _Work, arsenal: attacking.Arsenal, made: run.RowRun) -> None:
    work.submit(
        lambda found: work.outcomes.append((made, found)),
        f"attacks on {made.spec.label}",
        len(work.plan.attacks),
        attacking.attack_row,
        work.plan,
        arsenal,
        made,
    )


def _of(plan: Plan, seed: int) -> str:
    return f", seed {seed}" if plan.settings.seeds > 1 else ""


@contextmanager
def _deaf_children() -> Iterator[None]:
    """Processes that start in this block never hear Ctrl-C, not even while they still import.

    It reaches every process of the terminal, and the parent alone decides what it means.
    """
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
    threading.Thread(target=_end_with_parent, daemon=True).start()
    import scipy.linalg  # noqa: F401 - its own BLAS must be loaded before it can be limited
    import torch
    from threadpoolctl import threadpool_limits

    # Rows run side by side: more threads a worker would only wait for each other.
    torch.set_num_threads(1)
    threadpool_limits(1)


def _end_with_parent() -> None:
    """A killed parent must not leave workers that train for nobody."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _reported(name: str, label: str, total: int, task: Callable[..., Any], *arguments: Any) -> Any:
    """Call a task in a worker, telling the board how far it is."""
    _events.put(("start", name, label, total))
    result = task(*arguments, lambda done: _events.put(("advance", name, done)))
    _events.put(("done", name))
    return result


def _stop(pool: ProcessPoolExecutor) -> None:
    """End the workers at once: whatever they hold is lost, and nothing of it was written."""
    processes = list((pool._processes or {}).values())
    pool.shutdown(wait=False, cancel_futures=True)
    for process in processes:
        process.terminate()
