"""A comparison for the report's tests: the committed one, with invented pictures."""

from dataclasses import replace
from functools import cache

import numpy as np

from attacks.core.base import AttackResult
from experiments.core.provenance import ROOT
from experiments.core.study import Result, Results, read_results
from experiments.privacy_compare import STUDY

BLOBS = np.linspace(0, 1, 2 * 8 * 8, dtype=np.float32).reshape(2, 8, 8)
PICTURES = {f"inversion/{name}": BLOBS for name in ("originals", "attack", "public mean")}


ATTACKS = {
    **{name: name for name in ("label-distribution", "update-inversion", "inversion")},
    **{name: name for name in ("game-server", "game-lira", "game-labels")},
    "server-members": "game-server",
    "label-only": "game-labels",
}
"""By attack of the sample, the attack of the committed results that it is taken from."""


@cache
def committed() -> Results:
    """With few attacks, and noise from a seed."""
    found = read_results(STUDY, ROOT / "docs" / "results" / "mnist5k.json")
    cells = []
    for cell in found.cells:
        noise = "seeded" if cell.notes["privacy"] else None
        attacks = {name: cell.attacks[known] for name, known in ATTACKS.items()}
        notes = {**cell.notes, "noise": noise}
        cells.append(replace(cell, attacks=attacks, notes=notes, seconds=12.5))
    return replace(found, cells=tuple(cells))


def sample(n_rows=10, seeds=1, **changes) -> Results:
    """Its first rows with changed configurations; of several seeds the first alone is attacked."""
    found = committed()
    first = [configured(result, **changes) for result in found.cells[:n_rows]]
    first[0] = replace(first[0], pictures=PICTURES)
    later = [
        replace(configured(result, seed=20 + n), attacks={}, pictures={})
        for n in range(1, seeds)
        for result in first
    ]
    return replace(found, cells=(*first, *later))


def configured(result: Result, **changes) -> Result:
    """A result of another configuration."""
    config = replace(result.cell.config, **changes)
    return replace(result, cell=replace(result.cell, config=config))


def with_row(results, index, **changes) -> Results:
    """The results with some fields of one cell replaced; figures and notes are added to."""
    cells = list(results.cells)
    for name in ("figures", "notes"):
        if name in changes:
            changes[name] = {**getattr(cells[index], name), **changes[name]}
    cells[index] = replace(cells[index], **changes)
    return replace(results, cells=tuple(cells))


def figure(results, index, attack) -> AttackResult:
    """One that the sample has."""
    found = results.cells[index].attacks[attack]
    assert isinstance(found, AttackResult)
    return found
