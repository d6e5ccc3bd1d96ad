"""The study's command line in a process of its own: answers at once, resumes, is interrupted."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from experiments.utility.cells import Grid, cells
from experiments.utility.results import CellResult, load
from experiments.utility.store import Store

SCRIPT = Path(__file__).parents[2] / "experiments" / "dp_utility.py"
HEAVY = ("torch", "matplotlib", "sklearn", "opacus")
QUICK = ("--study", "small", "--quick", "--seeds", "10", "--epsilons", "4", "--rounds", "1")


def command(*arguments: str) -> list[str]:
    return [sys.executable, str(SCRIPT), *arguments]


def environment() -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if k != "SECURE_FD_DATA"}
    return {**kept, "OMP_NUM_THREADS": "1"}


def cli(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(  # noqa: S603 - our own script
        command(*arguments),
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--epsilons", "0"), "error: epsilons: '0' is not allowed; use numbers from 0.01 to 50"),
        (
            ("--study", "fashion", "--data-dir", "."),
            "error: data_dir: '.' is not allowed; the folder fashion_mnist/ must be in it",
        ),
    ],
)
def test_a_mistake_is_one_sentence_and_leaves_nothing(
    tmp_path: Path, arguments: tuple[str, ...], sentence: str
) -> None:
    made = cli(tmp_path, *arguments)
    assert made.returncode == 2
    errors = [line for line in made.stderr.splitlines() if line.startswith("error")]
    assert len(errors) == 1
    assert errors[0].startswith(sentence)
    assert "Traceback" not in made.stderr
    assert list(tmp_path.iterdir()) == []


def test_checks_come_before_heavy_imports(tmp_path: Path) -> None:
    code = (
        "import sys; sys.argv = ['x', '--help']; "
        "from experiments.dp_utility import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        f"print('HEAVY', [m for m in {HEAVY!r} if m in sys.modules])"
    )
    made = subprocess.run(  # noqa: S603 - our own code
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert made.stdout.splitlines()[-1] == "HEAVY []"


def test_ctrl_c_is_no_error(tmp_path: Path) -> None:
    running = subprocess.Popen(  # noqa: S603 - our own script
        command(*QUICK),
        cwd=tmp_path,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert running.stderr is not None
    before = running.stderr.readline()
    assert before.startswith("3 cells, into")
    time.sleep(1.0)  # in the checks, or while workers start: at any moment
    running.send_signal(signal.SIGINT)
    _, errors = running.communicate(timeout=60)
    assert running.returncode == 130
    assert "interrupted: finished cells are kept" in errors
    assert "Traceback" not in errors


def test_with_all_cells_done_the_rest_is_written_at_once(tmp_path: Path) -> None:
    grid = Grid((4.0,), (10,), 1, quick=True)
    store = Store(tmp_path / "made" / "cells")
    for accuracy, cell in zip((0.25, 0.75, 0.5), cells("small", grid), strict=True):
        store.save(CellResult(cell, accuracy, [accuracy], {}, "A sentence.", None, 1.0))
    made = cli(tmp_path, *QUICK, "--out", "made", "--data-dir", str(tmp_path))
    assert made.returncode == 0, made.stderr
    results = load(tmp_path / "made")
    assert [r.accuracy for r in results.cells] == [0.25, 0.75, 0.5]
    assert "75.0" in made.stdout
    assert (tmp_path / "made" / "dp_utility.txt").read_text(encoding="utf-8") in made.stdout
    assert str(tmp_path) not in " ".join(results.command)
    assert results.command[-3:] == ["--data-dir", "DATA_DIR", "--quick"]
