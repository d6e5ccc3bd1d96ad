"""Cells of the study, run in this process on the bundled digits; and what a rerun runs."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from experiments.runs import WarmUp
from experiments.utility import driver, federated, fleets
from experiments.utility.cells import DELTA, Cell, FleetTerms
from experiments.utility.results import CellResult
from experiments.utility.settings import Plan, Settings
from experiments.utility.store import Store
from secure_fd.errors import ConfigurationError, LocalError
from secure_fd.recipes import Schedule

NONE = Cell(
    image_set="digits",
    split="strong",
    unit="none",
    alphabet="",
    epsilon=None,
    delta=DELTA,
    clients=3,
    seed=1,
    rounds=1,
    schedule=Schedule(warmup_steps=2, proxy_steps=2, proxies_per_round=32),
    fleet=None,
)
FLEET = replace(
    NONE, unit="client", clients=300, schedule=None, fleet=FleetTerms(most=120, steps=40)
)


def silent(_: int) -> None:
    """Nobody watches."""


# Federations.


@pytest.fixture(scope="module")
def warm() -> WarmUp:
    return federated.prepare(None, NONE, silent)


@pytest.mark.parametrize(
    ("unit", "alphabet", "epsilon"),
    [("none", "", None), ("record", "", None), ("record", "", 4.0), ("label", "declared", 4.0)],
)
def test_a_cell_carries_the_promise_of_its_unit_and_no_other(
    warm: WarmUp, unit: str, alphabet: str, epsilon: float | None
) -> None:
    cell = replace(NONE, unit=unit, alphabet=alphabet, epsilon=epsilon)
    heard: list[int] = []
    made = federated.run_cell(None, cell, warm, heard.append)
    assert made.cell == cell
    assert heard == [100]
    assert len(made.per_client) == 3
    assert made.accuracy == np.mean(made.per_client)
    holds = made.privacy is not None and made.privacy["holds"]
    assert holds == (epsilon is not None)
    if holds:
        assert made.privacy is not None
        assert made.privacy["unit"] == unit
        assert made.privacy["epsilon"] <= 4.0 + 1e-9  # type: ignore[operator]


def test_the_record_unit_without_noise_asks_no_network(warm: WarmUp) -> None:
    """Its votes come from the head, so they are not those of the row without protection."""
    plain = federated.run_cell(None, NONE, warm, silent)
    head = federated.run_cell(None, replace(NONE, unit="record"), warm, silent)
    again = federated.run_cell(None, replace(NONE, unit="record"), warm, silent)
    assert head.figures["bytes up a client"] > plain.figures["bytes up a client"]
    assert head.per_client == again.per_client


# Fleets.


@pytest.fixture(scope="module")
def votes() -> driver.FleetVotes:
    return fleets.prepare(None, FLEET.group, silent)


def test_a_fleet_pays_for_noise_and_says_what_it_released(votes: driver.FleetVotes) -> None:
    clean = fleets.run_cell(None, FLEET, votes, silent)
    noisy = fleets.run_cell(None, replace(FLEET, epsilon=4.0), votes, silent)
    assert clean.privacy is None
    assert noisy.privacy is not None
    # Added up in clear, a simulation has no claim of its own; under masks it would be this one.
    assert (noisy.privacy["unit"], noisy.privacy["holds"]) == ("client", False)
    assert 3.9 < noisy.figures["epsilon under masks"] <= 4.0
    assert "epsilon under masks" not in clean.figures
    assert noisy.figures["noise multiplier"] > 1
    assert clean.figures["noise multiplier"] == 0
    # Votes of 300 clients under noise of more than ten: labels must suffer, or there was none.
    assert noisy.figures["deviation of the noise, votes"] > 10
    lost = noisy.figures["kept proxies"] * noisy.figures.get("right labels among kept", 0.0)
    assert lost < 0.9 * clean.figures["right labels among kept"] * clean.figures["kept proxies"]
    whole = clean.figures["right labels without noise"]
    assert whole > 0.6  # ten classes: chance is 0.1
    assert clean.figures["bytes up a client"] == 8 * -(-1200 // (64 // 9))


def test_each_kind_of_cell_needs_its_own_terms(warm: WarmUp) -> None:
    with pytest.raises(LocalError, match="no federation"):
        federated.run_cell(None, FLEET, warm, silent)
    with pytest.raises(LocalError, match="no fleet"):
        fleets.prepare(None, NONE, silent)


# The driver.


class Here:
    """Tasks that run one after another in this process, in the order in which they came."""

    def __init__(self) -> None:
        self.pending: list[tuple[Callable[[Any], None], tuple[Any, ...]]] = []

    def submit(self, then: Callable[[Any], None], _label: str, _total: int, *task: Any) -> None:  # noqa: ANN401 - as Tasks has it
        self.pending.append((then, task))

    def drain(self) -> None:
        while self.pending:
            then, (work, *arguments) = self.pending.pop(0)
            then(work(*arguments, silent))


class Lab:
    """Stands in for preparation and runs; hears Ctrl-C before its `until`-th cell."""

    def __init__(self, until: int) -> None:
        self.until = until
        self.ran: list[Cell] = []
        self.prepared: list[Cell] = []

    def prepare(self, _dir: Path | None, group: Cell, _progress: object) -> Cell:
        self.prepared.append(group)
        return group

    def run(self, _dir: Path | None, cell: Cell, made: Cell, _progress: object) -> CellResult:
        assert made == cell.group
        if len(self.ran) == self.until:
            raise KeyboardInterrupt
        self.ran.append(cell)
        return CellResult(cell, 0.5, [0.5], {}, "A sentence.", None, 1.0)


@pytest.fixture
def lab(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], Lab]:
    @contextmanager
    def working(_workers: int, _expected: int) -> Iterator[Here]:
        yield Here()

    def open_lab(until: int) -> Lab:
        made = Lab(until)
        monkeypatch.setattr(driver, "working", working)
        monkeypatch.setattr(driver, "_prepare", made.prepare)
        monkeypatch.setattr(driver, "_run", made.run)
        return made

    return open_lab


PLANNED = tuple(
    replace(NONE, seed=seed, unit="record", epsilon=epsilon)
    for seed in (1, 2, 3)
    for epsilon in (None, 1.0, 2.0)
)


def test_an_interrupt_keeps_finished_cells_and_a_rerun_does_the_rest(
    tmp_path: Path, lab: Callable[[int], Lab]
) -> None:
    store, plan = Store(tmp_path), Plan(Settings(workers=1), PLANNED, None)
    first = lab(4)
    with pytest.raises(KeyboardInterrupt):
        driver.run_missing(plan, store)
    assert {cell for cell in PLANNED if store.find(cell)} == set(first.ran)
    second = lab(100)
    driver.run_missing(plan, store)
    assert sorted(map(repr, first.ran + second.ran)) == sorted(map(repr, PLANNED))
    # Seed 1 was finished: its preparation is not made again.
    assert {group.seed for group in second.prepared} == {2, 3}
    third = lab(0)
    driver.run_missing(plan, store)
    assert third.ran == third.prepared == []


def test_every_group_is_prepared_once(tmp_path: Path, lab: Callable[[int], Lab]) -> None:
    made = lab(100)
    driver.run_missing(Plan(Settings(workers=1), PLANNED, None), Store(tmp_path))
    assert [group.seed for group in made.prepared] == [1, 2, 3]
    assert set(made.ran) == set(PLANNED)


def test_missing_data_are_told_before_any_work(tmp_path: Path, lab: Callable[[int], Lab]) -> None:
    made = lab(100)
    absent = replace(NONE, image_set="mnist")
    with pytest.raises(ConfigurationError):
        driver.run_missing(Plan(Settings(), (NONE, absent), tmp_path), Store(tmp_path))
    assert made.prepared == []
