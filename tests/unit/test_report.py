"""How a comparison is shown: with every figure; self-contained, escaped, accessible."""

import html
import itertools
import re
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.backends.backend_agg import FigureCanvasAgg
from pages import HOSTILE, Page, harmless, whole
from report_sample import faulty, figure, sample, with_row

from experiments import attackers, report, tables
from experiments.comparison import BYTES_DOWN
from experiments.exhibits import styles
from experiments.measures import ACCURACY, BYTES_UP
from experiments.page import shown
from experiments.plots import spread
from experiments.report import Shown, write_report
from experiments.results import SINGLE
from experiments.rows import OwnData
from experiments.study import Results

ALL = {"accuracy_bytes", "accuracy", "attacks", "roc", "reconstructions"}


def rendered(results: Results) -> str:
    return report.render(Shown.of(results), {})


def test_every_figure_of_every_row_is_in_the_terminal_and_on_the_page():
    made, page = Shown.of(faulty()), rendered(faulty())
    text = tables.rendered(report.shown(faulty()))
    assert max(map(len, text.splitlines())) <= 150
    overview = report.overview(made)
    assert len(overview.rows) == len(made.rows) == 9
    for row in overview.rows:
        assert all(html.escape(cell) in page for cell in row)
        assert all(part in text for cell in row for part in cell.split())
    for attack in made.leakage.attacks:
        for found in made.leakage.measured(attack).values():
            assert attackers.marked(found) in text
            assert attackers.marked(found) in page


def test_a_void_claim_shows_no_epsilon():
    """With an epsilon that stands for no other row."""
    claim = {"unit": "record", "epsilon": 7.25, "delta": 1e-5, "composes_to": []}
    for holds in (True, False):
        notes = {"privacy": {**claim, "holds": holds, "unmet": [] if holds else ["a seed"]}}
        made = Shown.of(with_row(sample(1), 0, notes=notes))
        table = report.promises(made)
        shown = "" if table is None else tables.rendered([table])
        assert ("7.25" in shown) == holds


def test_a_table_in_every_form():
    table = tables.new_table("Accuracy | %", ["method", "split", "IID"], left=2)
    table.add_row("FedMD <b>", "strong", tables.percent([0.9, 0.92]))
    assert "FedMD <b>   strong   91.0 ± 1.4" in tables.rendered([table, "A sentence."])
    assert "| FedMD <b> | strong | 91.0 ± 1.4 |" in tables.markdown([table, "A."])
    assert "FedMD &lt;b&gt;" in tables.html(table)


def test_a_star_means_more_than_the_control():
    """An error leaks where it is low; a figure below its control is no leak, however far."""
    made = Shown.of(sample())
    found = {
        attack: [attackers.marked(f)[-1] for f in made.leakage.measured(attack).values()]
        for attack in made.leakage.attacks
    }
    assert found["label-distribution"] == [*"****00**"]
    assert [mark == "*" for mark in found["inversion"]] == [True] + [False] * 7
    assert figure(sample(), 8, "inversion").p_value < 0.05


def test_a_star_is_corrected_for_all_figures_of_the_table():
    """At 1 of 50 by chance, a figure has a star in a table of its own alone."""
    close = replace(figure(sample(), 0, "label-only"), figure=0.55, interval=(0.52, 0.58))
    assert close.p_value == pytest.approx(0.02, abs=0.002)
    for rows, star in ((1, "*"), (9, "")):
        leaks = Shown.of(with_row(sample(rows), 0, attacks={"label-only": close})).leakage
        found = leaks.figure("fedavg", "label-only")
        assert found is not None
        assert attackers.marked(found) == f"0.55{star}"


def test_a_summary_is_silent_where_noise_or_many_answers_hide_votes():
    def alarms(results: Results) -> list[str]:
        return report.warnings(Shown.of(results))

    assert alarms(with_row(faulty(), 4, figures={SINGLE: 0.9})) == alarms(faulty())
    private = with_row(sample(), 6, figures={SINGLE: 0.9})
    for quiet in (private, with_row(sample(), 5, figures={SINGLE: 0.5})):
        assert alarms(quiet) == alarms(sample())


def test_more_than_half_of_single_contributors_is_told_in_the_terminal():
    said = "! 62 % of the answered proxies were answered by one client alone"
    assert any(str(part).startswith(said) for part in report.shown(faulty()))
    assert not any("one client alone (" in str(part) for part in report.shown(sample()))
    [alone] = [row[3] for row in report.overview(Shown.of(faulty())).rows if row[3] != tables.NONE]
    assert alone == "62"


