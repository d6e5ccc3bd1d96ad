"""Realistic, invented results for the report's tests: nine rows, three attacks, images."""

import dataclasses
from typing import Any

import numpy as np

from experiments.results import (
    SCHEMA,
    Accuracy,
    Aggregation,
    AttackFigure,
    CurvePoint,
    Results,
    Row,
)

LABELS = {
    "fedavg": "FedAvg",
    "independent": "Independent",
    "fedmd": "FedMD",
    "selective-soft": "Selective-FD soft",
    "selective-hard": "Selective-FD hard",
    "masked": "Selective-FD hard + masks",
    "masked-label": "Selective-FD hard + masks + DP label unit",
    "masked-record": "Selective-FD hard + masks + DP record unit",
    "fedavg-dp": "FedAvg + DP-SGD",
}
MEANS = [0.968, 0.199, 0.871, 0.926, 0.914, 0.914, 0.783, 0.908, 0.835]
BYTES = [66e6, 0.0, 2.4e6, 2.4e6, 1.1e6, 1.4e6, 1.4e6, 0.9e6, 66e6]
DELTA = [1.9, None, 0.12, 0.1, 0.04, 0.03, 0.02, 0.01, 0.05]
AUC = [0.657, 0.729, 0.61, 0.58, 0.57, 0.57, 0.531, 0.512, 0.521]


def sample(n_rows: int = 9) -> Results:
    """A comparison of `n_rows` rows."""
    rng = np.random.default_rng(7)
    rows = tuple(_row(i, rng) for i in range(n_rows))
    return Results(
        schema=SCHEMA,
        created="2025-01-31T12:00:00+00:00",
        command=["python", "experiments/privacy_compare.py", "--secure-agg", "--dp-eps", "4"],
        settings={"clients": 10, "rounds": 30, "partition": "one class a client", "dp_eps": 4.0},
        seeds=[0, 1, 2],
        versions={"secure-fd": "0.1.0", "torch": "2.13.0", "numpy": "2.4.0"},
        machine={"cpus": 2, "threads": 1, "device": "cpu"},
        data={"name": "MNIST-5k", "train": 2500, "proxies": 1500, "test": 1000},
        insecure=["roster: identities are trusted on first use"],
        rows=rows,
        attack_notes={"inversion": ["The same generator serves every row; only access differs."]},
        seconds=412.7,
    )


def with_row(results: Results, index: int, **changes: Any) -> Results:  # noqa: ANN401 - any field
    """The results with some fields of one row replaced."""
    rows = list(results.rows)
    rows[index] = dataclasses.replace(rows[index], **changes)
    return dataclasses.replace(results, rows=tuple(rows))


def images() -> dict[str, np.ndarray]:
    """Blobs in the place of digits: originals, six rows, two controls."""
    rng = np.random.default_rng(3)
    grid = np.linspace(-1, 1, 28)
    centre = rng.uniform(-0.4, 0.4, (8, 2, 1, 1))
    distance = (grid[:, None] - centre[:, 0]) ** 2 + (grid[None, :] - centre[:, 1]) ** 2
    originals = np.exp(-8 * distance)
    keys = ["fedavg", "fedmd", "selective-soft", "masked", "masked-record", "fedavg-dp"]
    keys += ["control: public class mean", "control: prior without a target"]
    blurred = {
        key: np.clip(originals / (1 + i) + rng.normal(0, 0.05 * i, originals.shape), 0, 1)
        for i, key in enumerate(keys)
    }
    return {"originals": originals, **blurred}


