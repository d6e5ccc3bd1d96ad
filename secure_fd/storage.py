"""One file of one process that outlives it: named values that are replaced, entries that are added.

It is an SQLite database with a rollback journal. `synchronous = EXTRA` syncs file, journal and
folder: a change that returned is on the disk. What is deleted is overwritten (`secure_delete`), so
that keys that were forgotten are not in the file's free pages. Every entry carries a hash of itself
and of the one before it, because SQLite notices damaged pages but not damaged contents. This finds
accidents: whoever may write the file can put an older copy or another one in its place.

A file is for its owner alone (mode 0600, locked while a process has it), since it holds keys and
answers that may be as private as the records.
"""

import hashlib
import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, Self, TypeAlias

from filelock import FileLock, Timeout

from secure_fd.crypto.keys import SecretHolder, fields
from secure_fd.errors import ConfigurationError, LocalError, SecureFDError

Kind: TypeAlias = Literal["state", "ledger"]

_APPLICATIONS: Final[Mapping[Kind, int]] = {"state": 0x5EFD57A7, "ledger": 0x5EFD1ED6}
_FORMAT: Final = 2
_ADVICE: Final[Mapping[Kind, str]] = {"state": "enrol anew", "ledger": "create it"}
_PATIENCE: Final = 5.0
"""Seconds to wait for somebody who reads the file."""
_FAILURES: Final = (sqlite3.Error, UnicodeError)
"""What comes of a file that cannot be read, or whose text is none."""
_SETTINGS: Final = (
    "trusted_schema = OFF",
    "cell_size_check = ON",
    "journal_mode = DELETE",
    "synchronous = EXTRA",
    "fullfsync = ON",
    "secure_delete = ON",
)
_SCHEMA: Final = (
    "CREATE TABLE state (name TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID",
    "CREATE TABLE entries (number INTEGER PRIMARY KEY AUTOINCREMENT, kind TEXT NOT NULL, "
    "request BLOB NOT NULL, body BLOB NOT NULL, chain BLOB NOT NULL)",
    "CREATE TRIGGER no_update BEFORE UPDATE ON entries "
    "BEGIN SELECT RAISE(ABORT, 'entries are only added'); END",
    "CREATE TRIGGER no_delete BEFORE DELETE ON entries "
    "BEGIN SELECT RAISE(ABORT, 'entries are only added'); END",
)
_COUNTER: Final = "CREATE TABLE sqlite_sequence(name,seq)"
_PUT: Final = "INSERT INTO state VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = ?"
_ADD: Final = "INSERT INTO entries (number, kind, request, body, chain) VALUES (?, ?, ?, ?, ?)"
_ONE: Final = "SELECT number, kind, request, body, chain FROM entries WHERE number = ?"


@dataclass(frozen=True, slots=True)
class Entry:
    """number: from 1. kind: a word. request: what it belongs to. body: what it says.

    >>> Entry(1, "opened", b"", b"secret")
    Entry(number=1, kind='opened', request=b'')
    """

    number: int
    kind: str
    request: bytes
    body: bytes = field(repr=False)

    def chained(self, before: bytes) -> bytes:
        """The hash of this entry and of all before it."""
        parts = fields(self.number.to_bytes(8, "big"), self.kind.encode(), self.request, self.body)
        return hashlib.blake2b(before + parts, digest_size=32).digest()


