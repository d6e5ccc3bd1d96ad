"""Every combination of sum, privacy unit and split runs to its end, with all attacks answered.

The comparison's own folder of images is a few digits; rows train for two rounds, and the games have
few candidates. SECURE_FD_COMBINATIONS=1 runs every combination, else a part that covers them.
"""

import os
from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from attacks.core.base import AttackResult
from experiments.compare import games
from experiments.compare.comparison import Cell, measured, needs, prepared
from experiments.compare.leakage import PLAYED
from experiments.core.run_config import RowSpec
from experiments.core.study import Result, gathered
from experiments.privacy_compare import STUDY, Settings, cells
from experiments.report.tables import Table
from secure_fd.data.sources import load
from secure_fd.training.recipes import SGD, Schedule

CLASSES, EACH = 3, 40
OF_UPDATES = ("update-inversion", "update-inversion-8")
ATTACKS = (
    "label-distribution",
    "server-members",
    "label-only",
    "update-of-run",
    *OF_UPDATES,
    *PLAYED,
)
EVERY = list(
    product(
        (False, True),
        ("", "label", "record", "label,record"),
        ("strong", "iid", "dirichlet:0.3"),
    )
)
"""Units: "" is a run without epsilon."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder a class."""
    root, pool = tmp_path_factory.mktemp("scans"), load("digits").pool
    for label in range(CLASSES):
        (root / str(label)).mkdir()
        for index, pixels in enumerate(pool.pixels[pool.labels == label][:EACH]):
            image = Image.fromarray((255 * pixels[0]).round().byte().numpy())
            image.save(root / str(label) / f"{index:02}.png")
    return root


@pytest.fixture(scope="module", autouse=True)
def short_games():
    """Games of few candidates and steps: what they find does not matter here."""
    few = Schedule(
        warmup_steps=2, local_steps=1, proxy_steps=1, proxies_per_round=50, sgd=SGD(local_batch=8)
    )
    brief = Schedule(local_steps=2, proxy_steps=0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(games, "OF_A_CLASS", 4)
        patch.setattr(games, "PROXIES", 50)
        for name in ("_SCHEDULE", "_LONG"):
            patch.setattr(games, name, few)
        for name in ("_FEDAVG", "_LONG_FEDAVG"):
            patch.setattr(games, name, brief)
        for name in ("_FEDAVG_ROUNDS", "_LONG_ROUNDS"):
            patch.setattr(games, name, 2)
        yield


def combination(folder: Path, split: str, units: str, *, secure: bool) -> list[Cell]:
    """The cells of a run of one round, after a warm-up of two steps."""
    chosen = Settings(
        images=folder,
        image_size=16,
        split=split,
        clients=3,
        rounds=2,
        proxies_per_round=16,
        secure_agg=secure,
        dp_eps=4.0 if units else None,
        dp_unit=units or "label,record",
        attacks=",".join(ATTACKS),
    )
    return [
        replace(
            cell,
            config=replace(cell.config, schedule=replace(cell.config.schedule, warmup_steps=2)),
            quick=True,
        )
        for cell in cells(chosen)
    ]


@cache
def ready(part: Any) -> Any:
    return prepared(None, part)


def result(cell: Cell) -> Result:
    return measured(None, cell, {part: ready(part) for part in needs(cell)})


def figures_of(row: RowSpec) -> set[str]:
    """The attacks that must have a figure of a row."""
    if row.kind == "independent":
        return {"label-only"}
    always = {"game-server", "server-members", "label-only"}
    if row.kind == "fedavg":
        return {*always, "update-of-run", *OF_UPDATES[: 1 if row.unit else 2]}
    return {*always, "label-distribution"}


@pytest.mark.skipif(
    "SECURE_FD_COMBINATIONS" not in os.environ, reason="takes minutes: make test-long"
)
@pytest.mark.parametrize(("secure", "units", "split"), EVERY)
def test_every_combination_runs_to_its_end(folder, split, units, *, secure):
    made = combination(folder, split, units, secure=secure)
    assert {cell.config.row.unit or "" for cell in made} == {"", *units.split(",")}
    results = tuple(result(cell) for cell in made)
    for cell, one in zip(made, results, strict=True):
        measured_ones = {n for n, f in one.attacks.items() if isinstance(f, AttackResult)}
        assert tuple(one.attacks) == ATTACKS
        assert figures_of(cell.config.row) <= measured_ones, cell.label
    results_of = gathered(STUDY, results)
    tables = [part for part in STUDY.shown(results_of) if isinstance(part, Table)]
    assert [len(table.rows) for table in tables] == [len(made) + 1]  # and the guess
