"""What the cells of a study measured: frozen dataclasses, and one JSON file of a schema."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import ClassVar, TypeVar

import secure_fd
from experiments import provenance
from experiments.cell_store import CellStore
from experiments.code_version import code_version
from experiments.papers.cells import Cell
from experiments.results import read, write
from secure_fd.errors import ConfigurationError

SCHEMA = "secure-fd/paper-study/1"
_HERE = Path(__file__).parent
_MAKING = (
    "cells.py",
    "build.py",
    "run.py",
    "figures.py",
    "fixed_labels.py",
    "variants.py",
    "theorem.py",
    "bounds.py",
    "measures.py",
)
"""The modules that a cell's result comes from; the others ask for cells and show them."""
Key = TypeVar("Key")


@dataclass(frozen=True, slots=True)
class Point:
    """Mean test accuracy over clients after a round, and the bytes a client had moved by then.

    A cell's last point is on the whole test set; the others on an evenly spaced part of it.
    """

    round: int
    accuracy: float
    up: float
    down: float


@dataclass(frozen=True, slots=True)
class CellResult:
    """accuracy: on the test set after the last round, mean over clients, all in per_client.

    curve: in order of rounds. figures: whatever else was measured. seconds: of CPU, without what
    the cells of a group share.
    """

    cell: Cell
    accuracy: float
    per_client: tuple[float, ...]
    curve: tuple[Point, ...]
    figures: dict[str, float] = field(hash=False)
    seconds: float

    def __post_init__(self) -> None:
        provenance.check_measured(
            (self.accuracy, *self.per_client, *(point.accuracy for point in self.curve)),
            self.seconds,
        )
        if [p.round for p in self.curve] != sorted({p.round for p in self.curve}):
            raise ConfigurationError("curve", len(self.curve), "use points of ascending rounds")


@dataclass(frozen=True, slots=True)
class Results:
    """All cells of a study. created: ISO 8601 in UTC. command: as anyone would repeat it."""

    schema: str
    study: str
    created: str
    command: list[str]
    versions: dict[str, str]
    machine: dict[str, object]
    cells: tuple[CellResult, ...]

    def __post_init__(self) -> None:
        provenance.check_schema(self.schema, SCHEMA)
        provenance.check_cells([found.cell for found in self.cells])


def _version() -> str:
    """Of the code that may change a figure; how a study shows it is not among it."""
    made = [_HERE / name for name in _MAKING]
    package = Path(secure_fd.__path__[0])
    return f"{code_version(package, *made)}+torch-{version('torch')}"


@dataclass(frozen=True, slots=True)
class Store(CellStore[Cell, CellResult]):
    """Cells of all studies in one folder: what two of them ask for is run once."""

    version: str = field(default_factory=_version)

    schema: ClassVar[str] = "secure-fd/paper-cell/1"
    kind: ClassVar[type[CellResult]] = CellResult


def moments(
    found: Sequence[CellResult], value: Callable[[CellResult], float] = lambda r: r.accuracy
) -> tuple[float, float]:
    """Mean and deviation of a value over seeds."""
    return provenance.mean_and_deviation([value(result) for result in found])


def grouped(
    found: Iterable[CellResult], key: Callable[[Cell], Key]
) -> Mapping[Key, list[CellResult]]:
    """Results by a key of their cells, in the order in which keys first come."""
    groups: dict[Key, list[CellResult]] = {}
    for result in found:
        groups.setdefault(key(result.cell), []).append(result)
    return groups


def gathered(study: str, found: Iterable[CellResult], command: list[str]) -> Results:
    """The results of these cells, made now and here."""
    return Results(
        schema=SCHEMA,
        study=study,
        created=provenance.created_now(),
        command=command,
        versions=provenance.versions(),
        machine=provenance.machine(),
        cells=tuple(found),
    )


def save(results: Results, folder: Path) -> Path:
    """Write STUDY.json into the folder, whole or not at all."""
    path = folder / f"{results.study}.json"
    write(path, results, "results")
    return path


def load(path: Path) -> Results:
    """The results in a file; ConfigurationError names the first thing that is wrong."""
    return read(path, Results, "results")
