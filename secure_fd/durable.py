"""SQLite files of one process that outlive it: locked, and synced at each commit.

The journal is rolled back, not written ahead, and `synchronous = EXTRA` syncs it and its folder: a
commit that returned is on the disk. What is deleted is overwritten (`secure_delete`), so that keys
that were forgotten are not in the file's free pages.
"""

import os
import sqlite3
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Self

from secure_fd.crypto.primitives import SecretHolder
from secure_fd.errors import ConfigurationError, LocalError, SecureFDError

_PATIENCE: Final = 5.0
"""Seconds to wait for somebody who reads the file."""

FAILURES: Final = (sqlite3.Error, UnicodeError)
"""What comes of a file that cannot be read, or whose text is none."""

_SETTINGS: Final = (
    "trusted_schema = OFF",
    "cell_size_check = ON",
    "journal_mode = DELETE",
    "synchronous = EXTRA",
    "fullfsync = ON",
    "secure_delete = ON",
)


_MARK_NAMES: Final = ("PRAGMA application_id", "PRAGMA user_version")


def marks_of(application: int, version: int) -> tuple[str, ...]:
    """The statements that mark a file as one of this kind and format."""
    values = (application, version)
    return tuple(f"{name} = {value}" for name, value in zip(_MARK_NAMES, values, strict=True))


class OwnedDatabase(SecretHolder):
    """A database of one process. After any failure it takes no more: the disk is unknown then.

    name: in sentences. lock: None in memory.

    >>> OwnedDatabase("in memory", connected(None))
    <OwnedDatabase: secret>
    """

    __slots__ = ("_database", "_lock", "_name", "_process", "_usable")

    def __init__(
        self, name: str, database: sqlite3.Connection, lock: sqlite3.Connection | None = None
    ) -> None:
        self._name, self._database, self._lock = name, database, lock
        self._process, self._usable = os.getpid(), True

    @classmethod
    def _new(cls, path: Path, write: Callable[[Self], None]) -> Self:
        """Make and lock a file, mode 0600, with what `write` writes; ConfigurationError for one."""
        with cls._locked(path, new=True)._closed_if_damaged() as made:
            write(made)
            sync_folder(path.parent)
        return made

    @classmethod
    def _found(
        cls, path: Path, otherwise: str, schema: Collection[str], marks: Sequence[str]
    ) -> Self:
        """Lock a file. otherwise: what to do where there is none.

        ConfigurationError there, where others may read it, and where a process has it; LocalError
        for a file that is damaged or of another form.
        """
        if not path.is_file():
            raise ConfigurationError("path", str(path), f"there is no such file: {otherwise}")
        if os.name == "posix" and path.stat().st_mode & 0o077:
            raise ConfigurationError("path", str(path), "others may open it: use mode 600")
        with cls._locked(path, new=False)._closed_if_damaged() as found:
            found._check_format(schema, marks)
        return found

    @classmethod
    def _locked(cls, path: Path, *, new: bool) -> Self:
        lock = lock_of(path)
        try:
            if new and not made(path):
                raise ConfigurationError("path", str(path), "it exists: open it, or name a new one")
            return cls(str(path), connected(path), lock)
        except SecureFDError:
            lock.close()
            raise

    @contextmanager
    def _closed_if_damaged(self) -> Iterator[Self]:
        try:
            yield self
        except LocalError:
            self.close()
            raise

    def close(self) -> None:
        """Let another process open the file."""
        self._usable = False
        if self._process == os.getpid():
            self._database.close()
            if self._lock is not None:
                self._lock.close()

    @contextmanager
    def _transaction(self, statements: Sequence[str] = ()) -> Iterator[None]:
        """One transaction: these statements, then what the block writes. All of it or nothing."""
        # Until the end is reached nobody knows what the disk has, whatever comes in between.
        self._usable = False
        try:
            self._database.execute("BEGIN IMMEDIATE")
            for statement in statements:
                self._database.execute(statement)
            yield
            self._database.execute("COMMIT")
        except FAILURES as failure:
            raise self._fault(f"an entry could not be written: {failure}") from failure
        self._usable = True

    def _check_format(self, schema: Collection[str], marks: Sequence[str]) -> None:
        """LocalError unless the file is of this form and SQLite finds no damage."""
        found = {sql for (sql,) in self._rows("SELECT sql FROM sqlite_master WHERE sql != ''")}
        if not found:
            raise self._fault("it was never finished and nothing was released under it: remove it")
        there = tuple(f"{name} = {self._rows(name)[0][0]}" for name in _MARK_NAMES)
        if found != set(schema) or there != tuple(marks):
            raise self._fault("it is no file of this kind and format")
        if self._rows("PRAGMA integrity_check") != [("ok",)]:
            raise self._fault("it is damaged")

    def _rows(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        """What a query finds; LocalError where the file cannot be read."""
        try:
            return self._database.execute(query, values).fetchall()
        except FAILURES as failure:
            raise self._fault(f"it is damaged or cannot be read: {failure}") from failure

    def _fault(self, what: str) -> LocalError:
        return LocalError(f"{self._name}: {what}")

    def _check_usable(self) -> None:
        if self._process != os.getpid():
            raise self._fault("a forked process has no part in its parent's file: open it there")
        if not self._usable:
            raise self._fault("it was closed, or an entry could not be written: open it again")


def connected(path: Path | None) -> sqlite3.Connection:
    """Where a commit returns only after the disk has it. LocalError for what is no database."""
    address = ":memory:" if path is None else f"{path.as_uri()}?mode=rw"
    made = sqlite3.connect(
        address, timeout=_PATIENCE, isolation_level=None, check_same_thread=False, uri=True
    )
    try:
        for setting in _SETTINGS:
            made.execute(f"PRAGMA {setting}")
    except FAILURES as failure:
        made.close()
        raise LocalError(f"{path}: it is damaged or cannot be read: {failure}") from failure
    return made


def lock_of(path: Path) -> sqlite3.Connection:
    """Hold the lock of a file until the process ends, however that comes.

    It is a file of its own, which nothing else opens: closing any handle of a file gives up all of
    a process's locks on it (POSIX), so that copying the log would.
    """
    beside = path.with_name(f"{path.name}.lock")
    made(beside)
    held = sqlite3.connect(beside, timeout=0, isolation_level=None, check_same_thread=False)
    try:
        held.execute("BEGIN EXCLUSIVE")
    except sqlite3.Error as failure:
        held.close()
        busy = failure.sqlite_errorcode == sqlite3.SQLITE_BUSY
        allowed = "a process has it open: close it there" if busy else f"its lock file: {failure}"
        raise ConfigurationError("path", str(path), allowed) from failure
    return held


def made(path: Path) -> bool:
    """Make an empty file, mode 0600, and say whether there was none."""
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    except FileExistsError:
        return False
    except OSError as failure:
        allowed = f"it cannot be made: {failure.strerror}"
        raise ConfigurationError("path", str(path), allowed) from failure
    return True


def sync_folder(folder: Path) -> None:
    """Put the names of a folder's files on the disk; LocalError where that fails."""
    if os.name != "posix":
        return
    try:
        opened = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(opened)
        finally:
            os.close(opened)
    except OSError as failure:
        raise LocalError(f"{folder} cannot be synced: {failure.strerror}") from failure
