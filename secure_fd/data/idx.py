"""Strict reader of the IDX format (http://yann.lecun.com/exdb/mnist/), plain or gzip."""

import gzip
import math
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from secure_fd.errors import ConfigurationError

_UNSIGNED_BYTE = 8
_MAX_BYTES = 1 << 30


def read_idx(path: Path) -> NDArray[np.uint8]:
    """The array of unsigned bytes in an IDX file.

    Raises ConfigurationError where the file is missing, not IDX, of another type, or cut short.
    """
    content = _read(path)
    if len(content) < 4 or content[:2] != b"\0\0" or content[2] != _UNSIGNED_BYTE:
        raise ConfigurationError("data_dir", str(path), "an IDX file of unsigned bytes is expected")
    start = 4 + 4 * content[3]
    if content[3] == 0 or len(content) < start:
        raise ConfigurationError("data_dir", str(path), "its header is cut short: fetch it anew")
    shape = tuple(int(size) for size in np.frombuffer(content[4:start], dtype=">u4"))
    if len(content) - start != math.prod(shape):
        raise ConfigurationError(
            "data_dir", str(path), f"its header announces {shape}, its body differs: fetch it anew"
        )
    return np.frombuffer(content, dtype=np.uint8, offset=start).reshape(shape)


def _read(path: Path) -> bytes:
    opener = gzip.open if path.suffix == ".gz" else Path.open
    try:
        with opener(path, "rb") as stream:
            content = stream.read(_MAX_BYTES + 1)
    except FileNotFoundError:
        raise ConfigurationError("data_dir", str(path), "this file must exist") from None
    except (EOFError, OSError, zlib.error) as error:
        raise ConfigurationError(
            "data_dir", str(path), f"the file is truncated or damaged ({error}): fetch it anew"
        ) from None
    if len(content) > _MAX_BYTES:
        raise ConfigurationError("data_dir", str(path), "IDX files above 1 GiB are refused")
    return bytes(content)
