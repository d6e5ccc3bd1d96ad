"""Accuracy against epsilon: which cells each part has, and what one cell carries."""

from dataclasses import replace

import numpy as np
import pytest

from experiments.core.measures import KEPT_ONCE, RIGHT_ONCE
from experiments.core.run_config import FLEET, Privacy, RunConfig
from experiments.core.study import Result
from experiments.privacy.dp_utility import STUDY, measure
from secure_fd.training.recipes import Schedule

PLAIN = RunConfig(
    image_set="digits",
    split="strong",
    method="selective-fd",
    labels="hard",
    selector="ratio",
    variant="",
    seed=1,
    rounds=1,
    schedule=Schedule(warmup_steps=2, proxy_steps=2, proxies_per_round=32),
    clients=3,
)
FLEET_CELL = replace(
    PLAIN,
    method=FLEET,
    selector="",
    clients=300,
    schedule=Schedule(0, 0, 40, 120),
    drop=0.1,
    privacy=Privacy("client", None, small_fleet=True),
)


def privacy_of(made: Result) -> dict[str, object]:
    found = made.notes["privacy"]
    return dict(found) if isinstance(found, dict) else {}


@pytest.fixture(scope="module")
def warm():
    (part,) = STUDY.needs(PLAIN)
    return {part: STUDY.prepare(None, part)}


@pytest.mark.parametrize(
    "privacy",
    [None, Privacy("label", 4.0)],
)
def test_a_cell_carries_the_promise_of_its_unit_and_no_other(warm, privacy):
    cell = replace(PLAIN, privacy=privacy)
    made = measure(None, cell, warm)
    assert made.cell == cell
    assert len(made.per_client) == 3
    assert made.accuracy == np.mean(made.per_client)
    promised = privacy_of(made)
    assert promised.get("holds", False) == (privacy is not None)
    if privacy is not None:
        assert promised["unit"] == privacy.unit
        assert promised["epsilon"] <= 4.0 + 1e-9


def test_a_fleet_pays_for_noise_and_says_what_it_released():
    private = replace(FLEET_CELL, privacy=Privacy("client", 4.0, small_fleet=True))
    clean, noisy = (measure(None, cell, {}) for cell in (FLEET_CELL, private))
    assert clean.notes["privacy"] is None
    # Added up in clear, a simulation has no claim of its own; under masks it would be this one.
    assert (privacy_of(noisy)["unit"], privacy_of(noisy)["holds"]) == ("client", False)
    assert 3.9 < noisy.figures["epsilon under masks"] <= 4.0
    assert "epsilon under masks" not in clean.figures
    # Votes of 300 clients under noise of more than ten: labels must suffer, or there was none.
    lost = noisy.figures[KEPT_ONCE] * noisy.figures.get(RIGHT_ONCE, 0.0)
    assert lost < 0.9 * clean.figures[RIGHT_ONCE] * clean.figures[KEPT_ONCE]
    assert clean.figures[RIGHT_ONCE] > 0.6  # ten classes: chance is 0.1
