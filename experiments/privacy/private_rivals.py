"""Private ways to a classifier at one epsilon for a record: the pooled heads, and their rival.

python experiments/privacy/private_rivals.py --image-sets mnist5k --epsilons 1,4

Ours: heads of all clients from one or two sums under noise, and the networks that learn their
labels and see no record. Rival: a linear head by DP-GD on the public map, of all clients under
shares of one noise inside masked sums, computed as the server would obtain it. Its step was chosen
once, from a grid of four, by the validation records of all clients; ranks, cut-off and number of
sums of ours follow the noise by a rule. Both on MNIST-5k, seeds 0 and 1; no choice is in epsilon.
Noise is seeded, so that a figure can be repeated; an epsilon is that of the same noise with fresh
randomness.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from experiments.core import frames, study
from experiments.core.frames import Frame, frame, ordered, percents, seeds_of, table, with_seeds
from experiments.core.grid import HOSPITALS, ImageStudy, later
from experiments.core.measures import ACCURACY, DISTILLED_PROXIES, RIGHT_ONCE
from experiments.core.shared_options import TableOptions
from experiments.report.tables import NONE, Table
from secure_fd.data.image_sets import IMAGE_SETS

EPSILONS = ("0.25", "1", "4", "inf")
DELTA = 1e-5
RELEASES, NUMBERS, KILOBYTES = "noisy sums", "numbers up a client", "kB up a client"
SPENT, HONEST = "epsilon of the plan", "honest shares"
_COSTS = (
    ("honest", HONEST, 1),
    ("noisy sums", RELEASES, 1),
    ("numbers up, k", NUMBERS, 1000),
    ("kB up", KILOBYTES, 1),
)
"""Heading, figure, and unit."""
_SPLITS: Mapping[str, tuple[str, ...]] = {
    "mnist": ("strong",),
    "fashion_mnist": ("strong",),
    "mnist5k": ("strong", "iid", "dirichlet:0.3"),
    "cifar10_features": ("strong",),
    "chest_xray": (HOSPITALS,),
    "digits": ("strong",),
}
_SEEDS = (20, 21, 22)
_ALL_ROWS_ON = ("mnist", "fashion_mnist", "mnist5k")
"""Image sets of all rows; on the others the pooled heads run alone."""


@dataclass(frozen=True, slots=True)
class Row:
    """One way to a classifier.

    Attributes:
        method: "heads" or "networks" of the pooled unit, or "gd".
        local: whether each client adds noise that is enough alone, in place of shares under masks.
    """

    title: str
    method: str
    local: bool = False


ROWS: Mapping[str, Row] = {
    "heads": Row("pooled heads", "heads"),
    "heads local": Row("pooled heads, local noise", "heads", local=True),
    "networks": Row("networks trained on labels of pooled heads", "networks"),
    "networks local": Row("networks, local noise", "networks", local=True),
    "gd": Row("DP-GD head, under masks", "gd"),
}
_RIVAL = "gd"


@dataclass(frozen=True, slots=True)
class Cell:
    """One run. row: of `ROWS`. epsilon: of a record, all rounds; "inf" for none."""

    image_set: str
    split: str
    row: str
    epsilon: str
    seed: int

    @property
    def label(self) -> str:
        """Name of the cell while it runs."""
        return f"{self.place}: {self.row}, epsilon {self.epsilon}, seed {self.seed}"

    @property
    def place(self) -> str:
        """Image set and split, as a reader names them."""
        return f"{IMAGE_SETS[self.image_set].title}, {self.split}"


@dataclass(frozen=True, slots=True)
class Settings(TableOptions):
    """Every cell is saved when it ends, and a rerun does only what is missing."""

    epsilons: str | None = None
    """Epsilons out of 0.25, 1, 4 and inf, with commas; by default all."""


def cells(settings: Settings) -> tuple[Cell, ...]:
    """Return the cells that a command line asks for. Raises ConfigurationError for a bad name."""
    rows = study.listed("rows", settings.rows, tuple(ROWS))
    epsilons = study.listed("epsilons", settings.epsilons, EPSILONS)
    sets = study.listed("image_sets", settings.image_sets, tuple(_SPLITS))
    seeds = study.whole_numbers("seeds", settings.seeds, _SEEDS)
    every = tuple(dict.fromkeys(split for of in _SPLITS.values() for split in of))
    splits = study.listed("splits", settings.splits, every)
    if settings.quick:
        return tuple(Cell("digits", "strong", row, "4", 0) for row in rows)
    return tuple(
        Cell(name, split, row, epsilon, seed)
        for name in sets
        for split in _SPLITS[name]
        if split in splits
        for row in rows
        if _runs(row, name, split)
        for epsilon in epsilons
        if epsilon != "inf" or row != _RIVAL
        for seed in seeds
    )


def _runs(row: str, image_set: str, split: str) -> bool:
    """Return whether a row runs in a place."""
    if image_set not in _ALL_ROWS_ON:
        return row == "heads"
    return row != _RIVAL or split == "strong"


# Tables.


def tables(results: study.Results) -> list[Table | str]:
    """Return accuracy by place, row and epsilon; and the labels of the heads."""
    runs = frame(
        results,
        row=lambda cell: ROWS[cell.row].title,
        epsilon=lambda cell: float(cell.epsilon),
        method=lambda cell: ROWS[cell.row].method,
    )
    runs = ordered(frames.having(runs, KILOBYTES), lambda cell: list(ROWS).index(cell.row))
    accuracies, by_row = _by_epsilon(runs, ACCURACY), runs.groupby(["place", "row"], sort=False)
    for title, name, unit in _COSTS:
        accuracies[title] = (by_row[name].agg("min") / unit).combine(
            by_row[name].agg("max") / unit, _span
        )
    accuracies["seeds"] = by_row.seed.agg(seeds_of)
    parts: list[Table | str] = [
        table(
            "Test accuracy, %, at an epsilon for one record, present or zeroed out, over the whole "
            "run, delta 1e-5, if the honest clients of the table keep their shares of the noise",
            accuracies,
        )
    ]
    heads = runs[runs.method == "heads"]
    if len(heads):
        right, labelled = (_by_epsilon(heads, name) for name in (RIGHT_ONCE, DISTILLED_PROXIES))
        title = "Labels of the pooled heads: right ones, of the labelled share of the proxies, %"
        parts.append(table(title, right + " of " + labelled))
    return parts


def _by_epsilon(runs: Frame, value: str) -> Frame:
    return percents(runs, ["place", "row"], "epsilon", value).rename(columns="ε = {:g}".format)


def _span(least: float, most: float) -> str:
    """Return the least and the most of a figure."""
    ends = dict.fromkeys(f"{value:,.0f}" for value in (least, most) if not math.isnan(value))
    return " to ".join(ends) or NONE


STUDY = ImageStudy(
    name="private_rivals",
    folder="privacy",
    about="Private ways to a classifier, on equal terms.",
    settings=Settings,
    cell=Cell,
    cells=cells,
    needs=lambda _: (),
    measure=later("experiments.privacy.rival_heads:measure"),
    shown=with_seeds(tables),
)

if __name__ == "__main__":
    raise SystemExit(study.main("experiments.privacy.private_rivals"))
