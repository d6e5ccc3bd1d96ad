"""Where an image set's files are. No tensors here, so that what lacks is told at once."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from secure_fd.errors import ConfigurationError

_PAIRS: Final = tuple(
    f"{part}-{content}-ubyte.gz"
    for part in ("train", "t10k")
    for content in ("images-idx3", "labels-idx1")
)
_FILES: Final[Mapping[str, tuple[str, ...]]] = {
    "mnist": _PAIRS,
    "fashion_mnist": _PAIRS,
    "cifar10": (),
    "chest_xray": (),
}
"""Folder -> files that must be in it, where their names are few."""
_SEEN: Final = ("_patches", "_features")
"""Sets that are another one as a map sees it."""


VARIABLE: Final = "SECURE_FD_DATA"
"""Names the folder of the image sets where no argument does."""


def data_folder(data_dir: Path | None) -> Path | None:
    """The folder of the image sets: `data_dir`, else that of SECURE_FD_DATA, else None."""
    named = os.environ.get(VARIABLE)
    return Path(named) if data_dir is None and named else data_dir


def folder_of(name: str, data_dir: Path) -> Path:
    """The folder of a set. Raises ConfigurationError where it is not in `data_dir`."""
    if not (data_dir / name).is_dir():
        allowed = f"the folder {name}/ must be in it; {VARIABLE} can name another folder"
        raise ConfigurationError("data_dir", str(data_dir), allowed)
    return data_dir / name


def check_there(image_set: str, data_dir: Path | None) -> None:
    """Raise ConfigurationError, without reading, where files of a set are missing.

    A set that is bundled needs none, and without a folder others are downloaded.

    >>> check_there("digits", Path("nowhere"))
    """
    for suffix in _SEEN:
        image_set = image_set.removesuffix(suffix)
    if data_dir is None or image_set not in _FILES:
        return
    folder = folder_of(image_set, data_dir)
    for name in _FILES[image_set]:
        if not (folder / name).is_file():
            raise ConfigurationError("data_dir", str(folder / name), "this file must exist")
