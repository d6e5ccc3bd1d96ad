"""What each part of Selective-FD is worth: the default without it, one part at a time.

python experiments/method_ablation.py --quick
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from experiments.grid import (
    PAPER_SETS,
    WARMUP,
    Grid,
    baseline_rounds,
    baselines,
    in_rounds,
    on_its_recipe,
    paper_study,
)
from experiments.measures import AUROC_CLASS, COVERED, KEPT_ALL, RIGHT_ALL
from experiments.plots import Dots, dotted
from experiments.rows import Cell
from experiments.study import Result, Results, grouped, main, measure, moments, percent
from experiments.tables import NONE, Table, new_table
from experiments.thresholds import DEFAULT_CLIENT
from secure_fd.recipes import IMAGE_SETS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_LABELS = ("hard", "soft")
Change = Callable[[Cell], Cell]


def _scheduled(**changed: Any) -> Change:  # noqa: ANN401 - fields of a schedule
    return lambda cell: replace(cell, schedule=replace(cell.schedule, **changed))


def _trained(**changed: Any) -> Change:  # noqa: ANN401 - fields of an optimiser
    return lambda cell: _scheduled(sgd=replace(cell.schedule.sgd, **changed))(cell)


def _records_apart(cell: Cell) -> Cell:
    apart = replace(cell.schedule.sgd, own_batch=0)
    return _scheduled(sgd=apart, local_steps=1)(cell)


def _as_baselines(cell: Cell) -> Cell:
    """Their steps; and their rounds where ours takes one."""
    count = baseline_rounds(cell.image_set) if cell.rounds == 1 else cell.rounds
    return replace(cell, schedule=baselines(cell.image_set, cell.split), rounds=count)


def _many_rounds(cell: Cell) -> Cell:
    if cell.rounds > 1:
        return cell
    schedule, count = in_rounds(cell.image_set, cell.schedule)
    return replace(cell, schedule=schedule, rounds=count)


def _no_selector(cell: Cell) -> Cell:
    return replace(cell, method="fedmd", selector="", class_by="both")


_CHANGES: Mapping[str, Change] = {
    "quantile threshold": lambda cell: replace(cell, quantile=DEFAULT_CLIENT),
    "server threshold 1": lambda cell: replace(cell, server_threshold=1.0),
    "newest round only": _scheduled(remember=False),
    "no views": _scheduled(augment="none"),
    "constant rate": _scheduled(anneal_over=None),
    "no momentum": _trained(momentum=0.0),
    "warm-up": _scheduled(warmup_steps=WARMUP),
    "no warm-up": _scheduled(warmup_steps=0),
    "constant warm-up": _scheduled(anneal_warmup=False),
    "no smoothing": _trained(smoothing=0.0),
    "many rounds": _many_rounds,
    "records apart": _records_apart,
    "the baselines' schedule": _as_baselines,
    "classes by both": lambda cell: replace(cell, class_by="both"),
    "no selector": _no_selector,
}
"""What a variant changes of a cell; all others are of the method and its selector (see `runs`)."""
_OF_SOFT, _OF_HARD = "sharpness 1", "true labels"
_STRONG = (
    *("counted votes", "counted votes of all classes", "quantile threshold", _OF_SOFT),
    *("server threshold 1", "ratio alone", "newest round only", "no views", "constant rate"),
    *("no momentum", "warm-up", "records apart", "the baselines' schedule", "no selector"),
    *("selector refitted", _OF_HARD),
)
_IID = (
    *("no warm-up", "constant warm-up", "many rounds", "no smoothing", "no views"),
    *("the baselines' schedule", "classes by both", "no selector", _OF_HARD),
)
"""Where clients hold all classes: what the recipe has for them alone."""
_FIGURES = {
    "right labels": RIGHT_ALL,
    "kept": KEPT_ALL,
    "ever kept": COVERED,
    "AUROC": AUROC_CLASS,
}


def vary(cell: Cell) -> Iterator[Cell]:
    """The default and every variant that changes it, with hard and soft labels.

    Without a selector it is FedMD, on the schedule of Selective-FD. True labels are the ceiling.
    """
    for labels, others in zip(_LABELS, (_OF_SOFT, _OF_HARD), strict=True):
        ours = replace(cell, method="selective-fd", labels=labels, selector="ratio")
        default = on_its_recipe(ours, quick=False, rounds=cell.rounds)
        yield default
        for variant in _variants(cell.split):
            if variant == others:
                continue
            change = _CHANGES.get(variant)
            changed = change(default) if change else default
            if change is None or changed != default:
                yield replace(changed, variant=variant)


def _variants(split: str) -> tuple[str, ...]:
    return _IID if split == "iid" else _STRONG


def tables(results: Results) -> list[Table | str]:
    """One table an image set and kind of labels: a row a variant, the default first."""
    made: list[Table | str] = []
    key = grouped(results.cells, lambda cell: (cell.place, cell.labels))
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
    """Points that each variant gains or loses, one panel a split and kind of labels."""
    panels = []
    key = grouped(results.cells, lambda cell: (cell.split, cell.labels))
    for (split, labels), found in key.items():
        by_set = grouped(found, lambda cell: IMAGE_SETS[cell.image_set].title)
        series = {name: _points(of) for name, of in by_set.items()}
        rows = tuple(v for v in _variants(split) if any(v in values for values in series.values()))
        panels.append(Dots(f"{split}, {labels} labels", "points from the default", rows, series))
    return dotted(panels)


def _points(found: list[Result]) -> dict[str, float]:
    """By variant: how far its accuracy is from the default's, in points."""
    accuracy = {v: moments(of)[0] for v, of in grouped(found, lambda cell: cell.variant).items()}
    base = accuracy.pop("", None)
    return {} if base is None else {v: 100 * (a - base) for v, a in accuracy.items()}


STUDY = paper_study(
    name="ablation",
    script="method_ablation.py",
    about="What each part of Selective-FD is worth, one part left out at a time.",
    grid=Grid(PAPER_SETS, ("strong", "iid"), ("selective-fd",), vary),
    tables=tables,
    figure=figure,
)

if __name__ == "__main__":
    sys.exit(main("experiments.method_ablation"))
