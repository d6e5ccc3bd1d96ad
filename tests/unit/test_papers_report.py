"""Tables, figures, the results page and the command line, from results made up here."""

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from experiments.papers import (
    ablation,
    accuracy,
    alpha,
    communication,
    heterogeneity,
    selectors,
    thresholds,
)
from experiments.papers.cells import Cell
from experiments.papers.measures import (
    AUROC_CLASS,
    AUROC_RIGHT,
    BOUND,
    KEPT,
    OVER_CLIENTS,
    RESNET_DOWN,
    RESNET_UP,
    RIGHT,
    TAUGHT,
    TERMS,
    TEST_LOSS,
)
from experiments.papers.page import STUDIES, sections, updated
from experiments.papers.published import ACCURACY
from experiments.papers.results import CellResult, Point, Results, Store, gathered, load, save
from experiments.papers.settings import Grid
from experiments.papers.study import Study
from experiments.papers.tables import Table, markdown, new_table, rendered
from secure_fd.errors import ConfigurationError, LocalError

ROOT = Path(__file__).parents[2]
GRID = Grid(None, None, None, None, None, quick=False)
FIGURES = {
    **dict.fromkeys([*TERMS.values(), BOUND, TEST_LOSS], 0.125),
    **{AUROC_CLASS: 0.75, AUROC_RIGHT: 0.875, KEPT: 0.5, RIGHT: 0.625, TAUGHT: 0.25},
    AUROC_CLASS + OVER_CLIENTS: 0.0625,
}


def spread(cell: Cell) -> float:
    """An accuracy of its own for every cell of a place; seeds differ by two points."""
    methods = ("independent", "fedmd", "feded", "ds-fl", "fkd", "pls", "fedavg", "selective-fd")
    level = 10 * methods.index(cell.method) if cell.method in methods else 30
    return (level + 5 * (cell.labels == "soft") + 3 * (cell.selector == "ratio")) / 100 + (
        2 * (cell.seed - 10)
    ) / 100


def results(study: Study, value: Callable[[Cell], float] = spread, grid: Grid = GRID) -> Results:
    made = []
    for cell in study.cells(grid):
        a = value(cell)
        curve = (Point(5, a / 2, 1000.0, 5000.0), Point(10, a, 1500.0, 6000.0))
        made.append(CellResult(cell, a, (a,), curve, dict(FIGURES), 1.0))
    return gathered(study.name, made, ["python"])


def tables_of(study: Study, made: Results) -> list[Table]:
    return [part for part in study.tables(made) if isinstance(part, Table)]


def row(table: Table, name: str) -> tuple[str, ...]:
    (found,) = [cells for cells in table.rows if cells[0] == name]
    return found[1:]


def table(study: Study, made: Results, title: str) -> Table:
    (found,) = [shown for shown in tables_of(study, made) if shown.title.startswith(title)]
    return found


def test_accuracies_stand_beside_the_papers() -> None:
    made = results(accuracy.STUDY)
    shown = table(accuracy.STUDY, made, "Fashion-MNIST, strong")
    # Three seeds, two points apart: mean two above the first, deviation two.
    seeds = "10 to 12"
    alone = ("2.0 ± 2.0", "10.00 ± 0.00")
    assert row(shown, "Independent") == (*alone, *alone, seeds)
    fedmd = ("12.0 ± 2.0", "16.54 ± 0.25", "17.0 ± 2.0", "64.63 ± 0.37")
    assert row(shown, "FedMD") == (*fedmd, seeds)
    assert row(shown, "Selective-FD, KuLSIF")[::2] == ("72.0 ± 2.0", "77.0 ± 2.0", seeds)
    assert row(shown, "Selective-FD, ratio to proxies")[::2] == ("75.0 ± 2.0", "80.0 ± 2.0", seeds)
    one_seed = table(accuracy.STUDY, made, "MNIST, iid")
    assert row(one_seed, "DS-FL") == ("30.0", "98.22 ± 0.14", "35.0", "98.56 ± 0.02", "10")


def test_a_row_that_lacks_a_seed_says_so() -> None:
    made = results(accuracy.STUDY)

    def without(labels: str, seed: int) -> Results:
        lacking = [r for r in made.cells if (r.cell.labels, r.cell.seed) != (labels, seed)]
        return replace(made, cells=tuple(lacking))

    for labels, seed, seen in (
        ("soft", 11, "10 to 12 and 10, 12"),
        ("hard", 12, "10, 11 and 10 to 12"),
    ):
        shown = table(accuracy.STUDY, without(labels, seed), "Fashion-MNIST, strong")
        assert row(shown, "FedMD")[-1] == seen
        assert row(shown, "Independent")[-1] == "10 to 12"
    assert "Seeds of all cells: 10 to 12." in accuracy.STUDY.shown(made)
    assert "Seeds of all cells: 10." in alpha.STUDY.shown(results(alpha.STUDY))


