"""How a comparison is shown: one golden a page; the page is self-contained, escaped, accessible.

UPDATE_GOLDENS=1 writes the goldens anew, to be read in the diff.
"""

import dataclasses
import io
import os
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from report_sample import images, sample, with_row
from rich.console import Console

from experiments import report, sentences, tables
from experiments.page import shown
from experiments.report import print_table, write_report
from experiments.results import IMAGES_FILE, SINGLE, AttackFigure, Results, load_results

GOLDEN = Path(__file__).parents[1] / "golden"
HOSTILE = "<script>alert('x')</script>\"><img src=x onerror=y>"
VOID = {"meta", "img", "link", "br", "hr", "input"}


def same(name: str, made: str) -> None:
    """Compare with the golden of this name, without spaces at the ends of lines."""
    text = "\n".join(line.rstrip() for line in made.splitlines()) + "\n"
    path = GOLDEN / name
    if os.environ.get("UPDATE_GOLDENS"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


def faulty() -> Results:
    """Every sentence that a report can have: faults, releases, sparse votes, declared figures."""
    made = sample()
    found = made.rows[1].figure("label-only")
    assert isinstance(found, AttackFigure)
    details = {"declared_clients": 3.0, "share_exact": 0.25}
    declared = {"label-only": dataclasses.replace(found, details=details)}
    apart = dataclasses.replace(made.rows[5].aggregation, void_rounds=2)  # type: ignore[type-var]
    made = with_row(made, 5, diagnostics={SINGLE: 0.617}, aggregation=apart)
    made = with_row(made, 1, attacks=declared)
    return dataclasses.replace(made, settings={"rounds": 30, "releases": 3, "drop": 0.1})


def printed(results: Results, width: int, *, terminal: bool = False) -> str:
    out = io.StringIO()
    print_table(results, Console(file=out, width=width, force_terminal=terminal))
    return out.getvalue()


class Page(HTMLParser):
    """All tags with attributes, checking that they nest."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


# Goldens.


@pytest.mark.parametrize("width", [100, 160])
@pytest.mark.parametrize("results", [sample, faulty])
def test_the_terminal(results: object, width: int) -> None:
    assert callable(results)
    text = printed(results(), width)
    assert max(map(len, text.splitlines())) <= width
    assert "…" not in text
    same(f"comparison_{results.__name__}_{width}.txt", text)  # type: ignore[attr-defined]


def test_the_page() -> None:
    body = re.sub(r"<style>.*?</style>", "", report.render(faulty(), {}), flags=re.DOTALL)
    same("comparison.html", body)


def test_the_opening_sentences() -> None:
    every = {"sample": sample(), "faulty": faulty(), "one row": sample(1)}
    lines = [f"{name}: {line}" for name, made in every.items() for line in sentences.summary(made)]
    same("comparison_summary.txt", "\n".join(lines))


def test_a_table_in_every_form() -> None:
    table = tables.new_table("Accuracy | %", ["method", "split", "IID"], left=2)
    table.add_row("FedMD <b>", "strong", tables.percent([0.9, 0.92]))
    table.add_row("Selective-FD", "", tables.NONE)
    same(
        "table.txt",
        "\n\n".join([tables.rendered([table, "A sentence."]), tables.markdown([table, "A."])])
        + "\n\n"
        + tables.html(table).replace("<tr>", "\n<tr>"),
    )


def test_a_summary_is_silent_where_noise_or_many_answers_hide_votes() -> None:
    both = with_row(faulty(), 4, diagnostics={SINGLE: 0.9})
    assert sentences.summary(both) == sentences.summary(faulty())
    private = with_row(sample(), 6, diagnostics={SINGLE: 0.9})
    for quiet in (private, with_row(sample(), 5, diagnostics={SINGLE: 0.5})):
        assert sentences.summary(quiet) == sentences.summary(sample())


# What no golden shows.


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("report")
    return write_report(sample(), images(), folder).read_text(encoding="utf-8")


def test_a_report_leaves_everything_and_removes_what_is_stale(tmp_path: Path) -> None:
    (tmp_path / "holiday.png").write_bytes(b"not ours")
    write_report(sample(2), images(), tmp_path)
    assert load_results(tmp_path) == sample(2)
    names = {path.name for path in tmp_path.iterdir()}
    assert {"results.json", IMAGES_FILE, "report.html", "roc.png"} <= names
    made = write_report(sample(2), {}, tmp_path)
    assert not (tmp_path / IMAGES_FILE).exists()
    assert not (tmp_path / "reconstructions.png").exists()
    assert len(Page(made.read_text(encoding="utf-8")).all("img")) == 4


def test_nothing_is_fetched(page: str) -> None:
    parsed = Page(page)
    for _, attributes in parsed.tags:
        for name in ("src", "href", "srcset", "action", "data", "poster"):
            value = attributes.get(name)
            assert value is None or value.startswith(("data:image/png;base64,", "#"))
    [style] = re.findall(r"<style>(.*?)</style>", page, re.DOTALL)
    assert "url(" not in style
    assert "@import" not in style
    assert "://" not in page
    assert not parsed.all("script") + parsed.all("link")
    assert any("default-src 'none'" in (m.get("content") or "") for m in parsed.all("meta"))


def test_the_page_is_well_formed_and_accessible(page: str) -> None:
    parsed = Page(page)
    assert parsed.open == []
    assert len(parsed.all("img")) == 5
    assert parsed.all("html") == [{"lang": "en"}]
    assert all(len(image.get("alt") or "") > 20 for image in parsed.all("img"))
    assert all(header.get("scope") in {"row", "col"} for header in parsed.all("th"))
    ids = [attributes["id"] for _, attributes in parsed.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    targets = {(link["href"] or "").removeprefix("#") for link in parsed.all("a")}
    targets |= {str(a["aria-labelledby"]) for _, a in parsed.tags if "aria-labelledby" in a}
    assert targets <= set(ids)
    assert "prefers-color-scheme: dark" in page


def test_everything_is_escaped() -> None:
    results = sample(2)
    found = results.rows[0].figure("inversion")
    assert isinstance(found, AttackFigure)
    results = with_row(
        results,
        0,
        label=HOSTILE,
        guarantee=HOSTILE,
        privacy={HOSTILE: HOSTILE},
        diagnostics={HOSTILE: 1.0},
        attacks={HOSTILE: f"not applicable: {HOSTILE}", "inversion": found},
    )
    results.command.append(HOSTILE)
    results.settings[HOSTILE] = [HOSTILE]
    results.insecure.append(HOSTILE)
    results.attack_notes["inversion"].append(HOSTILE)
    found.caveats.append(HOSTILE)
    found.details[HOSTILE] = {HOSTILE: HOSTILE}
    made = report.render(results, {})
    parsed = Page(made)
    assert not parsed.all("script") + parsed.all("img")
    assert not any("onerror" in attributes for _, attributes in parsed.tags)
    assert made.count("&lt;script&gt;") >= 12
    assert "[red]x[/red] [/]" in printed(with_row(sample(1), 0, label="[red]x[/red] [/]"), 160)


def test_a_row_without_anything_is_shown() -> None:
    bare = with_row(sample(2), 1, attacks={}, curve=(), diagnostics={}, privacy=None)
    made = report.render(bare, {})
    assert Page(made).open == []
    assert "not run" in made
    assert "n/a for Independent: not run" in re.sub(r"\s+", " ", printed(bare, 160))


def test_colour_and_width_follow_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "\x1b[" not in printed(sample(1), 100)
    assert "\x1b[" in printed(sample(1), 100, terminal=True)
    monkeypatch.setattr("sys.stdout", io.StringIO())
    monkeypatch.delenv("COLUMNS", raising=False)
    assert tables.stdout_console().width == tables.NO_TERMINAL
    monkeypatch.setenv("COLUMNS", "160")
    assert tables.stdout_console().width == 160


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
            map(shown, (True, None, "inf", 1e-5, [], [1, 2.5], {"a": {"b": False}})),
            ("yes", "none", "∞", "1e-05", "none", "1, 2.5", "a: b: no"),
            strict=True,
        ),
    ],
)
def test_numbers_as_people_read_them(made: str, expected: str) -> None:
    assert made == expected
