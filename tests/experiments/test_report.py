"""Report of a comparison: its figures, escaped, within the width of a terminal.

The sample is the committed comparison with few attacks and invented pictures.
"""

import math
import re
from dataclasses import replace
from functools import cache
from html.parser import HTMLParser

import numpy as np
import pytest

from attacks.core.base import AttackResult
from experiments.compare.comparison import BYTES_DOWN
from experiments.compare.leakage import stored
from experiments.core.measures import ACCURACY, BYTES_UP
from experiments.core.provenance import ROOT
from experiments.core.study import Result, Results, gathered, read_results, write_results
from experiments.privacy_compare import STUDY
from experiments.report import report, tables, verdict
from experiments.report.report import accuracy_bytes, write_report
from experiments.report.results_page import COPYING, copied
from experiments.report.verdict import Comparison
from experiments.suite import attack_suite, suite_page
from secure_fd import files
from secure_fd.privacy.guarantee import Guarantee
from secure_fd.privacy.label import RandomizedResponse
from secure_fd.privacy.record import PooledPlan
from tests.refusals import refused

FOLDER = ROOT / "docs" / "results"
MASKED = 3
"""Cell of the sample."""
BLOBS = np.linspace(0, 1, 2 * 8 * 8, dtype=np.float32).reshape(2, 8, 8)
PICTURES = {f"inversion/{name}": BLOBS for name in ("originals", "attack", "public mean")}
ATTACKS = {
    **{name: name for name in ("label-distribution", "update-inversion", "inversion")},
    **{name: name for name in ("game-server", "game-lira", "game-labels")},
    "server-members": "game-server",
    "label-only": "game-labels",
}
"""Source of each attack of the sample: an attack of the committed results."""


@cache
def committed() -> Results:
    """With few attacks, and noise from a seed."""
    found = read_results(STUDY, FOLDER / "mnist5k.json")
    cells = []
    for cell in found.cells:
        noise = "seeded" if cell.notes["privacy"] else None
        attacks = {name: cell.attacks[known] for name, known in ATTACKS.items()}
        notes = {**cell.notes, "noise": noise}
        cells.append(replace(cell, attacks=attacks, notes=notes, seconds=12.5))
    return replace(found, cells=tuple(cells))


def sample(n_rows=10, seeds=1) -> Results:
    """Its first rows; of several seeds the first alone is attacked."""
    first = list(committed().cells[:n_rows])
    first[0] = replace(first[0], pictures=PICTURES)
    later = [
        replace(
            one,
            cell=replace(one.cell, config=replace(one.cell.config, seed=20 + n)),
            attacks={},
            pictures={},
        )
        for n in range(1, seeds)
        for one in first
    ]
    return replace(committed(), cells=(*first, *later))


def with_row(results, index, **changes) -> Results:
    """The results with some fields of one cell replaced; figures and notes are added to."""
    cells = list(results.cells)
    for name in ("figures", "notes"):
        if name in changes:
            changes[name] = {**getattr(cells[index], name), **changes[name]}
    cells[index] = replace(cells[index], **changes)
    return replace(results, cells=tuple(cells))


def figure(results, index, attack) -> AttackResult:
    return results.cells[index].attacks[attack]


def page(results):
    made = Comparison.of(results)
    return report.page(made, accuracy_bytes(made)).html()


def text(results):
    return tables.rendered(verdict.shown(results), 150, colour=False)


def table(results):
    """The main table's cells by row key and column."""
    made = Comparison.of(results)
    found = verdict.main_table(made)
    cells = zip(made.rows, found.rows, strict=False)
    return {row.key: dict(zip(found.columns, line, strict=True)) for row, line in cells}


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
    assert len(shown) == len(results.cells) == 10
    for result in results.cells:
        cells = shown[result.cell.config.row.key]
        assert cells["test: acc, %"] == f"{100 * result.figures[ACCURACY]:.1f}"
        for column, attacks in columns.items():
            known = [one for name in attacks if not isinstance(one := result.attacks[name], str)]
            figures = {tables.number(found.figure) for found in known} or {"-", "none"}
            assert cells[column].removesuffix(" copy") in figures
            assert ("copy" in cells[column]) == any(found.figure >= 40 for found in known)
    psnr = figure(results, 0, "inversion").details["A"]  # the figure is its gain over controls
    assert shown["fedavg"]["picture, dB: this run"] == tables.number(psnr)


