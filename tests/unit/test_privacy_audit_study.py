"""The privacy audit: what it plans, how findings decide, and what a run saves."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from attacks.audit.bounds import Finding, Proof
from attacks.audit.catalogue import AUDITS, MUTATIONS
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
    finds,
    measure,
)
from experiments.report.tables import rendered
from secure_fd.privacy.guarantee import PrivacyUnit

LABEL = Cell("label", 4.0, 1e-5, 1.0)
MUTATION = replace(LABEL, mutation=MUTATIONS[0].name)


def results_of(found: Mapping[Cell, float], ceiling: float = 9.0, known: str = "") -> Results:
    """found: the bound of every cell."""
    made = []
    for cell, bound in found.items():
        verdict = Finding(Proof(bound, ceiling, "attack", 10), 4.0, 1e-5, 1e-5).verdict
        figures = {CLAIMED: 4.0, BOUND: bound, CEILING: ceiling}
        notes = {"verdict": verdict, "finds": known, "delta": 1e-5}
        made.append(Result(cell, figures, 1.0, notes=notes))
    return gathered(STUDY, made)


def test_what_was_asked_for_is_planned():
    todo = cells(Settings(unit="label", self_test=True))
    assert [one.audit for one in todo if one.noise == 1 and not one.mutation] == [
        "label-noise",
        "label",
    ]
    assert {one.audit for one in todo if one.noise < 1} == {"label"}
    assert {one.mutation for one in todo} - {""} == {m.name for m in MUTATIONS}
    seeded = cells(Settings(insecure_seed=3))
    assert len({one.stream for one in seeded}) == len(seeded)


def test_every_unit_is_audited():
    assert {audit.unit for audit in AUDITS.values()} == set(PrivacyUnit)


def test_a_seed_makes_a_cell_repeatable():
    one = replace(LABEL, size=0.05, stream=5 << 32)
    first, second = (measure(None, one, None).figures for _ in range(2))
    other = measure(None, replace(one, noise=0.5), None).figures
    assert first == second
    assert other != first


def test_mutants_show_what_is_found():
    """A mutant with more noise than one that passed was caught by luck."""
    mutants = {replace(LABEL, noise=share): 5.0 for share in (0.95, 0.5, 0.0)}
    found = {LABEL: 3.0, replace(LABEL, noise=0.8): 3.9, **mutants}
    assert finds(results_of(found), "label") == "noise x0.5"
    assert finds(results_of(found, known="noise x0.97"), "label") == "noise x0.97"
    assert finds(results_of({LABEL: 3.0, replace(LABEL, noise=0.0): 3.0}), "label") == "-"


@pytest.mark.parametrize(
    ("cell", "bound", "ceiling", "fails"),
    [
        (LABEL, 4.1, 9.0, True),
        (LABEL, 3.9, 9.0, False),
        (LABEL, 1.0, 4.0, False),
        (MUTATION, 4.1, 9.0, False),
        (MUTATION, 3.9, 9.0, True),
        (MUTATION, 3.9, 3.9, True),
    ],
)
def test_a_refuted_claim_and_a_mutation_that_passes_are_failures(cell, bound, ceiling, fails):
    results = results_of({cell: bound}, ceiling)
    assert bool(failures(results)) == bool(STUDY.status(results)) == fails


def test_a_row_that_cannot_tell_is_shown_as_such():
    text = rendered(STUDY.shown(results_of({LABEL: 1.0}, ceiling=4.0)))
    assert "0 refuted the claim, 0 could have and did not, 1 cannot tell" in text


def test_a_run_saves_what_it_shows(tmp_path):
    chosen = Settings(unit="label", quick=True, insecure_seed=1)
    planned = [one for one in cells(chosen) if one.audit == "label" and one.noise == 1]
    made = [measure(None, one, None) for one in planned]
    write_results(gathered(STUDY, made, chosen), tmp_path / "audit.json")
    again = read_results(STUDY, tmp_path / "audit.json")
    (row,) = again.cells
    assert 2.4 <= row.figures[BOUND] <= row.figures[CLAIMED] == 4.0
    assert f"{row.figures[BOUND]:.2f}" in rendered(STUDY.shown(again))
    assert STUDY.status(again) == 0
