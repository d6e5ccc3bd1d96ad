"""Cells of studies, run in this process on the bundled digits."""

from dataclasses import replace

import numpy as np
import pytest

from experiments.core.grid import default_cell
from experiments.core.measures import AUROC_CLASS, DIVERGED, KEPT_ALL
from experiments.core.run_config import RunConfig, unlabelled
from experiments.core.runs import Prepared, prepared, run_cell
from experiments.core.study import Result
from experiments.paper.accuracy import METHODS
from secure_fd.errors import LocalError
from secure_fd.training.recipes import SGD, Schedule

BASE = replace(
    default_cell("digits", "strong", 1, rounds=2, quick=True),
    schedule=Schedule(3, 1, 2, 64, sgd=SGD(local_batch=16, distillation_batch=32)),
)
HARD = replace(BASE, method="selective-fd", labels="hard", selector="ratio")


def run(cell: RunConfig, made: Prepared) -> Result:
    return run_cell(None, cell, {cell.start: made.warm})


@pytest.fixture(scope="module")
def made():
    return prepared(HARD)


def cell_of(method: str) -> RunConfig:
    labels = "" if unlabelled(method) else "soft"
    selector = "ratio" if method == "selective-fd" else ""
    return replace(BASE, method=method, labels=labels, selector=selector)


SELECTORS = [replace(HARD, selector=each) for each in ("kulsif", "confidence", "energy")]


@pytest.mark.parametrize("cell", [*map(cell_of, METHODS), *SELECTORS])
def test_every_method_and_selector_runs_and_says_what_it_moved(made, cell):
    found = run(cell, made)
    assert len(found.per_client) == BASE.clients
    assert found.accuracy == np.mean(found.per_client) == found.curve[-1].accuracy
    assert [point.round for point in found.curve] == [1, 2]
    assert (found.curve[-1].up > found.curve[0].up) == (cell.method != "independent")
    voting = cell.method in ("fedmd", "feded", "ds-fl", "selective-fd", "selective-fd-published")
    assert (KEPT_ALL in found.figures) == voting
    if cell.selector:  # read off records or the warm-up, whatever follows
        one_round = run(replace(cell, rounds=1), made)
        assert found.figures[AUROC_CLASS] == one_round.figures[AUROC_CLASS]


def test_training_that_diverges_is_a_figure_and_not_the_end(made, monkeypatch):
    """Networks that are lost in the first of two rounds are silent in the second."""
    cell = cell_of("fkd")
    wild = replace(cell.schedule, sgd=replace(cell.schedule.sgd, learning_rate=1e30))
    assert run(replace(cell, schedule=wild), made).figures[DIVERGED] == 2
    assert DIVERGED not in run(cell, made).figures
    monkeypatch.setattr("experiments.core.runs.lost", lambda _: set())
    with pytest.raises(LocalError):
        run(replace(cell, schedule=wild), made)
