"""DaFKD's Theorem 1 for discriminators, equation 19 and Theorem 2, on densities that are known.

    python experiments/paper/dafkd_theory.py --seeds 20

Of Wang et al. (CVPR 2023), by the numbers of its supplement. p is the mean of K clients' p_k, here
normals that the edges of the unit square cut off. Theorem 1: discriminators come to f*_k =
p_k / (p_k + p); ours are trained on exact samples of p. Equation 19: alpha_k <= (K + 1) / K
p_k / p. Theorem 2 bounds the ensemble's loss, which is half the squared distance of a prediction in
the simplex to the class's corner, and so lies in [0, 1].
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from experiments.core import study
from experiments.core.frames import Frame, frame, mean, summary, with_seeds
from experiments.paper.statements import Statement, beside
from experiments.report.tables import Table
from secure_fd.votes.codec import FloatArray, IntArray

CLIENTS, DELTA = 4, 0.05
STEPS, FRESH = 2000, 20_000
RECORDS = (200, 1000, 5000)
"""Of each client."""
_FINITE = "discriminators learn from finite records in finite steps"
_CLOSE = 0.05
"""Mean distance below which discriminators have come to f*."""
AWAY, VIOLATED, BOUND = "distance to f*", "violations of (19) at f*", "bound"
"""Mean of |f_k(x) - f*_k(x)| over clients and x of p; share of all x and k; Theorem 2's right."""
LOSSES = ("loss at f*", "loss, trained", "loss, uniform")
"""Losses of the ensemble, weighed by f: Theorem 2's left side, on fresh x of p."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One draw of densities and records. records: of each client. steps: of discriminators."""

    seed: int
    records: int
    steps: int = STEPS

    @property
    def label(self) -> str:
        """Names the cell while it runs."""
        return f"{self.records} records, seed {self.seed}"


@dataclass(frozen=True, slots=True)
class Settings:
    """DaFKD's f*, equation 19 and Theorem 2 on densities that are known."""

    seeds: str = "20,21,22"
    """Other densities and other records each, with commas."""
    out: Path | None = None
    """Folder of the results, and of the cells that are done."""
    workers: int = 2
    """Processes that share the work."""
    scheduler: str | None = None
    """Use the workers of a running Dask cluster instead: the address of its scheduler,
    tcp://HOST:8786."""


def cells(settings: Settings) -> list[Cell]:
    """Every number of records on every seed. Raises ConfigurationError for a bad number."""
    seeds = study.whole_numbers("seeds", settings.seeds)
    return [Cell(seed, size) for seed in seeds for size in RECORDS]


def densities(rng: np.random.Generator) -> Any:  # noqa: ANN401 - scipy's distributions
    """Return [K, 2] normals within [0, 1], by client and axis. A p_k is the product of its two."""
    from scipy.stats import truncnorm

    centres, widths = rng.uniform(0.1, 0.9, (CLIENTS, 2)), rng.uniform(0.1, 0.4, (CLIENTS, 2))
    return truncnorm(-centres / widths, (1 - centres) / widths, centres, widths)


def optimal(p: FloatArray) -> FloatArray:
    """f* [K, n] = p_k / (p_k + p) (Theorem 1), from p_k [K, n]; p is their mean.

    >>> optimal(np.array([[3.0], [1.0]])).round(2).tolist()
    [[0.6], [0.33]]
    """
    return np.asarray(p / (p + p.mean(axis=0)))


def excess(f: FloatArray, p: FloatArray) -> FloatArray:
    """[K, n] alpha_k - (K + 1) / K p_k / p; by equation 19 none is above 0 at f*.

    >>> p = np.array([[3.0], [1.0]])
    >>> bool((excess(optimal(p), p) <= 0).all())
    True
    """
    return np.asarray(f / f.sum(axis=0) - (len(p) + 1) / len(p) * p / p.mean(axis=0))


def loss(predictions: FloatArray, truth: IntArray) -> float:
    """Mean of half the squared distance of predictions [n, C] to the corner of truth [n].

    >>> loss(np.array([[1.0, 0.0], [0.5, 0.5]]), np.array([1, 1]))
    0.625
    """
    corners = np.eye(predictions.shape[1])[truth]
    return float(((predictions - corners) ** 2).sum(axis=1).mean() / 2)


def bound(pooled: float, records: int) -> float:
    """Theorem 2: (K + 1) times the loss of h on all records, and Hoeffding's deviation.

    >>> round(bound(0.1, 1600), 3)
    0.699
    """
    return float((CLIENTS + 1) * (pooled + np.sqrt(np.log(2 * CLIENTS / DELTA) / (2 * records))))


