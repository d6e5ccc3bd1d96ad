"""Files that are whole or not there, and settings in TOML, read up to a limit."""

import os
import secrets
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

from secure_fd.errors import ConfigurationError


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
    """Read a file up to one byte more than allowed, so that `parse_toml` refuses a longer one.

    Raises:
        OSError: the file cannot be read.
    """
    with path.open("rb") as file:
        return file.read(most + 1)


def parse_toml(field: str, name: object, data: bytes, most: int) -> dict[str, Any]:
    """Parse TOML of `most` bytes at most; ConfigurationError about `name` for anything else.

    >>> parse_toml("roster", "this file", b"rounds = 3", 100)
    {'rounds': 3}
    """
    if len(data) > most:
        raise ConfigurationError(field, name, f"use at most {most:,} bytes")
    try:
        return tomllib.loads(data.decode())
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(field, name, f"it must be TOML: {error}") from error
