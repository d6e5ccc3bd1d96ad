"""DaFKD's Theorem 1 for discriminators, equation 19 and Theorem 2, on mixtures of known densities.

    python experiments/dafkd_theory.py --quick

Of Wang et al. (CVPR 2023), by the numbers of its supplement. p is the mean of K clients' p_k.
Theorem 1: discriminators come to f*_k = p_k / (p_k + p); here they are trained on exact samples of
p. Theorem 2: the loss is half the squared distance of a prediction in the simplex to the class's
corner. It is convex and lies in [0, 1], so that sigma is 1 in Hoeffding's inequality.
"""

import math
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from experiments.grid import later
from experiments.study import (
    Progress,
    Result,
    Results,
    Study,
    at_least,
    grouped,
    main,
    measure,
    seeds_of,
    whole_numbers,
)
from experiments.tables import Table, new_table

if TYPE_CHECKING:
    from torch import Tensor, nn

    from experiments.known_densities import Mixture
    from secure_fd.knowledge import FloatArray, IntArray

F_STAR, TRAINED, UNTRAINED, UNIFORM = "f*", "f, trained", "f, untrained", "uniform"
AWAY = "distance to f*"
"""Mean of |f_k(x) - f*_k(x)| over clients and x of p."""
VIOLATED, EXCESS = "violations of (19)", "largest excess over (19)"
"""Share of all x and k; largest alpha_k - (K + 1) / K p_k / p."""
LOSS = "loss of the ensemble"
"""The left side of Theorem 2, on fresh x of p."""
POOLED, DEVIATION, BOUND = "(K + 1) x loss of h on all records", "deviation", "bound"
"""Of the network that all records train; of Hoeffding's inequality, for DELTA; their sum."""
DELTA = 0.05
_STEPS, _LOCAL_STEPS, _FRESH = 5000, 1500, 20_000
_HIDDEN, _BATCH, _RATE, _ROUNDING = 64, 256, 1e-2, 1e-9
_JUDGES_BATCH, _JUDGES_RATE = 64, 2e-3
_SHAPE: Final = (1, 1, 2)
"""Of a point, as networks take it: an image of two pixels."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One draw of densities and records. records: of each client. steps: of discriminators."""

    seed: int
    records: int
    clients: int = 4
    steps: int = _STEPS
    local_steps: int = _LOCAL_STEPS

    @property
    def label(self) -> str:
        """Names the cell while it runs."""
        return f"{self.clients} clients of {self.records} records, seed {self.seed}"


@dataclass(frozen=True, slots=True)
class Settings:
    """DaFKD's f*, equation 19 and Theorem 2 on mixtures of known densities."""

    records: str = "200,1000,5000"
    """Records of each client, with commas."""
    seeds: str = "20,21,22"
    """Other densities and other records each, with commas."""
    clients: int = 4
    """K."""
    quick: bool = False
    """One seed, one number of records, a tenth of the steps."""
    out: Path = Path("runs/dafkd_theory")
    """Folder of the results, and of the cells that are done."""
    workers: int = 2
    """Processes that share the work."""


