"""What the attacks rebuilt: one seed's images, kept a scene an archive."""

from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

import numpy as np

from attacks.base import AttackResult, ImageArray
from experiments.results import write_atomically
from experiments.suite.scene import Findings
from secure_fd.errors import ConfigurationError

ATTACK = "attack"
ORIGINALS = ("originals", "record", "nearest private")
"""Names that an attack's pictures go by; every other name is that of a control."""

Pictures: TypeAlias = Mapping[str, Mapping[str, Mapping[str, ImageArray]]]
"""Of a scene, by attack, row key and name: [n, H, W] in [0, 1]."""


def pictures(rows: Mapping[str, str], findings: Mapping[tuple[str, int], Findings]) -> Pictures:
    """The pictures of each row's lowest seed, in the order of `rows`.

    Raises ConfigurationError where an array is not of finite images of its attack's size.
    """
    found: dict[str, dict[str, Mapping[str, ImageArray]]] = {}
    first: dict[str, int] = {}
    for row, seed in findings:
        first[row] = min(seed, first.get(row, seed))
    for row in rows:
        for attack, result in findings[row, first[row]].items() if row in first else ():
            if isinstance(result, AttackResult) and result.images:
                _check(attack, result.images)
                found.setdefault(attack, {})[row] = result.images
    return found


def _check(attack: str, images: Mapping[str, ImageArray]) -> None:
    size = next(iter(images.values())).shape[1:]
    for name, array in images.items():
        whole = array.ndim == 3 and len(array) and np.isfinite(array).all()
        if not whole or array.shape[1:] != size:
            where = f"{attack}, {name}"
            raise ConfigurationError(where, array.shape, "use finite images [n, H, W] of one size")


def strips(
    labels: Mapping[str, str], by_row: Mapping[str, Mapping[str, ImageArray]]
) -> list[tuple[str, ImageArray]]:
    """An attack's images as named lines: originals, what each row gave away, then the controls.

    Images under one name that are the same in every row are shown once, under that name.
    """
    names = dict.fromkeys([*ORIGINALS, ATTACK, *(n for named in by_row.values() for n in named)])
    once = {name for name in names if name != ATTACK and _same(name, by_row)}
    shared = [(name, next(iter(by_row.values()))[name]) for name in names if name in once]
    own = [
        (labels[row] if name == ATTACK else f"{labels[row]}: {name}", named[name])
        for row, named in by_row.items()
        for name in names
        if name in named and name not in once
    ]
    before = [line for line in shared if line[0] in ORIGINALS]
    return [*before, *own, *shared[len(before) :]]


def _same(name: str, by_row: Mapping[str, Mapping[str, ImageArray]]) -> bool:
    """Whether every row has the same images under this name."""
    first, *others = (named.get(name) for named in by_row.values())
    return first is not None and all(
        other is not None and np.array_equal(first, other) for other in others
    )


def save(made: Pictures, path: Path) -> None:
    """Write an npz whose keys are attack/row/name; none where nothing was rebuilt."""
    if not made:
        path.unlink(missing_ok=True)  # one of an earlier run
        return
    arrays = {
        f"{attack}/{row}/{name}": np.asarray(images, dtype=np.float32)
        for attack, rows in made.items()
        for row, named in rows.items()
        for name, images in named.items()
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, lambda file: np.savez_compressed(file, allow_pickle=False, **arrays))
