"""The study of heads: one row a cell, networks at the first seed, tables of what was measured."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from experiments import runs
from experiments.grid import HOSPITALS
from experiments.heads import ROWS, SETS, Settings, cells, figure, row_of, tables
from experiments.measures import ACCURACY, HEAD, MEAN, NETWORK
from experiments.rows import HEADS, HEADS_ALONE, RowSpec, Terms
from experiments.study import SCHEMA, Point, Result, Results
from experiments.tables import Table
from experiments.variants import TaughtTruth
from secure_fd.data.federated import FederatedData
from secure_fd.data.partition import Split
from secure_fd.errors import ConfigurationError
from secure_fd.methods.heads import HeadLearner, PooledHeads
from secure_fd.recipes import Recipe, Schedule
from secure_fd.simulation import simulate


def test_every_row_is_run_and_networks_at_the_first_seed_alone() -> None:
    made = cells(Settings())
    assert {cell.image_set for cell in made} == set(SETS)
    assert len(made) == len(set(made))
    assert {row_of(cell) for cell in made} == set(ROWS.values())
    assert {cell.seed for cell in made if row_of(cell).learns} == {20}
    chest = [cell for cell in made if cell.image_set == "chest_xray"]
    assert {cell.seed for cell in chest} == {20, 21, 22, 23, 24}
    assert {(cell.split, cell.clients) for cell in chest} == {(HOSPITALS, 4)}
    asked = cells(Settings(rows="networks", seeds="21,22", image_sets="mnist"))
    assert [cell.seed for cell in asked] == [21, 22]
    assert {cell.schedule.proxy_steps for cell in asked} == {1500}
    few = cells(Settings(quick=True))
    assert {cell.image_set for cell in few} == {"digits"}
    assert len(few) == len(ROWS)
    for name in ("rows", "image_sets"):
        with pytest.raises(ConfigurationError, match="haeds"):
            cells(Settings(**{name: "haeds"}))


def test_tables_show_networks_alone_and_what_was_chosen() -> None:
    made = []
    for cell in cells(Settings(image_sets="mnist", seeds="20")):
        learns = row_of(cell).learns
        figures = {ACCURACY: 0.99, **({NETWORK: 0.97, HEAD: 0.98, MEAN: 0.99} if learns else {})}
        point = Point(cell.rounds, 0.99, 1e5 * cell.rounds, 2e5)
        made.append(Result(cell, figures, 1.0, (0.99,), (point,)))
    results = Results(SCHEMA, "heads", "2026-01-01T00:00:00+00:00", cells=tuple(made))
    accuracies, candidates = (table for table in tables(results) if isinstance(table, Table))
    shown = {row[0]: row[1:] for row in accuracies.rows}
    assert shown["Pooled head, one sum"] == ("99.0", "100")
    assert shown["Networks, true labels"] == ("97.0", "400")
    assert [row[2] for row in candidates.rows[:4]] == ["97.0", "98.0", "99.0", "99.0"]
    assert figure(results) is not None


def test_the_truth_takes_the_place_of_the_head(digits: FederatedData) -> None:
    truth = np.eye(10)[digits.proxies.labels.numpy()]
    plan = Schedule(warmup_steps=0, local_steps=0, proxy_steps=2, anneal_over=1)
    for asks in (False, True):  # six classes have no holder: their proxies are left out
        method = TaughtTruth(0, none_of_mine=asks, truth=truth)
        made = simulate(digits, method=method, recipe=Recipe(1, plan))
        made.fit(1)
        half = made.federation.clients[0].half
        assert isinstance(half, HeadLearner)
        lesson = half.lesson()
        assert (len(lesson.indices) < len(truth)) == asks
        labels = digits.proxies.labels[lesson.indices]
        assert torch.equal(lesson.targets.argmax(dim=1), labels)


def test_a_lesson_after_all_sums_is_told_of_on_the_way() -> None:
    """Four sums take no steps, and 60 steps of three networks follow them."""
    terms = Terms("digits", Split("strong"), 3, 30, Schedule(warmup_steps=1))
    taught = replace(HEADS_ALONE, proxy_steps=60, anneal_over=1)
    cell = replace(terms.run(RowSpec("heads"), 0), schedule=taught)
    told: list[int] = []
    runs.run_cell(None, cell, runs.prepare(None, [cell], lambda _: None), told.append)
    assert told == sorted(set(told))
    assert told[0] < 50
    assert told[-1] == 100


def test_rows_of_heads_train_nothing_in_the_comparison() -> None:
    terms = Terms("digits", Split("strong"), 3, 30, Schedule(warmup_steps=1))
    for kind, sums in HEADS.items():
        cell = terms.run(RowSpec(kind, secure="masks"), seed=0)
        assert (cell.rounds, cell.schedule, cell.secure) == (sums, HEADS_ALONE, "masks")
    noisy, record = replace(terms, epsilon=4.0), RowSpec("heads", secure="masks", unit="record")
    assert noisy.run(record, seed=0).schedule == HEADS_ALONE
    for row, asked in ((record, False), (RowSpec("heads"), False), (RowSpec("fedmd"), True)):
        assert runs._queryable(noisy, row) == asked
    row = runs.run_row(
        terms, RowSpec("heads"), 0, runs.warm_up(terms, 0, lambda _: None), lambda _: None
    )
    assert min(row.accuracies) == max(row.accuracies) > 0.25  # of three classes in ten
    method = runs.method_of(terms.run(RowSpec("heads"), 0), runs.data_of(terms, 0))
    assert method == PooledHeads(3)
