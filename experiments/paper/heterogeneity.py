"""Fig. 9: accuracy against the concentration of a Dirichlet split.

python experiments/paper/heterogeneity.py --quick
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from experiments.core.grid import Grid, ImageStudy
from experiments.core.published import method_title
from experiments.core.rows import Cell
from experiments.core.study import Result, Results, grouped, main, over, percent, with_seeds
from experiments.report.plots import Lines, drawn
from experiments.report.tables import Table, new_table
from secure_fd.data.image_sets import IMAGE_SETS
from secure_fd.data.partition import parse_split

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BETAS = (1e-3, 1e-2, 1e-1, 1.0, 10.0)
_SPLITS = tuple(f"dirichlet:{beta:g}" for beta in BETAS)
_LABELS = ("hard", "soft")
_COLUMNS = (
    *(("independent", ""), ("fedmd", "hard"), ("fedmd", "soft")),
    *(("selective-fd", "hard"), ("selective-fd", "soft")),
)


def vary(cell: Cell) -> Iterator[Cell]:
    """The three methods of the figure."""
    for method, labels in _COLUMNS:
        selector = "ratio" if method == "selective-fd" else ""
        yield replace(cell, method=method, labels=labels, selector=selector)


def _lines(
    found: Sequence[Result],
) -> Mapping[tuple[str, str], Mapping[float, Sequence[Result]]]:
    """By method and labels, then beta: the seeds' results."""
    return {
        key: grouped(of, lambda cell: parse_split(cell.split).beta)
        for key, of in grouped(found, lambda cell: (cell.method, cell.labels)).items()
    }


def tables(results: Results) -> list[Table | str]:
    """One table an image set: a row a beta."""
    made: list[Table | str] = []
    for image_set, found in grouped(results.cells, lambda cell: cell.image_set).items():
        by_line = _lines(found)
        shown = [key for key in _COLUMNS if key in by_line]
        names = [f"{method_title(method)} {labels}".strip() for method, labels in shown]
        title = f"{IMAGE_SETS[image_set].title}, Dirichlet splits: test accuracy, %, last round"
        table = new_table(title, ("beta", *names))
        for beta in sorted({beta for line in by_line.values() for beta in line}):
            table.add_row(f"{beta:g}", *(percent(by_line[key].get(beta, [])) for key in shown))
        made.append(table)
    return [*made, "Fig. 9 (Shao, Wu and Zhang, 2024, supplement) prints no numbers."]


def figure(results: Results) -> "Figure":
    """Hard labels left, soft labels right; independent learning is in both."""
    panels = []
    for image_set, found in grouped(results.cells, lambda cell: cell.image_set).items():
        by_line = _lines(found)
        for kind in _LABELS:
            shown = {
                method_title(method): over(line)
                for (method, labels), line in by_line.items()
                if labels in ("", kind)
            }
            title = f"{IMAGE_SETS[image_set].title}, {kind} labels"
            scales = ("log", "linear")
            panels.append(Lines(title, "beta", "test accuracy", shown, scales=scales))
    return drawn(panels, columns=2)


STUDY = ImageStudy(
    home="papers",
    name="heterogeneity",
    about="Accuracy against the concentration of a Dirichlet split, as in Fig. 9.",
    cells=Grid(
        ("mnist",), _SPLITS, ("independent", "fedmd", "selective-fd"), vary, rounds=20
    ).cells,
    shown=with_seeds(tables),
    figure=figure,
)

if __name__ == "__main__":
    raise SystemExit(main("experiments.paper.heterogeneity"))
