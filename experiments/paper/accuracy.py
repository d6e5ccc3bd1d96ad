"""Tables 1 and 2, the IID table of the arXiv version, and Fig. 4: test accuracy by method.

python experiments/paper/accuracy.py --image-sets mnist --splits strong
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from experiments.core import published
from experiments.core.grid import HOSPITALS, PAPER_SETS, Grid, paper_study
from experiments.core.published import GAINS_FIG_4, known_percent, method_title, selector_title
from experiments.core.rows import Cell, unlabelled
from experiments.core.study import Result, Results, grouped, main, moments, percent, seeds_of
from experiments.report import plots
from experiments.report.plots import Bar
from experiments.report.tables import Table, new_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

METHODS = ("independent", "fedmd", "feded", "ds-fl", "fkd", "pls", "fedavg", "selective-fd")
LABELS = ("hard", "soft")
SELECTORS = ("kulsif", "ratio")
"""The paper's client selector, and ours."""
Rows = Mapping[tuple[str, str], Mapping[str, Sequence[Result]]]
"""By method and client selector, then labels: the seeds' results."""


def vary(cell: Cell) -> Iterator[Cell]:
    """Every method, with hard and soft labels where it shares labels."""
    for method in METHODS:
        for labels in ("",) if unlabelled(method) else LABELS:
            for selector in SELECTORS if method == "selective-fd" else ("",):
                yield replace(cell, method=method, labels=labels, selector=selector)


def panels(results: Results) -> dict[Cell, Rows]:
    """Every image set and split, by its first cell, in the order of the results."""
    return {
        found[0].cell: {
            row: grouped(of_row, lambda cell: cell.labels)
            for row, of_row in grouped(found, lambda cell: (cell.method, cell.selector)).items()
        }
        for found in grouped(results.cells, lambda cell: cell.place).values()
    }


def tables(results: Results) -> list[Table | str]:
    """One table an image set and split, in the paper's form, with its numbers beside ours."""
    return [part for at, rows in panels(results).items() for part in _shown(at, rows)]


def _shown(at: Cell, rows: Rows) -> Iterator[Table | str]:
    title = f"{at.place}: test accuracy, %, last round; published: "
    columns = ("method", "hard", "published", "soft", "published", "seeds")
    table = new_table(title + published.CITATIONS.get(at.split, "nothing"), columns)
    for (method, selector), by_labels in rows.items():
        parts = []
        for labels in LABELS:
            known = published.accuracy(at.image_set, at.split, method, named(method, labels))
            parts += [percent(by_labels.get(named(method, labels), [])), known_percent(known)]
        of_rows = dict.fromkeys(seeds_of(of) for of in by_labels.values())
        table.add_row(method_title(method, selector), *parts, " and ".join(of_rows))
    yield table
    if at.split == HOSPITALS:
        yield from (_gain(rows, labels) for labels in LABELS)


def named(method: str, labels: str) -> str:
    """The labels of a cell in a column; a method without labels is the same in both."""
    return "" if unlabelled(method) else labels


def _gain(rows: Rows, labels: str) -> str:
    """Points over the best baseline, as the text on Fig. 4 has it."""
    level = {
        row: 100 * moments(by_labels[named(row[0], labels)])[0]
        for row, by_labels in rows.items()
        if row[0] != "fedavg" and named(row[0], labels) in by_labels
    }
    best = max((a for (method, _), a in level.items() if method != "selective-fd"), default=None)
    ours = {s: a for (method, s), a in level.items() if method == "selective-fd"}
    parts = [f"{a - best:+.2f} ({selector_title(s)})" for s, a in ours.items() if best is not None]
    shown = ", ".join([*parts, f"{GAINS_FIG_4[labels]:+.2f} (published)"])
    return f"Selective-FD over the best other method but FedAvg, {labels} labels, points: {shown}"


def figure(results: Results) -> "Figure":
    """Bars of every method, as in Fig. 4; hollow marks are the published means."""
    return plots.drawn(
        [
            plots.Bars(
                at.place,
                "test accuracy",
                tuple(f"{labels} labels" for labels in LABELS),
                {
                    method_title(*row): [_bar(at, row[0], labels, of) for labels in LABELS]
                    for row, of in rows.items()
                },
            )
            for at, rows in panels(results).items()
        ],
        columns=2,
    )


def _bar(at: Cell, method: str, labels: str, of: Mapping[str, Sequence[Result]]) -> Bar | None:
    found = of.get(named(method, labels))
    known = published.accuracy(at.image_set, at.split, method, named(method, labels))
    mark = None if known is None else known[0] / 100
    return None if found is None else Bar(*moments(found), mark)


STUDY = paper_study(
    name="accuracy",
    about="Test accuracy of every method: Tables 1 and 2, the IID table, and Fig. 4.",
    grid=Grid(
        image_sets=(*PAPER_SETS, "chest_xray"),
        splits=("strong", "weak", "iid", HOSPITALS),
        methods=METHODS,
        vary=vary,
        repeated=("strong",),
    ),
    tables=tables,
    figure=figure,
)

if __name__ == "__main__":
    raise SystemExit(main("experiments.paper.accuracy"))
