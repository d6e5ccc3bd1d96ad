"""Which cells a study has, what the command line refuses, and where a finished cell is found."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from experiments.utility.cells import STUDIES, Cell, FleetTerms, Grid, cells
from experiments.utility.results import (
    CellResult,
    Results,
    gathered,
    load,
    save,
)
from experiments.utility.settings import Settings, plan
from experiments.utility.store import Store
from secure_fd.errors import ConfigurationError

GRID = Grid((1.0, 2.0, 4.0, 8.0, None), (10, 11, 12), None, quick=False)


def units(study: str, image_set: str, split: str) -> set[tuple[str, str, float | None]]:
    made = [c for c in cells(study, replace(GRID, seeds=(10,))) if not c.fleet]
    return {
        (c.unit, c.alphabet, c.epsilon)
        for c in made
        if (c.image_set, c.split) == (image_set, split)
    }


EPSILONS = (1.0, 2.0, 4.0, 8.0)
PRICED = {
    ("none", "", None),
    *(("record", "", epsilon) for epsilon in EPSILONS),
    *(("label", "declared", epsilon) for epsilon in EPSILONS),
}


def test_strong_splits_have_every_epsilon_of_both_units() -> None:
    assert units("strong", "mnist", "strong") == PRICED
    assert units("small", "mnist5k", "strong") == PRICED | {
        ("record", "", None),
        ("label", "full", 4.0),
    }


@pytest.mark.parametrize(
    ("study", "place"),
    [
        ("splits", ("mnist", "weak")),
        ("splits", ("mnist", "iid")),
        ("fashion", ("fashion_mnist", "strong")),
    ],
)
def test_other_studies_ask_one_question(study: str, place: tuple[str, str]) -> None:
    assert units(study, *place) == {("none", "", None), ("record", "", 4.0)}


def test_every_fleet_has_every_epsilon() -> None:
    made = cells("fleet", GRID)
    assert {(c.clients, c.split) for c in made} == {
        (clients, split) for clients in (100, 1_000, 10_000) for split in ("strong", "iid")
    }
    assert len(made) == (2 + 3) * 2 * 5
    assert {c.seed for c in made if c.clients < 10_000} == {10}


def test_all_studies_share_cells_and_groups_share_preparations() -> None:
    made = cells("all", GRID)
    assert len(set(made)) == len(made)
    assert set(made) == {cell for study in STUDIES for cell in cells(study, GRID)}
    federations = {c.group for c in made if not c.fleet}
    assert len(federations) == 5 * 3  # MNIST strong, weak and iid, MNIST-5k, Fashion; three seeds
    assert len({c.group for c in made if c.fleet}) == (2 + 3) * 2


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"epsilons": "0"}, "epsilons: '0' is not allowed; use numbers from 0.01 to 50, or inf"),
        ({"epsilons": "4,x"}, "epsilons: 'x'"),
        ({"epsilons": "nan"}, "epsilons: 'nan'"),
        ({"seeds": "-1"}, "seeds: '-1' is not allowed; use whole numbers"),
        ({"rounds": 0}, "rounds: 0 is not allowed; use 1 or more"),
        ({"workers": 0}, "workers: 0"),
        ({"study": "splits", "epsilons": "2"}, "epsilons: '2' is not allowed; study splits has 4"),
        ({"data_dir": Path("missing")}, "data_dir: 'missing'"),
        ({"out": Path(__file__)}, "out: "),
    ],
)
def test_a_mistake_is_one_sentence(changed: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        plan(replace(Settings(study="small"), **changed), None)  # type: ignore[arg-type]
    assert str(caught.value).startswith(message)


def some_cell() -> Cell:
    return cells("small", GRID)[1]


def some_result(cell: Cell, accuracy: float = 0.5) -> CellResult:
    return CellResult(cell, accuracy, [accuracy], {"kept proxies": 1.0}, "A sentence.", None, 1.5)


def test_a_finished_cell_is_found_again(tmp_path: Path) -> None:
    store, cell = Store(tmp_path), some_cell()
    assert store.find(cell) is None
    store.save(some_result(cell))
    assert store.find(cell) == some_result(cell)
    assert [path.name for path in tmp_path.iterdir()] == [store.path(cell).name]


def others(cell: Cell) -> list[Cell]:
    assert cell.schedule is not None
    return [
        replace(cell, seed=13),
        replace(cell, epsilon=3.0),
        replace(cell, unit="label", alphabet="full"),
        replace(cell, unit="label", alphabet="declared"),
        replace(cell, rounds=cell.rounds + 1),
        replace(cell, delta=1e-6),
        replace(cell, split="weak"),
        replace(cell, schedule=replace(cell.schedule, warmup_steps=7)),
        replace(cell, schedule=None, fleet=FleetTerms()),
        replace(cell, schedule=None, fleet=FleetTerms(sample_rate=0.5)),
    ]


def test_whatever_a_cell_depends_on_is_in_its_name(tmp_path: Path) -> None:
    cell = some_cell()
    store = Store(tmp_path)
    store.save(some_result(cell))
    paths = {store.path(c) for c in [cell, *others(cell)]}
    assert len(paths) == 1 + len(others(cell))
    assert all(store.find(other) is None for other in others(cell))
    assert Store(tmp_path, version="9.9").find(cell) is None


def test_a_file_of_another_cell_is_refused(tmp_path: Path) -> None:
    store, cell = Store(tmp_path), some_cell()
    other = replace(cell, seed=13)
    store.save(some_result(other))
    store.path(other).rename(store.path(cell))
    with pytest.raises(ConfigurationError, match="it holds another cell"):
        store.find(cell)


@pytest.mark.parametrize("damage", ["cut", "nan", "extra", "unit"])
def test_a_damaged_file_is_refused(tmp_path: Path, damage: str) -> None:
    store, cell = Store(tmp_path), some_cell()
    store.save(some_result(cell))
    path = store.path(cell)
    whole = path.read_text(encoding="utf-8")
    content = json.loads(whole)
    if damage == "cut":
        path.write_text(whole[:-5], encoding="utf-8")
    elif damage == "nan":
        path.write_text(whole.replace("1.5", "NaN"), encoding="utf-8")
    else:
        target = content["result"]["cell"]
        target["unit" if damage == "unit" else "more"] = "household"
        path.write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(ConfigurationError):
        store.find(cell)


def test_results_survive_the_disk_and_other_schemas_do_not(tmp_path: Path) -> None:
    made = [some_result(cell) for cell in cells("small", replace(GRID, seeds=(10,)))]
    results = gathered(made, ["python"])
    save(results, tmp_path)
    assert load(tmp_path) == results
    with pytest.raises(ConfigurationError, match="schema"):
        replace(results, schema="secure-fd/dp-utility/0")
    with pytest.raises(ConfigurationError, match="each once"):
        Results(**{**fields_of(results), "cells": (*results.cells, results.cells[0])})  # type: ignore[arg-type]


def fields_of(results: Results) -> dict[str, object]:
    return {name: getattr(results, name) for name in Results.__slots__}


@pytest.mark.parametrize("accuracy", [-0.1, 1.1])
def test_an_accuracy_is_a_fraction(accuracy: float) -> None:
    with pytest.raises(ConfigurationError, match="accuracy"):
        some_result(some_cell(), accuracy)
