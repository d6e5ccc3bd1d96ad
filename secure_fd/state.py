"""What a party must not forget when its process ends: one file, written before anything leaves.

A file holds named values, each replaced as a whole. It is for its owner alone (mode 0600, locked
while a process has it), since it holds keys: of channels that have moved on, of an identity.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final, Self

from secure_fd.durable import OwnedDatabase, marks_of

_APPLICATION: Final = 0x5EFD57A7
_FORMAT: Final = 1
_MARKS: Final = marks_of(_APPLICATION, _FORMAT)
_SCHEMA: Final = "CREATE TABLE state (name TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID"
_PUT: Final = "INSERT INTO state VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = ?"


class StateFile(OwnedDatabase):
    """Named values of one process. After a failure it takes no more: the disk is unknown then.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "client.state"
    >>> file = StateFile.create(path)
    >>> file.write({"round": b"7"})
    >>> file.close()
    >>> StateFile.open(path).read("round")
    b'7'
    """

    __slots__ = ()

    @classmethod
    def create(cls, path: Path) -> Self:
        """Start a file, mode 0600. ConfigurationError where there is one, or none can be."""

        def start(made: Self) -> None:
            with made._transaction((*_MARKS, _SCHEMA)):
                pass

        return cls._new(path, start)

    @classmethod
    def open(cls, path: Path) -> Self:
        """Lock a file and read it.

        ConfigurationError where there is none, others may read it, or a process has it; LocalError
        for one that is damaged or something else.
        """
        return cls._found(path, "enrol anew", {_SCHEMA}, _MARKS)

    def read(self, name: str) -> bytes | None:
        """A value, None where there is none."""
        self._check_usable()
        rows = self._rows("SELECT value FROM state WHERE name = ?", name)
        return bytes(rows[0][0]) if rows else None

    def write(self, values: Mapping[str, bytes], drop: Iterable[str] = ()) -> None:
        """Replace these values and drop others, all or nothing; it returns once that is on disk."""
        self._check_usable()
        with self._transaction():
            for name, value in values.items():
                self._database.execute(_PUT, (name, value, value))
            for name in drop:
                self._database.execute("DELETE FROM state WHERE name = ?", (name,))
