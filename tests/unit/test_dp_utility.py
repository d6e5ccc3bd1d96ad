"""Accuracy against epsilon: which cells each part has, and what one cell carries."""

from dataclasses import replace

import numpy as np
import pytest

from experiments.dp_utility import DELTA, STUDIES, Cell, FleetTerms, Grid, lines
from experiments.dp_utility import STUDY as DP_UTILITY
from experiments.dp_utility import cells_of as cells
from experiments.evidence import COMMITTED
from experiments.measures import BYTES_UP, KEPT_ONCE, RIGHT_ONCE
from experiments.private_cells import fleet_votes, run_federation, run_fleet, warm_up
from experiments.runs import WarmUp
from experiments.study import Result, read_results
from secure_fd.errors import LocalError
from secure_fd.fleet import FleetVotes
from secure_fd.recipes import Schedule

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


def privacy_of(made: Result) -> dict[str, object]:
    found = made.notes["privacy"]
    return dict(found) if isinstance(found, dict) else {}


def silent(_: int) -> None:
    """Nobody watches."""


# Federations.


@pytest.fixture(scope="module")
def warm() -> WarmUp:
    return warm_up(None, NONE, silent)


@pytest.mark.parametrize(
    ("unit", "alphabet", "epsilon"),
    [("none", "", None), ("record", "", None), ("record", "", 4.0), ("label", "declared", 4.0)],
)
def test_a_cell_carries_the_promise_of_its_unit_and_no_other(
    warm: WarmUp, unit: str, alphabet: str, epsilon: float | None
) -> None:
    cell = replace(NONE, unit=unit, alphabet=alphabet, epsilon=epsilon)
    told: list[int] = []
    made = run_federation(None, cell, warm, told.append)
    assert made.cell == cell
    assert told == [100]
    assert len(made.per_client) == 3
    assert made.accuracy == np.mean(made.per_client)
    privacy = privacy_of(made)
    assert privacy.get("holds", False) == (epsilon is not None)
    if epsilon is not None:
        assert privacy["unit"] == unit
        assert privacy["epsilon"] <= 4.0 + 1e-9  # type: ignore[operator]


def test_the_record_unit_without_noise_asks_no_network(warm: WarmUp) -> None:
    """Its votes come from the head, so they are not those of the row without protection."""
    plain = run_federation(None, NONE, warm, silent)
    head = run_federation(None, replace(NONE, unit="record"), warm, silent)
    again = run_federation(None, replace(NONE, unit="record"), warm, silent)
    assert head.figures[BYTES_UP] > plain.figures[BYTES_UP]
    assert head.per_client == again.per_client


# Fleets.


@pytest.fixture(scope="module")
def votes() -> FleetVotes:
    return fleet_votes(None, FLEET.group, silent)


def test_a_fleet_pays_for_noise_and_says_what_it_released(votes: FleetVotes) -> None:
    clean = run_fleet(None, FLEET, votes, silent)
    noisy = run_fleet(None, replace(FLEET, epsilon=4.0), votes, silent)
    assert clean.notes["privacy"] is None
    # Added up in clear, a simulation has no claim of its own; under masks it would be this one.
    assert (privacy_of(noisy)["unit"], privacy_of(noisy)["holds"]) == ("client", False)
    assert 3.9 < noisy.figures["epsilon under masks"] <= 4.0
    assert "epsilon under masks" not in clean.figures
    assert noisy.figures["noise multiplier"] > 1
    assert clean.figures["noise multiplier"] == 0
    # Votes of 300 clients under noise of more than ten: labels must suffer, or there was none.
    assert noisy.figures["deviation of the noise, votes"] > 10
    lost = noisy.figures[KEPT_ONCE] * noisy.figures.get(RIGHT_ONCE, 0.0)
    assert lost < 0.9 * clean.figures[RIGHT_ONCE] * clean.figures[KEPT_ONCE]
    whole = clean.figures["right labels without noise"]
    assert whole > 0.6  # ten classes: chance is 0.1
    assert clean.figures[BYTES_UP] == 8 * -(-1200 // (64 // 9))


def test_each_kind_of_cell_needs_its_own_terms(warm: WarmUp) -> None:
    with pytest.raises(LocalError, match="no federation"):
        run_federation(None, FLEET, warm, silent)
    with pytest.raises(LocalError, match="no fleet"):
        fleet_votes(None, NONE, silent)


# Tables.


def test_lines_are_in_the_order_of_epsilon_whatever_the_order_of_cells() -> None:
    found = read_results(DP_UTILITY, COMMITTED / "dp_utility.json")
    backwards = replace(found, cells=found.cells[::-1])
    for line in lines(backwards).values():
        assert list(line) == sorted(line, key=lambda e: np.inf if e is None else e)


def test_a_figure_needs_two_epsilons_to_compare() -> None:
    found = read_results(DP_UTILITY, COMMITTED / "dp_utility.json")
    assert DP_UTILITY.figure(found) is not None
    assert DP_UTILITY.figure(replace(found, cells=found.cells[:1])) is None
