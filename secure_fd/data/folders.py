"""Where the folders of image sets are, and strict readers of what is in them."""

from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from secure_fd.data.feature_cache import cache_folder
from secure_fd.errors import ConfigurationError
from secure_fd.vision import torchvision

Labelled = tuple[NDArray[np.uint8], NDArray[np.int64]]
"""Images [N, channels, H, W] of 8 bits, and labels [N]."""


class Downloaded(Protocol):
    """What torchvision's data sets offer, by set."""

    raw_folder: str
    data: NDArray[np.uint8]
    targets: list[int]


def folder_of(name: str, data_dir: Path) -> Path:
    """The folder of a set. Raises ConfigurationError where it is not in `data_dir`."""
    if not (data_dir / name).is_dir():
        raise ConfigurationError("data_dir", str(data_dir), f"the folder {name}/ must be in it")
    return data_dir / name


def downloaded(name: str, title: str, *, train: bool) -> Downloaded:
    """A set that torchvision knows by its title, where the network allows.

    Raises ConfigurationError where it does not.
    """
    datasets = torchvision().datasets
    try:
        dataset: Downloaded = getattr(datasets, title)(
            root=str(cache_folder()), train=train, download=True
        )
    except (RuntimeError, OSError):
        raise ConfigurationError(
            "data_dir", None, f"{name} could not be downloaded: name a folder that holds {name}/"
        ) from None
    return dataset


def stacked(by_class: list[NDArray[np.uint8]]) -> Labelled:
    """All images, class by class, and their labels."""
    labels = np.repeat(np.arange(len(by_class)), [len(images) for images in by_class])
    return np.concatenate(by_class), labels.astype(np.int64)


def read_mosaic(path: Path, side: int) -> NDArray[np.uint8]:
    """The tiles [N, 3, side, side] of a colour mosaic, row by row.

    Raises ConfigurationError where the file is missing, damaged or no whole number of tiles.
    """
    picture = _read(path, "RGB")
    rows, columns = picture.shape[0] // side, picture.shape[1] // side
    if picture.shape != (rows * side, columns * side, 3):
        raise ConfigurationError(
            "data_dir", str(path), f"its size {picture.shape[:2]} is no multiple of {side}"
        )
    tiles = picture.reshape(rows, side, columns, side, 3).transpose(0, 2, 4, 1, 3)
    return np.ascontiguousarray(tiles.reshape(-1, 3, side, side))


def read_grey_folder(folder: Path, side: int) -> NDArray[np.uint8]:
    """The PNG images of a folder [N, 1, side, side], in the order of their names.

    Raises ConfigurationError where there is none, or one is damaged or of another size.
    """
    paths = sorted(folder.glob("*.png"))
    if not paths:
        raise ConfigurationError("data_dir", str(folder), "this folder must exist and hold PNGs")
    images = [_read(path, "L") for path in paths]
    for path, image in zip(paths, images, strict=True):
        if image.shape != (side, side):
            raise ConfigurationError(
                "data_dir", str(path), f"its size is {image.shape}, not {(side, side)}"
            )
    return np.stack(images)[:, None]


def _read(path: Path, mode: str) -> NDArray[np.uint8]:
    try:
        with Image.open(path) as picture:
            return np.asarray(picture.convert(mode), dtype=np.uint8)
    except FileNotFoundError:
        raise ConfigurationError("data_dir", str(path), "this file must exist") from None
    except (OSError, UnidentifiedImageError, Image.DecompressionBombError) as error:
        raise ConfigurationError(
            "data_dir", str(path), f"the image is damaged ({error}): fetch it anew"
        ) from None