def test_a_row_in_anothers_place_is_noticed() -> None:
    """The twin: two methods' results swapped give another table."""

    def swapped(cell: Cell) -> float:
        other = {"fedmd": "pls", "pls": "fedmd"}.get(cell.method, cell.method)
        return spread(replace(cell, method=other))

    right = table(accuracy.STUDY, results(accuracy.STUDY), "MNIST, weak")
    wrong = table(accuracy.STUDY, results(accuracy.STUDY, swapped), "MNIST, weak")
    assert row(right, "FedMD")[0] == row(wrong, "PLS")[0] == "10.0"
    assert row(right, "FedMD") != row(wrong, "FedMD")


def test_the_published_tables_are_whole_and_ordered_as_the_paper_says() -> None:
    assert len(ACCURACY) == 3 * 3 * (1 + 6 * 2)
    for split in ("strong", "weak"):
        for image_set in ("mnist", "fashion_mnist", "cifar10_features"):
            for labels in ("hard", "soft"):
                best = max(
                    (value[0], key[2])
                    for key, value in ACCURACY.items()
                    if key[:2] == (image_set, split) and key[3] == labels
                )
                assert best[1] == "selective-fd"


def test_the_gain_on_radiographs_is_over_the_best_baseline() -> None:
    parts = accuracy.STUDY.tables(results(accuracy.STUDY))
    (hard,) = [p for p in parts if isinstance(p, str) and "hard labels" in p]
    # PLS is the best distilling baseline; FedAvg distils nothing.
    assert "+20.00 (KuLSIF), +23.00 (ratio to proxies), +19.42 (published)" in hard


def test_the_bars_are_at_the_means_and_the_marks_at_the_published_ones() -> None:
    figure = accuracy.STUDY.figure(results(accuracy.STUDY))
    assert figure is not None
    axes = next(a for a in figure.axes if a.get_title(loc="left") == "MNIST, strong")
    names = [label.get_text() for label in axes.get_xticklabels()]
    heights = dict(
        zip(names, [bar.get_height() for bar in axes.patches[: len(names)]], strict=True)
    )
    assert heights["FedMD"] == pytest.approx(0.12)
    assert heights["Selective-FD, ratio to proxies"] == pytest.approx(0.75)
    marks = np.asarray(axes.collections[-1].get_offsets())
    assert {0.8592, 0.9468} <= set(np.round(marks[:, 1], 4))


def test_selectors_show_what_they_detect_and_what_follows() -> None:
    made = results(selectors.STUDY)
    (shown,) = tables_of(selectors.STUDY, made)
    kulsif = next(r for r in shown.rows if r[:2] == ("MNIST", "KuLSIF"))
    assert kulsif[2:] == ("0.750", "0.062", "70.0", "85.92 ± 0.37")
    ratio = next(r for r in shown.rows if r[:2] == ("MNIST", "ratio to proxies"))
    assert ratio[-2:] == ("73.0", "–")  # noqa: RUF001 - as it is shown
    assert ("MNIST", "ratio to proxies, counted votes") in [r[:2] for r in shown.rows]


def by_threshold(cell: Cell) -> float:
    return ((cell.quantile or 0) * 10 + (cell.server_threshold or 0)) / 100


def test_each_threshold_moves_alone() -> None:
    made = results(thresholds.STUDY, by_threshold)
    client, server, *_ = tables_of(thresholds.STUDY, made)
    assert (client.columns[0], server.columns[0]) == ("tau_client", "tau_server")
    assert [r[0] for r in client.rows] == [f"{value:g}" for value in thresholds.CLIENT]
    assert row(client, "0.75")[0] == "9.5"
    assert row(server, "0.5")[:2] == ("3.0", "–")  # noqa: RUF001 - as it is shown
    assert row(client, "0.25") == row(server, "2") == ("4.5", "94.68 ± 0.52", "0.500", "0.625")
    figure = thresholds.STUDY.figure(made)
    assert figure is not None
    assert [a.get_xlabel() for a in figure.axes if a.get_xlabel()] == (
        ["tau_client", "tau_server"] * 3
    )


