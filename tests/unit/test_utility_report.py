"""The study's table and plot: every number at its place, from results made up here."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from experiments.utility import plots, table
from experiments.utility.cells import Cell, Grid, cells
from experiments.utility.results import CellResult, Results, gathered

GRID = Grid((1.0, 4.0, None), (10, 11), None, quick=False)
FIGURES = {
    "released proxies": 1234.0,
    "kept proxies": 0.5,
    "right labels without noise": 0.875,
    "noise multiplier": 1.5,
    "deviation of the noise, votes": 42.0,
    "units in a vote": 4.0,
    "bits in a lane": 17.0,
    "bytes up a client": 32_000.0,
}


def value(cell: Cell) -> float:
    """Differs between cells of a table, and by 2 points between the seeds."""
    index = {"none": 60, "record": 50, "label": 40, "client": 30}[cell.unit]
    epsilon = 10 if cell.epsilon is None else cell.epsilon
    return (index + epsilon + 2 * (cell.seed - 10)) / 100


@pytest.fixture(scope="module")
def results() -> Results:
    chosen = [*cells("strong", GRID), *cells("fleet", GRID)]
    made = [
        CellResult(c, value(c), [value(c)], FIGURES if c.fleet else {}, "A sentence.", None, 1.0)
        for c in chosen
    ]
    return gathered(made, ["python"])


def row(text: str, *names: str) -> str:
    found = [line for line in text.splitlines() if all(name in line for name in names)]
    assert found, names
    return found[0]


def test_the_table_has_means_and_deviations_over_seeds(results: Results) -> None:
    text = table.text(results)
    # Seeds differ by two points: mean one above the first, deviation sqrt(2).
    assert row(text, "record unit").split("unit")[1].split() == (
        ["52.0", "±", "1.4", "55.0", "±", "1.4"]
    )
    assert row(text, "no protection").split("protection")[1].split() == ["71.0", "±", "1.4", "85.9"]
    assert row(text, "label unit, declared").split("classes")[1].split() == (
        ["42.0", "±", "1.4", "45.0", "±", "1.4"]
    )


def test_a_fleet_shows_what_its_accuracy_rests_on(results: Results) -> None:
    shown = row(table.text(results), "10,000    4", "1,234")
    for figure in ("0.50", "0.875", "1.50", "42.0", "17", "32 kB", "35.0 ± 1.4"):
        assert figure in shown


def test_one_seed_has_no_deviation(results: Results) -> None:
    one = replace(results, cells=tuple(r for r in results.cells if r.cell.seed == 10))
    assert "±" not in table.text(one).replace("mean ± deviation", "")


def test_lines_are_in_the_order_of_epsilon_whatever_the_order_of_cells(results: Results) -> None:
    backwards = replace(results, cells=results.cells[::-1])
    for line in table.lines(backwards).values():
        assert list(line) == sorted(line, key=lambda e: np.inf if e is None else e)


def test_the_plot_has_a_panel_a_place_and_a_line_a_unit(results: Results) -> None:
    figure = plots.figure(results)
    assert figure is not None
    assert [axes.get_title(loc="left") for axes in figure.axes] == [
        "MNIST, strong",
        "MNIST, strong, fleets",
        "MNIST, iid, fleets",
    ]
    axes = figure.axes[0]
    _, names = axes.get_legend_handles_labels()
    assert set(names) == {
        "no protection",
        "record unit",
        "label unit, declared classes",
        "published, hard labels, no protection",
    }
    records = next(c for c in axes.containers if c.get_label() == "record unit")
    drawn = records.lines[0].get_xydata()  # type: ignore[attr-defined]
    assert np.allclose(drawn, [(0, 0.52), (1, 0.55)])
    levels = [line.get_ydata()[0] for line in axes.lines if line.get_label() in names]
    assert np.isclose(levels, 0.71).any()
    assert np.isclose(levels, 0.8592).any()


def test_files_are_written_and_stale_ones_removed(results: Results, tmp_path: Path) -> None:
    paths = plots.save(results, tmp_path)
    assert [path.suffix for path in paths] == [".png", ".svg"]
    assert paths[0].read_bytes().startswith(b"\x89PNG")
    assert b"<svg" in paths[1].read_bytes()
    alone = replace(results, cells=results.cells[:1])
    assert plots.save(alone, tmp_path) == []
    assert list(tmp_path.iterdir()) == []
