"""The audit's command line: what it refuses, what it plans, and when it fails."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from attacks.audit.finding import Finding, Kind
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


def finding(bound: float) -> Finding:
    return Finding(
        Kind.MECHANISM, PrivacyUnit.RECORD, "x", 4.0, 1e-5, bound, 9.0, 1e-5, "attack", 10
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
    caught, missed = (
        table.results(plan(Settings()), {Task("record", 0, mutation=name): finding(bound)})
        for bound in (4.1, 3.9)
    )
    assert caught.failures == []
    assert len(missed.failures) == 1


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