def test_marked_tables_of_the_docs_are_copies_of_results():
    for name in COPYING:
        text = (ROOT / name).read_text(encoding="utf-8")
        for made in (text, text.replace("FedAvg    ", "FedProx   ")):
            assert copied(made, FOLDER) == text


def test_forty_lines_of_a_hundred_columns_are_enough():
    for made in (sample(), sample(seeds=2)):
        lines = text(made).splitlines()
        assert len(lines) <= 40
        assert max(map(len, lines)) <= 100


def test_a_figure_is_corrected_for_all_figures_of_the_table():
    """At 1 of 50 by chance, a figure differs from its control in a separate table only."""
    close = replace(figure(sample(), 0, "game-server"), interval=(0.52, 0.58))
    close = replace(close, figure=0.55, control=0.5)
    assert close.p_value == pytest.approx(0.02, abs=0.002)
    for rows, tone in ((1, "leak"), (10, "quiet")):
        made = with_row(sample(rows), 0, attacks={"game-server": close}, pictures={})
        assert tables.tone_of(table(made)["fedavg"]["members, server: worst"]) == tone


# Guarantees.


def pooled() -> Guarantee:
    plan = PooledPlan(clients=10, honest=7, entries=2000, noise=1.1)
    return plan.guarantee(1e-5, (300,) * 10, released=1)


def test_an_epsilon_is_shown_only_where_the_guarantee_holds():
    record, label = pooled(), RandomizedResponse(4.0, 11).guarantee(releases=1000, delta=1e-5)
    refuted = record.invalidated_by(("the noise was seeded",))
    for claim, epsilon in ((record, "3.93"), (label, "3,552"), (refuted, "none")):
        made = with_row(sample(1), 0, notes={"privacy": claim.to_json()})
        assert table(made)["fedavg"]["epsilon: record"] == epsilon
        for shown in (text(made), page(made)):
            assert ("3.93" in shown) == (claim is record)
            assert ("the noise was seeded" in shown) == (claim is refuted)


def test_a_claim_that_does_not_hold_for_every_seed_holds_for_none():
    claim = {"unit": "record", "epsilon": 5.0, "delta": 1e-5, "holds": True, "composes_to": []}
    made = with_row(sample(2, seeds=2), 2, notes={"privacy": claim}, figures={BYTES_UP: 3.0})
    first = Comparison.of(made).rows[0]
    assert first.mean(BYTES_UP) == (made.cells[0].figures[BYTES_UP] + 3) / 2
    assert first.claim["privacy"] is None


# The pages: whole, accessible, escaped, without a request.

HOSTILE = "<script>alert('x')</script>\"><img src=x onerror=y>"
EMPTY = {"meta", "img", "link", "br", "hr", "input"}


