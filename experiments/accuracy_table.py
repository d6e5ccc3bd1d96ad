"""Tables 1 and 2, the IID table of the arXiv version, and Fig. 4: test accuracy by method.

python experiments/accuracy_table.py --image-sets mnist --splits strong
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from experiments import plots, published
from experiments.grid import HOSPITALS, PAPER_SETS, Grid, paper_study
from experiments.plots import Bar
from experiments.published import GAINS_FIG_4, known_percent, method_title, selector_title
from experiments.rows import Cell, unlabelled
from experiments.study import Result, Results, grouped, main, moments, percent, seeds_of
from experiments.tables import Table, new_table
from secure_fd.recipes import IMAGE_SETS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

METHODS = ("independent", "fedmd", "feded", "ds-fl", "fkd", "pls", "fedavg", "selective-fd")
LABELS = ("hard", "soft")
SELECTORS = ("kulsif", "ratio")
"""The paper's client selector, and ours."""
Row = tuple[str, str]
"""A method and its client selector."""


def vary(cell: Cell) -> Iterator[Cell]:
    """Every method, with hard and soft labels where it shares labels."""
    for method in METHODS:
        for labels in ("",) if unlabelled(method) else LABELS:
            for selector in SELECTORS if method == "selective-fd" else ("",):
                yield replace(cell, method=method, labels=labels, selector=selector)


@dataclass(frozen=True, slots=True)
class Panel:
    """One image set and split. rows: by method and selector, then labels, the seeds' results."""

    image_set: str
    split: str
    rows: Mapping[Row, Mapping[str, Sequence[Result]]]

    @property
    def title(self) -> str:
        """The place, as a reader names it."""
        return f"{IMAGE_SETS[self.image_set].title}, {self.split}"


def panels(results: Results) -> list[Panel]:
    """Every image set and split, in the order of the results."""
    return [
        Panel(
            *key,
            {
                row: grouped(of_row, lambda cell: cell.labels)
                for row, of_row in grouped(found, lambda cell: (cell.method, cell.selector)).items()
            },
        )
        for key, found in grouped(results.cells, lambda cell: (cell.image_set, cell.split)).items()
    ]


def tables(results: Results) -> list[Table | str]:
    """One table an image set and split, in the paper's form, with its numbers beside ours."""
    return [part for panel in panels(results) for part in _shown(panel)]


def _shown(panel: Panel) -> Iterator[Table | str]:
    title = f"{panel.title}: test accuracy, %, last round; published: "
    columns = ("method", "hard", "published", "soft", "published", "seeds")
    table = new_table(title + published.CITATIONS.get(panel.split, "nothing"), columns)
    for (method, selector), by_labels in panel.rows.items():
        parts = []
        for labels in LABELS:
            known = published.accuracy(panel.image_set, panel.split, method, named(method, labels))
            parts += [percent(by_labels.get(named(method, labels), [])), known_percent(known)]
        of_rows = dict.fromkeys(seeds_of(of) for of in by_labels.values())
        table.add_row(method_title(method, selector), *parts, " and ".join(of_rows))
    yield table
    if panel.split == HOSPITALS:
        yield from (_gain(panel, labels) for labels in LABELS)


def named(method: str, labels: str) -> str:
    """The labels of a cell in a column; a method without labels is the same in both."""
    return "" if unlabelled(method) else labels


def gains(panel: Panel, labels: str) -> dict[str, float]:
    """By selector, points of Selective-FD over the best baseline, as the text on Fig. 4 has it."""
    level = {
        row: 100 * moments(by_labels[named(row[0], labels)])[0]
        for row, by_labels in panel.rows.items()
        if row[0] != "fedavg" and named(row[0], labels) in by_labels
    }
    baselines = [a for (method, _), a in level.items() if method != "selective-fd"]
    ours = {s: a for (method, s), a in level.items() if method == "selective-fd"}
    return {s: a - max(baselines) for s, a in ours.items()} if baselines else {}


def _gain(panel: Panel, labels: str) -> str:
    parts = [f"{gain:+.2f} ({selector_title(s)})" for s, gain in gains(panel, labels).items()]
    ours = ", ".join([*parts, f"{GAINS_FIG_4[labels]:+.2f} (published)"])
    return f"Selective-FD over the best other method but FedAvg, {labels} labels, points: {ours}"


def figure(results: Results) -> "Figure":
    """Bars of every method, as in Fig. 4; hollow marks are the published means."""
    return plots.drawn(
        [
            plots.Bars(
                panel.title,
                "test accuracy",
                tuple(f"{labels} labels" for labels in LABELS),
                {method_title(*row): _bars(panel, row) for row in panel.rows},
            )
            for panel in panels(results)
        ],
        columns=2,
    )


def _bars(panel: Panel, row: Row) -> list[Bar | None]:
    made: list[Bar | None] = []
    for labels in LABELS:
        found = panel.rows[row].get(named(row[0], labels))
        known = published.accuracy(panel.image_set, panel.split, row[0], named(row[0], labels))
        mark = None if known is None else known[0] / 100
        made.append(None if found is None else Bar(*moments(found), mark))
    return made


STUDY = paper_study(
    name="accuracy",
    script="accuracy_table.py",
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
    sys.exit(main("experiments.accuracy_table"))
