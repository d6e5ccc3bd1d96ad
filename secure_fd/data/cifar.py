"""CIFAR-10 (Krizhevsky, 2009) as 8-bit arrays, from a folder of mosaics or a download."""

from pathlib import Path

import numpy as np

from secure_fd.data.folders import (
    Downloaded,
    Labelled,
    downloaded,
    folder_of,
    read_mosaic,
    stacked,
)

_CLASSES = 10
_SIDE = 32


def cifar10_arrays(data_dir: Path | None) -> tuple[Labelled, Labelled]:
    """The published training and test images, [N, 3, 32, 32] of 8 bits, with their labels.

    data_dir: holds cifar10/ with a lossless mosaic for each part and class, such as train_0.webp;
    None: downloaded. Raises ConfigurationError where neither can be had.
    """
    if data_dir is None:
        train, test = (downloaded("cifar10", "CIFAR10", train=part) for part in (True, False))
        return _arrays(train), _arrays(test)
    folder = folder_of("cifar10", data_dir)
    return _mosaics(folder, "train"), _mosaics(folder, "test")


def _arrays(dataset: Downloaded) -> Labelled:
    """From torchvision's [N, 32, 32, 3]."""
    pixels = np.ascontiguousarray(dataset.data.transpose(0, 3, 1, 2))
    return pixels, np.asarray(dataset.targets, dtype=np.int64)


def _mosaics(folder: Path, part: str) -> Labelled:
    return stacked([read_mosaic(folder / f"{part}_{c}.webp", _SIDE) for c in range(_CLASSES)])
