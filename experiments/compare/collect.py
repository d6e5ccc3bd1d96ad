"""From trained and attacked rows to the results that are saved and shown."""

import math
from dataclasses import asdict

import numpy as np

from attacks.base import AttackResult, ImageArray
from experiments.compare.driver import Outcome
from experiments.compare.run import RowRun, data_of
from experiments.compare.settings import Plan
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
from secure_fd.aggregation.base import Stage
from secure_fd.training import default_device


def results(plan: Plan, outcomes: list[Outcome], command: list[str], seconds: float) -> Results:
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
        rows=tuple(_row(group) for group in groups.values()),
        attack_notes=_notes(plan),
        seconds=seconds,
    )


def images(plan: Plan, outcomes: list[Outcome]) -> Images:
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


def _row(group: list[Outcome]) -> Row:
    runs = [made for made, _ in group]
    first, attacks = group[0]
    claim = max(runs, key=_cost)  # the weakest of all seeds speaks for the row
    per_seed = [float(np.mean(made.accuracies)) for made in runs]
    return Row(
        key=first.spec.key,
        label=first.spec.label,
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


def _settings(plan: Plan) -> dict[str, object]:
    """Every setting as it took effect; paths stay on the machine that has them."""
    chosen = {
        name: value
        for name, value in asdict(plan.settings).items()
        if name not in ("data_dir", "out", "workers")
    }
    effective = {"rounds": plan.rounds, "split": plan.split.name, "attacks": list(plan.attacks)}
    return {**chosen, **effective, "schedule": asdict(plan.schedule)}


def _data(plan: Plan) -> dict[str, object]:
    data = data_of(plan, plan.seeds[0])
    return {
        "name": plan.image_set.title,
        "train records of each client": [len(c.train) for c in data.clients],
        "validation records of each client": [len(c.validation) for c in data.clients],
        "classes of each client": [list(c.classes) for c in data.clients],
        "proxies": len(data.proxies),
        "test": len(data.test),
        "held out": len(data.held_out),
    }


def _notes(plan: Plan) -> dict[str, list[str]]:
    if plan.settings.seeds == 1 or not plan.attacks:
        return {}
    return {name: ["attacked on the first seed only"] for name in plan.attacks}


def _one_a_class(pictures: ImageArray, plan: Plan) -> ImageArray:
    """Reconstructions come class by class, equally many of each; the first of each held class."""
    first = pictures[:: max(1, len(pictures) // plan.image_set.n_classes)]
    return first[
        sorted({c for client in data_of(plan, plan.seeds[0]).clients for c in client.classes})
    ]


def _originals(plan: Plan) -> ImageArray:
    data = data_of(plan, plan.seeds[0])
    found: dict[int, ImageArray] = {}
    for client in data.clients:
        for label, pixels in zip(client.train.labels.tolist(), client.train.pixels, strict=True):
            found.setdefault(label, pixels[0].numpy())
    return np.stack([found[label] for label in sorted(found)])
