"""Networks in a file: mode 0600, and read without running code from it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import torch

from secure_fd.errors import ConfigurationError
from secure_fd.files import write_atomically

SCHEMA: Final = "secure-fd/run/2"
_MOST_BYTES: Final = 4 << 30
_MARK: Final = b"PK\x03\x04"


def write(path: Path, content: Mapping[str, Any]) -> None:
    """Write plain values and tensors, mode 0600, whole or not at all."""
    made = {"schema": SCHEMA, **content}
    write_atomically(path, lambda file: torch.save(made, file), mode=0o600)


def read(path: Path) -> dict[str, Any]:
    """Read what `write` wrote. Raises ConfigurationError for any other file."""
    if not path.is_file():
        raise ConfigurationError("path", str(path), "there is no such file")
    size = path.stat().st_size
    if size > _MOST_BYTES:
        raise ConfigurationError("path", str(path), f"it has {size:,} bytes; 4 GiB are allowed")
    with path.open("rb") as file:
        if file.read(len(_MARK)) != _MARK:
            raise ConfigurationError("path", str(path), "it is no file of this package")
        file.seek(0)
        try:
            found = torch.load(file, map_location="cpu", weights_only=True)
        except Exception as error:
            raise ConfigurationError(
                "path", str(path), f"it cannot be read ({type(error).__name__})"
            ) from error
    if not isinstance(found, dict) or found.get("schema") != SCHEMA:
        raise ConfigurationError("path", str(path), f"it is not of the schema {SCHEMA}")
    return found
