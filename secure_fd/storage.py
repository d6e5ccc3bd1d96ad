"""A file of one process that outlives it: named values that are replaced, entries that are added.

It is an SQLite database with a rollback journal. `synchronous = EXTRA` syncs file, journal and
folder: a change that returned is on the disk. Deleted values are overwritten (`secure_delete`), so
that no key stays in the file's free pages. Every entry carries a hash of itself and of the one
before it, because SQLite notices damaged pages but not damaged contents. This finds accidents: a
program with write access can put an older copy or another file in its place.

A file is for its owner alone (mode 0600, locked while a process has it), since it holds keys and
answers that may be as private as the records.
"""

import hashlib
import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any, Final, Literal, Self, TypeAlias

from filelock import FileLock, Timeout

from secure_fd.crypto.keys import SecretHolder
from secure_fd.errors import ConfigurationError, LocalError

Kind: TypeAlias = Literal["state", "ledger"]

_FORMAT: Final = 3
_MARKS: Final[Mapping[Kind, Mapping[str, int]]] = {
    "state": {"application_id": 0x5EFD57A7, "user_version": _FORMAT},
    "ledger": {"application_id": 0x5EFD1ED6, "user_version": _FORMAT},
}
"""SQLite's marks of a file, by kind."""
_ADVICE: Final[Mapping[Kind, str]] = {"state": "enrol anew", "ledger": "create it"}
_PATIENCE: Final = 5.0
"""Seconds to wait for another reader of the file."""
_FAILURES: Final = (sqlite3.Error, UnicodeError)
"""Errors of SQLite for an unreadable or corrupt file."""
_SETTINGS: Final = (  # a commit returns only after the disk has it
    "trusted_schema = OFF",
    "cell_size_check = ON",
    "journal_mode = DELETE",
    "synchronous = EXTRA",
    "fullfsync = ON",
    "secure_delete = ON",
)
_SCHEMA: Final = (
    "CREATE TABLE state (name TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID",
    "CREATE TABLE entries (number INTEGER PRIMARY KEY, body BLOB NOT NULL, chain BLOB NOT NULL)",
    # The chain does not show that the newest entries were deleted.
    "CREATE TRIGGER no_update BEFORE UPDATE ON entries "
    "BEGIN SELECT RAISE(ABORT, 'entries are only added'); END",
    "CREATE TRIGGER no_delete BEFORE DELETE ON entries "
    "BEGIN SELECT RAISE(ABORT, 'entries are only added'); END",
)
UNFINISHED: Final = "it was never finished and nothing was released under it: remove it"


