"""Fig. 9: accuracy against the concentration of a Dirichlet split.

python experiments/paper/heterogeneity.py --quick
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from experiments.core import study
from experiments.core.grid import Grid, ImageStudy
from experiments.core.published import method_title
from experiments.core.run_config import RunConfig
from experiments.core.study import Results
from experiments.core.summary import columns_by, lines_of, summary
from experiments.report.plots import Lines, drawn
from experiments.report.tables import Table
from secure_fd.data.image_sets import IMAGE_SETS
from secure_fd.data.partition import parse_split

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BETAS = (1e-3, 1e-2, 1e-1, 1.0, 10.0)
_SPLITS = tuple(f"dirichlet:{beta:g}" for beta in BETAS)
_METHODS = ("independent", "fedmd", "selective-fd")
_COLUMNS = (
    *(("independent", ""), ("fedmd", "hard"), ("fedmd", "soft")),
    *(("selective-fd", "hard"), ("selective-fd", "soft")),
)


def vary(cell: RunConfig) -> Iterator[RunConfig]:
    """The three methods of the figure."""
    for method, labels in _COLUMNS:
        selector = "ratio" if method == "selective-fd" else ""
        yield replace(cell, method=method, labels=labels, selector=selector)


def _beta(cell: RunConfig) -> float:
    return parse_split(cell.split).beta


def _column(cell: RunConfig) -> tuple[float, str]:
    key = cell.method, cell.labels
    return _COLUMNS.index(key), f"{method_title(cell.method)} {cell.labels}".strip()


def tables(results: Results) -> list[Table | str]:
    """One table an image set: a row a beta."""
    made: list[Table | str] = []
    for image_set, found in study.grouped(results.cells, lambda cell: cell.image_set).items():
        ordered = sorted(found, key=lambda result: _beta(result.cell))
        title = f"{IMAGE_SETS[image_set].title}, Dirichlet splits: test accuracy, %, last round"
        columns = columns_by(found, _column, study.percent)
        made.append(summary(title, ("beta",), ordered, lambda c: (f"{_beta(c):g}",), columns))
    return [*made, "Fig. 9 (Shao, Wu and Zhang, 2024, supplement) prints no numbers."]


def figure(results: Results) -> "Figure":
    """Hard labels left, soft labels right; independent learning is in both."""
    panels = []
    for image_set, found in study.grouped(results.cells, lambda cell: cell.image_set).items():
        for kind in ("hard", "soft"):
            shown = [result for result in found if result.cell.labels in ("", kind)]
            lines = lines_of(shown, lambda cell: method_title(cell.method), _beta)
            title = f"{IMAGE_SETS[image_set].title}, {kind} labels"
            scales = ("log", "linear")
            panels.append(Lines(title, "beta", "test accuracy", lines, scales=scales))
    return drawn(panels, columns=2)


STUDY = ImageStudy(
    home="papers",
    name="heterogeneity",
    about="Accuracy against the concentration of a Dirichlet split, as in Fig. 9.",
    cells=Grid(("mnist",), _SPLITS, _METHODS, vary, rounds=20).cells,
    shown=study.with_seeds(tables),
    figure=figure,
)

if __name__ == "__main__":
    raise SystemExit(study.main("experiments.paper.heterogeneity"))
