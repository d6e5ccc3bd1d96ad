"""Fig. 9: accuracy against the concentration of a Dirichlet split; Table 3: by architecture.

python experiments/paper/heterogeneity.py --quick
"""

from collections.abc import Iterator
from dataclasses import replace

from experiments.core import study
from experiments.core.frames import Frame, frame, lines, percents, table, with_seeds
from experiments.core.grid import Grid, ImageStudy
from experiments.core.measures import ACCURACY
from experiments.core.published import method_title
from experiments.core.run_config import RunConfig, unlabelled
from experiments.core.study import Results
from experiments.paper.statements import Statement, beside, few_rounds
from experiments.report.plots import Lines
from experiments.report.tables import Table
from secure_fd.data.image_sets import image_set
from secure_fd.data.partition import parse_split

BETAS = (1e-3, 1e-1, 10.0)
_SPLITS = tuple(f"dirichlet:{beta:g}" for beta in BETAS)
_METHODS = ("independent", "fedmd", "selective-fd")
LABELS = ("hard", "soft")
_ALIKE = 5.0
"""Points that count as no loss: between betas, and below the highest accuracy of all."""
_RECIPES = (
    "Selective-FD takes this package's recipe, with momentum, views and private records in each "
    "step; the others take the paper's steps. The table of equal terms has one recipe for all."
)


def vary(cell: RunConfig) -> Iterator[RunConfig]:
    """The three methods of the figure, tested after the last round alone."""
    for method in _METHODS:
        selector = "ratio" if method == "selective-fd" else ""
        for labels in ("",) if unlabelled(method) else LABELS:
            yield replace(cell, method=method, labels=labels, selector=selector, every=cell.rounds)


def runs_of(results: Results) -> Frame:
    """Results with beta, and the row of a table that each is in."""
    return frame(
        results,
        beta=lambda cell: parse_split(cell.split).beta,
        method=lambda cell: method_title(cell.method),
        row=lambda cell: cell.title,
    )


def tables(results: Results) -> list[Table | str]:
    """For each image set: a row a method, then a row an architecture, then statements."""
    made: list[Table | str] = []
    for images, runs in runs_of(results).groupby("images", sort=False):
        texts = percents(runs, ["row"], "beta").rename(columns="beta {:g}".format)
        last = f"test accuracy, %, after {runs.rounds.max()} rounds"
        made += [table(f"{images}, Dirichlet splits: {last}", texts), _RECIPES]
        if all(result.per_client for result in runs.result):
            made.append(by_architecture(runs[runs.beta == runs.beta.min()]))
        if runs.beta.nunique() > 1:
            made += beside("Fig. 9, which prints no numbers", _stated(runs))
    return made


def by_architecture(runs: Frame) -> Table:
    """Mean accuracy over the clients of each architecture, by method.

    runs: of one place, with a column `row`.
    """
    names = image_set(runs.image_set.iloc[0]).architectures
    each = runs.assign(share=[result.per_client for result in runs.result]).explode("share")
    each["architecture"] = [names[k % len(names)] for k in each.groupby(level=0).cumcount()]
    by_seed = each.groupby(["architecture", "row", "seed"], sort=False).share.mean().reset_index()
    texts = percents(by_seed, ["architecture"], "row", "share")[runs.row.unique()]
    source = "for MNIST those of Table 3 (Shao, Wu and Zhang, 2024)"
    title = f"{runs.place.iloc[0]}: test accuracy by architecture, %; {source}"
    return table(title, texts)


def _stated(runs: Frame) -> Iterator[Statement]:
    means = 100 * runs.pivot_table(ACCURACY, "row", "beta", sort=False).sort_index(axis=1)
    low, high = means.columns[0], means.columns[-1]
    for row, found in means.iterrows():
        here = f"{found[low]:.1f} % at beta {low:g}, {found[high]:.1f} % at {high:g}"
        falls = found[high] - found[low] > _ALIKE
        if not str(row).startswith("Selective-FD"):
            yield Statement(f"{row} degrades as beta falls", here, falls)
            continue
        most = means.max(axis=None)
        here += f", least {found.min():.1f} %, where the highest of all is {most:.1f} %"
        close = most - found.min() <= _ALIKE
        yield Statement(f"{row} is satisfactory at every beta", here, close, few_rounds(runs))


def panels(results: Results) -> list[Lines]:
    """Hard labels left, soft labels right; independent learning is in both."""
    made = []
    for images, runs in runs_of(results).groupby("images", sort=False):
        for kind in LABELS:
            by_title = lines(runs[runs.labels.isin(["", kind])], "method", "beta")
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
    reads=("per_client",),
)

if __name__ == "__main__":
    raise SystemExit(study.main("experiments.paper.heterogeneity"))