def test_a_deviation_is_one_over_seeds_and_of_one_seed_there_is_none():
    one, two = (report.overview(Shown.of(sample(2, seeds=n))).rows[0][1] for n in (1, 2))
    assert (one, two) == ("96.8", "96.8 ± 0.0")
    moved = with_row(sample(2, seeds=2), 2, figures={ACCURACY: 0.988})
    assert report.overview(Shown.of(moved)).rows[0][1] == "97.8 ± 1.4"
    assert "±" not in tables.rendered(report.shown(faulty()))


def test_one_run_with_fresh_noise_is_shown_in_whole_percents():
    """Of the noisy rows of own data alone: their figures move by whole points from run to run."""
    own = {"own": OwnData("digest", 28), "dataset": "own-1x28x28-10-100"}

    def shown_of(results: Results) -> list[str]:
        table = report.overview(Shown.of(results))
        return [row[1] for row in table.rows[5:]]

    assert shown_of(sample()) == ["91.4", "78.3", "90.8", "83.5"]
    assert shown_of(sample(**own)) == ["91.4", "78", "91", "84"]
    assert shown_of(sample(seeds=2, **own))[1] == "78.3 ± 0.0"
    made = Shown.of(sample(**own))
    ends = report.overview(made).rows[6][2]
    assert all(end.isdecimal() for end in ends.split(" to "))
    [against] = [
        line for line in report.prices(made) if line.startswith("Selective-FD hard + masks + noise")
    ]
    assert f"accuracy {tables.MINUS}13 points" in against
    page = rendered(sample(**own))
    assert "78.3" not in page
    assert "keys and noise are fresh in every run" in page


def test_a_table_of_seeded_noise_says_what_its_epsilon_is_of():
    made = Shown.of(sample())
    table = report.promises(made)
    assert table is not None
    assert table.title.endswith("with fresh noise; here seeded, so that the run can be repeated")
    assert "training and noise" in rendered(sample())


def test_what_masks_and_epsilon_cost_and_gave_is_said_of_rows_with_a_twin():
    sentences = list(report.prices(Shown.of(sample())))
    assert sentences[0] == (
        "Selective-FD hard + masks against Selective-FD hard: accuracy +0.0 points, "
        "1.4 MB sent for 1.1 MB, no longer leaks labels."
    )
    assert len(sentences) == 4
    assert f"accuracy {tables.MINUS}0.6 points" in sentences[2]
    assert "leaks labels besides" in sentences[2]
    assert list(report.prices(Shown.of(sample(3)))) == []


def test_eighty_columns_are_enough():
    lines = tables.rendered(report.shown(faulty()), 80).splitlines()
    assert max(map(len, lines)) <= 80
    assert not any("…" in line for line in lines)
    every = " ".join(lines)
    for row in Shown.of(faulty()).leakage.measured("label-only").values():
        assert attackers.marked(row) in every
    assert "6.       masks" in every  # rows by number where names would be cut


def test_the_page_says_the_subject_first_and_defines_what_its_tables_name(folder):
    page = (folder / "report.html").read_text(encoding="utf-8")
    order = [attributes["id"] for name, attributes in Page(page).tags if name == "h2"]
    assert order == [
        *("table", "picture", "reconstructions", "rows-and-columns", "guarantees", "attacks"),
        *("settings", "reproduce"),
    ]
    [first, *_] = re.findall(r"<li>(.*?)</li>", page)
    assert first.startswith("MNIST-5k, 10 clients, split strong")
    made = Shown.of(sample(2))
    terms = re.findall(r"<dt>(.*?)</dt>", page)
    for name in (*(row.label for row in made.rows), "alone, %", "sum", "void"):
        assert name in terms
    assert all(any(f"({name})" in term for term in terms) for name in made.leakage.attacks)
    promises = re.findall(r"<details><summary>(.*?)</summary>", page)
    assert {row.label for row in made.rows} <= set(promises)


def test_a_page_is_made_for_phones_and_paper(folder):
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert 'name="viewport" content="width=device-width' in page
    assert "@media (max-width: 34rem)" in page
    assert "@media print" in page
    assert Page(page).all("table")
    assert page.count("<table>") == page.count('class="wide"')  # each scrolls by itself


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("report")
    (made / "holiday.png").write_bytes(b"not ours")
    write_report(sample(2), made)
    return made


