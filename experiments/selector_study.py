"""Fig. 5: how well client selectors detect wrong predictions, and the accuracy that follows.

python experiments/selector_study.py --quick
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from experiments import published
from experiments.grid import PAPER_SETS, Grid, paper_study
from experiments.measures import AUROC_CLASS, OVER_CLIENTS
from experiments.plots import Bar, Bars, drawn
from experiments.published import known_percent, selector_title
from experiments.rows import Cell
from experiments.study import Result, Results, grouped, main, measure, moments, percent
from experiments.tables import Table, new_table
from secure_fd.recipes import IMAGE_SETS

if TYPE_CHECKING:
    from matplotlib.figure import Figure


_ROWS = (
    *((selector, "") for selector in ("kulsif", "confidence", "energy")),
    *(("ratio", "counted votes"), ("ratio", "")),
)
"""Client selectors, and how their votes count; the default comes last."""
_PAPERS = ("kulsif", "")


def vary(cell: Cell) -> Iterator[Cell]:
    """Selective-FD with hard labels under every selector, as the paper has it."""
    for selector, variant in _ROWS:
        yield replace(
            cell, method="selective-fd", labels="hard", selector=selector, variant=variant
        )


def _sets(results: Results) -> Mapping[str, Mapping[tuple[str, str], Sequence[Result]]]:
    """By image set, then selector and variant: the seeds' results."""
    return {
        image_set: grouped(found, lambda cell: (cell.selector, cell.variant))
        for image_set, found in grouped(results.cells, lambda cell: cell.image_set).items()
    }


def _title(selector: tuple[str, str]) -> str:
    name, variant = selector
    return f"{selector_title(name)}, {variant}" if variant else selector_title(name)


def tables(results: Results) -> list[Table | str]:
    """One table of all image sets."""
    title = "Client selectors, strong split, hard labels: means over clients and seeds"
    columns = (
        *("image set", "selector", "AUROC", "deviation over clients", "accuracy, %", "published"),
    )
    table = new_table(title, columns, left=2)
    for image_set, by_selector in _sets(results).items():
        known = published.accuracy(image_set, "strong", "selective-fd", "hard")
        for selector, found in by_selector.items():
            table.add_row(
                IMAGE_SETS[image_set].title,
                _title(selector),
                *(measure(found, n) for n in (AUROC_CLASS, AUROC_CLASS + OVER_CLIENTS)),
                percent(found),
                known_percent(known if selector == _PAPERS else None),
            )
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
    found = _sets(results)
    selectors = tuple(dict.fromkeys(s for by_selector in found.values() for s in by_selector))

    def auroc(of: "Sequence[Result] | None") -> Bar | None:
        having = [r for r in of or () if AUROC_CLASS in r.figures]
        if not having:
            return None
        mean, _ = moments(having, lambda r: r.figures[AUROC_CLASS])
        return Bar(mean, moments(having, _over_clients)[0])

    def accuracy(image_set: str, selector: tuple[str, str]) -> Bar | None:
        of = found[image_set].get(selector)
        if of is None:
            return None
        known = published.accuracy(image_set, "strong", "selective-fd", "hard")
        mark = known[0] / 100 if known and selector == _PAPERS else None
        spread = moments(of, lambda r: float(np.std(r.per_client)))[0]
        return Bar(moments(of)[0], spread, mark)

    names = {image_set: IMAGE_SETS[image_set].title for image_set in found}
    left = {n: [auroc(found[i].get(s)) for s in selectors] for i, n in names.items()}
    right = {n: [accuracy(i, s) for s in selectors] for i, n in names.items()}
    series = tuple(map(_title, selectors))
    return drawn(
        [
            Bars("Own classes told from others", "AUROC", series, left),
            Bars("After distillation", "test accuracy", series, right),
        ]
    )


def _over_clients(result: "Result") -> float:
    return result.figures[AUROC_CLASS + OVER_CLIENTS]


STUDY = paper_study(
    name="selectors",
    script="selector_study.py",
    about="Client selectors side by side: AUROC and accuracy, as in Fig. 5.",
    grid=Grid(
        image_sets=PAPER_SETS,
        splits=("strong",),
        methods=("selective-fd",),
        vary=vary,
    ),
    tables=tables,
    figure=figure,
)

if __name__ == "__main__":
    sys.exit(main("experiments.selector_study"))
