"""Attacks on a run whose records are rows of a table, and what the comparison shows of them."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from attacks.core.result import COLUMN_ERROR
from experiments import privacy_compare
from experiments.compare.comparison import measured, needs, prepared
from experiments.core.study import gathered
from experiments.privacy_compare import STUDY, Settings, cells
from experiments.report.verdict import Comparison, main_table
from secure_fd import Simulation, federate_features, simulate
from secure_fd.data.draft import drafted
from secure_fd.training.recipes import SGD, Recipe, Schedule
from tests.data.test_tables import frame, written

RECIPE = Recipe(2, Schedule(local_steps=200, proxy_steps=0, sgd=SGD(0.2, 16)))
SHORT = Recipe(2, Schedule(local_steps=2, proxy_steps=0))


@cache
def trained(method: str = "fedavg", unit: str | None = None) -> Simulation:
    """Three sites; labels are noise, so that networks can only learn them by heart."""
    rng = np.random.default_rng(0)
    rows, labels = rng.normal(size=(150, 12)), rng.integers(2, size=150)
    data = federate_features(rows, labels, np.arange(150) % 3, rng.normal(size=(60, 12)), (-3, 3))
    epsilon, recipe = (1.0, SHORT) if unit else (float("inf"), RECIPE)
    made = simulate(data, method=method, unit=unit, epsilon=epsilon, recipe=recipe)
    made.fit()
    return made


def test_one_row_behind_an_update_is_read_column_by_column_and_not_under_noise():
    clear = trained().attack("update-inversion")
    assert (clear.figure_name, clear.unit) == (COLUMN_ERROR, "deviations")
    assert clear.figure < 0.01
    assert clear.control > 0.5
    noisy = trained(unit="record").attack("update-inversion")
    assert noisy.figure > 10 * clear.figure
    assert noisy.figure > 0.5 * noisy.control


def test_an_update_of_the_run_is_read_as_errors_of_columns():
    found = trained().attack("update-of-run")
    assert found.figure_name == COLUMN_ERROR
    assert 0 < found.interval[0] <= found.figure <= found.interval[1]


def test_labels_of_noisy_rows_show_members_of_networks_that_know_them_by_heart():
    assert trained("independent").attack("label-only").figure > 0.75


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    """A comparison of two rows on the breast cancer set."""
    folder, every = tmp_path_factory.mktemp("table"), frame()
    found = written(folder, every[200:], every[:200].drop(columns=["site", "patient"]), "")
    found.columns.write_text(drafted(found.public, "outcome"))
    settings = Settings(
        table=found.path,
        label="outcome",
        site="site",
        person="patient",
        columns=found.columns,
        public=found.public,
        clients=2,
        quick=True,
        rows="heads,fedavg-linear",
        attacks="update-inversion,label-only,label-distribution",
    )
    made = cells(settings)
    ready = {part: prepared(None, part) for cell in made for part in needs(cell)}
    rows = tuple(measured(None, cell, ready) for cell in made)
    return settings, Comparison.of(gathered(STUDY, rows))


def test_a_table_is_compared_by_balanced_accuracy_and_errors_of_columns(compared):
    _, made = compared
    table = main_table(made)
    assert {"test: bal, %", "test: AUC, %", "columns, error: worst"} <= set(table.columns)
    assert not [name for name in table.columns if "picture" in name]
    shown = dict(zip([row[0] for row in table.rows], table.rows, strict=True))
    assert set(shown) >= {"Pooled heads", "FedAvg linear"}
    error = table.columns.index("columns, error: worst")
    assert float(shown["FedAvg linear"][error].lstrip("~")) < 0.05
    assert shown["Pooled heads"][error] == "none"
    assert all(float(shown[name][2]) > 60 for name in ("Pooled heads", "FedAvg linear"))


def test_by_default_a_table_has_heads_first_and_only_attacks_on_this_run(compared):
    settings, _ = compared
    every = cells(replace(settings, rows="all", attacks="all", quick=False))
    assert every[0].config.row.key == "heads"
    assert not every[0].played
    assert not {"inversion", "update-inversion-cnn"} & set(every[0].attacks)
    assert privacy_compare.LINEAR in {cell.config.row.model for cell in every}