def test_a_report_leaves_everything_and_removes_what_is_stale(folder):
    files = {"report.html", "reconstructions.npz", "holiday.png"}
    assert {path.name for path in folder.iterdir()} == files | {f"{name}.png" for name in ALL}
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in folder.glob("[!h]*.png"))
    with np.load(folder / "reconstructions.npz") as kept:
        assert list(kept) == ["originals", "fedavg", "control: public class mean", "control: black"]
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert len(Page(page).all("img")) == 5


def test_without_attacks_there_are_fewer_figures(tmp_path):
    bare = with_row(sample(1), 0, attacks={}, pictures={})
    for name in ("reconstructions.npz", "roc.png"):
        (tmp_path / name).write_bytes(b"of an earlier run")
    write_report(bare, tmp_path)
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"report.html", "accuracy_bytes.png", "accuracy.png"}


def test_the_page_fetches_nothing_and_is_well_formed_and_accessible(folder):
    whole((folder / "report.html").read_text(encoding="utf-8"))


def test_everything_is_escaped():
    results = sample(2)
    found = figure(results, 0, "inversion")
    found.caveats.append(HOSTILE)
    found.details[HOSTILE] = 1.0
    hostile = {HOSTILE: f"not applicable: {HOSTILE}", "inversion": found}
    results = with_row(
        results,
        0,
        attacks=hostile,
        figures={HOSTILE: 1.0},
        notes={
            "guarantee": HOSTILE,
            "privacy": {HOSTILE: HOSTILE, "holds": False, "unmet": [HOSTILE]},
            "insecure": [HOSTILE],
            "data": {HOSTILE: [HOSTILE]},
        },
    )
    results.command.append(HOSTILE)
    results.settings[HOSTILE] = [HOSTILE]
    made = rendered(results)
    harmless(made)
    assert made.count("&lt;script&gt;") >= 12
    void = {"holds": False, "unmet": ["[red]x[/red] [/]"]}
    markup = with_row(sample(1), 0, notes={"privacy": void})
    assert "[red]x[/red] [/]" in tables.rendered(report.shown(markup))


def test_seeds_are_put_together():
    two = sample(2, seeds=2)
    other = two.cells[2]
    dearer = {"unit": "record", "epsilon": 5.0, "delta": 1e-5, "holds": True, "composes_to": []}
    changed = with_row(two, 2, notes={"privacy": dearer}, figures={BYTES_UP: 3.0})
    [first, _] = Shown.of(changed).rows
    assert first.mean(BYTES_UP) == (66e6 + 3) / 2
    assert first.claim["privacy"] is None  # a claim that holds nowhere is the weakest
    assert first.seconds == other.seconds == two.cells[0].seconds
    assert "The first seed alone is attacked." in rendered(two)


def test_rows_that_send_nothing_and_one_round_are_drawn(tmp_path):
    silent = with_row(sample(2), 0, figures={BYTES_UP: 0.0, BYTES_DOWN: 0.0})
    texts = [t.get_text() for t in report.accuracy_bytes(Shown.of(silent)).axes[0].texts]
    assert texts == ["FedAvg · L A T", "Independent · A"]
    short = sample(1)
    curve = {"fpr": [0.0, 1.0], "tpr": [0.0, 1.0]}
    flat = replace(figure(short, 0, "label-only"), figure=0.5, interval=(0.5, 0.5), roc=curve)
    one = with_row(
        short, 0, curve=short.cells[0].curve[-1:], attacks={"label-only": flat}, pictures={}
    )
    write_report(one, tmp_path)
    assert {path.stem for path in tmp_path.glob("*.png")} == ALL - {"reconstructions"}


def test_every_row_is_named_in_every_figure():
    made = Shown.of(sample())
    labels = [row.label for row in made.rows]
    forest, roc = report.attacks(made), report.membership(made)
    assert forest is not None
    assert roc is not None
    named = {
        "bytes": [
            re.sub(r"\s·\s[\w\s]+$", "", t.get_text())
            for t in report.accuracy_bytes(made).axes[0].texts
        ],
        "accuracy": [t.get_text() for t in report.accuracy(made).axes[0].get_yticklabels()],
        "attacks": [t.get_text() for t in forest.axes[0].get_yticklabels()],
        "roc": [t.get_text()[6:] for t in roc.axes[0].get_legend().get_texts()],
    }
    for found in named.values():
        assert sorted(name.replace("\n", " ") for name in found) == sorted(labels)
    assert roc.axes[0].get_xlim() == (1 / 500, 1)


