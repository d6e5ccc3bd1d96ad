"""`secure-fd site` and `secure-fd join` as an operator meets them: one sentence, an exit status."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.flower_processes import environment


def _run(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(  # noqa: S603 - our own program
        [sys.executable, "-m", "secure_fd", *arguments],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site") / "records"
    for name in ("cat", "dog"):
        (folder / name).mkdir(parents=True)
        for index in range(10):
            pixels = np.full((16, 16), index, dtype=np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{index}.png")
    return folder


def test_keys_are_made_once_beside_the_records(records: Path) -> None:
    made = _run("site", "init", "--data", str(records), "--name", "north")
    card = records.parent / "home" / "card.toml"
    assert (made.returncode, made.stderr) == (0, "")
    assert "records = 18" in card.read_text()
    state = (records.parent / "home" / "state").read_bytes()
    again = _run("site", "init", "--data", str(records), "--name", "north")
    assert again.returncode == 2
    assert again.stderr.startswith("error: path: ")
    assert again.stderr.count("\n") == 1
    assert (records.parent / "home" / "state").read_bytes() == state


def test_a_roster_that_is_missing_is_named(records: Path, tmp_path: Path) -> None:
    roster = tmp_path / "roster.toml"
    for command in (("join", "--data", str(records)), ("serve",)):
        ended = _run(*command, "--roster", str(roster))
        assert ended.returncode == 2
        assert ended.stderr.startswith("error: ")
        assert ended.stderr.count("\n") == 1
