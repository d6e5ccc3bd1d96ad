"""How a comparison is shown: with every figure; self-contained, escaped, accessible."""

import html
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pages import HOSTILE, harmless, whole
from report_sample import figure, sample, with_row

from experiments.compare import attackers, compared
from experiments.compare.compared import Shown
from experiments.compare.comparison import BYTES_DOWN, VOID
from experiments.core.measures import ACCURACY, BYTES_UP
from experiments.core.results import SINGLE
from experiments.core.rows import OwnData
from experiments.report import report, tables
from experiments.report.plots import spread
from experiments.report.report import write_report

HARD, MASKED = 5, 6
"""Rows of the sample."""
ALL = {"accuracy_bytes", "accuracy", "attacks", "roc", "reconstructions"}


def rendered(results):
    return report.render(Shown.of(results), {})


def terminal(results, width=150):
    return tables.rendered(report.shown(results), width)


def faulty():
    """Every sentence that a report can have: faults, releases, weak settings."""
    missing = {"input": [2] + [0] * 9, "consistency": [1] * 10, "unmask": [0] * 10}
    notes = {"missing": missing, "insecure": ["roster: identities are trusted on first use"]}
    return with_row(sample(drop=0.1, releases=3), MASKED, figures={VOID: 2.0}, notes=notes)


def test_every_figure_of_every_row_is_in_the_terminal_and_on_the_page():
    made, page, text = Shown.of(faulty()), rendered(faulty()), terminal(faulty())
    overview = compared.overview(made)
    assert len(overview.rows) == len(made.rows) == 10
    for row in overview.rows:
        assert all(html.escape(cell) in page for cell in row)
        assert all(part in text for cell in row for part in cell.split())
    for attack in made.leakage.attacks:
        for found in made.leakage.measured(attack).values():
            assert attackers.marked(found) in text
            assert attackers.marked(found) in page


def test_eighty_columns_are_enough():
    lines = terminal(faulty(), 80).splitlines()
    assert max(map(len, lines)) <= 80
    assert not any("…" in line for line in lines)


def test_a_void_claim_shows_no_epsilon():
    """With an epsilon that stands for no other row."""
    claim = {"unit": "record", "epsilon": 7.25, "delta": 1e-5, "composes_to": []}
    claim["groups"] = [[1, 7.25]]
    for holds in (True, False):
        notes = {"privacy": {**claim, "holds": holds, "unmet": [] if holds else ["a seed"]}}
        made = with_row(sample(1), 0, notes=notes)
        assert ("7.25" in terminal(made)) == holds


def test_a_star_is_corrected_for_all_figures_of_the_table():
    """At 1 of 50 by chance, a figure has a star in a table of its own alone."""
    close = replace(figure(sample(), 0, "game-server"), interval=(0.52, 0.58))
    close = replace(close, figure=0.55, control=0.5)
    assert close.p_value == pytest.approx(0.02, abs=0.002)
    for rows, star in ((1, "*"), (10, "")):
        made = with_row(sample(rows), 0, attacks={"game-server": close}, pictures={})
        found = Shown.of(made).leakage.figure("fedavg", "game-server")
        assert attackers.marked(found) == f"0.55{star}"


def test_votes_of_one_client_alone_are_named_where_no_noise_hides_them():
    said = "of the answered proxies were answered by one client alone"
    for row, share, named in ((MASKED, 0.617, True), (MASKED, 0.5, False), (7, 0.9, False)):
        made = with_row(
            with_row(sample(), MASKED, figures={SINGLE: 0.0}), row, figures={SINGLE: share}
        )
        assert (said in terminal(made)) == named


def test_a_deviation_is_one_over_seeds_and_of_one_seed_there_is_none():
    made = sample(2, seeds=2)
    for index, level in ((0, 0.968), (2, 0.988)):
        made = with_row(made, index, figures={ACCURACY: level})
    assert compared.overview(Shown.of(made)).rows[0][1] == "97.8 ± 1.4"
    assert "The first seed alone is attacked." in rendered(made)
    assert "±" not in terminal(faulty())