def test_texts_of_nine_rows_do_not_overlap():
    drawn = report.accuracy_bytes(Shown.of(sample()))
    canvas = FigureCanvasAgg(drawn)
    canvas.draw()
    boxes = sorted(
        (t.get_window_extent(canvas.get_renderer()) for t in drawn.axes[0].texts),
        key=lambda box: box.y0,
    )
    assert all(low.y1 <= high.y0 + 1 for low, high in itertools.pairwise(boxes))
    assert max(box.x1 for box in boxes) <= drawn.bbox.width


def test_reconstructions_come_in_order_and_keep_their_pixels():
    made = Shown.of(sample())
    images = report.pictures(made)
    axes = report.reconstructions(made, images).axes[0]
    labels = [t.get_text() for t in axes.get_yticklabels()]
    assert labels[:2] == ["originals", "FedAvg"]
    assert labels[-1] == "control: black"
    canvas = np.ma.filled(axes.get_images()[0].get_array(), np.nan)
    np.testing.assert_allclose(canvas[:28, 30:58], images["originals"][1])


def test_styles_are_unique_and_do_not_depend_on_later_rows():
    every, few = (styles(Shown.of(sample(n)).leakage) for n in (9, 4))
    assert len(set(every.values())) == len({colour for colour, _ in every.values()}) == 9
    assert few.items() <= every.items()


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12), st.floats(0.01, 0.5))
def test_spread_keeps_gap_order_and_range(positions, gap):
    moved = spread(positions, gap, 0.0, 1.0)
    wanted = min(gap, 1 / max(len(positions) - 1, 1))
    order = np.argsort(positions, kind="stable")
    assert (np.diff(moved[order]) >= wanted - 1e-9).all()
    assert moved.min() >= -1e-9
    assert moved.max() <= 1 + 1e-9


def test_spread_moves_no_more_than_needed():
    np.testing.assert_allclose(spread([0.2, 0.8], 0.1, 0, 1), [0.2, 0.8])
    np.testing.assert_allclose(spread([0.5, 0.5], 0.1, 0, 1), [0.45, 0.55])
    np.testing.assert_allclose(spread([0.0, 0.0], 0.1, 0, 1), [0.0, 0.1])


def test_neither_matplotlib_nor_torch_is_imported_before_it_is_needed():
    modules = "leakage, page, plots, progress, report, results, tables"
    code = f"from experiments import {modules}; import sys; "
    code += "sys.exit('matplotlib' in sys.modules or 'torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)  # noqa: S603 - our own code


def test_width_follows_the_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    assert tables.terminal_width() == 100
    assert max(map(len, tables.rendered([report.overview(Shown.of(sample()))], 100))) <= 100


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        *zip(
            map(tables.human_bytes, (999, 1000, 9949, 9999, 999_600, 2.5e9, 3e12)),
            ("999 B", "1.0 kB", "9.9 kB", "10 kB", "1.0 MB", "2.5 GB", "3.0 TB"),
            strict=True,
        ),
        *zip(
            map(tables.human_seconds, (0.04, 9.96, 119.4, 119.6, 725)),
            ("0.0 s", "10 s", "119 s", "2 min 00 s", "12 min 05 s"),
            strict=True,
        ),
        *zip(
            map(tables.milliseconds, (0.0, 0.0042, 0.01, 0.6, 1.0)),
            ("0.0 ms", "4.2 ms", "10 ms", "600 ms", "1.0 s"),
            strict=True,
        ),
        *zip(
            map(tables.number, (0.123, -0.001, -1.5, 46.52, 1234.5)),
            ("0.12", "0.00", f"{tables.MINUS}1.50", "46.5", "1234"),
            strict=True,
        ),
        *zip(
            map(shown, (True, None, "inf", 1e-5, [], [1, 2.5], {"a": {"b": False}}, 1500)),
            ("yes", "none", "∞", "1e-05", "none", "1, 2.5", "a: b: no", "1,500"),
            strict=True,
        ),
    ],
)
def test_numbers_as_people_read_them(made, expected):
    assert made == expected
