"""What the cells measured: frozen dataclasses, and one JSON file of all, in a versioned schema."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from experiments import provenance
from experiments.results import read, write
from experiments.utility.cells import Cell

SCHEMA = "secure-fd/dp-utility/1"
RESULTS_FILE = "dp_utility.json"
PUBLISHED = {("mnist", "strong"): 0.8592, ("fashion_mnist", "strong"): 0.7341}
"""Table 1 of the paper: Selective-FD with hard labels, without differential privacy."""


@dataclass(frozen=True, slots=True)
class CellResult:
    """accuracy: on the test set after the last round, mean over clients, all in per_client.

    figures: whatever else was measured. guarantee: one sentence; privacy: its parts, or None.
    seconds: of CPU, without what cells share.
    """

    cell: Cell
    accuracy: float
    per_client: list[float]
    figures: dict[str, float]
    guarantee: str
    privacy: dict[str, object] | None
    seconds: float

    def __post_init__(self) -> None:
        provenance.check_measured((self.accuracy, *self.per_client), self.seconds)


@dataclass(frozen=True, slots=True)
class Results:
    """All cells of a study. created: ISO 8601 in UTC. command: as anyone would repeat it."""

    schema: str
    created: str
    command: list[str]
    versions: dict[str, str]
    machine: dict[str, object]
    cells: tuple[CellResult, ...]

    def __post_init__(self) -> None:
        provenance.check_schema(self.schema, SCHEMA)
        provenance.check_cells([found.cell for found in self.cells])


def moments(found: Sequence[CellResult]) -> tuple[float, float]:
    """Mean and deviation of the accuracies of one line and epsilon over seeds."""
    return provenance.mean_and_deviation([result.accuracy for result in found])


def gathered(found: Iterable[CellResult], command: list[str]) -> Results:
    """The results of these cells, made now and here."""
    return Results(
        schema=SCHEMA,
        created=provenance.created_now(),
        command=command,
        versions=provenance.versions(),
        machine=provenance.machine(),
        cells=tuple(found),
    )


def save(results: Results, folder: Path) -> Path:
    """Write RESULTS_FILE into the folder, whole or not at all."""
    path = folder / RESULTS_FILE
    write(path, results, "results")
    return path


def load(folder: Path) -> Results:
    """The results in a folder; ConfigurationError names the first thing that is wrong."""
    return read(folder / RESULTS_FILE, Results, "results")
