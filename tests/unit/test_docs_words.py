"""Pages stay short, say what they are for, and link to places that exist.

How words are counted. A word is what stands between two spaces and has two letters in a row, or is
"a": numbers, signs and one-letter symbols of formulas are none. Prose, headings, lists and tables
of every page of docs/ count; blocks of code and comments that a reader does not see do not.

Two kinds of pages are left out because no hand writes them, results_page.py does: the tables of a
study, docs/results/NAME.md beside its NAME.json, and the list of attacks,
docs/attacks/all.md. That they are what the program writes is tested with the program
(test_results_page.py, test_attack_view.py); here, that nothing else stands among them. README,
CHANGELOG, SECURITY and CONTRIBUTING are no pages of docs/.
"""

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
WRITTEN_BY_CODE = {DOCS / "attacks" / "all.md", *(DOCS / "results").glob("*.md")}
PAGES = sorted(set(DOCS.rglob("*.md")) - WRITTEN_BY_CODE)
MOST_WORDS = 25_300
MOST_WORDS_OF_RESULTS = 5_000
MOST_WORDS_BEFORE_A_HEADING = 160
"""Of the first paragraph: somebody who is new here reads it before anything else."""


def shown(text: str) -> str:
    """A page without blocks of code and without comments."""
    text = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)


def words(text: str) -> int:
    return sum(
        part.lower() == "a" or bool(re.search(r"[^\W\d_]{2}", part)) for part in shown(text).split()
    )


def anchors(text: str) -> set[str]:
    """Of every heading, what a link to it says: GitHub's rule, and the site's."""
    heads = re.findall(r"^#+ (.*)$", shown(text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head).strip().lower().replace(" ", "-") for head in heads}


def first_paragraph(page: Path) -> str:
    return page.read_text(encoding="utf-8").split("\n\n")[1]


def test_the_pages_are_short_enough_to_be_read():
    counted = {page: words(page.read_text(encoding="utf-8")) for page in PAGES}
    assert len(counted) > 20
    assert counted[DOCS / "results.md"] <= MOST_WORDS_OF_RESULTS
    assert sum(counted.values()) <= MOST_WORDS


def test_pages_of_tables_lie_beside_their_data_and_say_who_wrote_them():
    for page in sorted(WRITTEN_BY_CODE):
        assert "by `results_page.py` alone" in first_paragraph(page), page
        assert page.name == "all.md" or page.with_suffix(".json").is_file(), page


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(DOCS).as_posix())
def test_the_first_paragraph_is_prose_without_formulas(page):
    first = first_paragraph(page)
    assert first.endswith(".")
    assert 15 <= words(first) <= MOST_WORDS_BEFORE_A_HEADING
    assert not re.search(r"[=≤≥√Σ⌊‖²₀∈]|\^|^\||^```|^[-*] ", first, re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(DOCS).as_posix())
def test_links_lead_to_headings_that_exist(page):
    lost = []
    for link in re.findall(r"\]\(([^)]+)\)", page.read_text(encoding="utf-8")):
        file, _, anchor = link.partition("#")
        target = (page.parent / file).resolve() if file else page
        if "://" not in link and anchor and target.suffix == ".md":
            found = anchors(target.read_text(encoding="utf-8"))
            lost += [link] if anchor not in found else []
    assert lost == []
