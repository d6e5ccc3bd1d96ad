"""The attack suite: what its command line refuses, its cells, and how its results are shown."""

from dataclasses import replace

from leakage_sample import findings, membership
from pages import HOSTILE, harmless, whole

from experiments.compare.leakage import stored
from experiments.core.study import Result, Results, gathered
from experiments.report import attack_summary
from experiments.report.tables import rendered
from experiments.suite.attack_suite import STUDY, Cell, Settings, cells, needs
from experiments.suite.scenes import SCENES
from experiments.suite.scenes.membership import SCENE
from experiments.suite.suite_page import page, seen, tables, write_report

SEEDS = (10, 11, 12)
ROWS = {
    "fedavg": "fedavg", "hard": "selective-fd-hard", "masked": "selective-fd-hard-masks"
}  # fmt: skip
"""Row of the sample -> row of the scene whose findings they stand for."""


def sample(seeds: tuple[int, ...] = SEEDS) -> Results:
    """Invented findings on three rows of one scene; the others were not run."""
    made = []
    for (row, seed), found in findings(seeds).items():
        cell = Cell("membership", ROWS[row], seed, "mnist5k", 4.0, 1e-5, quick=False)
        figures, pictures = stored(found)
        made.append(Result(cell, {}, 60.0, attacks=figures, pictures=pictures))
    return replace(
        gathered(STUDY, made, Settings()),
        created="2025-01-31T12:00:00+00:00",
        command=["python", "experiments/suite/attack_suite.py", "--scenes", "all"],
        versions={"secure-fd": "0.1.0", "torch": "2.13.0"},
        machine={"cpus": 2},
    )


# The command line.


def test_cells_are_rows_of_scenes_seed_by_seed():
    chosen = cells(Settings(scenes="selector,figure8", quick=True))
    assert list(dict.fromkeys(cell.scene for cell in chosen)) == ["figure8", "selector"]
    assert {cell.seed for cell in chosen} == {20}
    every = cells(Settings())
    assert tuple(dict.fromkeys(cell.scene for cell in every)) == tuple(SCENES)
    assert {cell.seed for cell in every} == {20, 21, 22}
    assert len({needs(cell) for cell in every}) == 3 * len(SCENES)
    assert cells(Settings(scenes="figure8", dataset="fashion_mnist")) == ()


def test_every_membership_attack_finds_the_members_of_overfitted_federations():
    """The positive controls of the scene's table."""
    empty = Cell("membership", "", 20, quick=True)
    made = SCENE.prepare(empty, None)
    controls = [row for row in SCENE.rows(empty) if row.startswith("overfitted")]
    found: dict[str, list[float]] = {}
    for row in controls:
        for name, attempt in SCENE.attempts(replace(empty, row=row), made).items():
            found.setdefault(name, []).append(attempt().figure)
    names = {"lira", "rmia", "loss-threshold", "label-only-shadows", "lira-upload", "indirect"}
    assert found.keys() == names
    assert all(max(figures) >= 0.8 for figures in found.values())


# The terminal, the page and the figures.


def test_every_figure_is_in_the_terminal_and_on_the_page():
    shown, html = rendered(tables(sample())), page(sample()).html()
    assert max(map(len, shown.splitlines())) <= 150
    [scene] = seen(sample())
    for attack in scene.leakage.attacks:
        assert attack in html
        for found in scene.leakage.measured(attack).values():
            for value in (found.figure, found.control):
                assert attack_summary.precise(value) in shown
                assert attack_summary.precise(value) in html


def test_the_page_is_whole_and_fetches_nothing(tmp_path):
    html = write_report(sample(), tmp_path).read_text(encoding="utf-8")
    assert len(whole(html).all("img")) == 1


def test_everything_on_the_page_is_escaped():
    evil = replace(
        membership(1.0, 10), title=HOSTILE, figure_name=HOSTILE, control_name=HOSTILE,
        unit=HOSTILE, caveats=(HOSTILE,), details={HOSTILE: 1.0},
    )  # fmt: skip
    found, _ = stored({HOSTILE: evil, "other": f"not applicable: {HOSTILE}"})
    cell = replace(sample((10,)).cells[0].cell, row=HOSTILE)
    results = replace(
        sample((10,)), command=[HOSTILE], settings={HOSTILE: HOSTILE},
        cells=(Result(cell, {}, 1.0, attacks=found),),
    )  # fmt: skip
    harmless(html := page(results).html())
    assert html.count("&lt;script&gt;") >= 12
