"""Files that are whole or not there, and read up to a limit."""

import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO


def write_atomically(path: Path, write: Callable[[BinaryIO], object], *, mode: int = 0o666) -> None:
    """Let `write` fill a new file in the same folder, then put it in the place of `path`.

    An interrupt at any moment leaves the old file, or none: never half of the new one. mode: of
    the new file, less the process's umask.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        opened = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode)
        with os.fdopen(opened, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def read_limited(path: Path, most: int) -> bytes:
    """Read a file up to one byte more than allowed, so that the caller sees one that is too long.

    Raises:
        OSError: the file cannot be read.
    """
    with path.open("rb") as file:
        return file.read(most + 1)