class Page(HTMLParser):
    """All tags with attributes, checking that they nest."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.feed(page)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in EMPTY:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


def whole(page: str) -> Page:
    """The page, which nests, names its headers and images, and fetches nothing."""
    parsed = Page(page)
    for _, attributes in parsed.tags:
        for name in ("src", "href", "srcset", "action", "data", "poster"):
            value = attributes.get(name)
            assert value is None or value.startswith(("data:image/png;base64,", "#"))
    [style] = re.findall(r"<style>(.*?)</style>", page, re.DOTALL)
    assert not re.findall(r"url\(|@import|&#", style)
    assert "://" not in page
    assert not parsed.all("script") + parsed.all("link")
    assert any("default-src 'none'" in (m.get("content") or "") for m in parsed.all("meta"))
    assert all(len(image.get("alt") or "") > 20 for image in parsed.all("img"))
    assert all(header.get("scope") in {"row", "col"} for header in parsed.all("th"))
    return parsed


def harmless(page: str, places: int) -> None:
    """Nothing of `HOSTILE` became a tag, or an attribute of one, in any of these places."""
    parsed = Page(page)
    assert not parsed.all("script")
    assert all((one["src"] or "").startswith("data:") for one in parsed.all("img"))
    assert not any("onerror" in attributes for _, attributes in parsed.tags)
    assert page.count("&lt;script&gt;") >= places


def test_the_page_is_whole_fetches_nothing_and_replaces_what_is_stale(tmp_path):
    (tmp_path / "holiday.png").write_bytes(b"not ours")
    write_report(sample(), tmp_path)
    names, drawn = {"report.html", "holiday.png", "accuracy_bytes.png"}, "reconstructions.png"
    assert {path.name for path in tmp_path.iterdir()} == {*names, drawn}
    assert len(whole((tmp_path / "report.html").read_text(encoding="utf-8")).all("img")) == 2
    silent = with_row(sample(1), 0, attacks={}, pictures={}, curve=sample().cells[0].curve[-1:])
    write_report(with_row(silent, 0, figures={BYTES_UP: 0.0, BYTES_DOWN: 0.0}), tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == names


def hostile_attacks() -> dict[str, AttackResult | str]:
    found = replace(
        figure(sample(), 0, "inversion"),
        caveats=(HOSTILE,),
        control_name=HOSTILE,
        title=HOSTILE,
        figure_name=HOSTILE,
        unit=HOSTILE,
    )
    return {HOSTILE: f"not applicable: {HOSTILE}", "inversion": found}


def test_everything_in_a_report_is_escaped():
    notes = {
        "guarantee": HOSTILE,
        "privacy": {HOSTILE: HOSTILE, "holds": False, "unmet": [HOSTILE], "covers": [HOSTILE]},
        "insecure": [HOSTILE],
        "data": {HOSTILE: [HOSTILE]},
    }
    results = with_row(sample(2), 0, attacks=hostile_attacks(), notes=notes)
    named = {**results.settings, HOSTILE: [HOSTILE]}
    made = replace(results, command=[*results.command, HOSTILE], settings=named)
    harmless(page(made), 10)
    refuted = {"unit": "record", "holds": False, "unmet": ["[red]x[/red] [/]"]}
    assert "[red]x[/red] [/]" in text(with_row(sample(1), 0, notes={"privacy": refuted}))


def test_the_page_of_the_attack_suite_is_whole_and_escaped():
    def suite(attacks, row):
        cell = attack_suite.Cell("membership", row, 20, "mnist5k", 4.0, 1e-5, quick=False)
        found, pictures = stored(attacks)
        made = [Result(cell, {}, 1.0, attacks=found, pictures=pictures)]
        return gathered(attack_suite.STUDY, made, attack_suite.Settings())

    whole(suite_page.page(suite(sample().cells[0].attacks, "fedavg")).html())
    hostile = replace(
        suite(hostile_attacks(), HOSTILE), command=[HOSTILE], settings={HOSTILE: HOSTILE}
    )
    harmless(suite_page.page(hostile).html(), 10)


# Files of results: whole or not at all, and strict.


def test_a_comparison_comes_back_from_its_file(tmp_path):
    path = tmp_path / "results.json"
    original = with_row(sample(), 0, figures={"n": np.float32(3.0), "m": np.int64(4)})
    write_results(with_row(original, 1, notes={"epsilon": math.inf}), path)
    assert "Infinity" not in path.read_text(encoding="utf-8")
    again = read_results(STUDY, path)
    assert again.cells[0] == original.cells[0]
    assert again.cells[1].notes["epsilon"] == "inf"


@pytest.mark.parametrize(
    ("changes", "place"),
    [
        ({"seconds": math.nan}, "results.cells[1].seconds"),
        ({"figures": {"bytes": math.inf}}, "results.cells[1].figures[...]"),
        ({"notes": {"sampler": object()}}, "results.cells[1].notes.sampler"),
    ],
)
def test_a_file_that_could_not_be_read_is_not_written(tmp_path, changes, place):
    with refused(place):
        write_results(with_row(sample(2), 1, **changes), tmp_path / "results.json")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_failure_in_the_middle_keeps_the_old_file(tmp_path, monkeypatch, error):
    def failing(*_):
        raise error

    path = tmp_path / "file"
    path.write_bytes(b"old")
    with pytest.raises(error):
        files.write_atomically(path, failing)
    monkeypatch.setattr(files.os, "fsync", failing)
    with pytest.raises(error):
        files.write_atomically(path, lambda file: file.write(b"new"))
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]