def cells(settings: Settings) -> list[Cell]:
    """Every number of records on every seed. Raises ConfigurationError for a bad number."""
    sizes, seeds = (whole_numbers(n, getattr(settings, n)) for n in ("records", "seeds"))
    at_least(1, records=min(sizes))
    at_least(2, clients=settings.clients)
    if settings.quick:
        sizes, seeds = sizes[:1], seeds[:1]
    steps = (_STEPS // 10, _LOCAL_STEPS // 10) if settings.quick else (_STEPS, _LOCAL_STEPS)
    return [Cell(seed, size, settings.clients, *steps) for seed in seeds for size in sizes]


def optimal(densities: "FloatArray") -> "FloatArray":
    """f* [K, n] = p_k / (p_k + p) (Theorem 1), from p_k [K, n]; p is their mean.

    >>> optimal(np.array([[3.0], [1.0]])).round(2).tolist()
    [[0.6], [0.33]]
    """
    return np.asarray(densities / (densities + densities.mean(axis=0)))


def alphas(f: "FloatArray") -> "FloatArray":
    """[K, n] weights: f_k over the sum over clients, from f [K, n].

    >>> alphas(np.array([[0.6], [0.2]])).round(2).tolist()
    [[0.75], [0.25]]
    """
    return np.asarray(f / f.sum(axis=0))


def excess(alpha: "FloatArray", densities: "FloatArray") -> "FloatArray":
    """[K, n] alpha_k - (K + 1) / K p_k / p; by equation 19 none is above 0 at f*.

    >>> p = np.array([[3.0], [1.0]])
    >>> bool((excess(alphas(optimal(p)), p) <= 0).all())
    True
    """
    count = len(densities)
    return np.asarray(alpha - (count + 1) / count * densities / densities.mean(axis=0))


def half_squared(predictions: "FloatArray", truth: "IntArray") -> "FloatArray":
    """[n] in [0, 1]: half the squared distance of predictions [n, C] to the corner of truth [n].

    >>> half_squared(np.array([[1.0, 0.0], [0.5, 0.5]]), np.array([1, 1])).tolist()
    [1.0, 0.25]
    """
    corners = np.eye(predictions.shape[1])[truth]
    return np.asarray(((predictions - corners) ** 2).sum(axis=1) / 2)


def deviation(clients: int, records: int, delta: float) -> float:
    """(K + 1) sqrt(log(2 K / delta) / (2 m)), the last term of Theorem 2 at sigma = 1.

    >>> round(deviation(4, 1600, 0.05), 3)
    0.199
    """
    return (clients + 1) * math.sqrt(math.log(2 * clients / delta) / (2 * records))


def as_images(x: "FloatArray") -> "Tensor":
    """[n, 1, 1, 2] float32, as networks take points [n, 2]."""
    import torch

    return torch.from_numpy(x).float().view(-1, *_SHAPE)


def discriminators(clients: int, seed: int) -> "list[nn.Module]":
    """One untrained discriminator for each client."""
    from secure_fd.adversarial import AdversarialSettings, discriminator

    form = AdversarialSettings(spread=0.5)
    return [discriminator(_SHAPE, form, 1000 * seed + k) for k in range(clients)]


def train_on_samples(
    judge: "nn.Module",
    own: "FloatArray",
    mean: "Mixture",
    steps: int,
    rng: np.random.Generator,
) -> None:
    """Train a discriminator on its client's records against fresh points of p."""
    import torch

    from experiments.known_densities import draw
    from secure_fd.adversarial import BETAS, judge_step

    optimiser = torch.optim.Adam(judge.parameters(), _JUDGES_RATE, BETAS, fused=True)
    drawn = as_images(own)[rng.integers(len(own), size=(steps, _JUDGES_BATCH))]
    others = as_images(draw(mean, steps * _JUDGES_BATCH, rng)).view(steps, _JUDGES_BATCH, *_SHAPE)
    for records, points in zip(drawn, others, strict=True):
        judge_step(judge, optimiser, records, points)


def answers(judge: "nn.Module", x: "FloatArray") -> "FloatArray":
    """f(x), [n] in (0, 1)."""
    import torch

    with torch.no_grad():
        return np.asarray(judge(as_images(x))[:, 0].sigmoid().double().numpy())


def fitted(x: "FloatArray", steps: int, seed: int) -> "nn.Module":
    """A network trained to a small loss on points x [m, 2]."""
    import torch
    from torch import nn

    from experiments.known_densities import N_CLASSES, classes

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layers = (nn.Linear(2, _HIDDEN), nn.Tanh(), nn.Linear(_HIDDEN, N_CLASSES))
        network = nn.Sequential(nn.Flatten(), *layers)
    points, truth = as_images(x), torch.eye(N_CLASSES)[torch.from_numpy(classes(x))]
    random = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(network.parameters(), _RATE)
    for _ in range(steps):
        drawn = torch.randint(len(x), (min(len(x), _BATCH),), generator=random)
        optimizer.zero_grad()
        predictions = network(points[drawn]).softmax(dim=1)
        ((predictions - truth[drawn]) ** 2).sum(dim=1).mean().backward()
        optimizer.step()
    return network.eval()


def measure_cell(_data_dir: Path | None, cell: Cell, _made: None, progress: Progress) -> Result:
    """Train everything on one draw of densities and records, and measure both sides."""
    from experiments.known_densities import classes, density, draw, mean_of, random_mixtures
    from secure_fd.training import predict

    start = time.process_time()
    mixtures = random_mixtures(cell.clients, np.random.default_rng(cell.seed))
    mean, rng = mean_of(mixtures), np.random.default_rng([cell.seed, cell.records])
    records = [draw(each, cell.records, rng) for each in mixtures]
    x = draw(mean, _FRESH, rng)
    densities = np.stack([density(each, x) for each in mixtures])
    judges = {name: discriminators(cell.clients, cell.seed) for name in (TRAINED, UNTRAINED)}
    for judge, own in zip(judges[TRAINED], records, strict=True):
        train_on_samples(judge, own, mean, cell.steps, rng)
    progress(50)
    f = {name: np.stack([answers(judge, x) for judge in each]) for name, each in judges.items()}
    figures = {
        of(name, AWAY): float(np.abs(v - optimal(densities)).mean()) for name, v in f.items()
    }
    f |= {F_STAR: optimal(densities), UNIFORM: np.ones_like(densities)}
    networks = [fitted(own, cell.local_steps, cell.seed + k) for k, own in enumerate(records)]
    predictions = np.stack([predict(network, as_images(x)) for network in networks])
    for name, values in f.items():
        over = excess(alphas(values), densities)
        figures[of(name, VIOLATED)] = float((over > _ROUNDING).mean())
        figures[of(name, EXCESS)] = float(over.max())
        ensemble = np.einsum("kn,knc->nc", alphas(values), predictions)
        figures[of(name, LOSS)] = float(half_squared(ensemble, classes(x)).mean())
    everything = np.concatenate(records)
    pooled = fitted(everything, cell.local_steps, cell.seed)
    loss = half_squared(predict(pooled, as_images(everything)), classes(everything)).mean()
    figures[POOLED] = (cell.clients + 1) * float(loss)
    figures[DEVIATION] = deviation(cell.clients, cell.records, DELTA)
    figures[BOUND] = figures[POOLED] + figures[DEVIATION]
    return Result(cell, figures, time.process_time() - start)


def of(name: str, figure: str) -> str:
    """The name of a figure that there is one of for every f.

    >>> of(F_STAR, LOSS)
    'f*: loss of the ensemble'
    """
    return f"{name}: {figure}"


def holds(result: Result) -> bool:
    """Whether Theorem 2's bound holds for f* and for the trained f."""
    figures = result.figures
    return max(figures[of(name, LOSS)] for name in (F_STAR, TRAINED)) <= figures[BOUND]


def tables(results: Results) -> list[Table | str]:
    """By number of records: Theorem 1 and equation 19; the two sides of Theorem 2."""
    by = dict(sorted(grouped(results.cells, lambda cell: cell.records).items()))
    return [
        _table("Theorem 1 and equation 19", by, _WEIGHTS),
        _table(f"Theorem 2, delta {DELTA:g}", by, _SIDES),
        *(f"{n} records: bound holds {sum(map(holds, r))} of {len(r)}." for n, r in by.items()),
        f"Mixtures of seeds {seeds_of(results.cells)}. f to f*: {AWAY}, over clients and x of p.",
    ]


_WEIGHTS = {
    "f to f*": of(TRAINED, AWAY),
    "f untrained": of(UNTRAINED, AWAY),
    **{f"violated by {f}": of(f, VIOLATED) for f in (F_STAR, TRAINED, UNIFORM)},
    "largest excess, trained": of(TRAINED, EXCESS),
}
_SIDES = {
    **{f"left, {f}": of(f, LOSS) for f in (F_STAR, TRAINED, UNIFORM)},
    **{name: name for name in (POOLED, DEVIATION, BOUND)},
}


def _table(title: str, by: Mapping[int, Sequence[Result]], columns: Mapping[str, str]) -> Table:
    table = new_table(title, ("records of a client", *columns))
    for records, found in by.items():
        table.add_row(str(records), *(measure(found, name) for name in columns.values()))
    return table


STUDY = Study(
    name="dafkd_theory",
    script="dafkd_theory.py",
    about=str(Settings.__doc__),
    settings=Settings,
    cell=Cell,
    cells=cells,
    group=lambda cell: cell,
    prepare=lambda *_: None,  # cells share nothing
    measure=later("experiments.dafkd_theory:measure_cell"),
    shown=tables,
    image_set=lambda _: None,
)

if __name__ == "__main__":
    sys.exit(main("experiments.dafkd_theory"))
