"""Finished cells of the study on disk."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import experiments
import secure_fd
from experiments.cell_store import CellStore
from experiments.code_version import code_version
from experiments.utility.cells import Cell
from experiments.utility.results import CellResult


def _version() -> str:
    return code_version(*(Path(package.__path__[0]) for package in (secure_fd, experiments)))


@dataclass(frozen=True, slots=True)
class Store(CellStore[Cell, CellResult]):
    """A result may change with any line of the package or of the experiments."""

    version: str = field(default_factory=_version)

    schema: ClassVar[str] = "secure-fd/dp-utility-cell/1"
    kind: ClassVar[type[CellResult]] = CellResult
