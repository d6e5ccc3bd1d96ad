"""The attack suite's command line as a user meets it, in a process of its own."""

import os
import subprocess
import sys
from pathlib import Path

from experiments.attack_suite import STUDY
from experiments.leakage import AttackFigure
from experiments.study import read_results

SCRIPT = Path(__file__).parents[2] / "experiments" / "attack_suite.py"
HEAVY = {"torch", "matplotlib", "sklearn", "scipy", "opacus"}


def cli(
    folder: Path, *arguments: str, python: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[str]:
    kept = {k: v for k, v in os.environ.items() if k != "SECURE_FD_DATA"}
    return subprocess.run(  # noqa: S603 - our own script
        [sys.executable, *python, str(SCRIPT), *arguments],
        cwd=folder,
        env={**kept, "OMP_NUM_THREADS": "1", "COLUMNS": "120"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_help_imports_nothing_heavy(tmp_path):
    made = cli(tmp_path, "--help", python=("-X", "importtime"))
    assert made.returncode == 0
    for flag in ("--scenes", "--dp-eps", "--seeds", "--quick"):
        assert flag in made.stdout
    imported = {
        line.rpartition("|")[2].strip().partition(".")[0]
        for line in made.stderr.splitlines()
        if line.startswith("import time:")
    }
    assert {"tyro", "secure_fd", "experiments"} <= imported
    assert imported & HEAVY == set()


def test_a_scene_runs_and_a_second_run_has_nothing_to_do(tmp_path):
    asked = ("--quick", "--scenes", "dropouts", "--out", "found")
    first = cli(tmp_path, *asked)
    assert first.returncode == 0, first.stderr
    found = read_results(STUDY, tmp_path / "found" / "attack_suite.json")
    masked = {cell.cell.row: cell for cell in found.cells}["selective-fd-hard-masks"]
    participation = masked.attacks["participation"]
    assert isinstance(participation, AttackFigure)
    assert participation.figure < participation.control
    assert "participation" in first.stdout
    page = (tmp_path / "found" / "report.html").read_text()
    assert "participation" in page
    assert str(tmp_path) not in page

    again = cli(tmp_path, *asked)
    assert again.returncode == 0, again.stderr
    assert " done, " not in again.stderr
    assert read_results(STUDY, tmp_path / "found" / "attack_suite.json").cells == found.cells
