"""Which cells every study asks for, and which it refuses."""

from dataclasses import replace

import pytest

from experiments.core.provenance import ROOT
from experiments.core.study import key_of, load, read_results
from experiments.report.results_page import MODULES

STUDIES = tuple(map(load, MODULES))
STUDY = {study.name: study for study in STUDIES}
MEASURED = (
    *("accuracy", "client_selectors", "thresholds", "communication", "heterogeneity"),
    *("alpha", "equal_terms", "foreign_proxies", "dafkd"),
)


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
