"""The privacy audit: what it plans, how findings decide, and what a run saves."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from attacks.audit.bounds import Finding, Kind, Verdict
from attacks.audit.catalogue import AUDITS, MUTATIONS
from experiments.core.study import Results, gathered, read_results, write_results
from experiments.privacy.privacy_audit import (
    STUDY,
    Cell,
    Settings,
    Verdicts,
    cells,
    finding_of,
    measure,
    result_of,
    verdicts,
)
from experiments.report.tables import rendered
from secure_fd.privacy.guarantee import PrivacyUnit


def cell(audit: str, repeat: int = 0, *, noise: float = 1.0, mutation: str = "") -> Cell:
    return Cell(audit, repeat, noise, mutation, 4.0, 1e-5, 1e-5, 1.0, None)


def results_of(found: Mapping[Cell, Finding]) -> Results:
    return gathered(STUDY, [result_of(cell, made, 1.0) for cell, made in found.items()])


def said(found: Mapping[Cell, Finding]) -> Verdicts:
    return verdicts(results_of(found))


def test_what_was_asked_for_is_planned():
    todo = cells(Settings(unit="label", kind="mechanism", seeds=2, noise="0.5,0", self_test=True))
    assert sum(one == cell("label", seed) for one in todo for seed in range(2)) == 2
    assert sorted(one.noise for one in todo if one.noise < 1) == [0.0, 0.5]
    assert {one.mutation for one in todo} - {""} == {m.name for m in MUTATIONS}
    seeded = cells(Settings(insecure_seed=3))
    assert len({one.stream for one in seeded}) == len(seeded)


def test_every_unit_is_audited_in_every_kind():
    seen = {(audit.unit, audit.kind) for audit in AUDITS.values()}
    assert seen == {(unit, kind) for unit in PrivacyUnit for kind in Kind}


def test_a_seed_makes_a_cell_repeatable():
    one = replace(cell("label"), size=0.05, stream=5 << 32)
    first, second = (finding_of(measure(None, one, None, lambda _: None)) for _ in range(2))
    other = finding_of(measure(None, replace(one, noise=0.5), None, lambda _: None))
    assert first == second
    assert other != first


def test_a_finding_survives_as_a_result():
    made = replace(finding(3.0, ceiling=float("inf")), also=(("no shape assumed", 1.5),))
    assert finding_of(result_of(cell("dp-sgd"), made, 1.0)) == made


def finding(bound: float, ceiling: float = 9.0, miss: float = 1e-5) -> Finding:
    return Finding(
        Kind.MECHANISM, PrivacyUnit.RECORD, "x", 4.0, 1e-5, bound, ceiling, miss, "attack", 10
    )  # fmt: skip


def test_the_worst_seed_decides_and_twins_say_what_is_found():
    found = {
        cell("dp-sgd", 0): finding(3.0),
        cell("dp-sgd", 1): finding(4.5),
        **{cell("dp-sgd", noise=share): finding(5.0) for share in (0.95, 0.5, 0.0)},
        cell("dp-sgd", noise=0.8): finding(3.9),
    }
    made = said(found)
    (row,) = made.rows
    assert (row.worst.bound, row.found, row.bounds) == (4.5, 0.5, (3.0, 4.5))
    assert row.finds == "noise x0.5"  # a twin with more noise than one that passed is luck
    assert made.wrong() == pytest.approx(2e-5)
    assert len(made.failures) == 1


def test_what_is_known_beforehand_is_what_is_found():
    known = replace(finding(3.0), finds="noise x0.97")
    (row,) = said({cell("dp-sgd"): known, cell("dp-sgd", noise=0.5): finding(5.0)}).rows
    assert row.finds == "noise x0.97"
    (row,) = said({cell("dp-sgd"): finding(3.0), cell("dp-sgd", noise=0.0): finding(3.0)}).rows
    assert row.finds == "-"


def test_a_mutation_that_passes_is_a_failure():
    name = MUTATIONS[0].name
    caught, missed, blind = (
        said({cell("dp-sgd", mutation=name): made})
        for made in (finding(4.1), finding(3.9), finding(3.9, ceiling=3.9))
    )
    assert caught.failures == []
    assert len(missed.failures) == len(blind.failures) == 1


def test_one_seed_that_cannot_tell_decides_unless_another_refutes():
    blind, holds, refuted = finding(1.0, ceiling=4.0), finding(3.9), finding(4.1)
    for found, verdict in (
        ((holds, blind), Verdict.CANNOT_TELL),
        ((blind, refuted, holds), Verdict.REFUTED),
        ((holds, holds), Verdict.HOLDS),
    ):
        tasks_found = {cell("dp-sgd", seed): made for seed, made in enumerate(found)}
        (row,) = said(tasks_found).rows
        assert row.verdict is verdict


def test_a_row_that_cannot_tell_is_shown_as_such_and_is_no_failure():
    results = results_of({cell("dp-sgd"): finding(1.0, 4.0), cell("label"): finding(3.9)})
    assert verdicts(results).failures == []
    assert STUDY.status(results) == 0
    text = rendered(STUDY.shown(results))
    assert "0 refuted the claim, 1 could have and did not, 1 cannot tell" in text
    assert [row.verdict for row in verdicts(results).rows] == ["cannot tell", "holds"]


def test_a_run_saves_what_it_shows(tmp_path):
    chosen = Settings(unit="label", kind="mechanism", noise="", quick=True, insecure_seed=1)
    made = [measure(None, one, None, lambda _: None) for one in cells(chosen)]
    write_results(gathered(STUDY, made, chosen), tmp_path / "audit.json")
    again = read_results(STUDY, tmp_path / "audit.json")
    (row,) = verdicts(again).rows
    assert 2.4 <= row.worst.bound <= row.worst.claimed == 4.0
    assert f"{row.worst.bound:.2f}" in rendered(STUDY.shown(again))
    assert STUDY.status(again) == 0
