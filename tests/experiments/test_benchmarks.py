"""Benchmarks follow the names of the package, and a small table of sums is measured."""

import importlib
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.parametrize("name", ["rounds", "sums", "many_machines"])
def test_a_benchmark_can_be_imported(name, monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    assert importlib.import_module(name)


@pytest.mark.parametrize("name", ["masks", "prio3", "he"])
def test_rows_of_a_sum_are_measured_beside_their_floor(name, monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    sums = importlib.import_module("sums")
    for row in sums.rows_of(sums.Cell(name, 10, 200), repeats=1):
        # An upload carries all values, of two bits or more; the server keeps one upload at least.
        assert row["server_memory_bytes"] > row["up_bytes"] > 200 / 4
        assert row["client_ratio"] > 0
        assert row["server_ratio"] > 0
