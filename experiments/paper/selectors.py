"""Fig. 5: how well client selectors detect wrong predictions, and the accuracy that follows.

python experiments/paper/selectors.py --quick
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from experiments.core import published
from experiments.core.grid import PAPER_SETS, Grid, ImageStudy
from experiments.core.measures import AUROC_CLASS, OVER_CLIENTS
from experiments.core.published import known_percent, selector_title
from experiments.core.rows import COUNTED, Cell
from experiments.core.study import (
    Result,
    Results,
    grouped,
    main,
    measure,
    moments,
    percent,
    with_seeds,
)
from experiments.report.plots import Bar, Bars, drawn
from experiments.report.tables import Table, new_table
from secure_fd.data.image_sets import IMAGE_SETS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_ROWS = (
    *((selector, "") for selector in ("kulsif", "confidence", "energy")),
    *(("ratio", COUNTED), ("ratio", "")),
)
"""Client selectors, and how their votes count; the default comes last."""


def vary(cell: Cell) -> Iterator[Cell]:
    """Selective-FD with hard labels under every selector, as the paper has it."""
    for selector, variant in _ROWS:
        yield replace(
            cell, method="selective-fd", labels="hard", selector=selector, variant=variant
        )


def _sets(results: Results) -> Mapping[str, Mapping[str, Sequence[Result]]]:
    """By image set, then selector and how its votes count: the seeds' results."""
    return {
        IMAGE_SETS[image_set].title: grouped(found, _title)
        for image_set, found in grouped(results.cells, lambda cell: cell.image_set).items()
    }


def _title(cell: Cell) -> str:
    name = selector_title(cell.selector)
    return f"{name}, {cell.variant}" if cell.variant else name


def _known(cell: Cell) -> published.Published | None:
    """What the paper prints of its own selector."""
    if cell.selector != "kulsif":
        return None
    return published.accuracy(cell.image_set, "strong", "selective-fd", "hard")


def tables(results: Results) -> list[Table | str]:
    """One table of all image sets."""
    title = "Client selectors, strong split, hard labels: means over clients and seeds"
    columns = (
        *("image set", "selector", "AUROC", "deviation over clients", "accuracy, %", "published"),
    )
    table = new_table(title, columns, left=2)
    for image_set, by_selector in _sets(results).items():
        for selector, found in by_selector.items():
            shown = [measure(found, name) for name in (AUROC_CLASS, OVER_CLIENTS)]
            known = known_percent(_known(found[0].cell))
            table.add_row(image_set, selector, *shown, percent(found), known)
    note = (
        "AUROC is of own against other classes: after its warm-up a network of one class names "
        "that class everywhere, so it is right exactly there. Confidence and energy are read off "
        "the warmed-up network. Every row but the last counts votes of 0 or 1; the default weighs "
        "them. The published accuracy is that of Table 1, with KuLSIF; the paper prints no "
        "AUROC."
    )
    return [table, note]


def figure(results: Results) -> "Figure":
    """AUROC left, accuracy right; deviations are over clients, as in the paper's figure."""
    sets = _sets(results)
    series = tuple(dict.fromkeys(name for by_name in sets.values() for name in by_name))
    left = {title: [_auroc(of.get(name, [])) for name in series] for title, of in sets.items()}
    right = {title: [_accuracy(of.get(name, [])) for name in series] for title, of in sets.items()}
    return drawn(
        [
            Bars("Own classes told from others", "AUROC", series, left),
            Bars("After distillation", "test accuracy", series, right),
        ]
    )


def _auroc(found: Sequence[Result]) -> Bar | None:
    having = [result.figures for result in found if AUROC_CLASS in result.figures]
    if not having:
        return None
    return Bar(*(float(np.mean([f[n] for f in having])) for n in (AUROC_CLASS, OVER_CLIENTS)))


def _accuracy(found: Sequence[Result]) -> Bar | None:
    if not found:
        return None
    known = _known(found[0].cell)
    spread = moments(found, lambda result: float(np.std(result.per_client)))[0]
    return Bar(moments(found)[0], spread, known[0] / 100 if known else None)


STUDY = ImageStudy(
    home="papers",
    name="selectors",
    about="Client selectors side by side: AUROC and accuracy, as in Fig. 5.",
    cells=Grid(PAPER_SETS, ("strong",), ("selective-fd",), vary).cells,
    shown=with_seeds(tables),
    figure=figure,
)

if __name__ == "__main__":
    raise SystemExit(main("experiments.paper.selectors"))
