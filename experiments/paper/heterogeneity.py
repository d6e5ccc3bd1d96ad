"""Fig. 9: accuracy against the concentration of a Dirichlet split.

python experiments/paper/heterogeneity.py --quick
"""

from collections.abc import Iterator
from dataclasses import replace

from experiments.core import study
from experiments.core.frames import Frame, frame, lines, percent, table, with_seeds
from experiments.core.grid import Grid, ImageStudy
from experiments.core.measures import ACCURACY
from experiments.core.published import method_title
from experiments.core.run_config import RunConfig
from experiments.core.study import Results
from experiments.report.plots import Lines
from experiments.report.tables import Table
from secure_fd.data.partition import parse_split

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


def _runs(results: Results) -> Frame:
    return frame(
        results,
        beta=lambda cell: parse_split(cell.split).beta,
        title=lambda cell: method_title(cell.method),
    )


def tables(results: Results) -> list[Table | str]:
    """One table an image set: a row a beta."""
    made: list[Table | str] = []
    for images, runs in _runs(results).groupby("images", sort=False):
        texts = runs.pivot_table(ACCURACY, "beta", ["method", "labels"], percent)
        texts = texts[[column for column in _COLUMNS if column in texts]]
        texts.columns = [f"{method_title(name)} {labels}".strip() for name, labels in texts]
        made.append(table(f"{images}, Dirichlet splits: test accuracy, %, last round", texts))
    return [*made, "Fig. 9 (Shao, Wu and Zhang, 2024, supplement) prints no numbers."]


def panels(results: Results) -> list[Lines]:
    """Hard labels left, soft labels right; independent learning is in both."""
    made = []
    for images, runs in _runs(results).groupby("images", sort=False):
        for kind in ("hard", "soft"):
            by_title = lines(runs[runs.labels.isin(["", kind])], "title", "beta")
            title, scales = f"{images}, {kind} labels", ("log", "linear")
            made.append(Lines(title, "beta", "test accuracy", by_title, scales=scales))
    return made


STUDY = ImageStudy(
    home="papers",
    name="heterogeneity",
    about="Accuracy against the concentration of a Dirichlet split, as in Fig. 9.",
    cells=Grid(("mnist",), _SPLITS, _METHODS, vary, rounds=20).cells,
    shown=with_seeds(tables),
    panels=panels,
)

if __name__ == "__main__":
    raise SystemExit(study.main("experiments.paper.heterogeneity"))
