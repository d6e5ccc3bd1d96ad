"""Images of one's own: tensors, torch data sets, and folders with one folder a class."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from secure_fd.data.federated import VALIDATION_SHARE, ClientData
from secure_fd.data.images import Images
from secure_fd.errors import ConfigurationError
from secure_fd.optional import extra

SUFFIXES: Final = frozenset({".png", ".jpg", ".jpeg", ".bmp"})
"""Of files that are images."""
_MODES: Final = {1: "L", 3: "RGB"}


def images_of(dataset: Iterable[Any]) -> Images:
    """Images from pairs of an image and its label, such as a torch `Dataset` gives.

    An image is a tensor or array [H, W] or [C, H, W] (or a vector of features [D]), of floats in
    [0, 1] or of 8-bit integers. All must have one shape.

    Raises ConfigurationError for an empty set, and for images of different shapes.

    >>> images_of([(torch.zeros(3, 8, 8), 1), (torch.ones(3, 8, 8), 0)]).pixels.shape
    torch.Size([2, 3, 8, 8])
    """
    pairs = [(_pixels(image), int(label)) for image, label in dataset]
    shapes = sorted({tuple(image.shape) for image, _ in pairs})
    if len(shapes) != 1:
        raise ConfigurationError("images", shapes, "use one image or more, all of one shape")
    labels = torch.tensor([label for _, label in pairs], dtype=torch.int64)
    return Images(torch.stack([image for image, _ in pairs]), labels)


def images_in(
    folder: Path | str,
    size: int,
    *,
    channels: int = 3,
    classes: Sequence[str] | None = None,
    folders: Sequence[Path] | None = None,
) -> tuple[Images, list[str]]:
    """Images of a folder that holds one folder a class, and the classes' names in order.

    size: pixels a side, to which every image is scaled. channels: 1 for grey, 3 for colour.
    classes: their names, where other folders hold some of them. folders: in the place of the
    classes' own, one a class.

    Raises ConfigurationError for a folder that is missing or holds no such image, and for a file
    that cannot be read.

    >>> images_in("no such folder", 32)
    Traceback (most recent call last):
    secure_fd.errors.ConfigurationError: folder: 'no such folder' is not allowed; ...
    """
    with extra():
        from PIL import Image, UnidentifiedImageError  # slow to import

    root = Path(folder)
    if channels not in _MODES:
        raise ConfigurationError("channels", channels, "use 1 or 3")
    inside = sorted(p.name for p in root.iterdir() if p.is_dir()) if root.is_dir() else []
    names = inside if classes is None else list(classes)
    pairs = []
    for label, place in enumerate(folders or [root / name for name in names]):
        for path in sorted(place.iterdir()) if place.is_dir() else ():
            if path.suffix.lower() in SUFFIXES:
                try:
                    with Image.open(path) as opened:
                        made = opened.convert(_MODES[channels]).resize((size, size))
                except (OSError, UnidentifiedImageError) as error:
                    raise ConfigurationError("folder", str(path), "it is no image") from error
                pixels = torch.from_numpy(np.array(made, dtype=np.uint8))
                pairs.append((pixels[None] if channels == 1 else pixels.permute(2, 0, 1), label))
    if not pairs:
        raise ConfigurationError("folder", str(root), "it must hold a folder of images a class")
    return images_of(pairs), names


def size_of(path: Path) -> tuple[tuple[int, int], int]:
    """Width and height of an image file, and its channels: 1 for grey, 3 for colour.

    Raises ConfigurationError for a file that is no image.
    """
    with extra():
        from PIL import Image, UnidentifiedImageError  # slow to import

    try:
        with Image.open(path) as opened:
            return opened.size, 1 if opened.mode in ("1", "L", "I", "I;16", "F", "LA") else 3
    except (OSError, UnidentifiedImageError) as error:
        raise ConfigurationError("folder", str(path), "it is no image") from error


def clients_of(
    parts: Sequence[Images], n_classes: int | None = None, *, seed: int = 0
) -> list[ClientData]:
    """Records of each client, a tenth of them held back as validation.

    n_classes: by default one more than the largest label. Raises ConfigurationError for a client
    of fewer than two records.

    >>> part = Images(torch.zeros(10, 1, 4, 4), torch.arange(10) % 2)
    >>> [len(client.validation) for client in clients_of([part, part])]
    [1, 1]
    """
    count = n_classes or 1 + max(int(part.labels.max()) for part in parts if len(part))
    made = []
    for k, part in enumerate(parts):
        if len(part) < 2:
            raise ConfigurationError("parts", len(part), f"client {k} needs 2 records or more")
        order = torch.randperm(len(part), generator=torch.Generator().manual_seed(seed + k))
        held = max(1, round(VALIDATION_SHARE * len(part)))
        made.append(ClientData(part[order[held:]], part[order[:held]], count))
    return made


def _pixels(image: object) -> Tensor:
    """float32 in [0, 1]: [C, H, W], or [D] for a vector."""
    found = image if isinstance(image, Tensor) else torch.as_tensor(np.asarray(image))
    if found.dtype == torch.uint8:
        found = found.float() / 255
    found = found.float()
    return found[None] if found.ndim == 2 else found
