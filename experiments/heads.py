"""Heads on public features, and the networks that they teach, beside AFL and the truth.

python experiments/heads.py --quick

Every row sees images through one public map, the patches of the proxies, and features through
their principal components. Rows of heads train nothing: a client leaves with the head. Networks
are those of the paper's Table 3, ten clients of which learn from all proxies once: 1,500 steps
under views, 500 where there are few proxies. The map was chosen on seed 0; steps, views and
sharpness are as a prototype had them, and were not tuned.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from experiments.grid import HOSPITALS, later
from experiments.measures import HEAD, MEAN, NETWORK
from experiments.plots import Lines, drawn
from experiments.rows import HEADS_ALONE, SHARPENED, TRUE_LABELS, Cell
from experiments.shared_options import SharedOptions
from experiments.study import (
    Result,
    Results,
    Study,
    grouped,
    listed,
    main,
    over,
    percent,
    seeds_of,
    whole_numbers,
)
from experiments.tables import NONE, Table, new_table
from secure_fd.recipes import IMAGE_SETS, one_lesson

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SETS = ("mnist", "fashion_mnist", "cifar10_features", "chest_xray")
_ALLOWED = (*SETS, "mnist5k", "digits")
_SEEDS: Mapping[str, tuple[int, ...]] = {"chest_xray": (20, 21, 22, 23, 24)}
_OTHER_SEEDS = (20, 21, 22)
"""More where there are 200 test images."""
_SUMS = 4


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table. sums: the head's. learns: whether it teaches networks."""

    title: str
    method: str = "heads"
    sums: int = _SUMS
    learns: bool = False
    variant: str = ""


ROWS: Mapping[str, Row] = {
    "heads-1": Row("Pooled head, one sum", sums=1),
    "heads-2": Row("Pooled head, 1 residual round", sums=2),
    "heads-3": Row("Pooled head, 2 residual rounds", sums=3),
    "heads-4": Row("Pooled head, 3 residual rounds", sums=4),
    "heads-8": Row("Pooled head, 7 residual rounds", sums=8),
    "afl": Row("AFL: Gram matrices, one sum", "afl", sums=1),
    "networks": Row("Networks, hard labels of the head", learns=True),
    "networks-sharpened": Row("Networks, sharpened labels", learns=True, variant=SHARPENED),
    "networks-truth": Row("Networks, true labels", learns=True, variant=TRUE_LABELS),
}


def cell_of(row: Row, image_set: str, split: str, seed: int) -> Cell:
    """One run."""
    steps = HEADS_ALONE
    if row.learns:
        steps = one_lesson(IMAGE_SETS[image_set].proxies, image_set=image_set).schedule
    return Cell(
        image_set=image_set,
        split=split,
        method=row.method,
        labels="",
        selector="",
        variant=row.variant,
        seed=seed,
        rounds=row.sums,
        schedule=steps,
        clients=4 if split == HOSPITALS else 10,
        every=row.sums,
    )


@dataclass(frozen=True, slots=True)
class Settings(SharedOptions):
    """Every cell is saved when it ends, and a rerun does only what is missing."""

    image_sets: str | None = None
    """Image sets, with commas; by default all but the bundled ones."""
    split: str = "strong"
    """How clients divide the records; chest X-rays are always divided by hospital."""
    rows: str | None = None
    """Rows, with commas; by default all."""
    seeds: str | None = None
    """Seeds of data and training, with commas; rows of networks take the first alone by default."""
    quick: bool = False
    """A minute's look at the bundled digits: 20 steps a network."""


def cells(settings: Settings) -> tuple[Cell, ...]:
    """The cells that a command line asks for. Raises ConfigurationError for an unknown name."""
    rows = [ROWS[name] for name in listed("rows", settings.rows, tuple(ROWS)) or ROWS]
    sets = listed("image_sets", settings.image_sets, _ALLOWED) or SETS
    seeds = whole_numbers("seeds", settings.seeds) if settings.seeds else None
    if settings.quick:
        found = [cell_of(row, "digits", "strong", 0) for row in rows]
        return tuple(_shortened(cell) for cell in found)
    return tuple(
        cell_of(row, image_set, HOSPITALS if image_set == "chest_xray" else settings.split, seed)
        for image_set in sets
        for seed in seeds or _SEEDS.get(image_set, _OTHER_SEEDS)
        for row in rows
        if seeds or not row.learns or seed == _OTHER_SEEDS[0]
    )


