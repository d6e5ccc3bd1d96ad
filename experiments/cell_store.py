"""Finished cells of a study on disk, one file each, found again by all that they depend on."""

import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from experiments.codec import decode, encode
from experiments.results import read, write
from secure_fd.errors import ConfigurationError


class NamedCell(Protocol):
    """A hashable dataclass of everything that one trained and tested setting depends on."""

    @property
    def label(self) -> str:
        """Names the cell while it runs, and its file."""


class Finished(Protocol):
    """What a cell measured."""

    @property
    def cell(self) -> Any:  # noqa: ANN401 - the cell's own type, which a store names
        """The cell itself."""


CellT = TypeVar("CellT", bound=NamedCell)
ResultT = TypeVar("ResultT", bound=Finished)


@dataclass(frozen=True, slots=True)
class _Stored:
    """A cell's file. version: of the code and libraries that may change a result."""

    schema: str
    version: str
    result: dict[str, object]


@dataclass(frozen=True, slots=True)
class CellStore(Generic[CellT, ResultT]):
    """The cells of a folder. A file that is there is whole, and is the cell's that names it.

    A study's store names its schema and its kind of result, which is read strictly.
    """

    folder: Path
    version: str

    schema: ClassVar[str]
    kind: ClassVar[type[Any]]

    def path(self, cell: CellT) -> Path:
        """A readable name, and a hash of cell, version and schema."""
        content = json.dumps(encode([self.schema, self.version, cell], "cell"), sort_keys=True)
        digest = hashlib.sha256(content.encode()).hexdigest()[:16]
        return self.folder / f"{re.sub(r'[^a-z0-9.]+', '-', cell.label.lower())}-{digest}.json"

    def save(self, result: ResultT) -> None:
        """Keep a finished cell. Raises ConfigurationError for anything that `find` refuses."""
        content = encode(result, "cell")
        decode(self.kind, content, "cell")
        stored = _Stored(self.schema, self.version, decode(dict[str, object], content, "cell"))
        write(self.path(result.cell), stored, "cell")

    def find(self, cell: CellT) -> ResultT | None:
        """The cell's result, or None where it has not been run.

        Raises ConfigurationError for a file that is not what its name says.
        """
        path = self.path(cell)
        if not path.exists():
            return None
        stored = read(path, _Stored, "cell")
        result: ResultT = decode(self.kind, stored.result, "cell.result")
        if (stored.schema, stored.version, result.cell) != (self.schema, self.version, cell):
            raise ConfigurationError(
                "cell", path.name, "it holds another cell: remove it to run this one again"
            )
        return result
