"""The attack suite's command line as a user meets it, in a process of its own."""

import os

import pytest

from experiments.core import pool
from experiments.core.study import main, read_results
from experiments.suite.attack_suite import STUDY
from tests.programs import ROOT, ended

SCRIPT = ROOT / "experiments" / "suite" / "attack_suite.py"


@pytest.mark.skipif(
    "SECURE_FD_COMBINATIONS" not in os.environ, reason="takes a minute: make test-long"
)
def test_a_scene_runs_and_a_second_run_has_nothing_to_do(tmp_path, monkeypatch):
    asked = ("--quick", "--scenes", "dropouts", "--out", "found")
    first = ended(SCRIPT, *asked, cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    found = read_results(STUDY, tmp_path / "found" / "attack_suite.json")
    masked = {cell.cell.row: cell for cell in found.cells}["selective-fd-hard-masks"]
    participation = masked.attacks["participation"]
    assert participation.figure < participation.control
    assert "participation" in first.stdout
    page = (tmp_path / "found" / "report.html").read_text()
    assert "participation" in page
    assert str(tmp_path) not in page

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(pool, "working", None)  # in this process, where a worker would be missed
    assert main(STUDY.module, list(asked)) == 0
    assert read_results(STUDY, tmp_path / "found" / "attack_suite.json").cells == found.cells
