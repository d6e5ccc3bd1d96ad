"""The words that the style of the project bans do not occur in code, templates and pages."""

import re

import pytest

from tests.programs import ROOT

BANNED = re.compile(
    r"(?i)(?<![a-z])(told|said|heard|taught|somebody|nobody|everybody|whoever|troubles|promises|"
    r"glosses|void(s|ed)?|twins?|posed|of one's own|hangs on|leaves with|so many)(?![a-z])"
)
ALLOWED = {
    # file, word: reason
}
FILES = [
    path
    for folder in ("secure_fd", "attacks", "experiments", "benchmarks", "examples", "tests", "docs")
    for path in sorted((ROOT / folder).rglob("*"))
    if path.suffix in {".py", ".pyi", ".j2", ".toml", ".md"}
]


def words_of(text):
    """The banned words of a text; a name in camel case counts as its words."""
    spaced = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", text)
    return {found.group(0).lower() for found in BANNED.finditer(spaced)}


def test_a_banned_word_is_found_in_a_sentence_and_in_a_name():
    assert words_of("It was said.\nTaughtTruth, own_twin") == {"said", "taught", "twin"}


@pytest.mark.parametrize("folder", sorted({path.relative_to(ROOT).parts[0] for path in FILES}))
def test_no_banned_word_occurs(folder):
    found = {
        (path.relative_to(ROOT).as_posix(), word)
        for path in FILES
        if path.relative_to(ROOT).parts[0] == folder and path.name != "test_words.py"
        for word in words_of(path.read_text(encoding="utf-8"))
    }
    assert sorted(found - ALLOWED.keys()) == []
