"""Benchmarks are not run by the tests, but they follow the names of the package."""

import importlib
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.parametrize("name", ["run", "rounds", "secure_sums", "proven_sums", "many_machines"])
def test_a_benchmark_can_be_imported(name, monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    assert importlib.import_module(name)
