"""The page: complete, self-contained, escaped, accessible."""

import dataclasses
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from report_sample import images, sample, with_row

from experiments import report
from experiments.page import shown
from experiments.report import write_report
from experiments.results import IMAGES_FILE, AttackFigure, Results, load_results

HOSTILE = "<script>alert('x')</script>\"><img src=x onerror=y>"
VOID = {"meta", "img", "link", "br", "hr", "input"}


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


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("report")
    return write_report(sample(), images(), folder).read_text(encoding="utf-8")


def _bare(results: Results) -> str:
    return report.render(results, {})


def test_write_report_leaves_everything(tmp_path: Path) -> None:
    write_report(sample(2), images(), tmp_path)
    assert load_results(tmp_path) == sample(2)
    names = {path.name for path in tmp_path.iterdir()}
    assert {"results.json", IMAGES_FILE, "report.html", "roc.png"} <= names
    write_report(sample(2), {}, tmp_path)
    assert not (tmp_path / IMAGES_FILE).exists()
    assert not (tmp_path / "reconstructions.png").exists()


def test_nothing_is_fetched(page: str) -> None:
    parsed = Page(page)
    for _, attributes in parsed.tags:
        for name in ("src", "href", "srcset", "action", "data", "poster"):
            value = attributes.get(name)
            assert value is None or value.startswith(("data:image/png;base64,", "#"))
    style = re.findall(r"<style>(.*?)</style>", page, re.DOTALL)
    assert len(style) == 1
    assert "url(" not in style[0]
    assert "@import" not in style[0]
    assert "://" not in page
    assert not parsed.all("script")
    assert not parsed.all("link")
    assert any("default-src 'none'" in (m.get("content") or "") for m in parsed.all("meta"))


def test_page_is_complete_and_well_formed(page: str) -> None:
    results, parsed = sample(), Page(page)
    assert parsed.open == []
    for row in results.rows:
        assert row.guarantee in page
        assert page.count(row.label) >= 4
    for expected in ("--secure-agg --dp-eps 4", "2.13.0", "trusted on first use", "0, 1, 2"):
        assert expected in page
    assert "Thresholds come from shadow models." in page
    assert "only access differs" in page
    assert "missing a model or predictions to query" in page
    assert len(parsed.all("img")) == 5


def test_accessibility(page: str) -> None:
    parsed = Page(page)
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
    page = _bare(results)
    parsed = Page(page)
    assert "<script" not in page
    assert not parsed.all("script")
    assert not parsed.all("img")
    assert not any("onerror" in attributes for _, attributes in parsed.tags)
    assert page.count("&lt;script&gt;") >= 12


def test_a_row_without_anything_renders() -> None:
    bare = with_row(sample(1), 0, attacks={}, curve=(), diagnostics={}, privacy=None)
    page = _bare(bare)
    assert "FedAvg" in page
    assert Page(page).open == []


def test_an_attack_that_was_not_run_is_not_called_inapplicable() -> None:
    page = _bare(with_row(sample(2), 1, attacks={}))
    assert page.count("not run") == 6
    assert "not applicable" not in page


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (True, "yes"), (None, "none"), ("inf", "∞"), (1e-5, "1e-05"), ([], "none"),
        ([1, 2.5], "1, 2.5"), ({"a": {"b": False}}, "a: b: no"),
    ],
)  # fmt: skip
def test_shown(value: object, expected: str) -> None:
    assert shown(value) == expected


def test_only_figures_of_this_report_are_embedded(tmp_path: Path) -> None:
    report.save_figures(sample(1), tmp_path)
    (tmp_path / "holiday.png").write_bytes(b"not ours")
    write_report(sample(1), {}, tmp_path)
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert len(Page(page).all("img")) == 4


def test_sums_and_their_cost_are_on_the_page() -> None:
    quiet = _bare(sample(6))
    assert quiet.count("4.2 ms") == 5  # independent learning sums nothing
    assert "of 10 clients in a sum" not in quiet
    faulty = _bare(dataclasses.replace(sample(6), settings={"drop": 0.25}))
    assert "drop out with chance 0.25" in faulty
    assert faulty.count("9.8 of 10 clients in a sum, 1 of 90 rounds void") == 5
    Page(faulty).close()
