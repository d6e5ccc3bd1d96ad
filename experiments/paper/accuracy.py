"""Tables 1 and 2, the IID table of the arXiv version, and Fig. 4: test accuracy by method.

python experiments/paper/accuracy.py --image-sets mnist --splits strong

With --rows selective-fd-published, Selective-FD runs as its authors run it, for 500 rounds: method
and steps are those of the paper's code (`SelectiveFDAsPublished`), and nothing was tuned.
"""

import math
from collections.abc import Iterator
from dataclasses import replace

from experiments.core import published, study
from experiments.core.frames import Frame, bars, percent, seeds_of, table, with_seeds
from experiments.core.grid import HOSPITALS, PAPER_SETS, PUBLISHED, Grid, ImageStudy
from experiments.core.measures import ACCURACY
from experiments.core.published import GAINS_FIG_4, method_title, selector_title
from experiments.core.run_config import RunConfig, unlabelled
from experiments.core.study import Results
from experiments.report.plots import Bars
from experiments.report.tables import NONE, Table

_BASELINES = ("independent", "fedmd", "feded", "ds-fl", "fkd", "pls")
"""Methods that the paper compares Selective-FD with."""
METHODS = (*_BASELINES, "fedavg", "selective-fd", PUBLISHED)
LABELS = ("hard", "soft")
SELECTORS = ("kulsif", "ratio")
"""The paper's client selector, and ours."""


def vary(cell: RunConfig) -> Iterator[RunConfig]:
    """Every method, with hard and soft labels where it shares labels."""
    for method in METHODS:
        for labels in ("",) if unlabelled(method) else LABELS:
            for selector in SELECTORS if method == "selective-fd" else ("",):
                yield replace(cell, method=method, labels=labels, selector=selector)


# Our figures beside the paper's, also in `rivals.equal_terms`.


def of_labels(runs: Frame, labels: str) -> Frame:
    """Results in a column of the table: a method without labels is the same in both."""
    return runs[runs.labels.isin(["", labels])]


def beside_paper(runs: Frame) -> Frame:
    """Ours and the paper's percent by title, for hard and for soft labels."""
    from pandas import concat

    parts = []
    for labels in LABELS:
        by_title = of_labels(runs, labels).groupby("title", sort=False)
        parts += [by_title[ACCURACY].agg(percent), by_title.published.first()]
    texts = concat(parts, axis=1).reindex(runs.title.unique()).rename_axis("method")
    return texts.set_axis(["hard", "published", "soft", "published"], axis=1)


def gains(runs: Frame) -> Iterator[str]:
    """Points over the best baseline of the paper, as the text on Fig. 4 has them."""
    for labels in LABELS:
        plain = of_labels(runs, labels).query("variant == ''")
        best = plain[plain.method.isin(_BASELINES)].groupby("title")[ACCURACY].mean().max()
        ours = plain[plain.method == "selective-fd"].groupby("selector", sort=False)[ACCURACY]
        points = [
            f"{100 * (found - best):+.2f} ({selector_title(selector)})"
            for selector, found in ours.mean().items()
            if not math.isnan(best)
        ]
        shown = ", ".join([*(points or [NONE]), f"{GAINS_FIG_4[labels]:+.2f} (published)"])
        yield f"Selective-FD over the best baseline of the paper, {labels} labels, points: {shown}"


def places(runs: Frame) -> list[Bars]:
    """Bars of every row, as in Fig. 4, a panel a place; hollow marks are the published means."""
    from pandas import concat

    both = concat(of_labels(runs, labels).assign(series=f"{labels} labels") for labels in LABELS)
    names, columns = ("title", "series"), (ACCURACY, "", "known")
    return [
        bars(place, "test accuracy", of, names, columns)
        for place, of in both.groupby("place", sort=False)
    ]


# The study.


def _title(cell: RunConfig) -> str:
    rounds = f", {cell.rounds} rounds" if cell.method == PUBLISHED else ""
    return method_title(cell.method, cell.selector) + rounds


def tables(results: Results) -> list[Table | str]:
    """One table an image set and split, in the paper's form, with its numbers beside ours."""
    runs = published.beside(results, published.of_cell, title=_title).groupby("place", sort=False)
    return [part for place, of in runs for part in _shown(place, of)]


def _shown(place: str, runs: Frame) -> Iterator[Table | str]:
    split = runs.split.iloc[0]
    texts, seeds = beside_paper(runs), runs.groupby(["title", "labels"]).seed.agg(seeds_of)
    texts["seeds"] = seeds.groupby("title").agg(lambda of: " and ".join(of.unique()))
    title = f"{place}: test accuracy, %, last round; published: "
    yield table(title + published.CITATIONS.get(split, "nothing"), texts)
    if split == HOSPITALS:
        yield from gains(runs)


def panels(results: Results) -> list[Bars]:
    """Bars of every method, a panel an image set and split."""
    return places(published.beside(results, published.of_cell, title=_title))


STUDY = ImageStudy(
    home="papers",
    name="accuracy",
    about="Test accuracy of every method: Tables 1 and 2, the IID table, and Fig. 4.",
    cells=Grid(
        image_sets=(*PAPER_SETS, "chest_xray"),
        splits=("strong", "weak", "iid", HOSPITALS),
        methods=METHODS,
        vary=vary,
        repeated=("strong",),
        on_request=(PUBLISHED,),
    ).cells,
    shown=with_seeds(tables),
    panels=panels,
)

if __name__ == "__main__":
    raise SystemExit(study.main("experiments.paper.accuracy"))
