"""The comparison's command line as a user meets it, in a process of its own, from anywhere."""

import gzip
import os
import re
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "experiments" / "privacy_compare.py"
HEAVY = {"torch", "matplotlib", "sklearn", "scipy", "opacus"}


def environment() -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if k != "SECURE_FD_DATA"}
    return {**kept, "OMP_NUM_THREADS": "1", "COLUMNS": "200"}


def cli(
    folder: Path, *arguments: str, python: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *python, str(SCRIPT), *arguments]
    return subprocess.run(  # noqa: S603 - our own script
        command,
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def idx(path: Path, shape: tuple[int, ...], *, cut: int = 0) -> None:
    """An IDX file of zeros; cut: bytes that its compressed end lacks."""
    header = b"\0\0\x08" + bytes([len(shape)]) + struct.pack(f">{len(shape)}I", *shape)
    size = 1
    for length in shape:
        size *= length
    whole = gzip.compress(header + bytes(size))
    path.write_bytes(whole[: len(whole) - cut])


# Mistakes. test_compare_settings.py has all of them; here is how they reach a user.


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--dataset", "mnits"], "dataset: 'mnits' is not allowed; use one of mnist5k, digits"),
        (["--workers", "0"], "workers: 0 is not allowed; use 1 or more"),
        (
            ["--dataset", "mnist", "--data-dir", "."],
            "data_dir: '.' is not allowed; the folder mnist/ must be in it",
        ),
    ],
)
def test_a_mistake_gets_one_sentence_at_once(
    tmp_path: Path, arguments: list[str], said: str
) -> None:
    made = cli(tmp_path, *arguments)
    assert made.returncode == 2
    assert made.stdout == ""
    assert "Traceback" not in made.stderr
    assert made.stderr.splitlines()[-1].startswith(f"error: {said}")
    assert list(tmp_path.iterdir()) == []


def test_a_truncated_image_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "mnist").mkdir()
    idx(tmp_path / "mnist" / "train-images-idx3-ubyte.gz", (20, 28, 28), cut=12)
    idx(tmp_path / "mnist" / "train-labels-idx1-ubyte.gz", (20,))
    made = cli(tmp_path, "--dataset", "mnist", "--data-dir", ".", "--out", "results")
    assert made.returncode == 2
    sentence = made.stderr.splitlines()[-1]
    assert sentence.startswith("error: data_dir: 'mnist/train-images-idx3-ubyte.gz' is not allowed")
    assert "truncated" in sentence
    assert not (tmp_path / "results").exists()


def test_an_argument_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    made = cli(tmp_path, "--labels", "fuzzy")
    assert made.returncode == 2
    assert made.stdout == ""
    assert "Traceback" not in made.stderr
    words = ("--labels", "fuzzy", "soft", "hard", "both", "--help")
    assert all(word in made.stderr for word in words)


# Help.


def test_help_imports_nothing_heavy(tmp_path: Path) -> None:
    made = cli(tmp_path, "--help", python=("-X", "importtime"))
    assert made.returncode == 0
    for flag in (
        "--secure-agg",
        "--dp-eps",
        "--data-dir",
        "--quick",
        "--attacks",
        "--drop",
        "--releases",
    ):
        assert flag in made.stdout
    imported = {
        line.rpartition("|")[2].strip().partition(".")[0]
        for line in made.stderr.splitlines()
        if line.startswith("import time:")
    }
    assert {"tyro", "secure_fd", "experiments"} <= imported
    assert imported & HEAVY == set()


# Ctrl-C.


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


def reached(moment: str, group: int, log: str) -> bool:
    """Whether the run is where Ctrl-C is to be pressed."""
    if moment == "workers work":
        return re.search(r"^  (warm-up|FedAvg)[:,]", log, re.MULTILINE) is not None
    # The run, the tracker of its resources, the process of its queue, and two workers.
    return len(alive(group)) >= 5


def hears_interrupts(process: int) -> bool:
    """Whether Ctrl-C would reach it, and leave a traceback of its own beside the parent's word."""
    status = Path(f"/proc/{process}/status").read_text()
    masks = re.findall(r"^Sig(?:Blk|Ign):\s*([0-9a-f]+)$", status, re.MULTILINE)
    assert len(masks) == 2
    return not any(int(mask, 16) >> (signal.SIGINT - 1) & 1 for mask in masks)


def wait_until_gone(group: int, seconds: float) -> list[int]:
    end = time.monotonic() + seconds
    while (left := alive(group)) and time.monotonic() < end:
        time.sleep(0.1)
    return left


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="it looks processes up in /proc")
@pytest.mark.parametrize("moment", ["workers import", "workers work"])
def test_ctrl_c_leaves_neither_results_nor_workers(tmp_path: Path, moment: str) -> None:
    command = [sys.executable, str(SCRIPT), "--dataset", "digits", "--attacks", "none"]
    log = tmp_path / "log"
    with log.open("w") as stream:
        started = subprocess.Popen(  # noqa: S603 - our own script
            [*command, "--workers", "2", "--out", "results"],
            cwd=tmp_path,
            env=environment(),
            stdout=stream,
            stderr=stream,
            start_new_session=True,
        )
    try:
        end = time.monotonic() + 90
        while not reached(moment, started.pid, log.read_text()):
            assert time.monotonic() < end, log.read_text()
            assert started.poll() is None, log.read_text()
            time.sleep(0.1)
        children = [pid for pid in alive(started.pid) if pid != started.pid]
        assert len(children) >= 3
        assert [pid for pid in children if hears_interrupts(pid)] == []
        os.killpg(started.pid, signal.SIGINT)
        assert started.wait(timeout=30) == 130
        assert wait_until_gone(started.pid, 10) == []
    finally:
        if alive(started.pid):
            os.killpg(started.pid, signal.SIGKILL)
        started.wait(timeout=30)
    said = log.read_text()
    assert "interrupted: finished cells are kept" in said
    assert "Traceback" not in said
    assert [path.name for path in tmp_path.iterdir()] == ["log"]
