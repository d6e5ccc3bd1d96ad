"""Fig. 5: how well client selectors detect wrong predictions, and the accuracy that follows.

python experiments/paper/client_selectors.py --quick
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from experiments.core import published, study
from experiments.core.grid import PAPER_SETS, Grid, ImageStudy
from experiments.core.measures import AUROC_CLASS, OVER_CLIENTS
from experiments.core.published import known_percent, selector_title
from experiments.core.run_config import COUNTED, RunConfig
from experiments.core.study import Result, Results
from experiments.core.summary import Column, summary
from experiments.report.plots import Bar, Bars, drawn
from experiments.report.tables import Table
from secure_fd.data.image_sets import IMAGE_SETS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_ROWS = (
    *((selector, "") for selector in ("kulsif", "confidence", "energy")),
    *(("ratio", COUNTED), ("ratio", "")),
)
"""Client selectors, and how their votes count; the default comes last."""


def vary(cell: RunConfig) -> Iterator[RunConfig]:
    """Selective-FD with hard labels under every selector, as the paper has it."""
    for selector, variant in _ROWS:
        yield replace(
            cell, method="selective-fd", labels="hard", selector=selector, variant=variant
        )


def _set_title(cell: RunConfig) -> str:
    return IMAGE_SETS[cell.image_set].title


def _title(cell: RunConfig) -> str:
    name = selector_title(cell.selector)
    return f"{name}, {cell.variant}" if cell.variant else name


def _known(cell: RunConfig) -> published.Published | None:
    """What the paper prints of its own selector."""
    if cell.selector != "kulsif":
        return None
    return published.accuracy(cell.image_set, "strong", "selective-fd", "hard")


def tables(results: Results) -> list[Table | str]:
    """One table of all image sets."""
    title = "Client selectors, strong split, hard labels: means over clients and seeds"
    columns: list[Column] = [
        ("AUROC", partial(study.measure, name=AUROC_CLASS)),
        ("deviation over clients", partial(study.measure, name=OVER_CLIENTS)),
        ("accuracy, %", study.percent),
        ("published", lambda found: known_percent(_known(found[0].cell))),
    ]
    heads = ("image set", "selector")
    return [
        summary(title, heads, results.cells, lambda c: (_set_title(c), _title(c)), columns),
        "AUROC is of own against other classes: after its warm-up a network of one class names "
        "that class everywhere, so it is right exactly there. Confidence and energy are read off "
        "the warmed-up network. Every row but the last counts votes of 0 or 1; the default weighs "
        "them. The published accuracy is that of Table 1, with KuLSIF; the paper prints no "
        "AUROC.",
    ]


def figure(results: Results) -> "Figure":
    """AUROC left, accuracy right; deviations are over clients, as in the paper's figure."""
    series = tuple(study.grouped(results.cells, _title))
    sets = {
        title: study.grouped(found, _title)
        for title, found in study.grouped(results.cells, _set_title).items()
    }
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
    spread = study.moments(found, lambda result: float(np.std(result.per_client)))[0]
    return Bar(study.moments(found)[0], spread, known[0] / 100 if known else None)


STUDY = ImageStudy(
    home="papers",
    name="client_selectors",
    about="Client selectors side by side: AUROC and accuracy, as in Fig. 5.",
    cells=Grid(PAPER_SETS, ("strong",), ("selective-fd",), vary).cells,
    shown=study.with_seeds(tables),
    figure=figure,
)

if __name__ == "__main__":
    raise SystemExit(study.main("experiments.paper.client_selectors"))
