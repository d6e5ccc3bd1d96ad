"""SQLite files of one process that outlive it: locked, and synced at each commit.

The journal is rolled back, not written ahead, and `synchronous = EXTRA` syncs it and its folder: a
commit that returned is on the disk. What is deleted is overwritten (`secure_delete`), so that keys
that were forgotten are not in the file's free pages.
"""

import os
import sqlite3
from pathlib import Path
from typing import Final

from secure_fd.errors import ConfigurationError, LocalError

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
