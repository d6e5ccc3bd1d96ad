"""Which cells every study asks for, and which it refuses."""

from dataclasses import replace
from typing import Any

import pytest

from experiments.core.grid import Settings, default_cell
from experiments.core.provenance import ROOT
from experiments.core.run_config import RunConfig
from experiments.core.study import key_of, load, read_results
from experiments.report.results_page import MODULES
from secure_fd.errors import ConfigurationError

STUDIES = tuple(map(load, MODULES))
STUDY = {study.name: study for study in STUDIES}
MEASURED = (
    *("accuracy", "client_selectors", "thresholds", "communication", "heterogeneity"),
    *("alpha", "equal_terms", "foreign_proxies", "dafkd"),
)
CELL = default_cell("digits", "strong", 10)


def cells(study: str, **chosen: Any) -> tuple[RunConfig, ...]:
    return tuple(STUDY[study].cells(Settings(**chosen)))


@pytest.mark.parametrize("study", MEASURED)
def test_the_committed_results_are_of_the_cells_that_a_study_asks_for(study):
    """Same rounds, schedules and seeds: all that a cell's figures depend on."""
    path = ROOT / "docs" / "results" / f"{study}.json"
    measured = {result.cell for result in read_results(STUDY[study], path).cells}
    assert {*STUDY[study].cells(STUDY[study].settings())} <= measured


@pytest.mark.parametrize("study", STUDIES, ids=lambda study: str(study.name))
def test_cells_are_unique_and_quick_ones_few_and_small(study):
    settings = study.settings()
    if study.name == "equal_terms":
        settings = replace(settings, image_sets="mnist", splits="strong")
    for quick in (False, True):
        if quick and not hasattr(study.settings, "quick"):
            continue
        made = study.cells(study.settings(quick=True) if quick else settings)
        assert len(set(made)) == len(made) == len({key_of(cell) for cell in made})
        assert len({cell.label for cell in made}) == len(made)
    assert len(made) <= 180


def test_the_command_line_narrows_a_study():
    fixed = cells("accuracy", image_sets="mnist", splits="strong", rounds=7)
    assert {c.rounds for c in fixed} == {7}
    made = cells("accuracy", image_sets="mnist5k", splits="iid", rows="fedmd", seeds="3,4")
    assert {(c.image_set, c.split, c.method) for c in made} == {("mnist5k", "iid", "fedmd")}
    assert [(c.seed, c.labels) for c in made] == [
        (seed, labels) for seed in (3, 4) for labels in ("hard", "soft")
    ]
    assert made[0].schedule.local_steps == 5
    with pytest.raises(ConfigurationError, match="no such cells"):
        cells("accuracy", image_sets="chest_xray", splits="iid")


@pytest.mark.parametrize(
    "changed",
    [
        {"method": "fedmd"},  # without labels
        {"labels": "soft"},  # independent learning shares none
        {"method": "gossip"},
        {"image_set": "imagenet"},
        {"rounds": 0},
        {"clients": 11},
    ],
)
def test_a_cell_that_means_nothing_is_refused(changed):
    with pytest.raises(ConfigurationError):
        replace(CELL, **changed)