def trained(records: FloatArray, drawn: FloatArray, steps: int, seed: int) -> list[Any]:
    """A discriminator for each client's records [K, m, 2], which learns against drawn [n, 2]."""
    import torch

    from secure_fd.methods.generator import (
        BETAS,
        AdversarialSettings,
        discriminator,
        discriminator_step,
    )

    form, rng, judges = AdversarialSettings(), np.random.default_rng(seed), []
    for k, own in enumerate(records):
        judge = discriminator((1, 1, 2), form, 1000 * seed + k)
        optimiser = torch.optim.Adam(judge.parameters(), 2e-3, BETAS)
        for _ in range(steps):
            batch = (as_images(x[rng.integers(len(x), size=64)]) for x in (own, drawn))
            discriminator_step(judge, optimiser, *batch)
        judges.append(judge.eval())
    return judges


def as_images(x: FloatArray) -> Any:  # noqa: ANN401 - a tensor
    """[n, 1, 1, 2] float32, as networks take points [n, 2]."""
    import torch

    return torch.from_numpy(x).float().view(-1, 1, 1, 2)


def measure(_: Path | None, cell: Cell, __: object) -> study.Result:
    """Train everything on one draw of densities and records, and measure both sides."""
    from sklearn.neighbors import KNeighborsRegressor

    from secure_fd.training.trainer import logits

    start, rng = time.process_time(), np.random.default_rng([cell.seed, cell.records])
    parts = densities(np.random.default_rng(cell.seed))
    records = parts.rvs((cell.records, CLIENTS, 2), rng).swapaxes(0, 1)
    x = parts.rvs((FRESH, CLIENTS, 2), rng)[np.arange(FRESH), rng.integers(CLIENTS, size=FRESH)]
    p, truth = parts.pdf(x[:, None]).prod(axis=2).T, classes(x)
    judges = trained(records, x, cell.steps, cell.seed)
    scores = np.stack(
        [logits(judge, as_images(x)).double().numpy().reshape(-1) for judge in judges]
    )
    weights = (optimal(p), 1 / (1 + np.exp(-scores)), np.ones_like(p))
    every = records.reshape(-1, 2)
    found = {AWAY: float(np.abs(weights[1] - weights[0]).mean())}
    found[VIOLATED] = float((excess(weights[0], p) > 1e-9).mean())
    # h_k, and h of all records: shares among neighbours, which lie in the simplex.
    *heads, h = [KNeighborsRegressor(9).fit(o, np.eye(4)[classes(o)]) for o in (*records, every)]
    predictions = np.stack([head.predict(x) for head in heads])
    for name, f in zip(LOSSES, weights, strict=True):
        found[name] = loss(np.einsum("kn,knc->nc", f / f.sum(axis=0), predictions), truth)
    found[BOUND] = bound(loss(h.predict(every), classes(every)), cell.records)
    return study.Result(cell, found, time.process_time() - start)


def classes(x: FloatArray) -> IntArray:
    """[n] in 0..3: which side of two bent lines x [n, 2] lies on.

    >>> classes(np.array([[0.1, 0.1], [0.9, 0.1], [0.1, 0.9], [0.9, 0.9]])).tolist()
    [0, 1, 2, 3]
    """
    right, above = (x > 0.5 + 0.15 * np.sin(2 * np.pi * x[:, ::-1])).T
    return np.asarray(2 * above + right, dtype=np.int64)


def tables(results: study.Results) -> list[Table | str]:
    """Both theorems and equation 19, by number of records."""
    runs = frame(results).rename(columns={"records": "records of a client"})
    columns = {name: (name, mean) for name in (AWAY, VIOLATED, *LOSSES, BOUND)}
    title = f"DaFKD's theorems, delta {DELTA:g}"
    return [
        summary(title, runs, ["records of a client"], columns),
        *beside("What the theorems predict", _stated(runs)),
    ]


def _stated(runs: Frame) -> Iterator[Statement]:
    violated, share = runs[VIOLATED].max(), (runs[LOSSES[0]] / runs[BOUND]).max()
    yield Statement("equation 19 at f*", f"violated by {violated:.1%} of weights", violated == 0)
    yield Statement("Theorem 2 at f*", f"loss at most {share:.0%} of the bound", share <= 1)
    away = runs.groupby("records of a client")[AWAY].mean()
    here = f"mean distance {away.iloc[-1]:.3f} with {away.index[-1]} records"
    yield Statement("discriminators come to f* (Theorem 1)", here, away.iloc[-1] < _CLOSE, _FINITE)
    best, _, uniform = (runs[name].mean() for name in LOSSES)
    yield Statement("f* beats uniform weights", f"loss {best:.3f}, {uniform:.3f}", best < uniform)


STUDY = study.Study(
    name="dafkd_theory",
    about=str(Settings.__doc__),
    settings=Settings,
    cell=Cell,
    cells=cells,
    measure=measure,
    shown=with_seeds(tables),
)

if __name__ == "__main__":
    raise SystemExit(study.main("experiments.paper.dafkd_theory"))
