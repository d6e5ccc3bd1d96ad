"""Train and attack all rows over worker processes; make one result of them."""

import math
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from attacks.base import AttackResult, ImageArray
from attacks.on_run import Arsenal
from experiments import attacking, runs
from experiments.provenance import PRIVACY_LIBRARIES, created_now, machine, versions
from experiments.results import (
    SCHEMA,
    Accuracy,
    Aggregation,
    AttackFigure,
    CurvePoint,
    Images,
    Results,
    Row,
)
from experiments.rows import RowSpec, title
from experiments.runs import RowRun, WarmUp, data_of
from experiments.workers import Tasks, working
from secure_fd.aggregation.base import Stage
from secure_fd.training import default_device

if TYPE_CHECKING:
    from experiments.privacy_compare import Plan

Outcome = tuple[RowRun, dict[str, AttackResult | str]]


@dataclass(slots=True)
class _Work:
    """What is done and what is on its way."""

    plan: "Plan"
    tasks: Tasks
    arsenal: Arsenal | None = None
    waiting: list[RowRun] = field(default_factory=list)
    outcomes: list[Outcome] = field(default_factory=list)


def compare(plan: "Plan", specs: tuple[RowSpec, ...]) -> list[Outcome]:
    """Every row of every seed, attacked where its seed is the first, in the table's order."""
    seeds = plan.seeds
    expected = len(seeds) * (len(specs) + 1) + (len(specs) + 1) * bool(plan.attacks.names)
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
            runs.warm_up,
            plan.terms,
            seed,
        )
    if plan.attacks.names:
        work.tasks.submit(
            partial(_armed, work),
            "attacks",
            100,
            attacking.prepare,
            plan.terms,
            plan.seeds[0],
            plan.attacks,
        )
    for seed in seeds:
        for spec in reversed([s for s in specs if s.kind == "fedavg"]):
            _submit_row(work, spec, seed, None)


def _warmed(work: _Work, specs: tuple[RowSpec, ...], seed: int, warm: WarmUp) -> None:
    for spec in specs:
        if spec.kind != "fedavg":
            _submit_row(work, spec, seed, warm)


def _submit_row(work: _Work, spec: RowSpec, seed: int, warm: WarmUp | None) -> None:
    plan = work.plan
    label = f"{title(spec, plan.terms.epsilon)}{_of(plan, seed)}"
    work.tasks.submit(
        partial(_trained, work),
        label,
        plan.terms.rounds,
        runs.run_row,
        plan.terms,
        spec,
        seed,
        warm,
    )


def _trained(work: _Work, made: RowRun) -> None:
    if not work.plan.attacks.names or made.seed != work.plan.seeds[0]:
        work.outcomes.append((made, {}))
    elif work.arsenal is None:
        work.waiting.append(made)
    else:
        _submit_attacks(work, work.arsenal, made)


def _armed(work: _Work, arsenal: Arsenal) -> None:
    work.arsenal = arsenal
    for made in work.waiting:
        _submit_attacks(work, arsenal, made)
    work.waiting.clear()


def _submit_attacks(work: _Work, arsenal: Arsenal, made: RowRun) -> None:
    work.tasks.submit(
        lambda found: work.outcomes.append((made, found)),
        f"attacks on {title(made.spec, work.plan.terms.epsilon)}",
        len(work.plan.attacks.names),
        attacking.attack_row,
        work.plan.terms,
        work.plan.attacks,
        arsenal,
        made,
    )


def _of(plan: "Plan", seed: int) -> str:
    return f", seed {seed}" if plan.settings.seeds > 1 else ""


def results(plan: "Plan", outcomes: list[Outcome], command: list[str], seconds: float) -> Results:
    """One Results of all rows and seeds."""
    groups: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        groups.setdefault(outcome[0].spec.key, []).append(outcome)
    insecure = sorted({text for made, _ in outcomes for text in made.insecure})
    return Results(
        schema=SCHEMA,
        created=created_now(),
        command=command,
        settings=_settings(plan),
        seeds=list(plan.seeds),
        versions=versions(*PRIVACY_LIBRARIES),
        machine={**machine(), "device": str(default_device())},
        data=_data(plan),
        insecure=insecure,
        rows=tuple(_row(group, plan.terms.epsilon) for group in groups.values()),
        attack_notes=_notes(plan),
        seconds=seconds,
    )


def images(plan: "Plan", outcomes: list[Outcome]) -> Images:
    """Reconstructions by row, the controls once, and one private image of each class."""
    found: dict[str, ImageArray] = {}
    for made, attacks in outcomes:
        result = attacks.get("inversion")
        if isinstance(result, AttackResult) and result.images is not None:
            found[made.spec.key] = _one_a_class(result.images["attack"], plan)
            for name, control in result.images.items():
                if name != "attack":
                    found.setdefault(f"control: {name}", _one_a_class(control, plan))
    return {"originals": _originals(plan), **found} if found else {}


