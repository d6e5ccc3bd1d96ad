"""Results on disk: whole files, and dataclasses as JSON."""

import json
from pathlib import Path
from typing import TypeVar

from experiments.core.codec import decode, encode
from secure_fd.errors import ConfigurationError
from secure_fd.files import write_atomically

T = TypeVar("T")


def write(path: Path, value: object, where: str) -> None:
    """A dataclass as a JSON file. Raises ConfigurationError for anything that `read` refuses."""
    content = encode(value, where)
    decode(type(value), content, where)
    text = json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, lambda file: file.write(text.encode()))


def read(path: Path, kind: type[T], where: str) -> T:
    """The dataclass in a JSON file, strictly: nothing missing, nothing extra, finite numbers."""
    try:
        return parsed(path.read_bytes(), kind, where, path.name)
    except FileNotFoundError:
        raise ConfigurationError(where, path.name, "there must be such a file") from None


def parsed(text: bytes, kind: type[T], where: str, name: str = "") -> T:
    """The dataclass in JSON, as strictly. name: of its file."""
    try:
        content = json.loads(text, parse_constant=_refuse_constant)
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(name or where, str(error), "it must be JSON in UTF-8") from None
    return decode(kind, content, where)


def _refuse_constant(name: str) -> float:
    raise ConfigurationError("results", name, "use finite numbers or null")


SINGLE = "single-contributor proxies"
"""The diagnostic: share of the answered proxies that exactly one client answered."""
