"""What each part of Selective-FD is worth: the default without it, one part at a time."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from experiments.papers import recipes
from experiments.papers.cells import VARIANTS, WARMUP, Cell
from experiments.papers.measures import AUROC_CLASS, COVERED, KEPT, RIGHT
from experiments.papers.plots import Bar, Bars, drawn
from experiments.papers.results import Results, grouped, moments
from experiments.papers.study import PAPER_SETS, Study
from experiments.papers.tables import NONE, Table, measure, new_table, percent
from secure_fd.config import Schedule

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_LABELS = ("hard", "soft")


def _without_momentum(cell: Cell) -> Schedule:
    return replace(cell.schedule, sgd=replace(cell.schedule.sgd, momentum=0.0))


def _records_apart(cell: Cell) -> Schedule:
    apart = replace(cell.schedule.sgd, own_batch=0)
    return replace(cell.schedule, sgd=apart, local_steps=1)


_SCHEDULES: Mapping[str, Callable[[Cell], Schedule]] = {
    "newest round only": lambda cell: replace(cell.schedule, remember=False),
    "no views": lambda cell: replace(cell.schedule, augment="none"),
    "constant rate": lambda cell: replace(cell.schedule, anneal_over=None),
    "no momentum": _without_momentum,
    "warm-up": lambda cell: replace(cell.schedule, warmup_steps=WARMUP),
    "no warm-up": lambda cell: replace(cell.schedule, warmup_steps=0),
    "records apart": _records_apart,
    "the baselines' schedule": lambda cell: recipes.baselines(cell.image_set, cell.split),
}
"""Variants of the schedule; all others are of the method and its selector (see `build`)."""
_OF_SOFT = "sharpness 1"
_BY_BOTH = "classes by both"
_OF_IID = ("", "no warm-up", "no views", "the baselines' schedule", _BY_BOTH)
"""Where clients hold all classes: what the recipe has for them alone."""
_FIGURES = {
    "right labels": RIGHT,
    "kept": KEPT,
    "ever kept": COVERED,
    "AUROC": AUROC_CLASS,
}


def vary(cell: Cell) -> Iterator[Cell]:
    """The default and every variant that changes it, with hard and soft labels."""
    variants = _OF_IID if cell.split == "iid" else tuple(v for v in VARIANTS if v != _BY_BOTH)
    for labels in _LABELS:
        default = replace(cell, method="selective-fd", labels=labels, selector="ratio")
        for variant in variants:
            if variant == _OF_SOFT and labels == "hard":
                continue
            change = _SCHEDULES.get(variant)
            schedule = change(cell) if change else cell.schedule
            if change is None or schedule != cell.schedule:
                yield replace(default, variant=variant, schedule=schedule)


def tables(results: Results) -> list[Table | str]:
    """One table an image set and kind of labels: a row a variant, the default first."""
    made: list[Table | str] = []
    key = grouped(results.cells, lambda cell: (cell.group.place, cell.labels))
    for (where, labels), found in key.items():
        title = f"{where}, {labels} labels: the default, and what it loses or gains"
        columns = ("variant", "accuracy, %", "points", *_FIGURES)
        table = new_table(title, columns)
        rows = grouped(found, lambda cell: cell.variant)
        for variant, of in rows.items():
            base = rows.get("")
            points = 100 * (moments(of)[0] - moments(base)[0]) if base else 0
            change = f"{points:+.1f}" if variant and base else NONE
            shown = [measure(of, name) for name in _FIGURES.values()]
            table.add_row(variant or "default", percent(of), change, *shown)
        made.append(table)
    return made


def figure(results: Results) -> "Figure":
    """Bars of accuracy and of right labels."""
    name = _FIGURES["right labels"]
    panels = []
    key = grouped(results.cells, lambda cell: (cell.group.place, cell.labels))
    for (where, labels), found in key.items():
        groups: dict[str, list[Bar | None]] = {}
        for variant, of in grouped(found, lambda cell: cell.variant).items():
            right = [r for r in of if name in r.figures]
            second = moments(right, lambda r: r.figures[name]) if right else None
            groups[variant or "default"] = [
                Bar(*moments(of)),
                None if second is None else Bar(*second),
            ]
        series = ("accuracy", "right labels")
        panels.append(Bars(f"{where}, {labels} labels", "", series, groups))
    return drawn(panels, columns=2)


STUDY = Study(
    name="ablation",
    script="method_ablation.py",
    about="What each part of Selective-FD is worth, one part left out at a time.",
    image_sets=PAPER_SETS,
    splits=("strong", "iid"),
    methods=("selective-fd",),
    vary=vary,
    tables=tables,
    figure=figure,
)
