"""The study of DaFKD: equal steps in every row, tables that say what was measured."""

from experiments.dafkd import (
    ROWS,
    Settings,
    cells,
    row_of,
)


def test_every_row_takes_the_same_steps_a_round():
    asked = cells(Settings())
    made = {*asked, *cells(Settings(rows=",".join(ROWS)))}
    assert {cell.schedule.fedavg_steps for cell in made} == {200}
    assert {cell.rounds for cell in made} == {2, 5, 50}
    assert {cell.seed for cell in made} == {20, 21, 22}
    assert {row_of(cell) for cell in made if cell.rounds != 2} == set(ROWS.values())
    assert {cell.schedule.sgd.learning_rate for cell in made} <= {0.01, 0.02, 0.05}
    assert len(asked) == len(set(asked))
    assert not any(cell.privacy for cell in asked)
