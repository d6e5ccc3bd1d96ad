"""The table of named image sets: sizes, settings and folders; and names for a user's own images.

Nothing here imports torch, so that a missing folder is refused at once.
"""

import os
import re
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
class Tuned:
    """Settings of one image set, chosen on pooled validation records and proxy labels of seed 0.

    Attributes:
        rounds: where clients hold some classes.
        proxies: answered in one of these rounds.
        views: see `view_named`.
        whole_views: of the one round where clients hold all classes.
        whole_steps: of that round.
        warmup: steps before that round.
        labelled_views: where a head labels all proxies once; not compared with others here.
    """

    rounds: int = 30
    proxies: int = 128
    views: str = "none"
    whole_views: str = "none"
    whole_steps: int = 300
    warmup: int = 500
    labelled_views: str = "none"


# The paper's supplement names architectures by their layers: `models` describes the names.
TABLE_3: Final = ("cnn-5-5-50", "cnn-3-3-128", "cnn-5-3-64", "mlp-1024-512-256", "mlp-1024-1024")
HETEROGENEOUS: Final = tuple(name for name in TABLE_3 for _ in range(2))
"""Table 3: the architectures of clients 1 to 10, in its order."""
TABLE_4: Final = ("18-128-64", "18-256", "34-128-64", "34-256", "50-256")
"""Table 4: the depth of a pretrained ResNet, and the layers of its head; each is of two clients."""


@dataclass(frozen=True, slots=True)
class ImageSet:
    """Facts of a named image set that are needed before it is loaded.

    Attributes:
        title: on pages.
        n_classes: labels are 0 to n_classes - 1.
        sizes: by default of its parts.
        architectures: of the clients, in the order of the paper's tables; with more clients they
            repeat, and methods that average parameters take the first.
        tuned: for the recipes of this package.
        home: module with a function of the set's name, which takes the folder of the image sets, or
            None, and returns a `Source`.
        folder: of its files in that folder; none for a bundled set.
        brought: number of proxies that were not drawn class by class.
    """

    title: str
    n_classes: int
    sizes: Sizes
    architectures: tuple[str, ...] = HETEROGENEOUS
    tuned: Tuned = Tuned()
    home: str = "secure_fd.data.sources"
    folder: str = ""
    brought: int = 0

    @property
    def proxies(self) -> int:
        """Number of proxies in all; `brought` where they were not drawn class by class."""
        return self.brought or self.sizes.proxies * self.n_classes


_SMALL = Sizes(100, 60, 40, local=300)
_LARGE = Sizes(600, 0, 100)
_MNIST = Tuned(50, 1000, "shift", "turn", 2000, 1500, "bend")
_FASHION = Tuned(40, 1000, "none", "mirror", 2000, 1500, "nudge")
_CHEST = tuple(f"{name}@1x64x64" for name in TABLE_3 if name != "cnn-5-3-64")
_RESNETS = tuple(f"resnet{name}-pretrained" for name in TABLE_4 for _ in range(2))
IMAGE_SETS: dict[str, ImageSet] = {
    "mnist5k": ImageSet("MNIST-5k", 10, _SMALL, tuned=Tuned(views="turn", labelled_views="bend")),
    "digits": ImageSet(
        "Digits", 10, Sizes(40, 20, 14, local=100), tuned=Tuned(labelled_views="bend")
    ),
    "mnist": ImageSet("MNIST", 10, _LARGE, tuned=_MNIST, folder="mnist"),
    "fashion_mnist": ImageSet("Fashion-MNIST", 10, _LARGE, tuned=_FASHION, folder="fashion_mnist"),
    "cifar10": ImageSet("CIFAR-10", 10, Sizes(1000, 0, 100), _RESNETS, folder="cifar10"),
    "chest_xray": ImageSet(
        *("Chest X-rays", 3, Sizes(500, (100, 50, 50), 20), _CHEST),
        tuned=Tuned(25, 750, whole_steps=250, warmup=1500),
        folder="chest_xray",
    ),
}
"""Every named image set; a package may add its own."""


def image_set(name: str) -> ImageSet:
    """Return the facts of a set. Raises ConfigurationError for an unknown name."""
    if (own := _OWN.fullmatch(name)) is not None:
        kind, *numbers = own.groups()
        channels, height, width, n_classes, proxies = map(int, numbers)
        layers = ("mlp-128",) if height == 1 else HETEROGENEOUS
        title, scale = ("Own table", _STANDARDISED) if kind == _TABLE else ("Own images", "")
        shaped = tuple(f"{name}@{channels}x{height}x{width}{scale}" for name in layers)
        return ImageSet(title, n_classes, Sizes(0, 0, 0), shaped, brought=proxies)
    if name not in IMAGE_SETS:
        raise ConfigurationError("dataset", name, f"use one of {', '.join(IMAGE_SETS)}")
    return IMAGE_SETS[name]


_TABLE = "table"
_OWN = re.compile(r"(own|table)-(\d+)x(\d+)x(\d+)-(\d+)-(\d+)", re.ASCII)
_STANDARDISED = ":0.5:0.125"
"""Mean and deviation of the values of a table; see `data.columns`."""


def own_name(shape: tuple[int, ...], n_classes: int, n_proxies: int, *, table: bool = False) -> str:
    """Name a user's own data by all that `image_set` returns of it.

    >>> image_set(own_name((3, 32, 32), 4, 200)).proxies
    200
    """
    kind = _TABLE if table else "own"
    return f"{kind}-{'x'.join(map(str, shape))}-{n_classes}-{n_proxies}"


def is_table(name: str) -> bool:
    """Return whether a name is of a user's own table.

    >>> is_table(own_name((39, 1, 1), 2, 500, table=True))
    True
    """
    found = _OWN.fullmatch(name)
    return found is not None and found[1] == _TABLE


def own_shape(name: str) -> tuple[int, int, int] | None:
    """Return channels, height and width from the name of a user's own data; None for a named set.

    >>> own_shape("own-3x32x32-4-200")
    (3, 32, 32)
    """
    found = _OWN.fullmatch(name)
    return None if found is None else (int(found[2]), int(found[3]), int(found[4]))


VARIABLE: Final = "SECURE_FD_DATA"
"""Environment variable that names the folder of the image sets, where no argument does."""


def data_folder(data_dir: Path | str | None) -> Path | None:
    """Return the folder of the image sets: `data_dir`, else that of SECURE_FD_DATA, else None."""
    named = os.environ.get(VARIABLE)
    chosen = named if data_dir is None else data_dir
    return Path(chosen) if chosen else None


def folder_of(name: str, data_dir: Path) -> Path:
    """Return the folder of a set. Raises ConfigurationError where it is not in `data_dir`."""
    if not (data_dir / name).is_dir():
        allowed = f"the folder {name}/ must be in it; {VARIABLE} can name another folder"
        raise ConfigurationError("data_dir", str(data_dir), allowed)
    return data_dir / name


def check_there(name: str, data_dir: Path | None) -> None:
    """Raise ConfigurationError, without reading, where the folder of a set is missing.

    A bundled set needs none, and without a folder others are downloaded.

    >>> check_there("digits", Path("nowhere"))
    """
    if data_dir is not None and (stored := image_set(name).folder):
        folder_of(stored, data_dir)