def _row(i: int, rng: np.random.Generator) -> Row:
    key, mean = list(LABELS)[i], MEANS[i]
    clients = np.clip(rng.normal(mean, 0.012, 10), 0, 1)
    return Row(
        key=key,
        label=LABELS[key],
        accuracy=Accuracy(mean, float(clients.std()), clients.tolist(), [mean] * 3),
        bytes_up=BYTES[i],
        bytes_down=BYTES[i] * 1.02,
        seconds=12.5 + 21 * i,
        rounds=30,
        aggregation=_aggregation(key),
        guarantee=_guarantee(key),
        privacy={"unit": "label", "epsilon": 4.0, "delta": 0.0} if key.endswith("label") else None,
        attacks=_attacks(i, rng),
        curve=_curve(mean, 2.02 * BYTES[i], rng),
        diagnostics={"one contributor": 0.49} if "masked" in key else {},
    )


def _aggregation(key: str) -> Aggregation | None:
    if key == "independent":
        return None
    name = "masks" if "masked" in key else "plain"
    missing = {"prepare": [0] * 10, "input": [2] + [0] * 9, "consistency": [1] * 10}
    return Aggregation(name, 0.0042, 1, 9.8, {**missing, "unmask": [0] * 10})


def _guarantee(key: str) -> str:
    if key == "masked-label":
        return (
            "Each released label of a (client, proxy) pair is 4-differentially private (ε = 4, "
            "δ = 0); 1,500 such labels compose to a far larger ε for the client."
        )
    if key == "masked-record":
        return "One record of one client is (4, 1e-5)-differentially private over the whole run."
    if "masked" in key:
        return "The server learns sums over clients only; no differential privacy."
    return "None: the server reads what every client sends."


def _curve(mean: float, total: float, rng: np.random.Generator) -> tuple[CurvePoint, ...]:
    rounds = np.arange(0, 31, 3)
    accuracy = 0.1 + (mean - 0.1) * (1 - np.exp(-rounds / 5)) / (1 - np.exp(-6))
    accuracy = np.clip(accuracy + rng.normal(0, 0.006, len(rounds)), 0, 1)
    accuracy[-1] = mean
    return tuple(
        CurvePoint(int(r), float(a), float(total * r / 30))
        for r, a in zip(rounds, accuracy, strict=True)
    )


def _attacks(i: int, rng: np.random.Generator) -> dict[str, AttackFigure | str]:
    share = [0.31, 0.1, 1.0, 1.0, 0.98, 0.64, 0.22, 0.19, 0.12][i]
    delta = DELTA[i]
    inversion: AttackFigure | str = "not applicable: missing a model or predictions to query"
    if delta is not None:
        inversion = _figure(delta, 0.11, ("Δ PSNR to held-out", "dB"), (0.02, "public class mean"))
    spread = float(rng.uniform(0.5, 3))
    roc = _roc(AUC[i], spread)
    return {
        "label-distribution": _figure(share, 0.05, ("clients named", ""), (0.1, "random guess")),
        "inversion": inversion,
        "label-only": _figure(AUC[i], 0.03, ("AUC", ""), (0.5, "shuffled membership"), roc),
    }


def _figure(
    value: float,
    half: float,
    name: tuple[str, str],
    control: tuple[float, str],
    roc: dict[str, list[float]] | None = None,
) -> AttackFigure:
    return AttackFigure(
        figure=value,
        figure_name=name[0],
        unit=name[1],
        interval=(value - half, value + half),
        control=control[0],
        control_name=control[1],
        queries=5000,
        details={"raw PSNR": 13.2} if name[1] == "dB" else {},
        roc=roc,
        caveats=["Thresholds come from shadow models."] if roc else [],
    )


def _roc(auc: float, spread: float) -> dict[str, list[float]]:
    """Power-law ROC with the given AUC, sampled at 500 non-members."""
    fpr = np.concatenate([[0.0], np.arange(1, 501) / 500])
    tpr = np.clip(fpr ** ((1 - auc) / auc), 0, 1)
    tpr = np.maximum.accumulate(np.floor(tpr * 500 * spread) / (500 * spread))
    tpr[-1] = 1.0
    return {"fpr": fpr.tolist(), "tpr": tpr.tolist()}
