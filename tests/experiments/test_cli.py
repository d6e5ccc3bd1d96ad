"""The command line of studies: a full disk, a quick help, and runs that are ended."""

import os
import re
import signal
import time
from pathlib import Path

import pytest

from experiments.report.results_page import MODULES
from secure_fd.cli import FAILED
from tests.drivers import cluster_study
from tests.programs import ROOT, ended, started, wait_for

SCRIPT = ROOT / "experiments" / "privacy_compare.py"
HEAVY = {"torch", "matplotlib", "sklearn", "scipy", "opacus", "pandas"}


FULL = (
    "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0));"
    f"from experiments.core.study import main; sys.exit(main({cluster_study.MODULE!r}))"
)
"""Files may hold nothing: every write fails, as on a full disk."""


def test_a_disk_that_takes_nothing_ends_a_run_before_it_works(tmp_path):
    made = ended("-c", FULL, "--out", "results", cwd=tmp_path, PYTHONPATH=str(ROOT))
    assert made.returncode == FAILED
    assert made.stderr.splitlines()[-1].startswith("error: file too large; finished cells are kept")
    assert "Traceback" not in made.stderr
    assert kept(tmp_path) == []


STUDIES = (
    f"import importlib, sys; [importlib.import_module(name) for name in {MODULES!r}];"
    "from experiments.core.study import main; main('experiments.paper.accuracy', ['--help'])"
)


@pytest.mark.parametrize(
    ("asked", "forbidden"),
    [
        (["-m", "secure_fd", "--help"], {"tyro", "numpy", *HEAVY}),
        (["-m", "secure_fd", "study", "--help"], {"tyro", "numpy", *HEAVY}),
        (["-m", "secure_fd", "suite", "--help"], HEAVY),
        ([str(SCRIPT), "--help"], HEAVY),
        (["-c", STUDIES], HEAVY - {"scipy"}),
    ],
)
def test_help_waits_for_no_heavy_library(tmp_path, asked, forbidden):
    made = ended("-X", "importtime", *asked, cwd=tmp_path)
    log = [line for line in made.stderr.splitlines() if line.startswith("import time:")]
    imported = {line.rpartition("|")[2].strip().partition(".")[0] for line in log}
    assert made.returncode == 0
    assert "usage: " in made.stdout
    assert "secure_fd" in imported
    assert imported & forbidden == set()


# How a run is ended.


def alive(group: int) -> list[int]:
    """Processes of a group, but for those that have ended and wait to be collected."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, its_group = stat.read_text().rpartition(")")[2].split()[:3]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(its_group) == group and state != "Z":
            found.append(int(stat.parent.name))
    return found


def is_worker(process: int) -> bool:
    """Return True for a Python process that the run started, not for a tool that ends by itself."""
    try:
        return b"multiprocessing" in Path(f"/proc/{process}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return False


def hears_interrupts(process: int) -> bool:
    """Return True if Ctrl-C would reach the process and make it print a traceback.

    Tools such as git and ldconfig run for an instant, hear Ctrl-C, and print no traceback.
    """
    if not is_worker(process):
        return False
    status = Path(f"/proc/{process}/status").read_text()
    masks = re.findall(r"^Sig(?:Blk|Ign):\s*([0-9a-f]+)$", status, re.MULTILINE)
    assert len(masks) == 2
    return not any(int(mask, 16) >> (signal.SIGINT - 1) & 1 for mask in masks)


def wait_until_gone(group: int, seconds: float) -> list[int]:
    end = time.monotonic() + seconds
    while (left := alive(group)) and time.monotonic() < end:
        time.sleep(0.1)
    return left


CLAIMED = ["log", "results/cluster_study.cpu_seconds", "results/code.json", "results/run.toml"]
"""Files of a run that was ended before its first cell: none is half-written."""


def kept(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


@pytest.fixture
def working(tmp_path, tmp_path_factory):
    """A run with two workers that work, and its log; nothing of it is left behind."""
    marks, log = tmp_path_factory.mktemp("marks"), tmp_path / "log"
    for steps in cluster_study.STEPS:
        (marks / f"wait-{steps}").touch()
    study = ("-m", cluster_study.MODULE, "--data-dir", marks, "--workers", "2", "--out", "results")
    with started(*study, log=log, cwd=tmp_path, PYTHONPATH=str(ROOT)) as run:
        wait_for(lambda: len(list(marks.glob("began-*"))) == 2 or run.poll() is not None, log)
        assert run.poll() is None, log.read_text()
        yield run, log


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="it looks processes up in /proc")
@pytest.mark.parametrize(
    ("number", "status", "word"),
    [
        (signal.SIGINT, 130, "interrupted: finished cells are kept"),
        (signal.SIGTERM, 143, "terminated: finished cells are kept"),
        (signal.SIGKILL, -signal.SIGKILL, ""),
    ],
    ids=["Ctrl-C", "SIGTERM", "SIGKILL"],
)
def test_a_run_that_is_ended_leaves_neither_results_nor_processes(working, number, status, word):
    """Ctrl-C reaches the group; other signals the parent alone, as those of a service manager."""
    run, log = working
    children = [pid for pid in alive(run.pid) if pid != run.pid]
    assert sum(map(is_worker, children)) >= 3  # the tracker of resources, and two workers
    assert [pid for pid in children if hears_interrupts(pid)] == []
    (os.killpg if number == signal.SIGINT else os.kill)(run.pid, number)
    assert run.wait(timeout=120) == status
    assert wait_until_gone(run.pid, 60) == []
    shown = log.read_text()
    assert word in shown
    assert "Traceback" not in shown
    assert kept(log.parent) == CLAIMED
