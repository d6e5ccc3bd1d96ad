"""Fig. 10: error against alpha, the weight of the local loss, with the terms of Theorem 2.

python experiments/paper/alpha.py --quick
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from experiments.core import study
from experiments.core.grid import Grid, ImageStudy, later
from experiments.core.measures import TAUGHT
from experiments.core.rows import PROXY_LABELS, Cell
from experiments.core.study import Result, Results
from experiments.core.summary import Column, figures, lines_of, summary
from experiments.report.plots import Lines, drawn
from experiments.report.tables import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ALPHAS = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0)
_MOST_ROUNDS = 40
_SELECTOR = "ratio"
TERMS = {
    "empirical": "empirical risk",
    "numerical": "numerical constraint",
    "local_distance": "local distance",
    "proxy_distance": "proxy distance",
    "misleading": "misleading knowledge",
    "ambiguous": "ambiguous knowledge",
}
"""Theorem 2's terms as they are added up, by a short name: means over clients."""
TEST_LOSS = "l1 test loss"
BOUND = "sum"
"""Of all terms: as its distances are estimated from below, so is the bound."""
_NOTE = (
    "The l1 test loss is twice the error rate. Distances are estimates from below (a network "
    "of the client's architecture tells held-out halves apart), and both lambdas are taken as "
    "0, as in the paper; so the sum is an estimate of the bound from below. The other terms "
    "are exact. Fig. 10 (Shao, Wu and Zhang, 2024, supplement) prints no numbers."
)
_TITLES = {"true-labels": "true proxy labels", "selected-labels": "labels by selection"}


def vary(cell: Cell) -> Iterator[Cell]:
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
    names = (*TERMS.values(), BOUND, TEST_LOSS, TAUGHT)
    columns: list[Column] = [("error, %", partial(study.percent, value=error)), *figures(names)]
    made: list[Table | str] = []
    for (where, method), found in study.grouped(
        results.cells, lambda cell: (cell.place, cell.method)
    ).items():
        title = f"{where}, {_TITLES[method]}: error, and Theorem 2 in l1 distances (delta .05)"
        ordered = sorted(found, key=lambda result: float(result.cell.alpha))
        made.append(summary(title, ("alpha",), ordered, lambda c: (f"{c.alpha:g}",), columns))
    return [*made, _NOTE]


def figure(results: Results) -> "Figure":
    """Error against alpha, as in the paper; beside it the terms under labels by selection."""
    panels = []
    for where, found in study.grouped(results.cells, lambda cell: cell.place).items():
        errors = lines_of(found, lambda cell: _TITLES[cell.method], _alpha, error)
        panels.append(Lines(where, "alpha", "test error", errors))
        selected = [result for result in found if result.cell.method == "selected-labels"]
        terms = {
            name: study.over(study.grouped(selected, _alpha), partial(_figure, name=name))
            for name in (*TERMS.values(), TEST_LOSS)
            if selected
        }
        title = f"{where}: terms of Theorem 2"
        panels.append(Lines(title, "alpha", "l1 distance", terms, share=False))
    return drawn(panels, columns=2)


def _alpha(cell: Cell) -> float:
    return cell.alpha or 0.0


def _figure(result: Result, name: str) -> float:
    return result.figures[name]


STUDY = ImageStudy(
    home="papers",
    name="alpha",
    about="Error against the weight of the local loss, as in Fig. 10, with Theorem 2's terms.",
    cells=Grid(("mnist",), ("weak",), PROXY_LABELS, vary, rounds=20).cells,
    measure=later("experiments.paper.fixed_labels:measure"),
    shown=study.with_seeds(tables),
    figure=figure,
)

if __name__ == "__main__":
    raise SystemExit(study.main("experiments.paper.alpha"))
