"""Entries that are only ever added: in one file, locked and synced, or in memory.

The file is an SQLite database with a rollback journal. `append` returns once the entry is on the
disk (`synchronous = EXTRA`: the journal and its folder are synced too). Every entry carries a hash
of itself and of the one before it, because SQLite notices damaged pages but not damaged contents.
This finds accidents. Whoever may write the file can put an older copy or another one in its place.
"""

import hashlib
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self

from secure_fd.crypto.primitives import fields
from secure_fd.durable import OwnedDatabase, connected, marks_of

_APPLICATION: Final = 0x5EFD1ED6
_FORMAT: Final = 1
_MARKS: Final = marks_of(_APPLICATION, _FORMAT)
_ONE: Final = "SELECT number, kind, request, body, chain FROM entries WHERE number = ?"
_LAST: Final = "SELECT seq FROM sqlite_sequence"
_SCHEMA: Final = (
    "CREATE TABLE entries (number INTEGER PRIMARY KEY AUTOINCREMENT, kind TEXT NOT NULL, "
    "request BLOB NOT NULL, body BLOB NOT NULL, chain BLOB NOT NULL)",
    "CREATE TRIGGER no_update BEFORE UPDATE ON entries "
    "BEGIN SELECT RAISE(ABORT, 'entries are only added'); END",
    "CREATE TRIGGER no_delete BEFORE DELETE ON entries "
    "BEGIN SELECT RAISE(ABORT, 'entries are only added'); END",
)
_COUNTER: Final = "CREATE TABLE sqlite_sequence(name,seq)"


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


class AppendLog(OwnedDatabase):
    """Entries of one process. After any failure it takes no more: what is on the disk is unknown.

    >>> log = AppendLog.in_memory()
    >>> log.append("note", b"", b"something")
    1
    >>> log.body(1)
    b'something'
    """

    __slots__ = ("_chain", "_count")

    def __init__(
        self, name: str, database: sqlite3.Connection, lock: sqlite3.Connection | None = None
    ) -> None:
        super().__init__(name, database, lock)
        self._chain, self._count = b"", 0

    @classmethod
    def in_memory(cls) -> Self:
        """Lost with this process."""
        made = cls("in memory", connected(None))
        made._write(_SCHEMA)
        return made

    @classmethod
    def create(cls, path: Path, kind: str, body: bytes) -> Self:
        """Start a file, mode 0600, with a first entry. ConfigurationError where there is one."""
        first = Entry(1, kind, b"", body)
        return cls._new(path, lambda made: made._write((*_MARKS, *_SCHEMA), first))

    @classmethod
    def open(cls, path: Path) -> Self:
        """Lock a file; its entries must be read before any is added.

        Raises ConfigurationError where there is none, others may read it, or a process has it;
        LocalError for a file that is damaged or something else.
        """
        return cls._found(path, "create it", {*_SCHEMA, _COUNTER}, _MARKS)

    def entries(self) -> Iterator[Entry]:
        """All of them, in order; LocalError where one is missing or not as it was written."""
        self._check_usable()
        ends = self._rows("SELECT min(number), max(number), count(*) FROM entries")
        last, chain = ends[0][1], b""
        if ends != [(1, last, last)] or self._rows(_LAST) != [(last,)]:
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

    def append(self, kind: str, request: bytes, body: bytes) -> int:
        """Add an entry and return its number, once it is on the disk.

        Raises LocalError where that failed, or where another process has added entries since.
        """
        self._check_usable()
        entry = Entry(self._count + 1, kind, request, body)
        self._write((), entry)
        return entry.number

    def body(self, number: int) -> bytes:
        """What an entry says."""
        self._check_usable()
        return bytes(self._rows(_ONE, number)[0][3])

    def _write(self, statements: tuple[str, ...], entry: Entry | None = None) -> None:
        """One transaction, with the entry at its end."""
        with self._transaction(statements):
            chain = self._chain if entry is None else self._insert(entry)
        self._chain, self._count = chain, self._count + (entry is not None)

    def _insert(self, entry: Entry) -> bytes:
        if self._rows("SELECT coalesce(max(number), 0) FROM entries") != [(self._count,)]:
            raise self._fault("another process has added entries: open the file again")
        chain = entry.chained(self._chain)
        self._database.execute(
            "INSERT INTO entries (number, kind, request, body, chain) VALUES (?, ?, ?, ?, ?)",
            (entry.number, entry.kind, entry.request, entry.body, chain),
        )
        return chain
