"""Other private ways to a classifier, beside the pooled heads, at one epsilon for a record.

python experiments/privacy/private_rivals.py --image-sets mnist5k --epsilons 1,4

A linear head by DP-GD and DP-SGD on the public map, and a network by DP-FedAvg: of all clients
under shares of one noise inside masked sums, of all records at a curator whom everybody trusts, and
of one client alone. Rivals are computed as the server would obtain them. The setting of each was
chosen once, from a grid of four, for all epsilons and image sets by the validation records of all
clients, MNIST-5k, seeds 0 and 1; no choice, ours neither, is in epsilon.
Noise is seeded here, so that a figure can be made again; an epsilon is that of the same noise where
nobody foresees it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from experiments.core import study
from experiments.core.grid import image_study
from experiments.core.measures import ACCURACY
from experiments.core.shared_options import StudyOptions
from experiments.report.tables import NONE, Table, new_table
from secure_fd.data.image_sets import IMAGE_SETS
from secure_fd.errors import LocalError

if TYPE_CHECKING:
    from experiments.privacy.rival_heads import Budget
    from secure_fd.data.federated import FederatedData
    from secure_fd.privacy.samplers import Random
    from secure_fd.votes.codec import FloatArray, IntArray

EPSILONS = ("0.25", "1", "4")
SETS = ("mnist", "fashion_mnist", "mnist5k", "digits")
DELTA = 1e-5
_SEEDS = (20, 21, 22)
_CLIENTS = 10
_ALONE = 3
"""Clients whose heads of their own are averaged over."""
RANK, RELEASES, NUMBERS, NOISE = "rank", "noisy sums", "numbers up a client", "noise multiplier"


@dataclass(frozen=True, slots=True)
class Row:
    """A rival. holder: "clients" together, a "curator" of all records, or one client "alone".

    setting: of DP-GD, whole steps, times the root of the noise of a mean; of DP-SGD, noise of a
    score; of DP-FedAvg, rounds, share of the records in a batch, noise of a parameter.
    """

    title: str
    method: str
    holder: str
    setting: tuple[float, ...] = ()

    @property
    def split(self) -> str:
        """Alone, a client must hold all classes; the others' sums are the same for every split."""
        return "iid" if self.holder == "alone" else "strong"


ROWS: Mapping[str, Row] = {
    "pooled": Row("pooled heads (ours)", "pooled", "clients"),
    "gd": Row("DP-GD head, under masks", "gd", "clients", (0.1,)),
    "sgd": Row("DP-SGD head, under masks", "sgd", "clients", (0.1,)),
    "fedavg": Row("DP-FedAvg network, under masks", "fedavg", "clients", (150, 0.1, 0.1)),
    "gd curator": Row("DP-GD head, trusted curator", "gd", "curator", (0.1,)),
    "gd client": Row("DP-GD head, one client, iid", "gd", "alone", (0.05,)),
    "sgd client": Row("DP-SGD head, one client, iid", "sgd", "alone", (0.8,)),
}


@dataclass(frozen=True, slots=True)
class Cell:
    """One run. row: of `ROWS`. epsilon: of a record, all rounds."""

    image_set: str
    row: str
    epsilon: str
    seed: int

    @property
    def label(self) -> str:
        """Names the cell while it runs."""
        return f"{self.place}: {self.row}, epsilon {self.epsilon}, seed {self.seed}"

    @property
    def place(self) -> str:
        """The image set, as a reader names it."""
        return IMAGE_SETS[self.image_set].title


@dataclass(frozen=True, slots=True)
class Settings(StudyOptions):
    """Every cell is saved when it ends, and a rerun does only what is missing."""

    rows: str | None = None
    """Rows, with commas; by default all."""
    epsilons: str | None = None
    """Of 0.25, 1 and 4, with commas; by default all."""


def cells(settings: Settings) -> tuple[Cell, ...]:
    """The cells that a command line asks for. Raises ConfigurationError for an unknown name."""
    rows = study.listed("rows", settings.rows, tuple(ROWS)) or tuple(ROWS)
    epsilons = study.listed("epsilons", settings.epsilons, EPSILONS) or EPSILONS
    sets = study.listed("image_sets", settings.image_sets, SETS) or SETS[:2]
    seeds = study.whole_numbers("seeds", settings.seeds) if settings.seeds else _SEEDS
    if settings.quick:
        sets, epsilons, seeds = ("digits",), ("4",), (0,)
    return tuple(
        Cell(name, row, epsilon, seed)
        for name in sets
        for seed in seeds
        for row in rows
        for epsilon in epsilons
    )