def _row(group: list[Outcome], epsilon: float | None) -> Row:
    runs = [made for made, _ in group]
    first, attacks = group[0]
    claim = max(runs, key=_cost)  # the weakest claim of all seeds stands for the row
    per_seed = [float(np.mean(made.accuracies)) for made in runs]
    return Row(
        key=first.spec.key,
        label=title(first.spec, epsilon),
        accuracy=Accuracy(
            mean=float(np.mean(per_seed)),
            std_over_clients=float(np.mean([np.std(made.accuracies) for made in runs])),
            per_client=list(first.accuracies),
            per_seed=per_seed,
        ),
        bytes_up=float(np.mean([made.transcript.up.mean() for made in runs])),
        bytes_down=float(np.mean([made.transcript.down.mean() for made in runs])),
        seconds=float(np.mean([made.seconds for made in runs])),
        rounds=first.curve[-1][0],
        aggregation=_aggregation(runs),
        guarantee=claim.guarantee,
        privacy=None if claim.privacy is None else claim.privacy.to_json(),
        attacks={name: _figure(result) for name, result in attacks.items()},
        curve=tuple(CurvePoint(*point) for point in first.curve),
        diagnostics=_mean_diagnostics(runs),
    )


def _cost(made: RowRun) -> tuple[float, float]:
    """What a run's claim costs: epsilon, and the most at a larger unit."""
    if made.privacy is None or not made.privacy.holds:
        return math.inf, math.inf
    return made.privacy.epsilon, max(c.epsilon for c in made.privacy.composes_to)


def _aggregation(runs: list[RowRun]) -> Aggregation | None:
    """The sums of one row over its seeds; None where it made none."""
    name, rounds = runs[0].aggregation, runs[0].curve[-1][0]
    if name is None:
        return None
    seen = [made.transcript for made in runs]
    survivors = [count for transcript in seen for count in transcript.survivors]
    missing = {
        stage.value: [
            sum(transcript.missing[client, stage] for transcript in seen)
            for client in range(seen[0].n_clients)
        ]
        for stage in Stage
    }
    return Aggregation(
        name=name,
        seconds=float(np.mean([made.aggregation_seconds for made in runs])) / rounds,
        void_rounds=sum(transcript.void_rounds for transcript in seen),
        survivors=float(np.mean(survivors)) if survivors else 0.0,
        missing=missing,
    )


def _mean_diagnostics(runs: list[RowRun]) -> dict[str, float]:
    """Means over the seeds that have the figure."""
    names = dict.fromkeys(name for made in runs for name in made.diagnostics)
    return {
        name: float(np.mean([m.diagnostics[name] for m in runs if name in m.diagnostics]))
        for name in names
    }


def _figure(result: AttackResult | str) -> AttackFigure | str:
    return result if isinstance(result, str) else AttackFigure.of(result)


def _settings(plan: "Plan") -> dict[str, object]:
    """Every setting as it took effect; paths stay on the machine that has them."""
    chosen = {
        name: value
        for name, value in asdict(plan.settings).items()
        if name not in ("data_dir", "out", "workers") and not (name == "methods" and not value)
    }
    effective = {
        "rounds": plan.terms.rounds,
        "split": plan.terms.split.name,
        "attacks": list(plan.attacks.names),
    }
    return {**chosen, **effective, "schedule": asdict(plan.terms.schedule)}


def _data(plan: "Plan") -> dict[str, object]:
    data = data_of(plan.terms, plan.seeds[0])
    return {
        "name": plan.image_set.title,
        "train records of each client": [len(c.train) for c in data.clients],
        "validation records of each client": [len(c.validation) for c in data.clients],
        "classes of each client": [list(c.classes) for c in data.clients],
        "proxies": len(data.proxies),
        "test": len(data.test),
        "held out": len(data.held_out),
    }


def _notes(plan: "Plan") -> dict[str, list[str]]:
    if plan.settings.seeds == 1 or not plan.attacks.names:
        return {}
    return {name: ["attacked on the first seed only"] for name in plan.attacks.names}


def _one_a_class(pictures: ImageArray, plan: "Plan") -> ImageArray:
    """Reconstructions come class by class, equally many of each; the first of each held class."""
    first = pictures[:: max(1, len(pictures) // plan.image_set.n_classes)]
    return first[
        sorted({c for client in data_of(plan.terms, plan.seeds[0]).clients for c in client.classes})
    ]


def _originals(plan: "Plan") -> ImageArray:
    data = data_of(plan.terms, plan.seeds[0])
    found: dict[int, ImageArray] = {}
    for client in data.clients:
        for label, pixels in zip(client.train.labels.tolist(), client.train.pixels, strict=True):
            found.setdefault(label, pixels[0].numpy())
    return np.stack([found[label] for label in sorted(found)])
