"""The study of DaFKD: equal steps in every row, tables that say what was measured."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from experiments.dafkd import (
    GRID,
    ROWS,
    SETS,
    SPLITS,
    SUMS,
    Settings,
    cells,
    figure,
    row_of,
    tables,
)
from experiments.measures import ACCURACY, VALIDATION
from experiments.rows import Cell
from experiments.study import SCHEMA, Point, Result, Results
from experiments.tables import Table
from secure_fd.errors import ConfigurationError


def results(found: Mapping[Cell, float], *, tune: bool = False) -> Results:
    """Made-up accuracies."""
    made = tuple(
        Result(
            cell,
            {ACCURACY: accuracy, VALIDATION: accuracy / 2},
            10.0,
            (accuracy,),
            (Point(1, 0.1, 1e6, 2e6), Point(cell.rounds, accuracy, 5e6, 6e6)),
        )
        for cell, accuracy in found.items()
    )
    return Results(
        SCHEMA, "dafkd", "2026-01-01T00:00:00+00:00", settings={"tune": tune}, cells=made
    )


def test_every_row_takes_the_same_steps_a_round() -> None:
    asked = cells(Settings())
    made = {*asked, *cells(Settings(rows=",".join(ROWS)))}
    assert {cell.schedule.fedavg_steps for cell in made} == {200}
    assert {cell.rounds for cell in made} == {2, 5, 50}
    assert {cell.seed for cell in made} == {20, 21, 22}
    assert {row_of(cell) for cell in made if cell.rounds != 2} == set(ROWS.values())
    assert {cell.schedule.sgd.learning_rate for cell in made} <= set(GRID)
    assert len(asked) == len(set(asked))
    assert not any(cell.privacy for cell in asked)


def test_rates_are_tuned_on_a_seed_that_no_table_has() -> None:
    made = cells(Settings(tune=True))
    assert {cell.seed for cell in made} == {0}
    assert not any(cell.privacy for cell in made)
    by_row = {
        row: {c.schedule.sgd.learning_rate for c in made if row_of(c) == row}
        for row in map(row_of, made)
    }
    assert all(rates == set(GRID) for rates in by_row.values())


def test_a_quick_look_needs_no_folder_of_data() -> None:
    made = cells(Settings(quick=True))
    assert {cell.image_set for cell in made} == {"mnist5k_patches"}
    assert {cell.rounds for cell in made} == {1}


@pytest.mark.parametrize("name", ["rows", "splits", "image_sets"])
def test_an_unknown_name_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match="dafdk"):
        cells(Settings(**{name: "dafdk"}))


def test_leads_are_over_feddf_on_the_same_seed() -> None:
    wanted = [
        cell
        for cell in cells(Settings(image_sets=SETS[0], splits=SPLITS[0], rows="feddf,dafkd"))
        if cell.seed < 22
    ]
    accuracies = {"feddf": {20: 0.5, 21: 0.7}, "dafkd": {20: 0.6, 21: 0.9}}
    found = results({cell: accuracies[cell.method][cell.seed] for cell in wanted})
    accuracy, leads = (part for part in tables(found) if isinstance(part, Table))
    assert [row[0] for row in accuracy.rows] == [ROWS["feddf"].title, ROWS["dafkd"].title]
    assert leads.rows == [(ROWS["dafkd"].title, "+15.0 ± 7.1")]
    lacking = replace(found, cells=found.cells[1:])
    assert not any("Ahead" in part.title for part in tables(lacking) if isinstance(part, Table))


def test_tuning_shows_validation_and_sums_stand_apart() -> None:
    tuned = cells(Settings(tune=True, rows="fedavg", image_sets=SETS[0], splits=SPLITS[0]))
    (table,) = tables(results(dict.fromkeys(tuned, 0.5), tune=True))
    assert isinstance(table, Table)
    assert table.rows == [("FedAvg", "25.0", "25.0", "25.0")]
    sums = cells(Settings(rows=",".join(SUMS), seeds="20"))
    (table,) = tables(results(dict.fromkeys(sums, 0.5)))
    assert isinstance(table, Table)
    assert [row[0] for row in table.rows] == [row.title for row in SUMS.values()]
    assert figure(results(dict.fromkeys(sums, 0.5))) is None


def test_the_plot_draws_each_place() -> None:
    made = cells(Settings(rows="feddf,dafkd"))
    drawn = figure(results(dict.fromkeys(made, 0.5)))
    assert drawn is not None
    assert len(drawn.axes) == len(SETS) * len(SPLITS)
