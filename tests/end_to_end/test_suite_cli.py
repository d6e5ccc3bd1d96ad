"""The attack suite's command line as a user meets it, in a process of its own."""

from experiments.core.study import read_results
from experiments.suite.attack_suite import STUDY
from tests.programs import ROOT, ended

SCRIPT = ROOT / "experiments" / "suite" / "attack_suite.py"


def test_a_scene_runs_and_a_second_run_has_nothing_to_do(tmp_path):
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

    again = ended(SCRIPT, *asked, cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert " done, " not in again.stderr
    assert read_results(STUDY, tmp_path / "found" / "attack_suite.json").cells == found.cells
