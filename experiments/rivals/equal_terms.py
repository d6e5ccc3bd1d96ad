"""Test accuracy of every method at equal terms: Tables 1 and 2, the IID table, and Fig. 4.

python experiments/rivals/equal_terms.py --image-sets mnist --splits strong

Every network takes 200 steps of 128 images through the same views, whoever teaches it; rate and
rounds of every row are those that `tuning.py` chose on validation records of seed 0. The paper's
own figures stand beside them: its networks take up to 20,000 rounds of 11 steps.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.core import published, study
from experiments.core.grid import HOSPITALS, image_study
from experiments.core.measures import DIVERGED, NETWORK
from experiments.core.provenance import ROOT
from experiments.core.published import GAINS_FIG_4, known_percent
from experiments.core.rows import Cell
from experiments.core.shared_options import StudyOptions
from experiments.report import plots
from experiments.report.plots import Bar
from experiments.report.tables import NONE, Table, human_bytes, new_table
from experiments.rivals import equal_rows, tuning
from secure_fd.errors import ConfigurationError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAJORITY = "accuracy of the most common class"
"""Of the test set: what naming it for every image gets."""
_SEEDS = (20, 21, 22)
_MORE_SEEDS = (20, 21, 22, 23, 24)
"""Of chest X-rays, with 200 test images."""
_LABELS = ("hard", "soft")


@dataclass(frozen=True, slots=True)
class Settings(StudyOptions):
    """Every cell is saved when it ends, and a rerun does only what is missing."""

    splits: str | None = None
    """Splits, with commas; by default all. Chest X-rays are always divided by hospital."""
    rows: str | None = None
    """Rows, with commas; by default all."""
    tuned: Path = ROOT / "docs" / "results" / "tuning.json"
    """File of `tuning.py`."""


def cells(settings: Settings) -> tuple[Cell, ...]:
    """The cells that a command line asks for.

    Raises ConfigurationError for an unknown name, or a row that was not tuned where it is to run.
    """
    keys = study.listed("rows", settings.rows, tuple(equal_rows.ROWS)) or tuple(equal_rows.ROWS)
    if settings.quick:
        first = (
            equal_rows.cell_of(r, "digits", "strong", 0, _first(r), 20)
            for r in map(equal_rows.ROWS.get, keys)
            if r
        )
        return tuple(first)
    seeds = study.whole_numbers("seeds", settings.seeds) if settings.seeds else None
    sets = study.listed("image_sets", settings.image_sets, equal_rows.SETS) or equal_rows.SETS
    at = equal_rows.places(
        sets, study.listed("splits", settings.splits, equal_rows.SPLITS) or equal_rows.SPLITS
    )
    chosen = _choices(settings.tuned) if any(equal_rows.ROWS[key].settings for key in keys) else {}
    found = (
        equal_rows.cell_of(equal_rows.ROWS[key], *place, seed, _chosen(chosen, key, place))
        for place in at
        for seed in seeds or _seeds_at(*place)
        for key in keys
    )
    return tuple(dict.fromkeys(found))


def _first(row: equal_rows.Row) -> equal_rows.Setting | None:
    return row.settings[0] if row.settings else None


def _seeds_at(image_set: str, split: str) -> tuple[int, ...]:
    if image_set == "chest_xray":
        return _MORE_SEEDS
    return _SEEDS if split == "strong" else _SEEDS[:1]


def _choices(path: Path) -> tuning.Choices:
    if not path.exists():
        raise ConfigurationError("tuned", path.name, "run experiments/rivals/tuning.py first")
    return tuning.choices(study.read_results(tuning.STUDY, path))


def _chosen(chosen: tuning.Choices, key: str, place: tuple[str, str]) -> equal_rows.Setting | None:
    if not equal_rows.ROWS[key].settings:
        return None
    if (*place, key) not in chosen:
        wanted = ", ".join((key, *place))
        raise ConfigurationError("tuned", wanted, "run experiments/rivals/tuning.py for it first")
    return chosen[(*place, key)]


def measure(data_dir: Path | None, cell: Cell, made: Mapping[Any, Any]) -> study.Result:
    """A run, and what naming one class would get."""
    import torch

    from experiments.core import runs

    found = runs.run_cell(data_dir, cell, made)
    labels = runs.group_data(data_dir, cell.group).test.labels
    majority = float(torch.bincount(labels).max() / len(labels))
    return replace(found, figures={**found.figures, MAJORITY: majority})


# Tables.

Found = Mapping[str, Sequence[study.Result]]
"""By key of the row: the seeds' results in one place."""


def panels(results: study.Results) -> Mapping[tuple[str, str], Found]:
    """By place."""
    places_of = study.grouped(results.cells, lambda cell: (cell.image_set, cell.split))
    return {
        at: study.grouped(of, lambda cell: equal_rows.row_of(cell).key)
        for at, of in places_of.items()
    }


def tables(results: study.Results) -> list[Table | str]:
    """One table a place, with the paper's figures beside ours."""
    return [part for place, rows in panels(results).items() for part in _shown(*place, rows)]


