"""Rate and rounds of every row of the table at equal terms, chosen on pooled validation records.

python experiments/rivals/tuning.py --image-sets mnist --splits strong

Seed 0, half of the table's steps, four settings a row. What is chosen is the setting with the best
mean accuracy over clients on the records that all of them hold back; no test image has a say.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from experiments.core.grid import image_study
from experiments.core.measures import NETWORK_VALIDATION, VALIDATION
from experiments.core.rows import Cell
from experiments.core.shared_options import SharedOptions
from experiments.core.study import Results, grouped, listed, main
from experiments.report.tables import Table, new_table
from experiments.rivals import equal_rows

SEED = 0
Choices = Mapping[tuple[str, str, str], equal_rows.Setting]
"""By place, and key of the row: what was chosen."""


@dataclass(frozen=True, slots=True)
class Settings(SharedOptions):
    """Every cell is saved when it ends, and a rerun does only what is missing."""

    image_sets: str | None = None
    """Image sets, with commas; by default all of the table."""
    splits: str | None = None
    """Splits, with commas; by default all. Chest X-rays are always divided by hospital."""
    rows: str | None = None
    """Rows, with commas; by default all that have something to choose."""
    quick: bool = False
    """A look at the bundled digits: 50 steps a network."""


def cells(settings: Settings) -> tuple[Cell, ...]:
    """The cells that a command line asks for. Raises ConfigurationError for an unknown name."""
    tuned = tuple(key for key, row in equal_rows.ROWS.items() if row.settings)
    chosen = [equal_rows.ROWS[key] for key in listed("rows", settings.rows, tuned) or tuned]
    if settings.quick:
        at, steps = [("digits", "strong")], 50
    else:
        sets = listed("image_sets", settings.image_sets, equal_rows.SETS) or equal_rows.SETS
        at, steps = (
            equal_rows.places(
                sets, listed("splits", settings.splits, equal_rows.SPLITS) or equal_rows.SPLITS
            ),
            equal_rows.STEPS // 2,
        )
    found = (
        equal_rows.cell_of(row, image_set, split, SEED, setting, steps)
        for image_set, split in at
        for row in chosen
        for setting in row.settings
    )
    return tuple(dict.fromkeys(found))


def score(figures: Mapping[str, float]) -> float:
    """What a setting is judged by: of a client that a head taught, its network alone."""
    return figures.get(NETWORK_VALIDATION, figures[VALIDATION])


def choices(results: Results) -> Choices:
    """The best setting of every row in every place; of equal ones, the first on the grid."""
    made: dict[tuple[str, str, str], equal_rows.Setting] = {}
    for (image_set, split, key), of in grouped(results.cells, _line).items():
        best = max(of, key=lambda result: score(result.figures))
        setting = equal_rows.setting_of(best.cell)
        if setting is not None:
            made[image_set, split, key] = setting
    return made


def _line(cell: Cell) -> tuple[str, str, str]:
    return cell.image_set, cell.split, equal_rows.row_of(cell).key


def tables(results: Results) -> list[Table | str]:
    """Validation accuracy of every setting, a table a place."""
    made: list[Table | str] = []
    for place, found in grouped(results.cells, lambda cell: cell.place).items():
        table = new_table(
            f"{place}: accuracy on pooled validation records, %, by setting, in the order tried",
            ("row", "accuracies", "chosen"),
        )
        chosen = choices(results)
        for line, of in grouped(found, _line).items():
            shown = ", ".join(f"{100 * score(result.figures):.1f}" for result in of)
            row = equal_rows.row_of(of[0].cell)
            name = f"{row.title} {row.labels}".strip()
            table.add_row(name, shown, chosen[line].shown)
        made.append(table)
    return made


STUDY = image_study(
    name="tuning",
    folder="rivals",
    about="Rate and rounds of the rows at equal terms, by validation.",
    settings=Settings,
    cells=cells,
    tables=tables,
)

if __name__ == "__main__":
    raise SystemExit(main("experiments.rivals.tuning"))
