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

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from experiments.core import study
from experiments.core.grid import HOSPITALS, ImageStudy, later
from experiments.core.measures import RIGHT_ONCE, TAUGHT
from experiments.core.shared_options import TableOptions
from experiments.core.study import Result, percent
from experiments.core.summary import Show, columns_by, summary
from experiments.report.tables import NONE, Table
from secure_fd.data.image_sets import IMAGE_SETS

EPSILONS = ("0.25", "1", "4", "inf")
DELTA = 1e-5
RELEASES, NUMBERS, KILOBYTES = "noisy sums", "numbers up a client", "kB up a client"
SPENT, HONEST = "epsilon of the plan", "honest shares"
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
        step: of DP-GD, its number of whole steps, times the root of the noise of a mean.
    """

    title: str
    method: str
    local: bool = False
    step: float = 0.0


ROWS: Mapping[str, Row] = {
    "heads": Row("pooled heads", "heads"),
    "heads local": Row("pooled heads, local noise", "heads", local=True),
    "networks": Row("networks taught by pooled heads", "networks"),
    "networks local": Row("networks, local noise", "networks", local=True),
    "gd": Row("DP-GD head, under masks", "gd", step=0.1),
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
    """Of 0.25, 1, 4 and inf, with commas; by default all."""


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
    """Whether a row runs in a place."""
    if image_set not in _ALL_ROWS_ON:
        return row == "heads"
    return row != _RIVAL or split == "strong"


# Tables.


def tables(results: study.Results) -> list[Table | str]:
    """Return accuracy by place, row and epsilon; and the labels of the heads."""
    order, places = list(ROWS), study.grouped(results.cells, lambda cell: cell.place).values()
    found = [
        result for of in places for result in sorted(of, key=lambda r: order.index(r.cell.row))
    ]
    heads = [result for result in found if ROWS[result.cell.row].method == "heads"]
    accuracies = (
        "Test accuracy, %, at an epsilon for one record, present or zeroed out, over the whole "
        "run, delta 1e-5, if so many honest clients keep their shares of the noise"
    )
    labels = "Labels of the pooled heads: right ones, of the labelled share of the proxies, %"
    further = [("honest", _span(HONEST)), ("noisy sums", _span(RELEASES))]
    further += [("numbers up, k", _span(NUMBERS, 1000)), ("kB up", _span(KILOBYTES))]
    further.append(("seeds", study.seeds_of))
    named, columns = ("place", "row"), columns_by(found, _epsilon, percent)
    parts: list[Table | str] = [summary(accuracies, named, found, _row, [*columns, *further])]
    if heads:
        parts.append(summary(labels, named, heads, _row, columns_by(heads, _epsilon, _labels)))
    return parts


def _row(cell: Cell) -> tuple[str, str]:
    return cell.place, ROWS[cell.row].title


def _epsilon(cell: Cell) -> tuple[float, str]:
    return float(cell.epsilon), f"ε = {cell.epsilon}"


def _labels(found: Sequence[Result]) -> str:
    right = percent(found, lambda result: result.figures[RIGHT_ONCE])
    return f"{right} of {percent(found, lambda result: result.figures[TAUGHT])}"


def _span(name: str, unit: int = 1) -> Show:
    """Return the least and the most of a figure."""

    def show(found: Sequence[Result]) -> str:
        values = sorted(r.figures[name] / unit for r in found if name in r.figures)
        ends = dict.fromkeys(f"{value:,.0f}" for value in (*values[:1], *values[-1:]))
        return " to ".join(ends) or NONE

    return show


STUDY = ImageStudy(
    name="private_rivals",
    folder="privacy",
    about="Private ways to a classifier, on equal terms.",
    settings=Settings,
    cell=Cell,
    cells=cells,
    needs=lambda _: (),
    measure=later("experiments.privacy.rival_heads:measure"),
    shown=study.with_seeds(tables),
)

if __name__ == "__main__":
    raise SystemExit(study.main("experiments.privacy.private_rivals"))