def test_bytes_are_per_round_and_until_fedavgs_accuracy() -> None:
    def value(cell: Cell) -> float:
        return {"hard": 0.5, "soft": 0.9}.get(cell.labels, 0.8)

    made = results(communication.STUDY, value)
    shown = table(communication.STUDY, made, "MNIST, strong")
    # 500 bytes up and 1,000 down in five rounds; what is sent before them is in the sums.
    hard = row(shown, "Selective-FD hard, masks")
    assert hard == ("50.0", "100 B", "200 B", "1.0", "7.5 kB", "1.0", "not reached")
    assert row(shown, "Selective-FD soft, masks")[-1] == "7.5 kB"
    assert row(shown, "FedAvg")[0] == "80.0"


def test_fedavg_on_features_weighs_what_its_resnet_would() -> None:
    made = results(communication.STUDY)
    cells = tuple(
        replace(r, figures={**r.figures, RESNET_UP: 4e6, RESNET_DOWN: 6e6})
        if r.cell.method == "fedavg" and r.cell.image_set == "cifar10_features"
        else r
        for r in made.cells
    )
    found = communication.ways(replace(made, cells=cells))["cifar10_features"][-1]
    assert found.rate == 1e7
    assert [found.moved(p) for p in found.found[0].curve] == [5.6e7, 1.06e8]
    assert found.total == 1e7 * found.found[0].cell.rounds + 6e6
    notes = [
        p for p in communication.STUDY.tables(replace(made, cells=cells)) if isinstance(p, str)
    ]
    assert any("frozen features" in note for note in notes)


def test_lines_over_beta_and_alpha_have_every_point() -> None:
    shown = tables_of(heterogeneity.STUDY, results(heterogeneity.STUDY))[0]
    assert [r[0] for r in shown.rows] == [f"{beta:g}" for beta in heterogeneity.BETAS]
    assert row(shown, "0.1") == ("0.0", "10.0", "15.0", "73.0", "78.0")
    by_alpha = results(alpha.STUDY, lambda c: (c.alpha or 0) / 2 + (c.method == "true-labels") / 4)
    exact, chosen = tables_of(alpha.STUDY, by_alpha)
    assert row(exact, "0.5")[0] == "50.0"
    assert row(chosen, "0.5")[0] == "75.0"
    assert len(exact.rows) == len(chosen.rows) == len(alpha.ALPHAS)
    figure = alpha.STUDY.figure(by_alpha)
    assert figure is not None
    line = next(c for c in figure.axes[0].containers if c.get_label() == "true proxy labels")
    drawn = line.lines[0].get_xydata()  # type: ignore[attr-defined]
    assert np.allclose(drawn, [(a, 0.75 - a / 2) for a in alpha.ALPHAS])


def test_an_ablation_is_measured_from_the_default() -> None:
    made = results(ablation.STUDY, lambda cell: 0.5 if cell.variant else 0.75)
    shown = table(ablation.STUDY, made, "MNIST, strong, hard")
    assert row(shown, "default")[:3] == ("75.0", "–", "0.625")  # noqa: RUF001 - as it is shown
    assert row(shown, "newest round only")[:3] == ("50.0", "-25.0", "0.625")
    figure = ablation.STUDY.figure(made)
    assert figure is not None
    panels = {axes.get_title(loc="left"): axes for axes in figure.axes}
    assert next(iter(panels)) == "strong, hard labels"
    first = panels["strong, hard labels"]
    names = [label.get_text() for label in first.get_yticklabels()]
    assert names[0] == "counted votes"
    assert "sharpness 1" not in names
    [mnist] = [c for c in first.collections if c.get_label() == "MNIST"]
    assert np.allclose(np.asarray(mnist.get_offsets())[:, 0], -25)
    assert len(mnist.get_offsets()) == len(names)


@pytest.mark.parametrize("study", STUDIES, ids=lambda study: str(study.name))
def test_a_quick_look_can_be_shown(study: Study) -> None:
    made = results(study, grid=replace(GRID, quick=True))
    assert rendered(study.shown(made)).strip()
    assert study.figure(made) is not None


# The results page.


def test_a_row_has_as_many_cells_as_columns() -> None:
    with pytest.raises(LocalError, match="2 cells under 3 columns"):
        new_table("x", ("a", "b", "c")).add_row("1", "2")


