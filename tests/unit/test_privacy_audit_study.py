"""The privacy audit: what it plans, how findings decide, and what a run saves."""

from dataclasses import replace

import pytest

from attacks.audit.bounds import Finding
from experiments.core.study import Result, Results, gathered, read_results, write_results
from experiments.privacy.privacy_audit import (
    BOUND,
    CEILING,
    CLAIMED,
    STUDY,
    Cell,
    Settings,
    cells,
    failures,
    measure,
)
from experiments.report.tables import rendered

LABEL = Cell("label", 4.0, 1e-5, 1.0)


def results_of(bound: float, ceiling: float) -> Results:
    verdict = Finding(4.0, 1e-5, bound, ceiling, "attack", 10).verdict
    figures = {CLAIMED: 4.0, BOUND: bound, CEILING: ceiling}
    notes = {"verdict": verdict, "finds": "", "delta": 1e-5}
    return gathered(STUDY, [Result(LABEL, figures, 1.0, notes=notes)])


def test_a_seed_makes_a_cell_repeatable():
    one = replace(LABEL, size=0.05, stream=5 << 32)
    first, second = (measure(None, one, None).figures for _ in range(2))
    other = measure(None, replace(one, stream=6 << 32), None).figures
    assert first == second
    assert other != first


@pytest.mark.parametrize(
    ("bound", "ceiling", "fails"), [(4.1, 9.0, True), (3.9, 9.0, False), (1.0, 4.0, False)]
)
def test_a_refuted_claim_is_a_failure(bound, ceiling, fails):
    results = results_of(bound, ceiling)
    assert bool(failures(results)) == bool(STUDY.status(results)) == fails


def test_a_run_saves_what_it_shows(tmp_path):
    chosen = Settings(unit="label", quick=True, insecure_seed=1)
    made = [measure(None, one, None) for one in cells(chosen) if one.audit == "label"]
    write_results(gathered(STUDY, made, chosen), tmp_path / "audit.json")
    again = read_results(STUDY, tmp_path / "audit.json")
    (row,) = again.cells
    assert 2.4 <= row.figures[BOUND] <= row.figures[CLAIMED] == 4.0
    assert f"{row.figures[BOUND]:.2f}" in rendered(STUDY.shown(again))
    assert STUDY.status(again) == 0
