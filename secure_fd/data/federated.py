"""The data of one federation: disjoint sets of clients, proxies, test and held-out records."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from secure_fd.data.image_sets import Sizes, image_set
from secure_fd.data.images import Images, in_range
from secure_fd.data.partition import Split, partition
from secure_fd.errors import ConfigurationError, LocalError
from secure_fd.votes.codec import IntArray

Count = int | tuple[int, ...]
"""Records of every class, or of each."""
_VALIDATION = 0.1
"""Part of a client's records held back to set its selector's threshold."""
_TEST = 0
"""Seed of the test images that are taken from a pool, whatever the seed of the run."""


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class ClientData:
    """One client's private records.

    Attributes:
        train: one record or more.
        validation: for the thresholds of selectors.
        n_classes: of the whole federation.

    Raises:
        ConfigurationError: there is no training record, or pixels or labels are out of range.

    >>> records = Images(torch.zeros(4, 1, 8, 8), torch.tensor([0, 2, 2, 0]))
    >>> ClientData(records, records[:0], n_classes=3).classes
    (0, 2)
    """

    train: Images
    validation: Images
    n_classes: int

    def __post_init__(self) -> None:
        if self.n_classes < 1:
            raise ConfigurationError("n_classes", self.n_classes, "use 1 or more")
        shape, other = (part.pixels.shape[1:] for part in (self.train, self.validation))
        if shape != other:
            raise ConfigurationError("validation", tuple(other), f"use records of {tuple(shape)}")
        for part in (self.train, self.validation):
            # Checked before a run exists: a refusal during one would itself reveal the record.
            if not in_range(part.pixels):
                raise ConfigurationError("pixels", "some", "use numbers in [0, 1], and no NaN")
            if len(part) and not (part.labels.min() >= 0 and part.labels.max() < self.n_classes):
                raise ConfigurationError("labels", "some", f"use 0 to {self.n_classes - 1}")
        if len(self.train) == 0:
            raise ConfigurationError("train", 0, "a client needs one record or more")

    @property
    def classes(self) -> tuple[int, ...]:
        """Classes that the client holds, ascending."""
        return tuple(int(c) for c in torch.unique(self.train.labels))


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class FederatedData:
    """All data of a run. No record is in two parts.

    Attributes:
        name: of the image set.
        n_classes: labels are 0 to n_classes - 1.
        clients: private records.
        proxies: public; their labels serve evaluation and attacks alone.
        test: of no client.
        held_out: drawn like the members, but in no training set: the attacks' non-members.
        proxy_message_bytes: size of the proxy set as it travels, where that is not `proxies`:
            images travel, and each client maps them to features itself.

    >>> from secure_fd import federate, load, parse_split
    >>> data = federate(load("digits"), parse_split("strong"), 4, seed=0)
    >>> [client.classes for client in data.clients]
    [(0,), (1,), (2,), (3,)]
    """

    name: str
    n_classes: int
    clients: tuple[ClientData, ...]
    proxies: Images
    test: Images
    held_out: Images
    proxy_message_bytes: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Source:
    """An image set.

    Attributes:
        name: as `image_set` lists it.
        n_classes: labels are 0 to n_classes - 1.
        pool: the images to divide.
        test: None where the publisher made no test set.
        seen: what to make of a federation of these images, such as one of features that are learnt
            from its proxies.
    """

    name: str
    n_classes: int
    pool: Images
    test: Images | None
    seen: Callable[[FederatedData], FederatedData] | None = None


def federate(
    source: Source, split: Split, n_clients: int, seed: int, sizes: Sizes | None = None
) -> FederatedData:
    """Divide a source; a published test set is the test set.

    Where there is none, the same images of the pool are the test set for every seed, so that what
    is chosen on one seed has not seen what another is scored on. Held-out records always come from
    the pool, so that they are drawn as the members are. An image that the pool holds twice, or that
    the test set holds too, is used once.

    >>> from secure_fd import load, parse_split
    >>> len(federate(load("digits"), parse_split("iid"), 5, seed=0).clients)
    5
    """
    rng = np.random.default_rng(seed)
    part = sizes or image_set(source.name).sizes
    seen: set[bytes] = set()
    if source.test is not None:
        first_copies(source.test.pixels, seen)
    pool = source.pool[first_copies(source.pool.pixels, seen)]
    labels = pool.labels.numpy()
    tested = part.test if source.test is None else 0
    tests, every = np.random.default_rng(_TEST), np.arange(len(pool))
    drawn, free = _draw(labels, every, {"test": tested}, source.n_classes, tests)
    takes = {"proxies": part.proxies, "held_out": part.held_out}
    others, rest = _draw(labels, free, takes, source.n_classes, rng)
    drawn |= others
    if part.local is not None:
        kept, _ = _draw(labels, rest, {"local": part.local}, source.n_classes, rng)
        rest = kept["local"]
    shares = [rest[i] for i in partition(labels[rest], split, n_clients, source.n_classes, rng)]
    check_disjoint([*drawn.values(), *shares])
    clients = tuple(_client(pool, share, source.n_classes, rng) for share in shares)
    # Shuffled: a set that is stored class by class must not show labels by position.
    order = rng.permutation(drawn["proxies"])
    test = source.test or pool[drawn["test"]]
    proxies, held_out = pool[order], pool[drawn["held_out"]]
    made = FederatedData(source.name, source.n_classes, clients, proxies, test, held_out)
    return made if source.seen is None else source.seen(made)


def clients_of(
    parts: Sequence[Images], n_classes: int | None = None, *, seed: int = 0
) -> list[ClientData]:
    """Hold back a tenth of each client's records as validation.

    Args:
        parts: records of each client.
        n_classes: by default one more than the largest label.
        seed: of the drawing.

    Raises:
        ConfigurationError: a client has fewer than two records.

    >>> part = Images(torch.zeros(10, 1, 4, 4), torch.arange(10) % 2)
    >>> [len(client.validation) for client in clients_of([part, part])]
    [1, 1]
    """
    if not parts:
        raise ConfigurationError("parts", 0, "use the records of one client or more")
    for k, part in enumerate(parts):
        if len(part) < 2:
            raise ConfigurationError("parts", len(part), f"client {k} needs 2 records or more")
    count = n_classes or 1 + max(int(part.labels.max()) for part in parts)
    made = []
    for k, part in enumerate(parts):
        order = torch.randperm(len(part), generator=torch.Generator().manual_seed(seed + k))
        held = max(1, round(_VALIDATION * len(part)))
        made.append(ClientData(part[order[held:]], part[order[:held]], count))
    return made


def shares_of(count: int, shares: Sequence[float], seed: int, number: int) -> list[IntArray]:
    """Divide the records of client `number` into these shares, in disjoint parts, and the rest.

    The first part is the same for every seed.

    >>> [len(part) for part in shares_of(20, (0.15, 0.1), seed=0, number=0)]
    [3, 2, 15]
    """
    cuts = np.cumsum([round(share * count) for share in shares])
    order = np.random.default_rng((0, number)).permutation(count)
    order[cuts[0] :] = np.random.default_rng((seed, number)).permutation(order[cuts[0] :])
    return np.split(order, cuts)


def first_copies(pixels: Tensor, seen: set[bytes]) -> IntArray:
    """Return indices of images that are not in `seen`, each image once; add them to `seen`."""
    first = []
    for index, image in enumerate(pixels):
        content = content_of(image)
        if content not in seen:
            seen.add(content)
            first.append(index)
    return np.asarray(first, dtype=np.int64)


def content_of(image: Tensor) -> bytes:
    """Return a hash: a set of hashes is smaller than a set of images."""
    return hashlib.blake2b(image.numpy().tobytes(), digest_size=16).digest()


def check_disjoint(parts: list[IntArray]) -> None:
    """Raise LocalError where an index is in two parts, or twice in one."""
    every = np.concatenate(parts)
    if len(np.unique(every)) != len(every):
        raise LocalError("a record is in two parts of the data: the split is not disjoint")


def _draw(
    labels: IntArray,
    free: IntArray,
    takes: Mapping[str, Count],
    n_classes: int,
    rng: np.random.Generator,
) -> tuple[dict[str, IntArray], IntArray]:
    """Stratified disjoint index sets by name out of `free`, and those left over, ascending."""
    part = np.full(len(labels), -1)
    part[free] = len(takes)
    for c in range(n_classes):
        records = rng.permutation(free[labels[free] == c])
        counts = [_of_class(count, c, n_classes) for count in takes.values()]
        if sum(counts) > len(records):
            raise ConfigurationError(
                next(iter(takes)), takes, f"class {c} has {len(records)} records left for these"
            )
        part[records[: sum(counts)]] = np.repeat(np.arange(len(takes)), counts)
    *drawn, rest = (np.flatnonzero(part == number) for number in range(len(takes) + 1))
    return dict(zip(takes, drawn, strict=True)), rest


def _of_class(count: Count, c: int, n_classes: int) -> int:
    if isinstance(count, int):
        return count
    if len(count) != n_classes:
        raise ConfigurationError("sizes", count, f"use one number, or one for all {n_classes}")
    return count[c]


def _client(pool: Images, share: IntArray, n_classes: int, rng: np.random.Generator) -> ClientData:
    """Hold back a tenth of the records of each class for validation."""
    labels = pool.labels.numpy()[share]
    shuffled = rng.permutation(len(share))
    back = np.zeros(len(share), dtype=np.bool_)
    for c in np.unique(labels):
        own = shuffled[labels[shuffled] == c]
        back[own[len(own) - int(_VALIDATION * len(own)) :]] = True
    return ClientData(pool[share[~back]], pool[share[back]], n_classes)
