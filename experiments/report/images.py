"""`reconstructions.npz`: what inversion rebuilt, beside the originals and the controls."""

from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from experiments.report.files import write_atomically
from secure_fd.errors import ConfigurationError

Images: TypeAlias = Mapping[str, NDArray[np.floating]]
"""[n, H, W] in [0, 1] by name: "originals", row keys, and "control: ..." names."""

IMAGES_FILE = "reconstructions.npz"
ORIGINALS = "originals"
CONTROL = "control: "


def save_images(images: Images, folder: Path) -> Path:
    """Write `reconstructions.npz`, whole or not at all, and return its path.

    Raises ConfigurationError where `load_images` would.
    """
    _check(images)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / IMAGES_FILE
    arrays = {name: np.asarray(array, dtype=np.float32) for name, array in images.items()}
    write_atomically(path, lambda file: np.savez_compressed(file, allow_pickle=False, **arrays))
    return path


def load_images(folder: Path) -> dict[str, NDArray[np.floating]]:
    """All arrays of a folder; empty where no attack rebuilt anything."""
    path = folder / IMAGES_FILE
    if not path.exists():
        return {}
    with np.load(path, allow_pickle=False) as archive:
        images = {name: archive[name] for name in archive.files}
    _check(images)
    return images


def _check(images: Images) -> None:
    if ORIGINALS not in images:
        raise ConfigurationError("images", sorted(images), f"include {ORIGINALS!r}")
    expected = images[ORIGINALS].shape
    for name, array in images.items():
        if array.ndim != 3 or array.shape[1:] != expected[1:] or not np.isfinite(array).all():
            allowed = f"use finite images [n, {', '.join(map(str, expected[1:]))}]"
            raise ConfigurationError(name, array.shape, allowed)