def test_a_claim_that_does_not_hold_for_every_seed_holds_for_none():
    claim = {"unit": "record", "epsilon": 5.0, "delta": 1e-5, "holds": True, "composes_to": []}
    made = with_row(sample(2, seeds=2), 2, notes={"privacy": claim}, figures={BYTES_UP: 3.0})
    [first, _] = Shown.of(made).rows
    assert first.mean(BYTES_UP) == (figures(made, 0)[BYTES_UP] + 3) / 2
    assert first.claim["privacy"] is None


def figures(results, index):
    return results.cells[index].figures


def test_noise_on_own_data_is_fresh_and_its_rows_are_in_whole_percents():
    """Their figures move by whole points from run to run."""
    own = sample(own=OwnData("digest", 28), dataset="own-1x28x28-10-100")
    for index, row in enumerate(compared.overview(Shown.of(own)).rows):
        private = own.cells[index].notes["privacy"] is not None
        level = 100 * figures(own, index)[ACCURACY]
        assert row[1] == (f"{level:.0f}" if private else f"{level:.1f}")
    fresh = "keys and noise are fresh in every run"
    assert (fresh in rendered(own), fresh in rendered(sample())) == (True, False)
    seeded = "with fresh noise; here seeded, so that the run can be repeated"
    assert seeded in " ".join(terminal(sample()).split())


def test_what_masks_cost_and_gave_is_said_of_rows_with_a_twin():
    sentences = list(report.prices(Shown.of(sample())))
    [masked] = [each for each in sentences if each.startswith("Selective-FD hard + masks against")]
    assert "accuracy +0.0 points" in masked
    assert masked.endswith("no longer leaks labels.")
    assert list(report.prices(Shown.of(sample(1)))) == []


def test_the_page_is_whole_fetches_nothing_and_replaces_what_is_stale(tmp_path):
    (tmp_path / "holiday.png").write_bytes(b"not ours")
    write_report(sample(), tmp_path)
    files = {"report.html", "reconstructions.npz", "holiday.png"}
    assert {path.name for path in tmp_path.iterdir()} == files | {f"{name}.png" for name in ALL}
    with np.load(tmp_path / "reconstructions.npz") as kept:
        assert list(kept) == ["originals", "fedavg", "control: public mean"]
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert len(whole(text).all("img")) == len(ALL)
    assert text.count("<table>") == text.count('class="wide"')  # each scrolls by itself
    silent = with_row(sample(1), 0, attacks={}, pictures={}, curve=sample().cells[0].curve[-1:])
    write_report(with_row(silent, 0, figures={BYTES_UP: 0.0, BYTES_DOWN: 0.0}), tmp_path)
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"report.html", "holiday.png", "accuracy_bytes.png", "accuracy.png"}


def test_everything_is_escaped():
    results = sample(2)
    found = figure(results, 0, "inversion")
    found = replace(found, caveats=[HOSTILE], details={**found.details, HOSTILE: 1.0})
    notes = {
        "guarantee": HOSTILE,
        "privacy": {HOSTILE: HOSTILE, "holds": False, "unmet": [HOSTILE]},
        "insecure": [HOSTILE],
        "data": {HOSTILE: [HOSTILE]},
    }
    hostile = {HOSTILE: f"not applicable: {HOSTILE}", "inversion": found}
    results = with_row(results, 0, attacks=hostile, figures={HOSTILE: 1.0}, notes=notes)
    named = {**results.settings, HOSTILE: [HOSTILE]}
    made = rendered(replace(results, command=[*results.command, HOSTILE], settings=named))
    harmless(made)
    assert made.count("&lt;script&gt;") >= 12
    void = {"holds": False, "unmet": ["[red]x[/red] [/]"]}
    assert "[red]x[/red] [/]" in terminal(with_row(sample(1), 0, notes={"privacy": void}))
    table = tables.new_table("Accuracy", ["method"], left=1)
    table.add_row("FedMD <b>")
    assert "FedMD &lt;b&gt;" in tables.html(table)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12), st.floats(0.01, 0.5))
def test_spread_keeps_gap_order_and_range(positions, gap):
    moved = spread(positions, gap, 0.0, 1.0)
    wanted = min(gap, 1 / max(len(positions) - 1, 1))
    order = np.argsort(positions, kind="stable")
    assert (np.diff(moved[order]) >= wanted - 1e-9).all()
    assert moved.min() >= -1e-9
    assert moved.max() <= 1 + 1e-9