# One cell.


@dataclass(frozen=True, slots=True, eq=False)
class Prepared:
    """What the cells of a place share. inputs: whitened [n, r], by part; train: of each client."""

    data: "FederatedData" = field(repr=False)
    train: "Sequence[FloatArray]" = field(repr=False)
    proxies: "FloatArray" = field(repr=False)
    test: "FloatArray" = field(repr=False)

    def labels(self, first: int, last: int) -> "IntArray":
        """Of the training records of clients first to last - 1."""
        import numpy as np

        return np.concatenate([c.train.labels.numpy() for c in self.data.clients[first:last]])


@lru_cache(maxsize=1)
def prepared(data_dir: Path | None, image_set: str, split: str, seed: int) -> Prepared:
    """The data of one place and seed, and what the public map makes of them."""
    from secure_fd.data.federated import federate
    from secure_fd.data.partition import parse_split
    from secure_fd.data.sources import load
    from secure_fd.selection.density_ratio import ReferenceSettings

    data = federate(load(image_set, data_dir), parse_split(split), _CLIENTS, seed)
    public = ReferenceSettings().fit(data.proxies.pixels)
    return Prepared(
        data,
        [public(client.train.pixels) for client in data.clients],
        public(data.proxies.pixels),
        public(data.test.pixels),
    )


def measure(data_dir: Path | None, cell: Cell, _: object) -> study.Result:
    """Run a row at its epsilon; accuracy on the test set."""
    import time

    made = prepared(data_dir, cell.image_set, ROWS[cell.row].split, cell.seed)
    start, method = time.process_time(), ROWS[cell.row].method
    if method == "pooled":
        figures, notes = _ours(cell, made)
    elif method == "fedavg":
        figures, notes = _network(cell, made)
    else:
        figures, notes = _heads(cell, made)
    return study.Result(cell, figures, time.process_time() - start, notes=notes)


Found = tuple[dict[str, float], dict[str, object]]
"""Figures and notes."""


def _ours(cell: Cell, made: Prepared) -> Found:
    """The pooled heads, through the federation and its masks; networks do not learn."""
    from dataclasses import replace

    from experiments.privacy.pooled import seeded_run
    from experiments.privacy.rival_heads import claim_of
    from secure_fd.methods.pooled_heads import HeadClient
    from secure_fd.training.recipes import distil_once

    lesson = distil_once(len(made.data.proxies), image_set=cell.image_set)
    schedule = replace(lesson.schedule, proxy_steps=0)
    run, unit = seeded_run(made.data, float(cell.epsilon), cell.seed, schedule)
    plan = unit.plan
    run.fit(plan.sums)
    half = run.clients[0].role
    if not isinstance(half, HeadClient):
        raise LocalError("pooled heads were asked for, and something else was run")
    figures = {
        ACCURACY: half.accuracies(made.data.test)["head"],
        RELEASES: float(plan.sums),
        NOISE: plan.noise,
        NUMBERS: float(plan.sums * plan.entries),
    }
    return figures, {"privacy": claim_of(plan, DELTA)}


def _budget(cell: Cell) -> "Budget":
    from experiments.privacy.rival_heads import Budget
    from secure_fd.secagg.graph import corrupt_of, threshold

    if ROWS[cell.row].holder != "clients":
        return Budget(float(cell.epsilon), DELTA)
    honest = threshold(_CLIENTS) - corrupt_of(_CLIENTS)
    return Budget(float(cell.epsilon), DELTA, _CLIENTS, honest)


def _heads(cell: Cell, made: Prepared) -> Found:
    """A head of all clients, or of the first few of them, each alone."""
    import numpy as np

    from secure_fd.privacy.samplers import SeededRandom

    alone = ROWS[cell.row].holder == "alone"
    held = [(k, k + 1) for k in range(_ALONE)] if alone else [(0, _CLIENTS)]
    every, chance = [], SeededRandom(cell.seed)
    for first, last in held:
        every.append(_head(cell, made, first, last, chance))
    figures = {name: float(np.mean([one[0][name] for one in every])) for name in every[0][0]}
    return figures, every[0][1]


