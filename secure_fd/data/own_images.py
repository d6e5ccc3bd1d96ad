"""A user's own images: tensors and data sets, and folders of a class or of a client each."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Final, Literal

import numpy as np
import torch
from torch import Tensor

from secure_fd.data.federated import FederatedData, clients_of, first_copies, shares_of
from secure_fd.data.image_sets import own_name
from secure_fd.data.images import Images, concatenate
from secure_fd.data.partition import Split, partition
from secure_fd.data.vision import picture
from secure_fd.errors import ConfigurationError

_SUFFIXES: Final = frozenset({".png", ".jpg", ".jpeg", ".bmp"})
_FORMATS: Final = "PNG, JPEG or BMP images"
_MODES: Final = {1: "L", 3: "RGB"}
_GREY: Final = ("1", "L", "I", "I;16", "F", "LA")
_PROXIES, _TEST, _HELD_OUT = 0.2, 0.15, 0.1
"""Shares of all images that are held back where the user brought none for the purpose."""
_LEAST = 20
"""Images of a client, or of a class, below which these shares are too small to measure with."""


def images_of(dataset: Iterable[Any]) -> Images:
    """Make images from pairs of an image and its label, such as a torch `Dataset` gives.

    Args:
        dataset: an image is a tensor or array [H, W] or [C, H, W] (or a vector of features [D]),
            of floats in [0, 1] or of 8-bit integers. All must have one shape.

    Raises:
        ConfigurationError: the set is empty, or its images differ in shape.

    >>> images_of([(torch.zeros(3, 8, 8), 1), (torch.ones(3, 8, 8), 0)]).pixels.shape
    torch.Size([2, 3, 8, 8])
    """
    pairs = [(_pixels(image), _label(label)) for image, label in dataset]
    shapes = sorted({tuple(image.shape) for image, _ in pairs})
    if len(shapes) != 1:
        raise ConfigurationError("images", shapes, "use one image or more, all of one shape")
    labels = torch.tensor([label for _, label in pairs], dtype=torch.int64)
    return Images(torch.stack([image for image, _ in pairs]), labels)


def _label(label: Any) -> int:  # noqa: ANN401 - of any data set
    try:
        return int(label)
    except (TypeError, ValueError):
        raise ConfigurationError("images", label, "a label is a whole number") from None


def _pixels(image: object) -> Tensor:
    """float32 in [0, 1]: [C, H, W], or [D] for a vector."""
    found = image if isinstance(image, Tensor) else torch.as_tensor(np.asarray(image))
    found = found.float() / 255 if found.dtype == torch.uint8 else found.float()
    return found[None] if found.ndim == 2 else found


def images_in(
    folder: Path | str,
    size: int,
    *,
    channels: int = 3,
    classes: Sequence[str] | None = None,
    folders: Sequence[Path] | None = None,
) -> tuple[Images, list[str]]:
    """Read a folder that holds one folder for each class.

    Args:
        folder: holds PNG, JPEG and BMP images of any size.
        size: pixels a side, to which every image is scaled.
        channels: 1 for grey, 3 for colour.
        classes: names of the classes, where other folders hold some of them.
        folders: one for each class, in the place of the folders in `folder`.

    Returns:
        The images, and the names of the classes in the order of the labels.

    Raises:
        ConfigurationError: the folder is missing or holds no image, or a file cannot be read.

    >>> images_in("no such folder", 32)
    Traceback (most recent call last):
    secure_fd.errors.ConfigurationError: folder: 'no such folder' is not allowed; ...
    """
    root = Path(folder)
    if channels not in _MODES:
        raise ConfigurationError("channels", channels, "use 1 or 3")
    if size < 1:
        raise ConfigurationError("size", size, "use 1 pixel or more")
    if not root.is_dir():
        raise ConfigurationError("folder", str(root), "it must be an existing folder")
    names = [path.name for path in _folders(root)] if classes is None else list(classes)
    pairs = [
        (read_picture(path, channels, size, "folder"), label)
        for label, place in enumerate(folders or [root / name for name in names])
        for path in image_files(place)
    ]
    if not pairs:
        what = f"a folder a class, of {_FORMATS}" if folders is None else f"{_FORMATS} themselves"
        raise ConfigurationError("folder", str(root), f"it must hold {what}")
    return images_of(pairs), names


def read_picture(
    path: Path, channels: int, size: int | None = None, field: str = "images"
) -> Tensor:
    """Read an image file: [channels, H, W] of 8 bits, scaled to `size` pixels a side.

    Raises ConfigurationError about `field` for a file that is missing, or no image.
    """
    with picture(path, field) as image:
        colours = _of_8_bits(image).convert(_MODES[channels])
        made = np.array(colours if size is None else colours.resize((size, size)), dtype=np.uint8)
    return torch.from_numpy(made).view(*made.shape[:2], channels).permute(2, 0, 1)


def _of_8_bits(image: Any) -> Any:  # noqa: ANN401 - an image of Pillow
    """Return an image with greys of 8 bits: Pillow would cut those of 16 bits off at 255."""
    if not image.mode.startswith("I"):
        return image
    from PIL import Image  # slow to import

    return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))


def _inside(root: Path) -> list[Path]:
    return sorted(root.iterdir()) if root.is_dir() else []


def _folders(root: Path) -> list[Path]:
    return [path for path in _inside(root) if path.is_dir()]


def image_files(root: Path) -> list[Path]:
    """Return the image files of a folder, by name."""
    return [path for path in _inside(root) if path.suffix.lower() in _SUFFIXES]


def client_folders(root: Path) -> tuple[Path, ...]:
    """Return the folders of clients, by name; none where a folder holds a class.

    Raises:
        ConfigurationError: the folder holds neither.
    """
    if not root.is_dir():
        raise ConfigurationError("images", str(root), "it must be an existing folder")
    inside = _folders(root)
    if any(image_files(path) for path in inside):
        return ()
    clients = tuple(path for path in inside if any(map(image_files, _folders(path))))
    if len(clients) < 2:
        allowed = f"it must hold a folder of {_FORMATS} a class, or one for each of two clients"
        raise ConfigurationError("images", str(root), allowed)
    return clients


def federation_in(
    root: Path, proxies: Path | None, split: Split, n_clients: int, size: int, seed: int
) -> FederatedData:
    """Divide a folder of images of any size and colour.

    A tenth of a client's records is its validation; 15 % of all images are the test set, the same
    for every seed, 10 % are in no training set, and without a folder of proxies 20 % are those. An
    image that occurs twice is used once.

    Args:
        root: has a folder for each class, or for each client such a folder.
        proxies: a folder of public images.
        split: of the clients, where a folder is a class.
        n_clients: the same.
        size: pixels a side, to which every image is scaled.
        seed: of all drawing but that of the test set.

    Raises:
        ConfigurationError: a file cannot be read, or there are too few images.
    """
    clients = client_folders(root)
    if proxies is not None and not proxies.is_dir():
        raise ConfigurationError("proxies", str(proxies), "it must be a folder of images")
    channels = max(colour_and_side(folder)[0] for folder in (root, proxies) if folder)
    names = sorted({path.name for client in clients or (root,) for path in _folders(client)})
    read = partial(images_in, size=size, channels=channels, classes=names)
    if clients:
        held = [read(client)[0] for client in clients]
    else:
        images, _ = read(root)
        held = [images[images.labels == label] for label in range(len(names))]
    seen: set[bytes] = set()
    parts = []
    for k, (folder, images) in enumerate(zip(clients or _folders(root), held, strict=True)):
        parts.append(_parts(folder, images, seen, _PROXIES * (proxies is None), seed, k))
    tests, public, held_out, own = zip(*parts, strict=True)
    shown = concatenate(public)[np.random.default_rng(seed).permutation(sum(map(len, public)))]
    if not clients:
        rest = concatenate(own)
        rng = np.random.default_rng(seed)
        shares = partition(rest.labels.numpy(), split, n_clients, len(names), rng)
        own = tuple(rest[share] for share in shares)
    if proxies is not None:
        shown = _public(proxies, names, read, seen)
    name = own_name(tuple(shown.pixels.shape[1:]), len(names), len(shown))
    parties = tuple(clients_of(own, len(names), seed=seed))
    return FederatedData(
        name, len(names), parties, shown, concatenate(tests), concatenate(held_out)
    )


def colour_and_side(root: Path) -> tuple[Literal[1, 3], int]:
    """Return 3 if an image in a folder of classes or clients has colour, else 1, and a side.

    The side is the median of the images' shorter sides, in pixels. No pixel is decoded.
    """
    channels: Literal[1, 3] = 1
    sides = list[int]()
    inside = _folders(root)
    for place in (root, *inside, *(path for each in inside for path in _folders(each))):
        for path in image_files(place):
            with picture(path, "folder") as image:
                sides.append(min(image.size))
                channels = channels if image.mode in _GREY else 3
    return channels, round(median(sides or [0]))


def _parts(
    folder: Path, images: Images, seen: set[bytes], proxies: float, seed: int, k: int
) -> list[Images]:
    """Test, proxies, held-out and private records of folder number k, none of which was seen."""
    images = images[first_copies(images.pixels, seen)]
    if len(images) < _LEAST:
        raise ConfigurationError("images", str(folder), f"it needs {_LEAST} images or more")
    cuts = shares_of(len(images), (_TEST, proxies, _HELD_OUT), seed, k)
    return [images[part] for part in cuts]


def _public(
    root: Path, names: list[str], read: Callable[..., tuple[Images, list[str]]], seen: set[bytes]
) -> Images:
    """Proxies that no record equals; without a folder a class of the clients', labels are -1."""
    if {path.name for path in _folders(root)} <= set(names) and not image_files(root):
        found, _ = read(root)
    else:
        found, _ = read(root, folders=[root, *_folders(root)])
        found = Images(found.pixels, torch.full_like(found.labels, -1))
    found = found[first_copies(found.pixels, seen)]
    if not len(found):
        raise ConfigurationError("proxies", str(root), "all its images are records of clients")
    return found
