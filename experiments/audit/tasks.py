"""The audits of a plan as small tasks, each a function of plain values, run side by side."""

import os
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial

from attacks.audit.bounds import Finding
from attacks.audit.registry import AUDITS, MUTATIONS
from attacks.audit.setting import Setting
from experiments.audit.settings import Plan
from experiments.workers import working
from secure_fd.privacy.samplers import SeededRandom

Progress = Callable[[int], None]
_LONGEST_FIRST = ("dp-sgd-batches", "record")


@dataclass(frozen=True, slots=True)
class Task:
    """One audit of the right code, of its twin with half the noise, or of a mutation."""

    audit: str
    repeat: int
    half: bool = False
    mutation: str | None = None


def tasks(plan: Plan) -> list[Task]:
    """Everything that a plan asks for, longest first so that no core waits at the end."""
    chosen = [a for a in AUDITS.values() if a.unit in plan.units and a.kind in plan.kinds]
    made = [Task(a.name, seed) for a in chosen for seed in range(plan.settings.seeds)]
    made += [Task(a.name, run, half=True) for a in chosen for run in range(plan.settings.power)]
    if plan.settings.self_test:
        made += [Task(m.audit, 0, mutation=m.name) for m in MUTATIONS]
    return sorted(made, key=lambda task: _place(task.audit))


def run(task: Task, plan: Plan, progress: Progress = lambda _: None) -> Finding:
    """Carry out one task; a twin lives in this process for as long as the task does."""
    progress(0)
    settings, audit = plan.settings, AUDITS[task.audit]
    random = os.urandom if settings.insecure_seed is None else SeededRandom(_seed(task, plan))
    setting = Setting(settings.epsilon, settings.delta, settings.miss, plan.size, random)
    if task.mutation is not None:
        mutation = next(m for m in MUTATIONS if m.name == task.mutation)
        with mutation.twin():
            return audit.find(replace(setting, size=mutation.size))
    with audit.half() if task.half else nullcontext():
        return audit.find(setting)


def run_all(plan: Plan, todo: list[Task]) -> dict[Task, Finding]:
    """All findings, with progress and time left on stderr."""
    found: dict[Task, Finding] = {}
    with working(plan.settings.workers, len(todo)) as tasks_under_way:
        for task in todo:
            keep = partial(found.__setitem__, task)
            tasks_under_way.submit(keep, task.audit, 1, run, task, plan)
        tasks_under_way.drain()
    return found


def _place(audit: str) -> int:
    return _LONGEST_FIRST.index(audit) if audit in _LONGEST_FIRST else len(_LONGEST_FIRST)


def _seed(task: Task, plan: Plan) -> int:
    """One stream a task: every task of a plan has its own number."""
    return (plan.settings.insecure_seed or 0) << 32 | tasks(plan).index(task)