def _head(cell: Cell, made: Prepared, first: int, last: int, chance: "Random") -> Found:
    """Of the records of clients first to last - 1."""
    import numpy as np

    from experiments.privacy.rival_heads import (
        CentredFeatures,
        Records,
        claim_of,
        full_batch,
        sampled,
    )
    from secure_fd.privacy.record import rank_for
    from secure_fd.selection.density_ratio import ReferenceSettings

    budget, classes = _budget(cell), made.data.n_classes
    labels = made.labels(first, last)
    features = ReferenceSettings().size(len(made.data.proxies))
    rank = rank_for(budget.noise_of_mean(len(labels), features * classes))
    rank = min(rank, made.proxies.shape[1])
    public = CentredFeatures.fit(made.proxies[:, :rank], features)

    def seen(inputs: "FloatArray", labels: "IntArray") -> Records:
        return Records(public.units(inputs[:, :rank]), labels, classes)

    train = np.concatenate(made.train[first:last])
    solve = full_batch if ROWS[cell.row].method == "gd" else sampled
    setting = ROWS[cell.row].setting[0]
    solved = solve(seen(train, labels), budget, public.rate, setting, random=chance)
    figures = {
        ACCURACY: seen(made.test, made.data.test.labels.numpy()).accuracy(solved.head),
        RANK: float(rank),
        RELEASES: float(solved.releases),
        NOISE: solved.plan.noise,
    }
    if budget.pooled:
        figures[NUMBERS] = float(solved.numbers)
    return figures, {"privacy": claim_of(solved.plan, DELTA)}


def _network(cell: Cell, made: Prepared) -> Found:
    """One network of all clients, from the start that FedAvg's has in every study."""
    from experiments.privacy.rival_heads import claim_of, shared_steps
    from secure_fd.data.images import concatenate
    from secure_fd.privacy.samplers import SeededRandom
    from secure_fd.simulation.build import fresh_networks
    from secure_fd.training.trainer import accuracy

    steps, share, level = ROWS[cell.row].setting
    model = fresh_networks(made.data, cell.seed, shared=True)[0]
    train = concatenate([client.train for client in made.data.clients])
    chance = SeededRandom(cell.seed)
    plan = shared_steps(model, train, _budget(cell), int(steps), share, level, random=chance)
    figures = {
        ACCURACY: accuracy(model, made.data.test),
        RELEASES: float(plan.steps),
        NOISE: plan.noise,
        NUMBERS: float(plan.steps * sum(p.numel() for p in model.parameters())),
    }
    return figures, {"privacy": claim_of(plan, DELTA)}


# Tables.


def tables(results: study.Results) -> list[Table | str]:
    """Accuracy by row and epsilon, a table an image set."""
    by_place = study.grouped(results.cells, lambda cell: cell.place)
    return [_accuracies(place, of) for place, of in by_place.items()]


def _accuracies(place: str, found: Sequence[study.Result]) -> Table:
    epsilons = list(study.grouped(found, lambda cell: cell.epsilon))
    table = new_table(
        f"{place}, test accuracy, %, at an epsilon for one record, present or zeroed out, over the "
        f"whole run, delta 1e-5; under masks 4 honest clients of {_CLIENTS} suffice",
        ("row", *(f"epsilon {epsilon}" for epsilon in epsilons), "noisy sums", "numbers up, k"),
    )
    by_row = study.grouped(found, lambda cell: cell.row)
    for name in (row for row in ROWS if row in by_row):
        of = by_row[name]
        by = study.grouped(of, lambda cell: cell.epsilon)
        shown = [study.percent(by[epsilon]) if epsilon in by else NONE for epsilon in epsilons]
        table.add_row(ROWS[name].title, *shown, _span(of, RELEASES, 1), _span(of, NUMBERS, 1000))
    return table


def _span(found: Sequence[study.Result], name: str, unit: int) -> str:
    """The least and the most of a figure."""
    values = [result.figures[name] / unit for result in found if name in result.figures]
    if not values:
        return NONE
    least, most = f"{min(values):,.0f}", f"{max(values):,.0f}"
    return least if least == most else f"{least} to {most}"


STUDY = image_study(
    name="private_rivals",
    folder="privacy",
    about="Private rivals of the pooled heads, on equal terms.",
    settings=Settings,
    cell=Cell,
    cells=cells,
    measure=measure,
    tables=tables,
    cost=lambda _: 100,
    libraries=("scikit-learn", "opacus"),
)

if __name__ == "__main__":
    raise SystemExit(study.main("experiments.privacy.private_rivals"))