class Store(SecretHolder):
    """Values and entries of one process. After a failure it takes no more: the disk is unknown.

    Make one with `create`, `open` or `in_memory`.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "state"
    >>> store = Store.create(path, "state")
    >>> store.put({"round": b"7"})
    >>> store.close()
    >>> Store.open(path, "state").get("round")
    b'7'
    >>> Store.in_memory().append("note", b"", b"something")
    1
    """

    __slots__ = ("_chain", "_count", "_database", "_lock", "_name", "_process", "_usable")

    def __init__(
        self, name: str, database: sqlite3.Connection, lock: FileLock | None = None
    ) -> None:
        """name: in sentences. lock: None in memory."""
        self._name, self._database, self._lock = name, database, lock
        self._process, self._usable = os.getpid(), True
        self._chain, self._count = b"", 0

    @classmethod
    def in_memory(cls) -> Self:
        """Lost with this process."""
        made = cls("in memory", _connected(None))
        made._write(_SCHEMA)
        return made

    @classmethod
    def create(cls, path: Path, kind: Kind, opening: bytes | None = None) -> Self:
        """Start a file, mode 0600. opening: the body of a first entry, of kind "opened".

        ConfigurationError where there is one, or none can be made.
        """
        marks = tuple(f"PRAGMA {name} = {value}" for name, value in _marks(kind).items())
        first = None if opening is None else Entry(1, "opened", b"", opening)
        with cls._locked(path, new=True) as made:
            made._write((*marks, *_SCHEMA), first)
            _sync(path.parent)
        return made

    @classmethod
    def open(cls, path: Path, kind: Kind) -> Self:
        """Lock a file; its entries must be read before any is added.

        ConfigurationError where there is none, others may read it, or a process has it; LocalError
        for a file that is damaged, of an earlier version or something else.
        """
        if not path.is_file():
            allowed = f"there is no such file: {_ADVICE[kind]}"
            raise ConfigurationError("path", str(path), allowed)
        if os.name == "posix" and path.stat().st_mode & 0o077:
            raise ConfigurationError("path", str(path), "others may open it: use mode 600")
        with cls._locked(path, new=False) as found:
            found._check_format(kind)
        return found

    @classmethod
    @contextmanager
    def _locked(cls, path: Path, *, new: bool) -> Iterator[Self]:
        """A file that stays locked where the block does not fail."""
        lock = _lock_of(path)
        found = None
        try:
            if new and not _made(path):
                raise ConfigurationError("path", str(path), "it exists: open it, or name a new one")
            found = cls(str(path), _connected(path), lock)
            yield found
        except SecureFDError:
            if found is not None:
                found.close()
            lock.release()
            raise

    def close(self) -> None:
        """Let another process open the file."""
        self._usable = False
        if self._process == os.getpid():
            self._database.close()
            if self._lock is not None:
                self._lock.release()

    def get(self, name: str) -> bytes | None:
        """A value, None where there is none."""
        self._check_usable()
        rows = self._rows("SELECT value FROM state WHERE name = ?", name)
        return bytes(rows[0][0]) if rows else None

    def put(self, values: Mapping[str, bytes], drop: Iterable[str] = ()) -> None:
        """Replace these values and drop others, all or nothing; it returns once that is on disk."""
        self._check_usable()
        with self._transaction():
            for name, value in values.items():
                self._database.execute(_PUT, (name, value, value))
            for name in drop:
                self._database.execute("DELETE FROM state WHERE name = ?", (name,))

    def append(self, kind: str, request: bytes, body: bytes) -> int:
        """Add an entry and return its number, once it is on the disk.

        LocalError where that failed, or where another process has added entries since.
        """
        self._check_usable()
        entry = Entry(self._count + 1, kind, request, body)
        self._write((), entry)
        return entry.number

    def entries(self) -> Iterator[Entry]:
        """All of them, in order; LocalError where one is missing or not as it was written."""
        self._check_usable()
        ends = self._rows("SELECT min(number), max(number), count(*) FROM entries")
        last, chain = ends[0][1], b""
        added = self._rows("SELECT seq FROM sqlite_sequence")
        if ends != [(1, last, last)] or added != [(last,)]:
            raise self._fault("entries are missing")
        for number in range(1, last + 1):
            *parts, written = self._rows(_ONE, number)[0]
            if [type(part) for part in parts] != [int, str, bytes, bytes]:
                raise self._fault(f"entry {number} is damaged")
            entry = Entry(*parts)
            chain = entry.chained(chain)
            if entry.number != number or chain != written:
                raise self._fault(f"entry {number} is damaged")
            yield entry
        self._chain, self._count = chain, last

    def body(self, number: int) -> bytes:
        """What an entry says."""
        self._check_usable()
        return bytes(self._rows(_ONE, number)[0][3])

    def _write(self, statements: Sequence[str], entry: Entry | None = None) -> None:
        """One transaction, with the entry at its end."""
        with self._transaction(statements):
            chain = self._chain if entry is None else self._insert(entry)
        self._chain, self._count = chain, self._count + (entry is not None)

    def _insert(self, entry: Entry) -> bytes:
        if self._rows("SELECT coalesce(max(number), 0) FROM entries") != [(self._count,)]:
            raise self._fault("another process has added entries: open the file again")
        chain = entry.chained(self._chain)
        parts = (entry.number, entry.kind, entry.request, entry.body, chain)
        self._database.execute(_ADD, parts)
        return chain

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
        except _FAILURES as failure:
            raise self._fault(f"an entry could not be written: {failure}") from failure
        self._usable = True

    def _check_format(self, kind: Kind) -> None:
        """LocalError unless the file is of this form and SQLite finds no damage."""
        found = {sql for (sql,) in self._rows("SELECT sql FROM sqlite_master WHERE sql != ''")}
        if not found:
            raise self._fault("it was never finished and nothing was released under it: remove it")
        marks = _marks(kind)
        there = {name: self._rows(f"PRAGMA {name}")[0][0] for name in marks}
        if there == {**marks, "user_version": 1}:
            raise self._fault(f"it is of an earlier version: {_ADVICE[kind]} under another name")
        if found != {*_SCHEMA, _COUNTER} or there != marks:
            raise self._fault("it is no file of this kind and format")
        if self._rows("PRAGMA integrity_check") != [("ok",)]:
            raise self._fault("it is damaged")

    def _rows(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        """What a query finds; LocalError where the file cannot be read."""
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


def _marks(kind: Kind) -> dict[str, int]:
    """SQLite's marks of a file of this kind and format."""
    return {"application_id": _APPLICATIONS[kind], "user_version": _FORMAT}


def _connected(path: Path | None) -> sqlite3.Connection:
    """Where a commit returns only after the disk has it. LocalError for what is no database."""
    address = ":memory:" if path is None else f"{path.as_uri()}?mode=rw"
    made = sqlite3.connect(
        address, timeout=_PATIENCE, isolation_level=None, check_same_thread=False, uri=True
    )
    try:
        for setting in _SETTINGS:
            made.execute(f"PRAGMA {setting}")
    except _FAILURES as failure:
        made.close()
        raise LocalError(f"{path}: it is damaged or cannot be read: {failure}") from failure
    return made


def _lock_of(path: Path) -> FileLock:
    """Hold the lock of a file, a file beside it, until the process ends, however it does."""
    if not path.parent.is_dir():  # or the lock's library makes it
        raise ConfigurationError("path", str(path), "it cannot be made: there is no such folder")
    lock = FileLock(path.with_name(f"{path.name}.lock"), timeout=0, mode=0o600, thread_local=False)
    try:
        lock.acquire()
    except Timeout as busy:
        allowed = "a process has it open: close it there"
        raise ConfigurationError("path", str(path), allowed) from busy
    except OSError as failure:
        allowed = f"its lock file: {failure.strerror}"
        raise ConfigurationError("path", str(path), allowed) from failure
    return lock


def _made(path: Path) -> bool:
    """Make an empty file, mode 0600, and say whether there was none."""
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    except FileExistsError:
        return False
    except OSError as failure:
        allowed = f"it cannot be made: {failure.strerror}"
        raise ConfigurationError("path", str(path), allowed) from failure
    return True


def _sync(folder: Path) -> None:
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
