"""Invented results of a comparison for the report's tests: nine rows, four attacks, images."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from experiments.comparison import BYTES_DOWN, SUM_SECONDS, SURVIVORS, VOID, Cell
from experiments.leakage import AttackFigure, Found, Pictures
from experiments.measures import ACCURACY, BYTES_UP
from experiments.privacy_compare import STUDY, Settings
from experiments.results import SINGLE
from experiments.rows import Attacks, RowSpec, Terms
from experiments.study import Point, Result, Results, gathered
from secure_fd.data.partition import Split
from secure_fd.recipes import Schedule

MASKED = RowSpec("selective-fd", "hard", "masks")
ROWS = (
    *(RowSpec("fedavg"), RowSpec("independent"), RowSpec("fedmd", "soft")),
    *(RowSpec("selective-fd", "soft"), RowSpec("selective-fd", "hard"), MASKED),
    *(replace(MASKED, unit="label"), RowSpec("heads", "hard", "masks", "record")),
    RowSpec("fedavg", unit="record"),
)
MEANS = [0.968, 0.199, 0.871, 0.926, 0.914, 0.914, 0.783, 0.908, 0.835]
BYTES = [66e6, 0.0, 2.4e6, 2.4e6, 1.1e6, 1.4e6, 1.4e6, 0.9e6, 66e6]
DELTA = [1.9, None, 0.12, 0.1, 0.04, 0.03, 0.02, 0.01, -0.55]
AUC = [0.657, 0.729, 0.61, 0.58, 0.57, 0.57, 0.531, 0.512, 0.521]
ATTACKS = ("label-distribution", "inversion", "update-inversion", "label-only")
ERRORS = [0.0, None, 0.0, 0.0, 0.02, 0.9, 0.9, 0.0, 0.7]
UPDATES = {0: (118.8, 1.0), 8: (10.8, 0.0)}
"""dB and share of exact images of the rows that send parameters."""
TERMS = Terms("mnist5k", Split("strong"), 10, 30, Schedule(), epsilon=4.0)
COMMAND = ["python", "experiments/privacy_compare.py", "--secure-agg", "--dp-eps", "4"]


def sample(n_rows: int = 9, seeds: int = 1, **terms: Any) -> Results:
    """A comparison of `n_rows` rows, the first seed attacked."""
    cells = [_result(i, seed, **terms) for seed in range(10, 10 + seeds) for i in range(n_rows)]
    return replace(
        gathered(STUDY, cells, Settings(secure_agg=True, dp_eps=4.0, seeds=seeds)),
        created="2025-01-31T12:00:00+00:00",
        command=COMMAND,
        versions={"secure-fd": "0.1.0", "torch": "2.13.0", "numpy": "2.4.0"},
        machine={"cpus": 2},
    )


def with_row(results: Results, index: int, **changes: Any) -> Results:
    """The results with some fields of one cell replaced; figures and notes are added to."""
    cells = list(results.cells)
    for name in ("figures", "notes"):
        if name in changes:
            changes[name] = {**getattr(cells[index], name), **changes[name]}
    cells[index] = replace(cells[index], **changes)
    return replace(results, cells=tuple(cells))


def figure(results: Results, index: int, attack: str) -> AttackFigure:
    """One that the sample has."""
    found = results.cells[index].attacks[attack]
    assert isinstance(found, AttackFigure)
    return found


def faulty() -> Results:
    """Every sentence that a report can have: faults, releases, sparse votes, weak settings."""
    made = with_row(sample(drop=0.1, releases=3), 5, figures={VOID: 2.0, SINGLE: 0.617})
    missing = {"input": [2] + [0] * 9, "consistency": [1] * 10, "unmask": [0] * 10}
    flag = "roster: identities are trusted on first use"
    return with_row(made, 5, notes={"missing": missing, "insecure": [flag]})


def _result(i: int, seed: int, **terms: Any) -> Result:
    rng, mean, spec = np.random.default_rng(100 * seed + i), MEANS[i], ROWS[i]
    clients = np.clip(rng.normal(mean, 0.012, 10), 0, 1)
    first, names = seed == 10, ATTACKS
    figures = {ACCURACY: mean, BYTES_UP: BYTES[i], BYTES_DOWN: 1.02 * BYTES[i]}
    if spec.kind != "independent":
        figures |= {SUM_SECONDS: 0.0042, VOID: 0.0, SURVIVORS: 10.0}
    if spec.secure:
        figures["kept proxies"] = 0.49
    return Result(
        cell=Cell(replace(TERMS, **terms), spec, seed, Attacks(names if first else ())),
        figures=figures,
        seconds=12.5 + 21 * i,
        per_client=tuple(clients.tolist()),
        curve=_curve(mean, BYTES[i], rng),
        notes=_notes(spec),
        attacks=_attacks(i, rng) if first else {},
        pictures=_pictures(i) if first and DELTA[i] is not None else {},
    )


def _notes(spec: RowSpec) -> dict[str, object]:
    claim = None
    if spec.unit:
        total = 3552.2 if spec.unit == "label" else None
        larger = [{"unit": "client", "epsilon": total, "delta": 1e-5}]
        claim = {"unit": spec.unit, "epsilon": 4.0, "holds": True, "composes_to": larger}
        claim |= {"delta": 1e-5, "swapped": None if total else 9.08, "unmet": []}
        claim["groups"] = [[1, total or 4.0], [3, total or 15.1], [100, None]]
    quiet = {stage: [0] * 10 for stage in ("input", "consistency", "unmask")}
    return {
        "guarantee": f"The {spec.unit} unit has epsilon 4." if spec.unit else "None.",
        "privacy": claim,
        "noise": "seeded" if spec.unit else None,
        "insecure": [],
        "sum": None if spec.kind == "independent" else spec.secure or "plain",
        "missing": quiet,
        "device": "cpu",
        "data": {"proxies": 1500, "test": 1000, "classes of each client": [[0], [1]]},
    }


def _curve(mean: float, total: float, rng: np.random.Generator) -> tuple[Point, ...]:
    rounds = np.arange(3, 31, 3)
    accuracy = 0.1 + (mean - 0.1) * (1 - np.exp(-rounds / 5)) / (1 - np.exp(-6))
    accuracy = np.clip(accuracy + rng.normal(0, 0.006, len(rounds)), 0, 1)
    accuracy[-1] = mean
    sent = total * rounds / 30
    return tuple(
        Point(int(r), float(a), float(b), float(1.02 * b))
        for r, a, b in zip(rounds, accuracy, sent, strict=True)
    )


def _attacks(i: int, rng: np.random.Generator) -> dict[str, Found]:
    found: dict[str, Found] = {}
    error, delta = ERRORS[i], DELTA[i]
    found["label-distribution"] = "not applicable: missing sums over clients (server)"
    if error is not None:
        names = ("TV error (0: known)", "", "the uniform guess")
        found["label-distribution"] = _figure(error, 0.02, names, 0.9)
    found["inversion"] = "not applicable: missing a model or predictions to query"
    if delta is not None:
        names, details = ("Δ PSNR to held-out", "dB", "public class mean"), {"raw PSNR": 13.2}
        found["inversion"] = _figure(
            delta, 0.11, names, 0.02, details=details, pictures=list(_names(i))
        )
    found["update-inversion"] = "not applicable: missing an update (server)"
    if i in UPDATES:
        value, share = UPDATES[i]
        names = ("PSNR", "dB", "best image without an update")
        details = {"A": value, "delta": value - 10, "share_exact": share, "positive_control": 120.0}
        found["update-inversion"] = _figure(value, 1.2, names, 13.1, details=details)
    roc, names = _roc(AUC[i], float(rng.uniform(0.5, 3))), ("AUC", "", "shuffled membership")
    found["label-only"] = _figure(
        AUC[i], 0.03, names, 0.5, roc=roc, caveats=["Thresholds come from shadow models."]
    )
    return found


def _figure(
    value: float,
    half: float,
    names: tuple[str, str, str],
    control: float,
    **more: Any,
) -> AttackFigure:
    return AttackFigure(
        title=names[0],
        figure=value,
        figure_name=names[0],
        unit=names[1],
        interval=(value - half, value + half),
        control=control,
        control_name=names[2],
        queries=5000,
        **more,
    )


def _roc(auc: float, spread: float) -> dict[str, list[float]]:
    """Power-law ROC with the given AUC, sampled at 500 non-members."""
    fpr = np.concatenate([[0.0], np.arange(1, 501) / 500])
    tpr = np.clip(fpr ** ((1 - auc) / auc), 0, 1)
    tpr = np.maximum.accumulate(np.floor(tpr * 500 * spread) / (500 * spread))
    tpr[-1] = 1.0
    return {"fpr": fpr.tolist(), "tpr": tpr.tolist()}


def _names(i: int) -> Mapping[str, float]:
    """Pictures by name, and how blurred they are."""
    return {"originals": 0.0, "attack": 1.0 + i, "public class mean": 4.0, "black": 9.0}


def _pictures(i: int) -> Pictures:
    """Blobs in the place of digits."""
    rng = np.random.default_rng(3)
    grid = np.linspace(-1, 1, 28)
    centre = rng.uniform(-0.4, 0.4, (8, 2, 1, 1))
    distance = (grid[:, None] - centre[:, 0]) ** 2 + (grid[None, :] - centre[:, 1]) ** 2
    blob = np.exp(-8 * distance)
    return {
        f"inversion/{name}": (blob / (1 + blur)).astype(np.float32)
        for name, blur in _names(i).items()
    }