def test_a_section_is_replaced_and_nothing_else() -> None:
    page = "before\n<!-- accuracy -->\nold\n<!-- /accuracy -->\nafter <!-- alpha -->"
    made = updated(page, {"accuracy": "new \\1"})
    assert made == updated(made, {"accuracy": "new \\1"})
    assert "old" not in made
    assert "new \\1" in made
    assert made.startswith("before\n<!-- accuracy -->\n\nnew")
    assert made.endswith("\nafter <!-- alpha -->")
    for broken in ("", page + page, page.replace("/accuracy", "accuracy")):
        with pytest.raises(ConfigurationError, match="one <!-- accuracy -->"):
            updated(broken, {"accuracy": "new"})


def test_sections_are_of_the_results_that_are_there(tmp_path: Path) -> None:
    assert sections(tmp_path) == {}
    save(results(heterogeneity.STUDY), tmp_path)
    made = sections(tmp_path)
    assert list(made) == ["heterogeneity"]
    assert "| 0.1 | 0.0 | 10.0 | 15.0 | 73.0 | 78.0 |" in made["heterogeneity"]


def test_markdown_has_a_line_a_row() -> None:
    shown = new_table("Title", ("a", "b"))
    shown.add_row("x", "1")
    assert markdown([shown, "Note."]) == ("Title.\n\n| a | b |\n| --- | --: |\n| x | 1 |\n\nNote.")


def test_the_committed_page_is_that_of_the_committed_results() -> None:
    page = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    made = sections(ROOT / "docs" / "results")
    assert updated(page, made) == page
    for study in STUDIES:
        assert f"<!-- {study.name} -->" in page


@pytest.mark.parametrize("study", STUDIES, ids=lambda study: str(study.name))
def test_the_committed_results_have_every_cell_that_a_script_asks_for(study: Study) -> None:
    """But for soft labels in the ablation of image networks, as docs/results.md says."""
    found = {result.cell for result in load(ROOT / "docs" / "results" / f"{study.name}.json").cells}
    missing = [cell for cell in study.cells(GRID) if cell not in found]
    if study is ablation.STUDY:
        features = "cifar10_features"
        missing = [c for c in missing if c.labels == "hard" or c.image_set == features]
    assert [cell.label for cell in missing] == []


# The command line.


def cli(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    kept = {k: v for k, v in os.environ.items() if k != "SECURE_FD_DATA"}
    return subprocess.run(  # noqa: S603 - our own script
        [sys.executable, str(ROOT / "experiments" / arguments[0]), *arguments[1:]],
        cwd=folder,
        env={**kept, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )


def test_a_mistake_is_one_sentence_and_leaves_nothing(tmp_path: Path) -> None:
    made = cli(tmp_path, "accuracy_table.py", "--image-sets", "mnits")
    assert made.returncode == 2
    assert made.stderr.startswith("error: image_sets: 'mnits' is not allowed; use one or more of")
    assert made.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_every_study_has_its_script_and_help_waits_for_no_network(tmp_path: Path) -> None:
    for study in STUDIES:
        script = (ROOT / "experiments" / study.script).read_text(encoding="utf-8")
        assert f"experiments.papers.{study.name} import STUDY" in script
    code = (
        "import sys, runpy; sys.argv = ['x', '--help']\n"
        "from experiments.accuracy_table import STUDY, main\n"
        "import experiments.papers.page\n"
        "try:\n    main(STUDY)\nexcept SystemExit:\n    pass\n"
        "print('HEAVY', [m for m in ('torch', 'matplotlib', 'sklearn') if m in sys.modules])"
    )
    made = subprocess.run(  # noqa: S603 - our own code
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert made.stdout.splitlines()[-1] == "HEAVY []"


def test_with_all_cells_done_the_rest_is_written_at_once(tmp_path: Path) -> None:
    store = Store(tmp_path / "made" / "cells")
    grid = replace(GRID, quick=True)
    expected = results(heterogeneity.STUDY, grid=grid)
    for result in expected.cells:
        store.save(result)
    made = cli(
        tmp_path, "heterogeneity.py", "--quick", "--out", "made", "--data-dir", str(tmp_path)
    )
    assert made.returncode == 0, made.stderr
    found = load(tmp_path / "made" / "heterogeneity.json")
    assert found.cells == expected.cells
    assert found.command[-4:] == ["--out", "OUT", "--data-dir", "DATA_DIR"]
    assert (tmp_path / "made" / "heterogeneity.txt").read_text(encoding="utf-8") in made.stdout
    for kind, start in (("png", b"\x89PNG"), ("svg", b"<?xml")):
        assert (tmp_path / "made" / f"heterogeneity.{kind}").read_bytes().startswith(start)
