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
        content = json.loads(path.read_bytes(), parse_constant=_refuse_constant)
    except FileNotFoundError:
        raise ConfigurationError(where, path.name, "there must be such a file") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(path.name, str(error), "it must be JSON in UTF-8") from None
    return decode(kind, content, where)


def _refuse_constant(name: str) -> float:
    raise ConfigurationError("results", name, "use finite numbers or null")


SINGLE = "single-contributor proxies"
"""The diagnostic: share of the answered proxies that exactly one client answered."""
