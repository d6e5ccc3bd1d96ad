"""What a party must not forget when its process ends: one file, written before anything leaves.

A file holds named values, each replaced as a whole. It is for its owner alone (mode 0600, locked
while a process has it), since it holds keys: of channels that have moved on, of an identity.
"""

import os
import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Self

from secure_fd.crypto.primitives import SecretHolder
from secure_fd.durable import FAILURES, connected, lock_of, made, sync_folder
from secure_fd.errors import ConfigurationError, LocalError, SecureFDError

_APPLICATION: Final = 0x5EFD57A7
_FORMAT: Final = 1
_MARK_NAMES: Final = ("PRAGMA application_id", "PRAGMA user_version")
_MARKS: Final = (f"{_MARK_NAMES[0]} = {_APPLICATION}", f"{_MARK_NAMES[1]} = {_FORMAT}")
_SCHEMA: Final = "CREATE TABLE state (name TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID"
_PUT: Final = "INSERT INTO state VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = ?"


class StateFile(SecretHolder):
    """Named values of one process. After a failure it takes no more: the disk is unknown then.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "client.state"
    >>> file = StateFile.create(path)
    >>> file.write({"round": b"7"})
    >>> file.close()
    >>> StateFile.open(path).read("round")
    b'7'
    """

    __slots__ = ("_database", "_lock", "_path", "_process", "_usable")

    def __init__(self, path: Path, database: sqlite3.Connection, lock: sqlite3.Connection) -> None:
        self._path, self._database, self._lock = path, database, lock
        self._process, self._usable = os.getpid(), True

    @classmethod
    def create(cls, path: Path) -> Self:
        """Start a file, mode 0600. ConfigurationError where there is one, or none can be."""
        lock = lock_of(path)
        try:
            if not made(path):
                raise ConfigurationError("path", str(path), "it exists: open it, or name a new one")
            found = cls(path, connected(path), lock)
            found._commit((*_MARKS, _SCHEMA), {})
            sync_folder(path.parent)
        except SecureFDError:
            lock.close()
            raise
        return found

    @classmethod
    def open(cls, path: Path) -> Self:
        """Lock a file and read it.

        ConfigurationError where there is none, others may read it, or a process has it; LocalError
        for one that is damaged or something else.
        """
        if not path.is_file():
            raise ConfigurationError("path", str(path), "there is no such file: enrol anew")
        if os.name == "posix" and path.stat().st_mode & 0o077:
            raise ConfigurationError("path", str(path), "others may open it: use mode 600")
        lock = lock_of(path)
        try:
            found = cls(path, connected(path), lock)
            found._check_format()
        except SecureFDError:
            lock.close()
            raise
        return found

    def read(self, name: str) -> bytes | None:
        """A value, None where there is none."""
        self._check_usable()
        rows = self._rows("SELECT value FROM state WHERE name = ?", name)
        return bytes(rows[0][0]) if rows else None

    def write(self, values: Mapping[str, bytes]) -> None:
        """Replace these values, all or none of them; it returns once they are on the disk."""
        self._check_usable()
        self._commit((), values)

    def close(self) -> None:
        """Let another process open the file."""
        self._usable = False
        if self._process == os.getpid():
            self._database.close()
            self._lock.close()

    def _commit(self, statements: tuple[str, ...], values: Mapping[str, bytes]) -> None:
        # Until the end is reached nobody knows what the disk has, whatever comes in between.
        self._usable = False
        try:
            self._database.execute("BEGIN IMMEDIATE")
            for statement in statements:
                self._database.execute(statement)
            for name, value in values.items():
                self._database.execute(_PUT, (name, value, value))
            self._database.execute("COMMIT")
        except FAILURES as failure:
            raise LocalError(f"{self._path}: it could not be written: {failure}") from failure
        self._usable = True

    def _check_format(self) -> None:
        """LocalError unless the file is of this format and SQLite finds no damage."""
        schema = [sql for (sql,) in self._rows("SELECT sql FROM sqlite_master WHERE sql != ''")]
        marks = tuple(f"{name} = {self._rows(name)[0][0]}" for name in _MARK_NAMES)
        if schema != [_SCHEMA] or marks != _MARKS:
            raise LocalError(f"{self._path}: it is no state file of format {_FORMAT}")
        if self._rows("PRAGMA integrity_check") != [("ok",)]:
            raise LocalError(f"{self._path}: it is damaged")

    def _rows(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        try:
            return self._database.execute(query, values).fetchall()
        except FAILURES as failure:
            raise LocalError(f"{self._path}: it is damaged: {failure}") from failure

    def _check_usable(self) -> None:
        if self._process != os.getpid():
            raise LocalError(f"{self._path}: a forked process must open the file itself")
        if not self._usable:
            raise LocalError(f"{self._path}: it was closed, or could not be written: open it again")
