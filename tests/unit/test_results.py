"""Files of results: whole or not at all, strict, and those that are committed stay readable."""

import math
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pytest
from report_sample import sample, with_row

from experiments.compare.comparison import rows
from experiments.core.study import read_results, write_results
from experiments.privacy_compare import STUDY
from secure_fd import files
from secure_fd.errors import ConfigurationError

COMMITTED = ("mnist5k", "mnist5k_drop")


def test_a_comparison_comes_back_from_its_file(tmp_path):
    path = tmp_path / "results.json"
    original = with_row(sample(), 0, figures={"n": np.float32(3.0), "m": np.int64(4)})
    write_results(with_row(original, 1, notes={"epsilon": math.inf}), path)
    assert "Infinity" not in path.read_text(encoding="utf-8")
    again = read_results(STUDY, path)
    assert again.cells[0] == original.cells[0]
    assert again.cells[1].notes["epsilon"] == "inf"


@pytest.mark.parametrize(
    ("changes", "place"),
    [
        ({"seconds": math.nan}, "results.cells[1].seconds"),
        ({"figures": {"bytes": math.nan}}, "results.cells[1].figures.bytes"),
        ({"figures": {"bytes": math.inf}}, "results.cells[1].figures[...]"),
        ({"notes": {"sampler": object()}}, "results.cells[1].notes.sampler"),
    ],
)
def test_a_file_that_could_not_be_read_is_not_written(tmp_path, changes, place):
    with pytest.raises(ConfigurationError) as caught:
        write_results(with_row(sample(2), 1, **changes), tmp_path / "results.json")
    assert caught.value.field == place
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("before", "after", "field"),
    [
        ('"one_by_one": true', '"one_by_one": 1', "cell.config.one_by_one"),
        ('"method": "fedavg"', '"method": 3', "cell.config.method"),
        ('"rounds": 30', '"rounds": 2.5', "cell.config.rounds"),
        ('"seconds": 12.5', '"seconds": 1e999', "results.cells[0].seconds"),
        ('"seconds": 12.5', '"seconds": NaN', "results"),
    ],
)
def test_what_is_wrong_in_a_file_is_named(tmp_path, before, after, field):
    path = tmp_path / "results.json"
    write_results(sample(1), path)
    path.write_text(path.read_text().replace(before, after, 1))
    with pytest.raises(ConfigurationError) as caught:
        read_results(STUDY, path)
    assert caught.value.field == field


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_failure_in_the_middle_keeps_the_old_file(tmp_path, monkeypatch, error):
    def half(file: BinaryIO) -> None:
        file.write(b"half of it")
        raise error

    def interrupted(descriptor: int) -> None:
        raise error(descriptor)

    path = tmp_path / "file"
    with pytest.raises(error):
        files.write_atomically(path, half)
    assert list(tmp_path.iterdir()) == []
    path.write_bytes(b"old")
    with pytest.raises(error):
        files.write_atomically(path, half)
    monkeypatch.setattr(files.os, "fsync", interrupted)
    with pytest.raises(error):
        files.write_atomically(path, lambda file: file.write(b"new"))
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("name", COMMITTED)
def test_committed_comparisons_stay_readable(name):
    path = Path(__file__).parents[2] / "docs" / "results" / f"{name}.json"
    found = rows(read_results(STUDY, path))
    assert found
    assert all(row.first.curve for row in found)
