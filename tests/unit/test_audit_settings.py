"""The audit's command line: what it refuses, what it plans, and when it fails."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from attacks.audit.bounds import Finding, Kind, Verdict
from attacks.audit.registry import AUDITS, MUTATIONS
from experiments.audit import table
from experiments.audit.settings import Settings, plan
from experiments.audit.tasks import Task, run, tasks
from secure_fd.errors import ConfigurationError
from secure_fd.privacy.units import PrivacyUnit

SCRIPT = Path(__file__).parents[2] / "experiments" / "privacy_audit.py"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("epsilon", 0.0),
        ("epsilon", 17.0),
        ("delta", 0.5),
        ("miss", 0.5),
        ("unit", "person"),
        ("kind", "mechanism,two-run"),
        ("seeds", 0),
        ("power", -1),
        ("workers", 0),
        ("insecure_seed", -1),
        ("out", SCRIPT),
    ],
)
def test_what_is_not_allowed_is_refused_by_name(field: str, value: object) -> None:
    with pytest.raises(ConfigurationError, match=field):
        plan(replace(Settings(), **{field: value}))


def test_a_plan_holds_what_was_asked_for() -> None:
    made = plan(Settings(unit="label", kind="mechanism", seeds=2, power=1, self_test=True))
    todo = tasks(made)
    assert sum(task == Task("label", seed) for task in todo for seed in range(2)) == 2
    assert sum(task.half for task in todo) == 1
    assert {task.mutation for task in todo} - {None} == {m.name for m in MUTATIONS}


def test_every_unit_is_audited_in_every_kind() -> None:
    seen = {(audit.unit, audit.kind) for audit in AUDITS.values()}
    assert seen == {(unit, kind) for unit in PrivacyUnit for kind in Kind}


def test_a_seed_makes_a_task_repeatable() -> None:
    made = plan(Settings(unit="label", kind="one-run", insecure_seed=5, quick=True))
    first, second = (run(Task("label-canaries", 0), made) for _ in range(2))
    other = run(Task("label-canaries", 0, half=True), made)
    assert first == second
    assert other != first


def finding(bound: float, ceiling: float = 9.0, miss: float = 1e-5) -> Finding:
    return Finding(
        Kind.MECHANISM, PrivacyUnit.RECORD, "x", 4.0, 1e-5, bound, ceiling, miss, "attack", 10
    )  # fmt: skip


def test_the_worst_seed_decides_and_power_counts_twins() -> None:
    found = {
        Task("record", 0): finding(3.0),
        Task("record", 1): finding(4.5),
        Task("record", 0, half=True): finding(5.0),
        Task("record", 1, half=True): finding(3.9),
    }
    made = table.results(plan(Settings()), found)
    (row,) = made.rows
    assert (row.worst.bound, row.power, row.bounds) == (4.5, 0.5, (3.0, 4.5))
    assert made.wrong == pytest.approx(2e-5)
    assert len(made.failures) == 1


def test_a_mutation_that_passes_is_a_failure() -> None:
    name = MUTATIONS[0].name
    caught, missed, blind = (
        table.results(plan(Settings()), {Task("record", 0, mutation=name): made})
        for made in (finding(4.1), finding(3.9), finding(3.9, ceiling=3.9))
    )
    assert caught.failures == []
    assert len(missed.failures) == len(blind.failures) == 1


def test_one_seed_that_cannot_tell_decides_unless_another_refutes() -> None:
    blind, holds, refuted = finding(1.0, ceiling=4.0), finding(3.9), finding(4.1)
    for found, verdict in (
        ((holds, blind), Verdict.CANNOT_TELL),
        ((blind, refuted, holds), Verdict.REFUTED),
        ((holds, holds), Verdict.HOLDS),
    ):
        tasks_found = {Task("record", seed): made for seed, made in enumerate(found)}
        (row,) = table.results(plan(Settings()), tasks_found).rows
        assert row.verdict is verdict


def test_a_row_that_cannot_tell_is_shown_as_such_and_is_no_failure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checked = plan(Settings(out=tmp_path))
    made = table.results(
        checked, {Task("record", 0): finding(1.0, 4.0), Task("label", 0): finding(3.9)}
    )
    assert made.failures == []
    table.show(made, checked, 1.0)
    assert "0 refuted the claim, 1 could have and did not, 1 cannot tell" in capsys.readouterr().out
    document = json.loads(table.save(made, checked, 1.0).read_text())
    assert document["verdicts"] == {"holds": 1, "refuted": 0, "cannot tell": 1}
    assert [row["verdict"] for row in document["results"]["rows"]] == ["cannot tell", "holds"]


def test_looser_rows_are_counted_apart() -> None:
    found = {Task("record", 0): finding(1.0), Task("label", 0): finding(1.0, miss=0.01)}
    made = table.results(plan(Settings()), found)
    assert (made.strict, made.wrong) == pytest.approx((1e-5, 0.01001))


def test_a_mistake_ends_with_one_sentence_and_status_two() -> None:
    made = subprocess.run(  # noqa: S603 - our own script
        [sys.executable, str(SCRIPT), "--epsilon", "0"], capture_output=True, text=True, check=False
    )
    assert made.returncode == 2
    assert made.stderr.startswith("error: epsilon: 0")
    assert made.stderr.count("\n") == 1


def test_a_run_saves_what_it_shows(tmp_path: Path) -> None:
    made = subprocess.run(  # noqa: S603 - our own script
        [
            *(sys.executable, str(SCRIPT), "--quick", "--power", "0", "--workers", "1"),
            *("--unit", "label", "--kind", "mechanism", "--insecure-seed", "1"),
            *("--out", str(tmp_path)),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert made.returncode == 0, made.stderr
    (row,) = json.loads((tmp_path / "audit.json").read_text())["results"]["rows"]
    assert 2.4 <= row["worst"]["bound"] <= row["worst"]["claimed"] == 4.0
    assert f"{row['worst']['bound']:.2f}" in made.stdout
