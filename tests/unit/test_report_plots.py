"""The figures render for every shape of result, keep labels apart and colours steady."""

import itertools
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.backends.backend_agg import FigureCanvasAgg
from report_sample import images, sample, with_row

from experiments import report
from experiments.plots import spread
from experiments.report import row_styles
from experiments.results import IMAGES_FILE, AttackFigure, Results, save_images

PNG = b"\x89PNG\r\n\x1a\n"
ALL = {"accuracy_bytes", "accuracy", "attacks", "roc", "reconstructions"}


def _without_attacks(results: Results) -> Results:
    for i in range(len(results.rows)):
        results = with_row(results, i, attacks={})
    return results


@pytest.mark.parametrize("n_rows", [1, 9])
def test_everything_renders(tmp_path: Path, n_rows: int) -> None:
    save_images(images(), tmp_path)
    paths = report.save_figures(sample(n_rows), tmp_path)
    assert set(paths) == ALL
    for path in paths.values():
        content = path.read_bytes()
        assert content.startswith(PNG)
        assert len(content) > 5000


def test_missing_attacks_leave_their_figures_out_and_remove_stale_ones(tmp_path: Path) -> None:
    save_images(images(), tmp_path)
    report.save_figures(sample(2), tmp_path)
    (tmp_path / IMAGES_FILE).unlink()
    paths = report.save_figures(_without_attacks(sample(2)), tmp_path)
    assert set(paths) == {"accuracy_bytes", "accuracy"}
    assert {path.stem for path in tmp_path.glob("*.png")} == set(paths)


def test_rows_without_a_curve_or_bytes_are_drawn() -> None:
    silent = with_row(sample(2), 0, curve=(), bytes_up=0.0, bytes_down=0.0)
    texts = [t.get_text() for t in report.accuracy_bytes(silent).axes[0].texts]
    assert texts == ["FedAvg", "Independent"]


def test_degenerate_figures_render(tmp_path: Path) -> None:
    """One round, equal figures, a perfect attack judged by a single non-member."""
    row = sample(1).rows[0]
    found = row.figure("label-only")
    assert isinstance(found, AttackFigure)
    flat = replace(found, figure=0.5, interval=None, roc={"fpr": [0.0, 1.0], "tpr": [0.0, 1.0]})
    attacks: dict[str, AttackFigure | str] = {"label-only": flat}
    single = with_row(sample(1), 0, curve=row.curve[-1:], attacks=attacks)
    report.save_figures(single, tmp_path)
    assert {path.stem for path in tmp_path.glob("*.png")} == ALL - {"reconstructions"}


def test_every_row_is_named_in_every_figure() -> None:
    results = sample()
    labels = [row.label for row in results.rows]
    attacks, roc = report.attacks(results), report.membership(results)
    assert attacks is not None
    assert roc is not None
    named = {
        "bytes": [t.get_text() for t in report.accuracy_bytes(results).axes[0].texts],
        "accuracy": [t.get_text() for t in report.accuracy(results).axes[0].get_yticklabels()],
        "attacks": [t.get_text() for t in attacks.axes[0].get_yticklabels()],
        "roc": [t.get_text()[6:] for t in roc.axes[0].get_legend().get_texts()],
    }
    for found in named.values():
        assert sorted(found) == sorted(labels)


def test_texts_of_nine_rows_do_not_overlap() -> None:
    figure = report.accuracy_bytes(sample())
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    boxes = sorted(
        (t.get_window_extent(canvas.get_renderer()) for t in figure.axes[0].texts),
        key=lambda box: box.y0,
    )
    assert all(low.y1 <= high.y0 + 1 for low, high in itertools.pairwise(boxes))
    assert max(box.x1 for box in boxes) <= figure.bbox.width


def test_chance_and_every_curve_start_at_the_smallest_resolvable_rate() -> None:
    figure = report.membership(sample(3))
    assert figure is not None
    assert figure.axes[0].get_xlim() == (1 / 500, 1)


def test_reconstructions_come_in_order_and_keep_their_pixels() -> None:
    figure = report.reconstructions(sample(), images())
    axes = figure.axes[0]
    labels = [t.get_text() for t in axes.get_yticklabels()]
    assert labels[:2] == ["originals", "FedAvg"]
    assert labels[-1] == "control: prior without a target"
    canvas = np.ma.filled(axes.get_images()[0].get_array(), np.nan)
    np.testing.assert_allclose(canvas[:28, 30:58], images()["originals"][1])


def test_styles_are_unique_and_do_not_depend_on_later_rows() -> None:
    styles = row_styles(sample())
    assert len(set(styles.values())) == len({colour for colour, _ in styles.values()}) == 9
    assert row_styles(sample(4)).items() <= styles.items()


@given(
    st.lists(st.floats(0, 1), min_size=1, max_size=12),
    st.floats(0.01, 0.5),
)
def test_spread_keeps_gap_order_and_range(positions: list[float], gap: float) -> None:
    moved = spread(positions, gap, 0.0, 1.0)
    wanted = min(gap, 1 / max(len(positions) - 1, 1))
    order = np.argsort(positions, kind="stable")
    assert (np.diff(moved[order]) >= wanted - 1e-9).all()
    assert moved.min() >= -1e-9
    assert moved.max() <= 1 + 1e-9


def test_spread_moves_no_more_than_needed() -> None:
    np.testing.assert_allclose(spread([0.2, 0.8], 0.1, 0, 1), [0.2, 0.8])
    np.testing.assert_allclose(spread([0.5, 0.5], 0.1, 0, 1), [0.45, 0.55])
    np.testing.assert_allclose(spread([0.0, 0.0], 0.1, 0, 1), [0.0, 0.1])


def test_matplotlib_is_not_imported_before_something_is_drawn() -> None:
    modules = "page, plots, progress, results, tables"
    code = f"from experiments import {modules}; import sys; "
    code += "sys.exit('matplotlib' in sys.modules or 'torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)  # noqa: S603 - our own code