def _shown(image_set: str, split: str, rows: Found) -> Iterator[Table | str]:
    every = [found for of in rows.values() for found in of]
    title = f"{every[0].cell.place}: test accuracy, %, last round, "
    title += f"{equal_rows.STEPS} steps a network; published: "
    columns = ("method", "hard", "published", "soft", "published", "bytes up", "CPU s", "seeds")
    table = new_table(title + published.CITATIONS.get(split, "nothing"), columns)
    majority = {found.figures[MAJORITY] for found in every}
    shown = " to ".join(f"{100 * share:.1f}" for share in sorted({min(majority), max(majority)}))
    table.add_row("The most common class", shown, NONE, shown, NONE, NONE, NONE, NONE)
    for name, kinds in _lines(rows).items():
        parts = []
        for labels in _LABELS:
            of = kinds.get(labels, kinds.get("", []))
            parts += [_percent(of), _published(image_set, split, of)]
        of = [found for kind in kinds.values() for found in kind]
        sent = max(found.curve[-1].up for found in of)
        seconds = sum(found.seconds for found in of) / len(of)
        table.add_row(name, *parts, human_bytes(sent), f"{seconds:.0f}", study.seeds_of(of))
    yield table
    yield from _said_of_divergence(rows)
    if split == HOSPITALS:
        yield from (_gain(rows, labels) for labels in _LABELS)


def _lines(rows: Found) -> Mapping[str, Mapping[str, Sequence[study.Result]]]:
    """By title of the row, by kind of labels."""
    made: dict[str, dict[str, Sequence[study.Result]]] = {}
    for key, row in equal_rows.ROWS.items():
        if key in rows:
            made.setdefault(row.title, {})[row.labels] = rows[key]
    return made


def of_network(result: study.Result) -> float:
    """Accuracy of the network where a head taught one, of what clients leave with elsewhere."""
    return result.figures.get(NETWORK, result.accuracy)


def _percent(found: Sequence[study.Result]) -> str:
    return study.percent(found, of_network) if found else NONE


def _published(image_set: str, split: str, found: Sequence[study.Result]) -> str:
    return known_percent(_known(image_set, split, found))


def _known(image_set: str, split: str, found: Sequence[study.Result]) -> published.Published | None:
    """What the paper prints of this row: nothing of controls."""
    if not found or found[0].cell.variant:
        return None
    cell = found[0].cell
    method = cell.method.removesuffix("-published")
    return published.accuracy(image_set, split, method, cell.labels)


def _said_of_divergence(rows: Found) -> Iterator[str]:
    for found in (result for of in rows.values() for result in of):
        rounds = found.figures.get(DIVERGED, 0.0)
        if rounds:
            row, seed = equal_rows.row_of(found.cell), found.cell.seed
            name = f"{row.title} {row.labels}".strip()
            yield f"{name}, seed {seed}: training diverged in {rounds:g} rounds of a client, mean."


def _gain(rows: Found, labels: str) -> str:
    """Points over the best baseline of the paper, as the text on Fig. 4 has it."""
    level = {
        row.method: 100 * study.moments(rows[key], of_network)[0]
        for key, row in equal_rows.ROWS.items()
        if key in rows and row.labels in ("", labels) and _in_fig_4(row)
    }
    ours = level.pop("selective-fd", None)
    points = NONE if ours is None or not level else f"{ours - max(level.values()):+.2f}"
    there = f"{GAINS_FIG_4[labels]:+.2f} (published)"
    about = f"Selective-FD over the best baseline of the paper, {labels} labels, points"
    return f"{about}: {points}, {there}"


def _in_fig_4(row: equal_rows.Row) -> bool:
    named = ("independent", "fedmd", "ds-fl", "feded", "fkd", "pls", "selective-fd")
    return row.method in named and not row.variant


def figure(results: study.Results) -> "Figure | None":
    """Bars of every method, as in Fig. 4; hollow marks are the published means."""
    made = [
        plots.Bars(
            f"{equal_rows.known(image_set)}, {split}",
            "test accuracy",
            tuple(f"{labels} labels" for labels in _LABELS),
            {
                name: [
                    _bar(image_set, split, kinds.get(kind, kinds.get("", []))) for kind in _LABELS
                ]
                for name, kinds in _lines(rows).items()
            },
        )
        for (image_set, split), rows in panels(results).items()
    ]
    return plots.drawn(made, columns=2) if made else None


def _bar(image_set: str, split: str, found: Sequence[study.Result]) -> Bar | None:
    if not found:
        return None
    mark = _known(image_set, split, found)
    return Bar(*study.moments(found, of_network), None if mark is None else mark[0] / 100)


STUDY = image_study(
    name="equal_terms",
    folder="rivals",
    about="Test accuracy of every method, each tuned, at equal steps.",
    settings=Settings,
    cells=cells,
    measure=measure,
    tables=tables,
    figure=figure,
)

if __name__ == "__main__":
    raise SystemExit(study.main("experiments.rivals.equal_terms"))
