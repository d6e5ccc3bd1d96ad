"""Selective-FD as its authors run it, for 500 rounds, with its curve: the paper's Table 1, strong.

python experiments/paper/as_published.py --image-sets mnist --labels soft

Method and steps are the paper's and its code's (`SelectiveFDAsPublished`, `recipes.paper`):
nothing was tuned. The paper prints the best of its evaluations on the test set, over up to 20,000
rounds; the tables here show the last round.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from experiments.core import published, study
from experiments.core.grid import image_study
from experiments.core.published import known_percent
from experiments.core.rows import Cell
from experiments.core.shared_options import StudyOptions
from experiments.report.plots import Line, Lines, drawn
from experiments.report.tables import Table, new_table
from secure_fd.data.image_sets import IMAGE_SETS
from secure_fd.training.recipes import paper

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SETS = ("mnist", "fashion_mnist")
LABELS = ("soft", "hard")
_SEEDS = (20,)
_ROUNDS, _EVERY = 500, 25


def cell_of(image_set: str, labels: str, seed: int, rounds: int) -> Cell:
    """One run: ten clients of one class each."""
    known = IMAGE_SETS[image_set]
    return Cell(
        image_set=image_set,
        split="strong",
        method="selective-fd-published",
        labels=labels,
        seed=seed,
        rounds=rounds,
        schedule=paper(known.n_classes, known.proxies, 1.0).schedule,
        every=_EVERY,
    )


@dataclass(frozen=True, slots=True)
class Settings(StudyOptions):
    """Every cell is saved when it ends, and a rerun does only what is missing."""

    labels: str | None = None
    """soft, hard, or both with a comma; by default both."""
    rounds: int = _ROUNDS
    """Rounds of every cell."""


def cells(settings: Settings) -> tuple[Cell, ...]:
    """The cells that a command line asks for. Raises ConfigurationError for an unknown name."""
    study.at_least(1, rounds=settings.rounds)
    labels = study.listed("labels", settings.labels, LABELS) or LABELS
    if settings.quick:
        quick = [cell_of("digits", kind, 0, 2) for kind in labels]
        return tuple(replace(cell, every=1) for cell in quick)
    sets = study.listed("image_sets", settings.image_sets, SETS) or SETS
    seeds = study.whole_numbers("seeds", settings.seeds) if settings.seeds else _SEEDS
    return tuple(
        cell_of(name, kind, seed, settings.rounds)
        for name in sets
        for kind in labels
        for seed in seeds
    )


def tables(results: study.Results) -> list[Table | str]:
    """Accuracy in the last round and in the best, beside what the paper prints."""
    rounds = max(found.cell.rounds for found in results.cells)
    table = new_table(
        f"Selective-FD as published, test accuracy, %, {rounds} rounds",
        ("place", "labels", "last round", "best of the curve", "published"),
    )
    for (place, labels), of in study.grouped(results.cells, lambda c: (c.place, c.labels)).items():
        known = published.accuracy(of[0].cell.image_set, "strong", "selective-fd", labels)
        table.add_row(
            place, labels, study.percent(of), study.percent(of, _best), known_percent(known)
        )
    return [table]


def _best(result: study.Result) -> float:
    return max(point.accuracy for point in result.curve)


def figure(results: study.Results) -> "Figure | None":
    """Accuracy by round, a panel an image set."""
    return drawn(
        [
            Lines(
                place,
                "round",
                "test accuracy",
                {
                    labels: _curve(of)
                    for labels, of in study.grouped(found, lambda c: c.labels).items()
                },
            )
            for place, found in study.grouped(results.cells, lambda cell: cell.place).items()
        ],
        columns=2,
    )


def _curve(found: Sequence[study.Result]) -> Line:
    """Of the first seed."""
    points = found[0].curve
    means = tuple(point.accuracy for point in points)
    return Line(tuple(float(point.round) for point in points), means, (0.0,) * len(means), False)


STUDY = image_study(
    name="as_published",
    about="Selective-FD as its authors run it.",
    settings=Settings,
    cells=cells,
    tables=tables,
    figure=figure,
)

if __name__ == "__main__":
    raise SystemExit(study.main("experiments.paper.as_published"))
