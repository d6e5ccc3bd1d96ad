"""Tables 1 and 2, the IID table of the arXiv version, and Fig. 4: test accuracy by method.

python experiments/paper/accuracy.py --image-sets mnist --splits strong

With --rows selective-fd-published, Selective-FD runs as its authors run it, for 500 rounds: method
and steps are those of the paper's code (`SelectiveFDAsPublished`), and nothing was tuned.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from experiments.core import published, study
from experiments.core.grid import HOSPITALS, PAPER_SETS, PUBLISHED, Grid, ImageStudy
from experiments.core.published import GAINS_FIG_4, known_percent, method_title, selector_title
from experiments.core.run_config import RunConfig, unlabelled
from experiments.core.study import Result, Results, Value
from experiments.report import plots
from experiments.report.plots import Bar
from experiments.report.tables import NONE, Table, new_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_BASELINES = ("independent", "fedmd", "feded", "ds-fl", "fkd", "pls")
"""Methods that the paper compares Selective-FD with."""
METHODS = (*_BASELINES, "fedavg", "selective-fd", PUBLISHED)
LABELS = ("hard", "soft")
SELECTORS = ("kulsif", "ratio")
"""The paper's client selector, and ours."""
Lines = Mapping[str, Mapping[str, Sequence[Result]]]
"""Results of all seeds, by title of the row and by labels ("" where none are shared)."""


def vary(cell: RunConfig) -> Iterator[RunConfig]:
    """Every method, with hard and soft labels where it shares labels."""
    for method in METHODS:
        for labels in ("",) if unlabelled(method) else LABELS:
            for selector in SELECTORS if method == "selective-fd" else ("",):
                yield replace(cell, method=method, labels=labels, selector=selector)


# Our figures beside the paper's, also in `rivals.equal_terms`.


def accuracy_of(result: Result) -> float:
    """Test accuracy after the last round."""
    return result.accuracy


def of_labels(by_labels: Mapping[str, Sequence[Result]], labels: str) -> Sequence[Result]:
    """Results of a row in a column; a method without labels is the same in both columns."""
    return by_labels.get(labels, by_labels.get("", ()))


def beside_paper(
    by_labels: Mapping[str, Sequence[Result]], value: Value = accuracy_of
) -> list[str]:
    """Ours and the paper's percent, for hard and for soft labels."""
    columns = [of_labels(by_labels, labels) for labels in LABELS]
    return [
        text for of in columns for text in (study.percent(of, value), known_percent(_known(of)))
    ]


def _known(found: Sequence[Result]) -> published.Published | None:
    return published.of_cell(found[0].cell) if found else None


def gains(lines: Lines, value: Value = accuracy_of) -> Iterator[str]:
    """Points over the best baseline of the paper, as the text on Fig. 4 has them."""
    for labels in LABELS:
        columns = [of for by_labels in lines.values() if (of := of_labels(by_labels, labels))]
        plain = [of for of in columns if not of[0].cell.variant]
        levels = [study.moments(of, value)[0] for of in plain if of[0].cell.method in _BASELINES]
        ours = [of for of in plain if of[0].cell.method == "selective-fd"]
        points = [
            f"{100 * (study.moments(of, value)[0] - max(levels)):+.2f} "
            f"({selector_title(of[0].cell.selector)})"
            for of in ours
            if levels
        ]
        shown = ", ".join([*(points or [NONE]), f"{GAINS_FIG_4[labels]:+.2f} (published)"])
        yield f"Selective-FD over the best baseline of the paper, {labels} labels, points: {shown}"


def panels(found: Iterable[Result], title: Callable[[RunConfig], str]) -> dict[RunConfig, Lines]:
    """Every image set and split, by its first cell, in the order of the results."""
    return {
        of_place[0].cell: {
            row: study.grouped(of_row, lambda cell: cell.labels)
            for row, of_row in study.grouped(of_place, title).items()
        }
        for of_place in study.grouped(found, lambda cell: cell.place).values()
    }


def bars(made: Mapping[RunConfig, Lines], value: Value = accuracy_of) -> "Figure":
    """Bars of every row, as in Fig. 4, a panel a place; hollow marks are the published means."""
    return plots.drawn([_panel(at.place, lines, value) for at, lines in made.items()], columns=2)


def _panel(title: str, lines: Lines, value: Value) -> plots.Bars:
    groups = {
        name: [_bar(of_labels(by_labels, labels), value) for labels in LABELS]
        for name, by_labels in lines.items()
    }
    series = tuple(f"{labels} labels" for labels in LABELS)
    return plots.Bars(title, "test accuracy", series, groups)


def _bar(found: Sequence[Result], value: Value) -> Bar | None:
    known = _known(found)
    return Bar(*study.moments(found, value), known[0] / 100 if known else None) if found else None


# The study.


def _title(cell: RunConfig) -> str:
    rounds = f", {cell.rounds} rounds" if cell.method == PUBLISHED else ""
    return method_title(cell.method, cell.selector) + rounds


def tables(results: Results) -> list[Table | str]:
    """One table an image set and split, in the paper's form, with its numbers beside ours."""
    made = panels(results.cells, _title)
    return [part for at, lines in made.items() for part in _shown(at, lines)]


def _shown(at: RunConfig, lines: Lines) -> Iterator[Table | str]:
    title = f"{at.place}: test accuracy, %, last round; published: "
    columns = ("method", "hard", "published", "soft", "published", "seeds")
    table = new_table(title + published.CITATIONS.get(at.split, "nothing"), columns)
    for name, by_labels in lines.items():
        seeds = dict.fromkeys(study.seeds_of(of) for of in by_labels.values())
        table.add_row(name, *beside_paper(by_labels), " and ".join(seeds))
    yield table
    if at.split == HOSPITALS:
        yield from gains(lines)


def figure(results: Results) -> "Figure":
    """Bars of every method, a panel an image set and split."""
    return bars(panels(results.cells, _title))


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
    shown=study.with_seeds(tables),
    figure=figure,
)

if __name__ == "__main__":
    raise SystemExit(study.main("experiments.paper.accuracy"))