class Store(SecretHolder):
    """Values and entries of one process. After a failed write it accepts no further call.

    Make one with `create` or `open`.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "state"
    >>> store = Store.create(path, "state")
    >>> store.put({"round": b"7"})
    >>> store.close()
    >>> Store.open(path, "state").get("round")
    b'7'
    """

    __slots__ = ("_chain", "_count", "_database", "_name", "_opened", "_process", "_usable")

    def __init__(self, path: Path, kind: Kind, *, new: bool, patience: float = 0.0) -> None:
        self._name, self._process, self._usable = str(path), os.getpid(), True
        self._chain, self._count = b"", 0
        with ExitStack() as opened:
            opened.callback(_lock_of(path, patience).release)
            if new:
                _make(path)
            self._database = opened.enter_context(closing(_connected(path)))
            for setting in _SETTINGS:
                self._rows(f"PRAGMA {setting}")
            if new:
                self._write_format(kind)
            else:
                self._check_format(kind)
            self._opened = opened.pop_all()

    @classmethod
    def create(cls, path: Path, kind: Kind) -> Self:
        """Start a file, mode 0600.

        Raises:
            ConfigurationError: the file exists, or none can be made.
        """
        return cls(path, kind, new=True)

    @classmethod
    def open(cls, path: Path, kind: Kind, patience: float = 0.0) -> Self:
        """Lock a file; its entries must be read before any is added.

        patience: seconds to wait for a process that has it open.

        Raises:
            ConfigurationError: there is no file, others may read it, or a process has it open.
            LocalError: the file is damaged, of an earlier version or of another kind.
        """
        if not path.is_file():
            raise _refusal(path, f"there is no such file: {_ADVICE[kind]}")
        if os.name == "posix" and path.stat().st_mode & 0o077:
            raise _refusal(path, "others may open it: use mode 600")
        return cls(path, kind, new=False, patience=patience)

    def close(self) -> None:
        """Let another process open the file."""
        self._usable = False
        if self._process == os.getpid():
            self._opened.close()

    def get(self, name: str) -> bytes | None:
        """Return a value, None where there is none."""
        self._check_usable()
        rows = self._rows("SELECT value FROM state WHERE name = ?", name)
        return bytes(rows[0][0]) if rows else None

    def names(self) -> list[str]:
        """Return the names of all values."""
        self._check_usable()
        return [name for (name,) in self._rows("SELECT name FROM state")]

    def put(self, values: Mapping[str, bytes], drop: Iterable[str] = ()) -> None:
        """Replace these values and drop others, all or nothing; return once that is on the disk."""
        self._check_usable()
        with self._transaction():
            for name, value in values.items():
                self._database.execute("REPLACE INTO state VALUES (?, ?)", (name, value))
            for name in drop:
                self._database.execute("DELETE FROM state WHERE name = ?", (name,))

    def append(self, body: bytes) -> None:
        """Add an entry and return once it is on the disk.

        Raises:
            LocalError: that failed, or another process has added entries since.
        """
        self._check_usable()
        number, chain = self._count + 1, _chained(self._chain, body)
        with self._transaction():
            if self._rows("SELECT count(*) FROM entries") != [(self._count,)]:
                raise self._fault("another process has added entries: open the file again")
            self._database.execute("INSERT INTO entries VALUES (?, ?, ?)", (number, body, chain))
        self._count, self._chain = number, chain

    def entries(self) -> list[bytes]:
        """Return all entries in order.

        Raises:
            LocalError: an entry is missing or not as it was written.
        """
        self._check_usable()
        rows = self._rows("SELECT number, body, chain FROM entries ORDER BY number")
        chain, bodies = b"", []
        for expected, (number, body, written) in enumerate(rows, 1):
            intact = type(body) is bytes and number == expected
            if not intact or _chained(chain, body) != written:
                raise self._fault(f"entry {expected} is damaged")
            chain = written
            bodies.append(body)
        self._count, self._chain = len(bodies), chain
        return bodies

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """Write all of the block or nothing."""
        self._usable = False  # until the commit returns, the content of the disk is unknown
        try:
            self._database.execute("BEGIN IMMEDIATE")
            yield
            self._database.execute("COMMIT")
        except _FAILURES as failure:
            raise self._fault(f"an entry could not be written: {failure}") from failure
        self._usable = True

    def _write_format(self, kind: Kind) -> None:
        with self._transaction():
            for name, mark in _MARKS[kind].items():
                self._database.execute(f"PRAGMA {name} = {mark}")
            for statement in _SCHEMA:
                self._database.execute(statement)

    def _check_format(self, kind: Kind) -> None:
        """Raise LocalError unless the file is of this form and SQLite finds no damage."""
        schema = {sql for (sql,) in self._rows("SELECT sql FROM sqlite_master WHERE sql != ''")}
        if not schema:
            raise self._fault(UNFINISHED)
        found = {name: self._rows(f"PRAGMA {name}")[0][0] for name in _MARKS[kind]}
        if found in [{**_MARKS[kind], "user_version": old} for old in range(1, _FORMAT)]:
            raise self._fault(f"it is of an earlier version: {_ADVICE[kind]} under another name")
        if schema != set(_SCHEMA) or found != _MARKS[kind]:
            raise self._fault("it is no file of this kind and format")
        if self._rows("PRAGMA integrity_check") != [("ok",)]:
            raise self._fault("it is damaged")

    def _rows(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        try:
            return self._database.execute(query, values).fetchall()
        except _FAILURES as failure:
            raise self._fault(f"it is damaged or cannot be read: {failure}") from failure

    def _fault(self, what: str) -> LocalError:
        return LocalError(f"{self._name}: {what}")

    def _check_usable(self) -> None:
        if self._process != os.getpid():
            raise self._fault("a forked process has no part in its parent's file: open it there")
        if not self._usable:
            raise self._fault("it was closed, or an entry could not be written: open it again")


def _refusal(path: Path, allowed: str) -> ConfigurationError:
    return ConfigurationError("path", str(path), allowed)


def _chained(before: bytes, body: bytes) -> bytes:
    return hashlib.blake2b(before + body, digest_size=32).digest()


def _connected(path: Path) -> sqlite3.Connection:
    try:
        return sqlite3.connect(
            f"{path.absolute().as_uri()}?mode=rw",
            timeout=_PATIENCE,
            isolation_level=None,
            check_same_thread=False,
            uri=True,
        )
    except sqlite3.Error as failure:
        raise _refusal(path, f"it cannot be opened: {failure}") from failure


def _lock_of(path: Path, patience: float) -> FileLock:
    """Hold the lock of a file, a file beside it, until the process ends, however it does."""
    if not path.parent.is_dir():  # or the lock's library makes it
        raise _refusal(path, "it cannot be made: there is no such folder")
    beside = path.with_name(f"{path.name}.lock")
    lock = FileLock(beside, timeout=patience, mode=0o600, thread_local=False)
    try:
        lock.acquire()
    except Timeout as busy:
        raise _refusal(path, "a process has it open: close it there") from busy
    except OSError as failure:
        raise _refusal(path, f"its lock file: {failure.strerror}") from failure
    return lock


def _make(path: Path) -> None:
    """Make an empty file, mode 0600. SQLite's first commit syncs the folder that it is in."""
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    except FileExistsError as found:
        raise _refusal(path, "it exists: open it, or name a new one") from found
    except OSError as failure:
        raise _refusal(path, f"it cannot be made: {failure.strerror}") from failure
