"""The table at equal terms: equal steps, four settings a row, chosen by validation alone."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from experiments import equal_terms, tuning
from experiments.equal_rows import (
    ROWS,
    STEPS,
    Setting,
    cell_of,
    places,
    row_of,
    setting_of,
)
from experiments.equal_terms import MAJORITY
from experiments.grid import HOSPITALS
from experiments.measures import ACCURACY, DIVERGED, NETWORK, NETWORK_VALIDATION, VALIDATION
from experiments.rows import EDGEFD, Cell
from experiments.study import SCHEMA, Point, Result, Results, write_results
from experiments.tables import Table
from experiments.variants import centralised
from secure_fd.data.federated import FederatedData
from secure_fd.errors import ConfigurationError
from secure_fd.recipes import Schedule

PLACES = [("mnist", "strong"), ("fashion_mnist", "iid"), ("chest_xray", HOSPITALS)]
TUNED = [key for key, row in ROWS.items() if row.settings]


def steps_of(cell: Cell) -> int:
    """Of one network, in all."""
    plan: Schedule = cell.schedule
    lessons = 1 if cell.method == "heads" else cell.rounds
    return plan.warmup_steps + lessons * plan.fedavg_steps


def results(study: str, found: list[Result]) -> Results:
    return Results(SCHEMA, study, "2026-01-01T00:00:00+00:00", cells=tuple(found))


def tuned(best: int) -> Results:
    """Files of the tuning in which that setting of every row validates best, and tests worst."""
    found = []
    for cell in tuning.cells(tuning.Settings(image_sets="mnist", splits="strong")):
        row = row_of(cell)
        chosen = setting_of(cell) == row.settings[best]
        level = 0.9 if chosen else 0.5
        figures = {ACCURACY: 1 - level, VALIDATION: level}
        if row.sums:  # what the client leaves with may be its head
            figures |= {VALIDATION: 1 - level, NETWORK_VALIDATION: level}
        found.append(Result(cell, figures, 1.0))
    return results("tuning", found)


def measured(cell: Cell, accuracy: float) -> Result:
    figures = {ACCURACY: accuracy, MAJORITY: 0.25}
    if cell.method == "heads" and cell.schedule.proxy_steps:
        figures[NETWORK] = accuracy - 0.1
    if cell.method == "fedavg":
        figures[DIVERGED] = 2.0
    return Result(cell, figures, 2.0, curve=(Point(cell.rounds, accuracy, 1e6, 1e6),))


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("steps", [STEPS, STEPS // 2])
def test_every_network_takes_as_many_steps_through_the_same_views(
    place: tuple[str, str], steps: int
) -> None:
    made = [
        cell_of(ROWS[key], *place, 0, setting, steps)
        for key in TUNED
        for setting in ROWS[key].settings
    ]
    assert {steps_of(cell) for cell in made} == {steps}
    for part in ("augment", "proxies_per_round", "anneal_warmup"):
        assert len({getattr(cell.schedule, part) for cell in made}) == 1, part
    for part in ("local_batch", "distillation_batch", "momentum", "smoothing"):
        assert len({getattr(cell.schedule.sgd, part) for cell in made}) == 1, part
    taught = [cell for cell in made if cell.labels]
    assert len({cell.schedule.sgd.own_batch for cell in taught if cell.schedule.proxy_steps}) == 1
    for cell in made:  # the rate falls to zero over the rounds, or within the one lesson
        assert cell.schedule.anneal_over == (1 if row_of(cell).sums else cell.rounds)


def test_every_row_has_four_settings_and_is_found_again_from_its_cells() -> None:
    for key, row in ROWS.items():
        assert len(row.settings) in (0, 4), key
        assert len(set(row.settings)) == len(row.settings)
        for setting in row.settings or (None,):
            cell = cell_of(row, "mnist", "weak", 3, setting)
            assert row_of(cell) == row
            assert setting_of(cell) == setting
    assert {row.labels for row in ROWS.values() if row.method == EDGEFD} == {"hard", "soft"}


@pytest.mark.parametrize("best", range(4))
def test_validation_chooses_whatever_test_images_say(best: int) -> None:
    chosen = tuning.choices(tuned(best))
    assert set(chosen) == {("mnist", "strong", key) for key in TUNED}
    for (_, _, key), setting in chosen.items():
        assert setting == ROWS[key].settings[best], key


def test_the_table_runs_each_row_at_what_was_chosen_for_it(tmp_path: Path) -> None:
    path = tmp_path / "tuning.json"
    settings = equal_terms.Settings(image_sets="mnist", splits="strong", tuned=path)
    with pytest.raises(ConfigurationError, match=r"tuning\.py first"):
        equal_terms.cells(settings)
    heads = equal_terms.cells(replace(settings, rows="heads,afl"))
    assert {cell.schedule.fedavg_steps for cell in heads} == {0}
    write_results(tuned(2), path)
    made = equal_terms.cells(settings)
    assert {cell.seed for cell in made} == {20, 21, 22}
    assert len(made) == 3 * len(ROWS)
    for cell in made:
        row = row_of(cell)
        assert setting_of(cell) == (row.settings[2] if row.settings else None)
    with pytest.raises(ConfigurationError, match="independent, fashion_mnist, strong"):
        equal_terms.cells(replace(settings, image_sets="fashion_mnist"))


def test_places_and_seeds_of_the_table() -> None:
    found = places(("mnist", "chest_xray"), ("strong", "iid", "weak"))
    assert found == [
        ("mnist", "strong"),
        ("chest_xray", HOSPITALS),
        ("mnist", "iid"),
        ("mnist", "weak"),
    ]
    for place, seeds in ((found[0], 3), (found[1], 5), (found[2], 1)):
        assert len(equal_terms._seeds_at(*place)) == seeds
    with pytest.raises(ConfigurationError, match="fedmd"):
        equal_terms.cells(equal_terms.Settings(rows="fedmd"))


def test_the_table_has_both_kinds_of_labels_and_says_what_diverged() -> None:
    made = []
    for key, row in ROWS.items():
        setting = row.settings[0] if row.settings else None
        level = {"fedmd-hard": 0.6, "fedmd-soft": 0.7, "selective-fd-soft": 0.8}.get(key, 0.5)
        made.append(measured(cell_of(row, "chest_xray", HOSPITALS, 20, setting), level))
    shown = equal_terms.tables(results("equal_terms", made))
    table = shown[0]
    assert isinstance(table, Table)
    rows = {row[0]: row for row in table.rows}
    assert rows["The most common class"][1] == "25.0"
    assert rows["FedMD"][1::2][:2] == ("60.0", "70.0")
    assert rows["Independent"][1] == rows["Independent"][3] == "50.0"
    assert rows["Networks that the pooled head teaches"][1] == "40.0"  # the network, not the head
    assert len(rows) == 1 + len({row.title for row in ROWS.values()})
    said = [part for part in shown[1:] if isinstance(part, str)]
    assert any("seed 20" in part and "diverged in 2 rounds" in part for part in said)
    gains = [part for part in said if "Fig" not in part and "points" in part]
    assert any("soft labels, points: +10.00" in part for part in gains)
    assert equal_terms.figure(results("equal_terms", made)) is not None


def test_records_of_all_clients_are_with_each(digits: FederatedData) -> None:
    made = centralised(digits)
    assert len(made.clients) == len(digits.clients)
    for client in made.clients:
        assert len(client.train) == sum(len(one.train) for one in digits.clients)
        assert client.classes == (0, 1, 2, 3)
    assert torch.equal(made.clients[1].train.pixels[:3], digits.clients[0].train.pixels[:3])
    assert made.test is digits.test


def test_a_setting_says_what_it_is() -> None:
    assert Setting(0.05, 10, 0.5).shown == "rate 0.05, 10 rounds, 0.5 alone first"
    assert Setting(0.1, 20).shown == "rate 0.1, 20 rounds"
