"""Pages name test files that exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [
    *(ROOT / name for name in ("tests/README.md", "SECURITY.md", "CONTRIBUTING.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_named_tests_exist(page):
    named = set(re.findall(r"\btests(?:/\w+)+(?:\.\w+)?", page.read_text(encoding="utf-8")))
    assert sorted(name for name in named if not (ROOT / name).exists()) == []
