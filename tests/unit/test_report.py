"""What a comparison shows: the figures of its file, escaped, within the width of a terminal."""

from dataclasses import replace

import pytest
from pages import HOSTILE, harmless, whole
from report_sample import figure, sample, with_row

from experiments.compare.comparison import BYTES_DOWN, VOID
from experiments.core.measures import ACCURACY, BYTES_UP, SINGLE
from experiments.report import report, tables, verdict
from experiments.report.report import accuracy_bytes, write_report
from experiments.report.verdict import Comparison
from secure_fd.privacy.guarantee import Guarantee
from secure_fd.privacy.label import RandomizedResponse
from secure_fd.privacy.record import PooledPlan

MASKED, NOISY = 3, 4
"""Cells of the sample."""


def page(results):
    made = Comparison.of(results)
    return report.page(made, accuracy_bytes(made)).html()


def text(results, *, colour=False):
    return tables.rendered(verdict.shown(results), 150, colour=colour)


def table(results):
    """The main table's cells by row key and column."""
    made = Comparison.of(results)
    found = verdict.main_table(made)
    cells = zip(made.rows, found.rows, strict=False)
    return {row.key: dict(zip(found.columns, line, strict=True)) for row, line in cells}


def faulty():
    """Dropouts, releases, weak settings, an insecure switch and a sum of few votes."""
    missing = {"input": [2] + [0] * 9, "consistency": [1] * 10, "unmask": [0] * 10}
    notes = {"missing": missing, "insecure": ["roster: identities are trusted on first use"]}
    figures = {VOID: 2.0, SINGLE: 0.617}
    return with_row(sample(drop=0.1, releases=3), MASKED, figures=figures, notes=notes)


# Content of the table.


def test_every_figure_of_the_table_is_one_of_the_file():
    columns = {
        "labels: error": ("label-distribution",),
        "members, server: this run": ("server-members",),
        "members, server: worst": ("game-server",),
        "members, model: this run": ("label-only",),
        "members, model: worst": ("game-lira", "game-labels"),
        "picture, dB: worst": ("update-inversion",),
    }
    shown, results = table(sample()), sample()
    assert list(shown)[:2] == ["fedavg", "fedavg-masks"]
    assert len(shown) == len(results.cells) == 10
    for result in results.cells:
        cells = shown[result.cell.config.row.key]
        assert cells["test: acc, %"] == f"{100 * result.figures[ACCURACY]:.1f}"
        for column, attacks in columns.items():
            known = [
                found for name in attacks if not isinstance(found := result.attacks[name], str)
            ]
            figures = {tables.number(found.figure) for found in known} or {"-", "none"}
            assert cells[column].removesuffix(" copy") in figures
            assert ("copy" in cells[column]) == any(found.figure >= 40 for found in known)
    assert shown["fedavg"]["picture, dB: this run"] == "13.0"  # PSNR, not its excess


def test_the_terminal_and_the_page_show_the_table():
    lines, html = text(sample()).splitlines(), page(sample())
    for cells in table(sample()).values():
        marked = [("~" if tables.tone_of(c) == "quiet" else "") + c for c in cells.values()]
        assert sum(line.split() == " ".join(marked).split() for line in lines) == 1
        assert all(f">{cell}<" in html for cell in cells.values())


def test_forty_lines_of_a_hundred_columns_are_enough():
    protected = replace(sample(), cells=sample().cells[MASKED:5])  # without the plain rows
    for made in (sample(), sample(seeds=2), protected):
        lines = text(made).splitlines()
        assert len(lines) <= 40
        assert max(map(len, lines)) <= 100
    assert max(map(len, text(faulty()).splitlines())) <= 100


def test_a_figure_is_corrected_for_all_figures_of_the_table():
    """At 1 of 50 by chance, a figure is told from its control in a table of its own alone."""
    close = replace(figure(sample(), 0, "game-server"), interval=(0.52, 0.58))
    close = replace(close, figure=0.55, control=0.5)
    assert close.p_value == pytest.approx(0.02, abs=0.002)
    for rows, tone in ((1, "leak"), (10, "quiet")):
        made = with_row(sample(rows), 0, attacks={"game-server": close}, pictures={})
        assert tables.tone_of(table(made)["fedavg"]["members, server: worst"]) == tone


