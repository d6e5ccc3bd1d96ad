"""Features of public and private images on disk, computed once: a file for each thousand images.

A file's name is the hash of what it was made from, the images and the feature map, so nothing is
ever stale, an interrupted run resumes at the file it left, and every split and seed shares them.
"""

import hashlib
import os
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from secure_fd.errors import ConfigurationError

SHARD = 1000
"""Images a file."""


class FeatureMap(Protocol):
    """A fixed map from images to features, both of 8 bits."""

    @property
    def key(self) -> str:
        """Says everything that features depend on, besides the image."""

    @property
    def width(self) -> int:
        """Features of an image."""

    def __call__(self, pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """[N, channels, H, W] -> [N, width]."""


def cache_folder() -> Path:
    """Where downloads and features are kept: SECURE_FD_CACHE, or ~/.cache/secure-fd."""
    named = os.environ.get("SECURE_FD_CACHE")
    return Path(named) if named else Path.home() / ".cache" / "secure-fd"


def cached_features(
    pixels: NDArray[np.uint8], feature_map: FeatureMap, folder: Path
) -> NDArray[np.uint8]:
    """Features [N, width] of images [N, channels, H, W]: read from `folder`, or made and kept.

    Raises ConfigurationError where a file is damaged or the folder cannot be written.
    """
    shards = [pixels[start : start + SHARD] for start in range(0, len(pixels), SHARD)]
    paths = [folder / f"{_name(shard, feature_map)}.npz" for shard in shards]
    missing = [i for i, path in enumerate(paths) if not path.exists()]
    for i in _with_progress(missing):
        _write(paths[i], feature_map(shards[i]))
    parts = [
        _read(path, (len(shard), feature_map.width))
        for path, shard in zip(paths, shards, strict=True)
    ]
    return np.concatenate(parts)


def _name(shard: NDArray[np.uint8], feature_map: FeatureMap) -> str:
    """Shape and key come first and end in a zero byte, so no two inputs share a hash's input."""
    digest = hashlib.sha256(f"{feature_map.key} {shard.shape}\0".encode())
    digest.update(np.ascontiguousarray(shard).data)
    return digest.hexdigest()


def _with_progress(missing: list[int]) -> Iterator[int]:
    """The same numbers, with a bar and the time left on the terminal."""
    if not missing:
        return iter(missing)
    from rich.console import Console
    from rich.progress import track

    title = f"Features, {SHARD} images a step, kept for later runs"
    return iter(track(missing, description=title, console=Console(stderr=True)))


def _write(path: Path, features: NDArray[np.uint8]) -> None:
    """Write beside and rename: a file is whole, or it is not there."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".part", delete=False) as stream:
            part = Path(stream.name)
            try:
                np.savez_compressed(stream, features=features)
                stream.flush()
                part.replace(path)
            finally:
                part.unlink(missing_ok=True)  # a full disk or Ctrl-C leaves nothing behind
    except OSError as error:
        raise ConfigurationError(
            "SECURE_FD_CACHE", str(path.parent), f"features cannot be kept there ({error.strerror})"
        ) from None


def _read(path: Path, shape: tuple[int, int]) -> NDArray[np.uint8]:
    """One file's features; the archive's checksum tells a damaged one."""
    try:
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as archive:
            features = archive["features"]
    except (OSError, KeyError, ValueError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error):
        raise ConfigurationError(
            "SECURE_FD_CACHE", str(path), "this file is damaged: delete it"
        ) from None
    if features.dtype != np.uint8 or features.shape != shape:
        raise ConfigurationError(
            "SECURE_FD_CACHE",
            str(path),
            f"it holds {features.dtype} {features.shape}, not uint8 {shape}: delete it",
        )
    return np.asarray(features)
