"""Rows and attacks over worker processes, each as soon as what it needs is there."""

from dataclasses import dataclass, field
from functools import partial

from attacks.base import AttackResult
from experiments.compare import attacking, run
from experiments.compare.rows import RowSpec, row_specs
from experiments.compare.settings import Plan
from experiments.workers import Tasks, working

Outcome = tuple[run.RowRun, dict[str, AttackResult | str]]


@dataclass(slots=True)
class _Work:
    """What is done and what is on its way."""

    plan: Plan
    tasks: Tasks
    arsenal: attacking.Arsenal | None = None
    waiting: list[run.RowRun] = field(default_factory=list)
    outcomes: list[Outcome] = field(default_factory=list)


def compare(plan: Plan) -> list[Outcome]:
    """Every row of every seed, attacked where its seed is the first, in the table's order."""
    specs, seeds = row_specs(plan), plan.seeds
    expected = len(seeds) * (len(specs) + 1) + (len(specs) + 1) * bool(plan.attacks)
    with working(plan.settings.workers, expected) as tasks:
        work = _Work(plan, tasks)
        _submit_first(work, specs, seeds)
        tasks.drain()
    order = {spec: place for place, spec in enumerate(specs)}
    return sorted(work.outcomes, key=lambda made: (made[0].seed, order[made[0].spec]))


def _submit_first(work: _Work, specs: tuple[RowSpec, ...], seeds: range) -> None:
    """What needs nothing: warm-ups, the attacks' preparation, and FedAvg, longest first."""
    plan = work.plan
    for seed in seeds:
        work.tasks.submit(
            partial(_warmed, work, specs, seed),
            f"warm-up{_of(plan, seed)}",
            plan.settings.clients,
            run.warm_up,
            plan,
            seed,
        )
    if plan.attacks:
        work.tasks.submit(
            partial(_armed, work), "attacks", 100, attacking.prepare, plan, plan.seeds[0]
        )
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
    work.tasks.submit(
        partial(_trained, work), label, plan.rounds, run.run_row, plan, spec, seed, warm
    )


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
    work.tasks.submit(
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
