"""Pages stay short, say whom they are for, and link to places that exist.

A word has two letters in a row, or is "a". Prose, headings, lists and tables count; blocks of code,
comments, pages that a program writes (docs/results/NAME.md beside NAME.json) and the copies of
their tables do not.
"""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PROTOCOL = DOCS / "reference" / "protocol.md"
PAGES = sorted(set(DOCS.rglob("*.md")) - set((DOCS / "results").glob("*.md")))
LINKED = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", *PAGES]
MOST_PAGES, MOST_WORDS, MOST_WORDS_OF_PROTOCOL, MOST_LINES_OF_README = 18, 12_000, 5_000, 90


def shown(text: str) -> str:
    """A page without blocks of code, without comments and without tables that follow one."""
    text = re.sub(r"^ *```.*?^ *```", "", text, flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"<!--.*?-->(\n\n(\|[^\n]*\n)+)?", "", text, flags=re.DOTALL)


def words(text: str) -> int:
    return sum(
        part.lower() == "a" or bool(re.search(r"[^\W\d_]{2}", part)) for part in shown(text).split()
    )


def anchors(page: Path) -> set[str]:
    """Return the anchor of every heading, by GitHub's rule and the site's."""
    heads = re.findall(r"^#+ (.*)$", shown(page.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head).strip().lower().replace(" ", "-") for head in heads}


def test_there_are_few_pages_and_few_words():
    counted = {page: words(page.read_text(encoding="utf-8")) for page in PAGES}
    assert counted.pop(PROTOCOL) <= MOST_WORDS_OF_PROTOCOL
    assert len(PAGES) <= MOST_PAGES
    assert sum(counted.values()) <= MOST_WORDS
    assert len((ROOT / "README.md").read_text().splitlines()) <= MOST_LINES_OF_README


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(DOCS).as_posix())
def test_a_page_opens_with_its_readers_and_has_narrow_tables(page):
    text = page.read_text(encoding="utf-8")
    assert re.search(r"\bfor\b", text.split("\n\n")[1], re.IGNORECASE)
    headers = re.findall(r"^(\|.*)\n\|[-:| ]+\|$", text, re.MULTILINE)
    assert [header for header in headers if header.replace(r"\|", "").count("|") > 9] == []


@pytest.mark.parametrize("page", LINKED, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_to_files_and_headings_that_exist(page):
    lost = []
    for link in re.findall(r"\]\(([^)\s]+)\)", shown(page.read_text(encoding="utf-8"))):
        if "://" in link:
            continue
        file, _, anchor = link.partition("#")
        target = (page.parent / file).resolve() if file else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            lost.append(link)
    assert lost == []
