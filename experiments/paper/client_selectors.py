"""Fig. 5: how well client selectors detect wrong predictions, and the accuracy that follows.

python experiments/paper/client_selectors.py --quick
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from experiments.core import published, study
from experiments.core.frames import Frame, bars, having, mean, percent, summary, with_seeds
from experiments.core.grid import PAPER_SETS, Grid, ImageStudy
from experiments.core.measures import ACCURACY, AUROC_CLASS, OVER_CLIENTS
from experiments.core.published import selector_title
from experiments.core.run_config import COUNTED, RunConfig
from experiments.core.study import Results
from experiments.report.plots import Bars
from experiments.report.tables import Table

_ROWS = (
    *((selector, "") for selector in ("kulsif", "confidence", "energy")),
    *(("ratio", COUNTED), ("ratio", "")),
)
"""Client selectors, and how their votes count; the default comes last."""

_NAMES = ("image set", "selector")


def vary(cell: RunConfig) -> Iterator[RunConfig]:
    """Selective-FD with hard labels under every selector, as the paper has it."""
    for selector, variant in _ROWS:
        yield replace(
            cell, method="selective-fd", labels="hard", selector=selector, variant=variant
        )


def _title(cell: RunConfig) -> str:
    name = selector_title(cell.selector)
    return f"{name}, {cell.variant}" if cell.variant else name


def _known(cell: RunConfig) -> published.Published | None:
    """Return the paper's figure of its own selector."""
    if cell.selector != "kulsif":
        return None
    return published.accuracy(cell.image_set, "strong", "selective-fd", "hard")


def _runs(results: Results) -> Frame:
    runs = published.beside(results, _known, selector=_title)
    return having(runs, AUROC_CLASS, OVER_CLIENTS).rename(columns={"images": "image set"})


def tables(results: Results) -> list[Table | str]:
    """One table of all image sets."""
    title = "Client selectors, strong split, hard labels: means over clients and seeds"
    columns = {
        "AUROC": (AUROC_CLASS, mean),
        "deviation over clients": (OVER_CLIENTS, mean),
        "accuracy, %": (ACCURACY, percent),
        "published": ("published", "first"),
    }
    return [
        summary(title, _runs(results), _NAMES, columns),
        "AUROC is of own against other classes: after its warm-up a network of one class names "
        "that class everywhere, so it is right exactly there. Confidence and energy are read off "
        "the warmed-up network. Every row but the last counts votes of 0 or 1; the default weighs "
        "them. The published accuracy is that of Table 1, with KuLSIF; the paper prints no "
        "AUROC.",
    ]


def panels(results: Results) -> list[Bars]:
    """AUROC left, accuracy right; deviations are over clients, as in the paper's figure."""
    runs = _runs(results)
    runs["deviation"] = [np.std(result.per_client) for result in runs.result]
    auroc, accuracy = (AUROC_CLASS, OVER_CLIENTS, ""), (ACCURACY, "deviation", "known")
    return [
        bars("Own classes against others", "AUROC", runs, _NAMES, auroc),
        bars("After distillation", "test accuracy", runs, _NAMES, accuracy),
    ]


STUDY = ImageStudy(
    home="papers",
    name="client_selectors",
    about="Client selectors side by side: AUROC and accuracy, as in Fig. 5.",
    cells=Grid(PAPER_SETS, ("strong",), ("selective-fd",), vary).cells,
    shown=with_seeds(tables),
    panels=panels,
)

if __name__ == "__main__":
    raise SystemExit(study.main("experiments.paper.client_selectors"))