def test_a_blur_within_what_any_image_without_access_reaches_is_quiet():
    found = figure(sample(), 0, "inversion")
    found = replace(found, figure=0.3, control=-0.2, interval=(0.29, 0.31), n_members=400)
    for best, tone in ((0.2, "leak"), (0.295, "quiet")):
        details = {"A": 13.0, "public mean: delta": best}
        made = with_row(sample(1), 0, attacks={"inversion": replace(found, details=details)})
        assert tables.tone_of(table(made)["fedavg"]["picture, dB: this run"]) == tone


# Guarantees.


def pooled() -> Guarantee:
    plan = PooledPlan(clients=10, honest=7, entries=2000, noise=1.1)
    return plan.guarantee(1e-5, (300,) * 10, released=1)


def test_an_epsilon_is_shown_only_where_the_guarantee_holds():
    record, label = pooled(), RandomizedResponse(4.0, 11).guarantee(releases=1000, delta=1e-5)
    void = record.invalidated_by(("the noise was seeded",))
    for claim, epsilon in ((record, "3.93"), (label, "3,552"), (void, "none")):
        made = with_row(sample(1), 0, notes={"privacy": claim.to_json()})
        assert table(made)["fedavg"]["epsilon: record"] == epsilon
        for shown in (text(made), page(made)):
            assert ("3.93" in shown) == (claim is record)
            assert ("the noise was seeded" in shown) == (claim is void)


def test_a_claim_that_does_not_hold_for_every_seed_holds_for_none():
    claim = {"unit": "record", "epsilon": 5.0, "delta": 1e-5, "holds": True, "composes_to": []}
    made = with_row(sample(2, seeds=2), 2, notes={"privacy": claim}, figures={BYTES_UP: 3.0})
    first = Comparison.of(made).rows[0]
    assert first.mean(BYTES_UP) == (made.cells[0].figures[BYTES_UP] + 3) / 2
    assert first.claim["privacy"] is None


def test_votes_of_one_client_alone_are_named_where_no_noise_hides_them():
    for row, share, named in ((MASKED, 0.617, True), (MASKED, 0.5, False), (NOISY, 0.9, False)):
        few = with_row(sample(), MASKED, figures={SINGLE: 0.0})
        made = with_row(few, row, figures={SINGLE: share})
        assert (f"{100 * share:.0f} % of the answered" in " ".join(text(made).split())) == named


# The page.


def test_the_page_is_whole_fetches_nothing_and_replaces_what_is_stale(tmp_path):
    (tmp_path / "holiday.png").write_bytes(b"not ours")
    write_report(sample(), tmp_path)
    files = {"report.html", "holiday.png"}
    drawn = {"accuracy_bytes.png", "reconstructions.png"}
    assert {path.name for path in tmp_path.iterdir()} == files | drawn
    made = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert len(whole(made).all("img")) == len(drawn)
    assert made.count("<table>") == made.count('class="wide"')  # each scrolls by itself
    silent = with_row(sample(1), 0, attacks={}, pictures={}, curve=sample().cells[0].curve[-1:])
    write_report(with_row(silent, 0, figures={BYTES_UP: 0.0, BYTES_DOWN: 0.0}), tmp_path)
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"report.html", "holiday.png", "accuracy_bytes.png"}


def test_everything_is_escaped():
    results = sample(2)
    found = figure(results, 0, "inversion")
    found = replace(found, caveats=[HOSTILE], control_name=HOSTILE, title=HOSTILE)
    notes = {
        "guarantee": HOSTILE,
        "privacy": {HOSTILE: HOSTILE, "holds": False, "unmet": [HOSTILE], "covers": [HOSTILE]},
        "insecure": [HOSTILE],
        "data": {HOSTILE: [HOSTILE]},
    }
    hostile = {HOSTILE: f"not applicable: {HOSTILE}", "inversion": found}
    results = with_row(results, 0, attacks=hostile, notes=notes)
    named = {**results.settings, HOSTILE: [HOSTILE]}
    made = page(replace(results, command=[*results.command, HOSTILE], settings=named))
    harmless(made)
    assert made.count("&lt;script&gt;") >= 10
    void = {"unit": "record", "holds": False, "unmet": ["[red]x[/red] [/]"]}
    assert "[red]x[/red] [/]" in text(with_row(sample(1), 0, notes={"privacy": void}))
