"""Benchmarks follow the names of the package, and their page is short and of their figures."""

import importlib
import re
from pathlib import Path

import pytest

from experiments.core.measures import ACCURACY
from experiments.core.study import Result, gathered, load
from experiments.rivals.equal_terms import PASSED

ROOT = Path(__file__).parents[2]


@pytest.fixture
def script(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return importlib.import_module


@pytest.mark.parametrize("name", ["performance", "many_machines"])
def test_a_benchmark_can_be_imported(name, script):
    assert script(name)


@pytest.mark.parametrize("name", ["masks", "prio3", "he"])
def test_rows_of_a_sum_are_measured(name, script):
    sums = script("sums")
    for row in sums.rows_of(sums.Cell(name, 10, 200), repeats=1):
        # An upload carries all values, of two bits or more; the server keeps one upload at least.
        assert row["server_memory_bytes"] > row["up_bytes"] > 200 / 4
        assert (row["floor"] is not None) is (name == "masks")


def figures():
    """Figures by rule: a client takes a millisecond a neighbour, the server one a lost pair."""
    times = {"set_up": {"client_s": 1, "server_s": 1}, "floor": {"client": 0.005, "server": 0.1}}
    cost = {"up_bytes": 5_000, "server_memory_bytes": 90_000, **times}
    masks = [
        {"sum": "masks", "clients": n, "values": 5_120, "wide": False, "dropped": d, **cost}
        | {"client_s": 0.001 * (n - 1), "server_s": 0.001 * n ** (2 if d else 1)}
        for n in (10, 100, 300)
        for d in (0, n // 10)
    ]
    wide = {"clients": 10, "values": 6_000, "wide": True, "dropped": 0, "up_bytes": 5_000}
    pair = [
        {"sum": "masks", **wide, **cost, "client_s": 1, "server_s": 2},
        {"sum": "secagg+", **wide, "client_s": 6, "server_s": 12},
    ]
    speeds = {"plain": 10.0, "channels_last": 15.0, "trainer": 18.0}
    return {
        "commit": "0" * 40,
        "dirty": False,
        "command": ["python", "benchmarks/performance.py"],
        "versions": {"secure-fd": "1.0.0", "flwr": "1.42.0"},
        "machine": {"cpus": 2, "load": 1.0},
        "created": "2026-11-28T10:00:00+00:00",
        "cpu_seconds": 600,
        "sums": masks + pair,
        "rounds": [{"networks": "cnn-5-5-50", "batch": 128, "client_rounds_per_s": speeds}],
    }


def test_the_page_is_computed_and_short(script):
    page = script("performance_page").performance_page(figures(), "## Training")
    assert len(re.findall(r"\S*[^\W\d_]{2}\S*", page)) <= 500
    assert max(line.count("|") for line in page.splitlines()) == 9
    assert page.index("## Training") < page.index("## Growth to 300 clients")
    assert "| masks | 10, 5,120 votes | 9.0 ms | 1.80 | 10 ms | 0.10 |" in page
    assert "6.00 times the time of masks at a client and 6.00 times at the server" in page
    assert "3.00 and 4.00 times" in page  # with a set-up
    assert "1.50 to 1.50 times as fast" in page
    powers = re.findall(r"power (\d\.\d\d)|and with (\d\.\d\d)", page)
    assert powers == [("1.00", ""), ("1.00", ""), ("", "2.00"), ("0.00", "")]


def test_methods_stand_by_when_they_pass_the_papers_best_and_controls_are_left_out(script):
    study = load("experiments.rivals.equal_terms")
    passed = {"fedavg": {}, "selective-fd": {PASSED: 30.0}, "heads": {PASSED: 5.0}, "truth": {}}
    made = study.cells(study.settings(image_sets="mnist", seeds="21", rows=",".join(passed)))
    found = [Result(cell, {ACCURACY: 0.9, **passed[cell.row]}, seconds=60.0) for cell in made]
    section = script("performance_page").training(gathered(study, found))
    rows = [line.split(" | ") for line in section.splitlines() if line.endswith(" |")][2:]
    assert [row[1] for row in rows] == ["5", "30", "–"]  # noqa: RUF001 - no value
    assert rows[2][0] == "| FedAvg"


def test_a_loaded_machine_is_named(script):
    found = figures()
    found["machine"]["load"] = 11.5
    assert "loaded (11.5 processes, 2 cores)" in script("performance_page").performance_page(found)


def test_the_plot_has_client_and_server_on_logarithmic_scales(script):
    made = script("performance_page")
    plot = made.growth_plot(*made.growth_rows(figures()["sums"]))
    assert plot.scales == ("log", "log")
    assert plot.lines["client"].mean == pytest.approx((9, 99, 299))
    assert plot.lines["server, a tenth drops out"].mean == pytest.approx((100, 10_000, 90_000))
