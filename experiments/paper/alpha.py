"""Fig. 10: error against alpha, the weight of the local loss.

python experiments/paper/alpha.py --quick
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from experiments.core import study
from experiments.core.grid import Grid, ImageStudy, later
from experiments.core.measures import TAUGHT
from experiments.core.run_config import PROXY_LABELS, RunConfig
from experiments.core.study import Result, Results
from experiments.core.summary import Column, figures, lines_of, summary
from experiments.report.plots import Lines, drawn
from experiments.report.tables import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ALPHAS = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0)
_MOST_ROUNDS = 40
_SELECTOR = "ratio"
_NOTE = "Fig. 10 (Shao, Wu and Zhang, 2024, supplement) prints no numbers."
_TITLES = {"true-labels": "true proxy labels", "selected-labels": "labels by selection"}


def vary(cell: RunConfig) -> Iterator[RunConfig]:
    """Every alpha, with the proxies' true labels and with those of the selection mechanism."""
    rounds = min(cell.rounds, _MOST_ROUNDS)
    for method in PROXY_LABELS:
        selector = _SELECTOR if method == "selected-labels" else ""
        for alpha in ALPHAS:
            yield replace(cell, method=method, selector=selector, alpha=alpha, rounds=rounds)


def error(result: Result) -> float:
    """The share of test images that a client's network gets wrong, mean over clients."""
    return 1 - result.accuracy


def tables(results: Results) -> list[Table | str]:
    """One table an image set and labelling: a row an alpha."""
    columns: list[Column] = [("error, %", partial(study.percent, value=error))]
    columns += figures([TAUGHT])
    made: list[Table | str] = []
    for (where, method), found in study.grouped(
        results.cells, lambda cell: (cell.place, cell.method)
    ).items():
        title = f"{where}, {_TITLES[method]}"
        ordered = sorted(found, key=lambda result: float(result.cell.alpha))
        made.append(summary(title, ("alpha",), ordered, lambda c: (f"{c.alpha:g}",), columns))
    return [*made, _NOTE]


def figure(results: Results) -> "Figure":
    """Error against alpha, as in the paper."""
    panels = []
    for where, found in study.grouped(results.cells, lambda cell: cell.place).items():
        errors = lines_of(found, lambda cell: _TITLES[cell.method], lambda c: c.alpha or 0.0, error)
        panels.append(Lines(where, "alpha", "test error", errors))
    return drawn(panels)


STUDY = ImageStudy(
    home="papers",
    name="alpha",
    about="Error against the weight of the local loss, as in Fig. 10.",
    cells=Grid(("mnist",), ("weak",), PROXY_LABELS, vary, rounds=20).cells,
    measure=later("experiments.paper.fixed_labels:measure"),
    shown=study.with_seeds(tables),
    figure=figure,
)

if __name__ == "__main__":
    raise SystemExit(study.main("experiments.paper.alpha"))
