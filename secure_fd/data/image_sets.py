"""Sizes, default rounds and folders of the named image sets, and names for a user's own images.

Nothing here imports torch, so that a missing folder is refused at once.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from secure_fd.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class Sizes:
    """Records of each class; clients divide what is left.

    Attributes:
        proxies: public.
        test: one number for every class, or one for each; taken from the pool only where the
            publisher made no test set.
        held_out: in no training set.
        local: most records of a class that clients divide; None for all.
    """

    proxies: int
    test: int | tuple[int, ...]
    held_out: int
    local: int | None = None


@dataclass(frozen=True, slots=True)
class ImageSet:
    """Facts of a named image set that are needed before it is loaded."""

    title: str
    n_classes: int
    sizes: Sizes
    rounds: int
    proxies_per_round: int
    distillation_batch: int
    brought: int = 0

    @property
    def proxies(self) -> int:
        """Number of proxies in all; `brought` where they were not drawn class by class."""
        return self.brought or self.sizes.proxies * self.n_classes


# The paper's Table 5 takes a tenth of the training images as proxies, and 512 of them a round; the
# small bundled sets need a larger share. Every step takes a batch of 128 from all that has been
# taught so far, at a quarter of the arithmetic of the paper's ten steps on one round's 512.
_SMALL = Sizes(100, 60, 40, local=300)
IMAGE_SETS: Mapping[str, ImageSet] = {
    "mnist5k": ImageSet("MNIST-5k", 10, _SMALL, 30, 256, 64),
    "digits": ImageSet("Digits", 10, Sizes(40, 20, 14, local=100), 30, 128, 64),
    "mnist": ImageSet("MNIST", 10, Sizes(600, 0, 100), 100, 512, 128),
    "fashion_mnist": ImageSet("Fashion-MNIST", 10, Sizes(600, 0, 100), 100, 512, 128),
    "cifar10": ImageSet("CIFAR-10", 10, Sizes(1000, 0, 100), 30, 2000, 128),
    "cifar10_features": ImageSet("CIFAR-10 features", 10, Sizes(1000, 0, 100), 30, 2000, 128),
    "mnist5k_patches": ImageSet("MNIST-5k patches", 10, _SMALL, 30, 256, 64),
    "mnist_patches": ImageSet("MNIST patches", 10, Sizes(600, 0, 100), 100, 512, 128),
    "fashion_mnist_patches": ImageSet(
        "Fashion-MNIST patches", 10, Sizes(600, 0, 100), 100, 512, 128
    ),
    "chest_xray": ImageSet("Chest X-rays", 3, Sizes(500, (100, 50, 50), 20), 30, 375, 64),
}


def image_set(name: str) -> ImageSet:
    """Return the facts of a set. Raises ConfigurationError for an unknown name."""
    if (own := _OWN.fullmatch(name)) is not None:
        n_classes, proxies = int(own[4]), int(own[5])
        asked = min(256, proxies)
        return ImageSet("Own images", n_classes, Sizes(0, 0, 0), 30, asked, 64, proxies)
    if name not in IMAGE_SETS:
        raise ConfigurationError("dataset", name, f"use one of {', '.join(IMAGE_SETS)}")
    return IMAGE_SETS[name]


_OWN = re.compile(r"own-(\d+)x(\d+)x(\d+)-(\d+)-(\d+)", re.ASCII)


def own_name(shape: tuple[int, ...], n_classes: int, n_proxies: int) -> str:
    """Name a user's own data by all that `image_set` returns of it.

    >>> image_set(own_name((3, 32, 32), 4, 200)).proxies
    200
    """
    return f"own-{'x'.join(map(str, shape))}-{n_classes}-{n_proxies}"


def own_shape(name: str) -> tuple[int, int, int] | None:
    """Return channels, height and width from the name of a user's own data; None for a named set.

    >>> own_shape("own-3x32x32-4-200")
    (3, 32, 32)
    """
    found = _OWN.fullmatch(name)
    return None if found is None else (int(found[1]), int(found[2]), int(found[3]))


VARIABLE: Final = "SECURE_FD_DATA"
"""Environment variable that names the folder of the image sets, where no argument does."""
_IDX_FILES: Final = tuple(
    f"{part}-{content}-ubyte.gz"
    for part in ("train", "t10k")
    for content in ("images-idx3", "labels-idx1")
)
_FOLDERS: Final = ("mnist", "fashion_mnist", "cifar10", "chest_xray")


def data_folder(data_dir: Path | None) -> Path | None:
    """Return the folder of the image sets: `data_dir`, else that of SECURE_FD_DATA, else None."""
    named = os.environ.get(VARIABLE)
    return Path(named) if data_dir is None and named else data_dir


def folder_of(name: str, data_dir: Path) -> Path:
    """Return the folder of a set. Raises ConfigurationError where it is not in `data_dir`."""
    if not (data_dir / name).is_dir():
        allowed = f"the folder {name}/ must be in it; {VARIABLE} can name another folder"
        raise ConfigurationError("data_dir", str(data_dir), allowed)
    return data_dir / name


def check_there(name: str, data_dir: Path | None) -> None:
    """Raise ConfigurationError, without reading, where files of a set are missing.

    A bundled set needs none, and without a folder others are downloaded.

    >>> check_there("digits", Path("nowhere"))
    """
    folder_name = name.removesuffix("_patches").removesuffix("_features")
    if data_dir is None or folder_name not in _FOLDERS:
        return
    folder = folder_of(folder_name, data_dir)
    for file in _IDX_FILES if "mnist" in folder_name else ():
        if not (folder / file).is_file():
            raise ConfigurationError("data_dir", str(folder / file), "this file must exist")
