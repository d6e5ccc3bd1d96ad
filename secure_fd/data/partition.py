"""Partition of the records of each class among clients; indices in, indices out."""

from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

import numpy as np

from secure_fd.errors import ConfigurationError
from secure_fd.votes.codec import IntArray

Kind = Literal["strong", "weak", "hospitals", "iid", "dirichlet", "own"]
_FLOOR = 20
"""Records below which a Dirichlet client could not train; it is topped up from the richest."""
_MOST_BETA = 1e6  # IID to every digit; far above it floating point loses the shares
_ALLOWED = (
    f"use strong, weak, iid or dirichlet:BETA with BETA above 0, at most {_MOST_BETA:g}, "
    "or hospitals"
)


@dataclass(frozen=True, slots=True)
class Split:
    """Rule by which the records of each class are divided.

    Attributes:
        kind: strong (one class a client), weak (two), iid, dirichlet (shares of each class are
            drawn), own (the data came divided), or hospitals: one class a client, and one client
            more that shares the first two classes with their holders. For three classes these are
            four clients of one or two classes, as in the paper's pneumonia task, whose figure does
            not say which client has which classes.
        beta: concentration of the Dirichlet distribution.
    """

    kind: Kind
    beta: float = 0.0

    def __post_init__(self) -> None:
        if self.kind == "dirichlet" and not 0 < self.beta <= _MOST_BETA:
            raise ConfigurationError("split", self.name, _ALLOWED)

    @property
    def name(self) -> str:
        """The split as the command line writes it."""
        return f"dirichlet:{self.beta:g}" if self.kind == "dirichlet" else self.kind


def parse_split(text: str) -> Split:
    """Read a split: 'strong', 'weak', 'hospitals', 'iid', 'own' or 'dirichlet:BETA'.

    Raises:
        ConfigurationError: the text is none of these.

    >>> parse_split("dirichlet:0.5").beta
    0.5
    """
    kind, _, beta = text.partition(":")
    if text in ("strong", "weak", "hospitals", "iid", "own"):
        return Split(text)  # type: ignore[arg-type]  # narrowed by the line above
    if kind == "dirichlet":
        with suppress(ValueError):  # also of a number that Split refuses
            return Split("dirichlet", float(beta))
    raise ConfigurationError("split", text, _ALLOWED)


def check_clients(split: Split, n_clients: int, n_classes: int) -> None:
    """Raise ConfigurationError where the classes cannot be divided among that many clients."""
    if not isinstance(n_clients, int | np.integer):
        raise ConfigurationError("clients", n_clients, "use a whole number")
    least, most = 2, 1000
    if split.kind == "hospitals":
        least = most = n_classes + 1
    elif split.kind in ("strong", "weak"):
        most = n_classes if split.kind == "strong" else n_classes * (n_classes - 1) // 2
    if not least <= n_clients <= most:
        allowed = f"{least} to {most}" if least < most else most
        raise ConfigurationError(
            "clients", n_clients, f"a {split.name} split of {n_classes} classes takes {allowed}"
        )


def partition(
    labels: IntArray, split: Split, n_clients: int, n_classes: int, rng: np.random.Generator
) -> list[IntArray]:
    """Disjoint index arrays, one a client, that cover every class some client holds.

    Raises ConfigurationError where the classes, or the records, do not reach for every client.
    """
    check_clients(split, n_clients, n_classes)
    by_class = [rng.permutation(np.flatnonzero(labels == c)) for c in range(n_classes)]
    shares = _shares(split, n_clients, n_classes, rng)
    parts: list[list[IntArray]] = [[] for _ in range(n_clients)]
    for records, share in zip(by_class, shares, strict=True):
        if share.sum() == 0:
            continue  # fewer clients than classes: no client holds this one
        cuts = np.rint(np.cumsum(share / share.sum()) * len(records)).astype(np.int64)[:-1]
        for part, piece in zip(parts, np.split(records, cuts), strict=True):
            part.append(piece)
    divided = [np.concatenate(part) for part in parts]
    if split.kind == "dirichlet":
        divided = _topped_up(divided)
    if not all(len(part) for part in divided):
        raise ConfigurationError(
            "clients", n_clients, f"some would hold none of the {len(labels)} records: use fewer"
        )
    return [np.sort(part) for part in divided]


def _shares(
    split: Split, n_clients: int, n_classes: int, rng: np.random.Generator
) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """[C, K] share of each class that each client holds."""
    if split.kind == "dirichlet":
        return rng.dirichlet(np.full(n_clients, split.beta), size=n_classes)
    shares = np.zeros((n_classes, n_clients))
    for client in range(n_clients):
        shares[list(_held(split, client, n_classes)), client] = 1.0
    return shares


def _held(split: Split, client: int, n_classes: int) -> tuple[int, ...]:
    if split.kind == "strong":
        return (client,)
    if split.kind == "hospitals":
        return (client,) if client < n_classes else (0, 1)
    if split.kind == "weak":  # neighbours on a circle, then wider pairs: no pair twice
        first = client % n_classes
        return (first, (first + 1 + client // n_classes) % n_classes)
    return tuple(range(n_classes))


def _topped_up(parts: list[IntArray]) -> list[IntArray]:
    """Give a client below the floor the last records of the richest one."""
    for client, part in enumerate(parts):
        missing = _FLOOR - len(part)
        richest = max(range(len(parts)), key=lambda k: len(parts[k]))
        if missing > 0 and len(parts[richest]) >= 2 * _FLOOR:
            parts[client] = np.concatenate([part, parts[richest][-missing:]])
            parts[richest] = parts[richest][:-missing]
    return parts