def _shortened(cell: Cell) -> Cell:
    steps = min(20, cell.schedule.proxy_steps)
    return replace(cell, schedule=replace(cell.schedule, proxy_steps=steps))


def row_of(cell: Cell) -> Row:
    """The row that made a cell."""
    seen = (cell.method, cell.rounds, cell.schedule.proxy_steps > 0, cell.variant)
    return next(
        row for row in ROWS.values() if (row.method, row.sums, row.learns, row.variant) == seen
    )


def tables(results: Results) -> list[Table | str]:
    """Accuracy by row and place; what clients of the taught rows could leave with."""
    return [_accuracies(results.cells), *_candidates(results.cells)]


def _accuracies(found: Sequence[Result]) -> Table:
    places = list(grouped(found, lambda cell: cell.place))
    table = new_table(
        "Test accuracy, %, of heads, and of networks alone, last round",
        ("row", *places, "kB up a client"),
    )
    for row, of_row in grouped(found, row_of).items():
        of = grouped(of_row, lambda cell: cell.place)
        sent = [result.curve[-1].up / 1000 for result in of_row]
        kilobytes = f"{min(sent):,.0f} to {max(sent):,.0f}" if len(of) > 1 else f"{sent[0]:,.0f}"
        table.add_row(row.title, *(percent(of.get(p, []), _own) for p in places), kilobytes)
    return table


def _own(result: Result) -> float:
    """Of the network where one was taught, of the head where not."""
    return result.figures.get(NETWORK, result.accuracy)


_CANDIDATES = {"network": NETWORK, "head": HEAD, "mean of both": MEAN}


def _candidates(found: Sequence[Result]) -> list[Table | str]:
    taught = [result for result in found if row_of(result.cell).learns]
    if not taught:
        return []
    places = list(grouped(taught, lambda cell: cell.place))
    table = new_table(
        "What a client can leave with, and what pooled validation chose, test accuracy, %",
        ("row", "candidate", *places),
    )
    for row, of_row in grouped(taught, row_of).items():
        of = grouped(of_row, lambda cell: cell.place)
        for name, known in _CANDIDATES.items():
            shown = [percent(of.get(p, []), _figure(known)) for p in places]
            table.add_row(row.title, name, *shown)
        table.add_row(row.title, "chosen", *(percent(of.get(p, [])) for p in places))
    return [table] if table.rows else [NONE]


def _figure(name: str) -> Callable[[Result], float]:
    return lambda result: result.figures[name]


def figure(results: Results) -> "Figure | None":
    """Accuracy of the head by number of sums, a panel a place."""
    panels = []
    for place, found in grouped(results.cells, lambda cell: cell.place).items():
        by_row = grouped(found, row_of)
        heads = {
            float(row.sums): of
            for row, of in by_row.items()
            if row.method == "heads" and not row.learns
        }
        if heads:
            lines = {"pooled head": over(heads)}
            if ROWS["afl"] in by_row:
                lines["AFL"] = over(dict.fromkeys(heads, by_row[ROWS["afl"]]))
            panels.append(Lines(place, "sums", "test accuracy", lines))
    return drawn(panels, columns=2) if panels else None


STUDY = Study(
    name="heads",
    script="heads.py",
    about=f"Heads on public features, and the networks that they teach. {Settings.__doc__}",
    settings=Settings,
    cell=Cell,
    cells=cells,
    group=lambda cell: cell.group,
    prepare=later("experiments.runs:prepare"),
    measure=later("experiments.runs:run_cell"),
    shown=lambda found: [*tables(found), f"Seeds of all cells: {seeds_of(found.cells)}."],
    figure=figure,
    cost=lambda cell: max(2000, cell.steps),
    out=lambda chosen: chosen.out or Path(f"runs/heads{'-quick' * chosen.quick}"),
)

if __name__ == "__main__":
    sys.exit(main("experiments.heads"))
