"""A federation of one's own images: a folder a client, or a folder a class to be divided."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from secure_fd.data.federated import FederatedData, content_of, federate, first_copies
from secure_fd.data.image_sets import Sizes, own_name
from secure_fd.data.images import Images, concatenate
from secure_fd.data.own import SUFFIXES, clients_of, images_in, size_of
from secure_fd.data.partition import Split
from secure_fd.data.sources import Source
from secure_fd.errors import ConfigurationError

_PROXIES, _TEST, _HELD_OUT = 0.2, 0.15, 0.1
"""Shares of all images that are held back where nobody brought any for the purpose."""
_LEAST = 20
"""Images of a client, or of a class, below which these shares are too small to measure with."""


def client_folders(root: Path) -> tuple[Path, ...]:
    """The folders of clients, by name; none where a folder holds a class.

    Raises ConfigurationError where there is neither.
    """
    inside = sorted(path for path in root.iterdir() if path.is_dir()) if root.is_dir() else []
    if any(_images(path) for path in inside):
        return ()
    clients = tuple(path for path in inside if any(map(_images, _folders(path))))
    if len(clients) < 2:
        allowed = "it must hold a folder a class, or two folders of clients with a folder a class"
        raise ConfigurationError("images", str(root), allowed)
    return clients


def federation_in(
    root: Path, proxies: Path | None, split: Split, n_clients: int, size: int, seed: int
) -> FederatedData:
    """Divide a folder of images of any size and colour, scaled to `size` pixels a side.

    A tenth of a client's records is its validation; 15 % of all images are the test set, the same
    for every seed, 10 % are in nobody's training set, and without a folder of proxies 20 % are
    those. An image that occurs twice is used once. split, n_clients: where a folder is a class.
    Raises ConfigurationError for what cannot be read, and for too few images.
    """
    clients = client_folders(root)
    if proxies is not None and not proxies.is_dir():
        raise ConfigurationError("proxies", str(proxies), "it must be a folder of images")
    channels = 3 if _coloured(root) or (proxies is not None and _coloured(proxies)) else 1
    if clients:
        names = sorted({path.name for client in clients for path in _folders(client)})
        data = _held_by(clients, names, channels, size, seed, aside=proxies is None)
    else:
        data, names = _divided(root, channels, size, split, n_clients, seed, aside=proxies is None)
    if proxies is not None:
        data = replace(data, proxies=_public(proxies, names, channels, size, data))
    form = tuple(data.proxies.pixels.shape[1:])
    return replace(data, name=own_name(form, data.n_classes, len(data.proxies)))


def _folders(root: Path) -> list[Path]:
    return sorted(path for path in root.iterdir() if path.is_dir())


def _images(root: Path) -> list[Path]:
    return sorted(path for path in root.iterdir() if path.suffix.lower() in SUFFIXES)


def _coloured(root: Path) -> bool:
    """Whether any image has colour."""
    paths = sorted(path for path in root.rglob("*") if path.suffix.lower() in SUFFIXES)
    return any(size_of(path)[1] == 3 for path in paths)


def _divided(
    root: Path, channels: int, size: int, split: Split, n_clients: int, seed: int, *, aside: bool
) -> tuple[FederatedData, list[str]]:
    images, names = images_in(root, size, channels=channels)
    fewest = min(int((images.labels == c).sum()) for c in range(len(names)))
    if fewest < _LEAST:
        raise ConfigurationError("images", str(root), f"a class needs {_LEAST} images or more")
    shares = (_PROXIES if aside else 0.0, _TEST, _HELD_OUT)
    proxies, test, held_out = (round(share * fewest) for share in shares)
    source = Source("own", len(names), images, None)
    return federate(source, split, n_clients, seed, Sizes(proxies, test, held_out)), names


def _held_by(
    clients: Sequence[Path], names: list[str], channels: int, size: int, seed: int, *, aside: bool
) -> FederatedData:
    """What each client's folder holds; proxies, test and held-out are drawn from all alike."""
    seen: set[bytes] = set()
    kept: dict[str, list[Images]] = {"test": [], "proxies": [], "held out": [], "own": []}
    for k, folder in enumerate(clients):
        images, _ = images_in(folder, size, channels=channels, classes=names)
        images = _once(images, seen)
        if len(images) < _LEAST:
            raise ConfigurationError("images", str(folder), f"it needs {_LEAST} images or more")
        tests, rest = _parted(images, _TEST, np.random.default_rng((0, k)))
        rng = np.random.default_rng((seed, k))
        share = _PROXIES * len(images) / len(rest) if aside else 0.0
        public, rest = _parted(rest, share, rng)
        held, rest = _parted(rest, _HELD_OUT * len(images) / len(rest), rng)
        for name, part in zip(kept, (tests, public, held, rest), strict=True):
            kept[name].append(part)
    own = tuple(clients_of(kept["own"], len(names), seed=seed))
    test, public, held = (concatenate(kept[n]) for n in ("test", "proxies", "held out"))
    order = torch.from_numpy(np.random.default_rng(seed).permutation(len(public)))
    return FederatedData("own", len(names), own, public[order], test, held)


def _once(images: Images, seen: set[bytes]) -> Images:
    return images[torch.from_numpy(first_copies(images.pixels, seen))]


def _parted(images: Images, share: float, rng: np.random.Generator) -> tuple[Images, Images]:
    order = torch.from_numpy(rng.permutation(len(images)))
    count = round(share * len(images))
    return images[order[:count]], images[order[count:]]


def _public(root: Path, names: list[str], channels: int, size: int, data: FederatedData) -> Images:
    """Proxies that no record equals; without a folder a class of the clients', labels are -1."""
    labelled = {path.name for path in _folders(root)} <= set(names) and not _images(root)
    if labelled:
        found, _ = images_in(root, size, channels=channels, classes=names)
    else:
        places = [root, *_folders(root)]
        found, _ = images_in(root, size, channels=channels, folders=places)
        found = Images(found.pixels, torch.full_like(found.labels, -1))
    parts = [p for c in data.clients for p in (c.train, c.validation)]
    private = [*parts, data.test, data.held_out]
    return _once(found, {content_of(image) for part in private for image in part.pixels})
