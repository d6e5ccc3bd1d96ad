"""The table at equal terms: equal steps, four settings a row, chosen by validation alone."""

from dataclasses import replace

import pytest
import torch

from experiments.core.grid import HOSPITALS
from experiments.core.measures import ACCURACY, NETWORK_VALIDATION, VALIDATION
from experiments.core.rows import Cell
from experiments.core.study import SCHEMA, Result, Results, write_results
from experiments.core.variants import centralised
from experiments.rivals import equal_terms, tuning
from experiments.rivals.equal_rows import (
    ROWS,
    STEPS,
    cell_of,
    row_of,
    setting_of,
)
from secure_fd.errors import ConfigurationError
from secure_fd.training.recipes import Schedule

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


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("steps", [STEPS, STEPS // 2])
def test_every_network_takes_as_many_steps_through_the_same_views(place, steps):
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


@pytest.mark.parametrize("best", range(4))
def test_validation_chooses_whatever_test_images_say(best):
    chosen = tuning.choices(tuned(best))
    assert set(chosen) == {("mnist", "strong", key) for key in TUNED}
    for (_, _, key), setting in chosen.items():
        assert setting == ROWS[key].settings[best], key


def test_the_table_runs_each_row_at_what_was_chosen_for_it(tmp_path):
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


def test_records_of_all_clients_are_with_each(digits):
    made = centralised(digits)
    assert len(made.clients) == len(digits.clients)
    for client in made.clients:
        assert len(client.train) == sum(len(one.train) for one in digits.clients)
        assert client.classes == (0, 1, 2, 3)
    assert torch.equal(made.clients[1].train.pixels[:3], digits.clients[0].train.pixels[:3])
    assert made.test is digits.test
