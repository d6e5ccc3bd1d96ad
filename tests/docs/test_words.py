"""The words that the style of the project bans do not occur in code, templates and pages."""

import re

import pytest

from tests.programs import ROOT

BANNED = re.compile(
    r"(?i)(?<![a-z])(told|said|heard|taught|somebody|nobody|everybody|whoever|troubles|promises|"
    r"glosses|void(s|ed)?|twins?|posed|of one's own|hangs on|leaves with|so many)(?![a-z])"
)
ALLOWED = {
    "secure_fd/protocol/client.py": {"told"},  # key of an earlier state file, which is refused
    "tests/protocol/test_party_restarts.py": {"told"},  # the same
    "tests/fuzz/proven.py": {"told"},  # bytes of the stored corpus
    "tests/vectors/refused.py": {"nobody", "somebody"},  # keys of secagg.json
    "experiments/compare/comparison.py": {"void"},  # key of results files, as all that follow
    "attacks/server/label_distribution.py": {"told"},
    "tests/attacks/test_attack_sums.py": {"told"},
}
"""File -> words that stay there, each with its reason."""
FOLDERS = ("secure_fd", "attacks", "experiments", "benchmarks", "examples", "tests", "docs")
READ = [*ROOT.glob("*.md"), *(path for name in FOLDERS for path in (ROOT / name).rglob("*"))]
FILES = [path for path in READ if path.suffix in {".py", ".pyi", ".j2", ".toml", ".md"}]


def words_of(text):
    """The banned words of a text; a name in camel case counts as its words."""
    spaced = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", text)
    return {found.group(0).lower() for found in BANNED.finditer(spaced)}


def test_a_banned_word_is_found_in_a_sentence_and_in_a_name():
    assert words_of("It was said.\nTaughtTruth, own_twin") == {"said", "taught", "twin"}


@pytest.mark.parametrize("folder", sorted({path.relative_to(ROOT).parts[0] for path in FILES}))
def test_no_banned_word_occurs(folder):
    texts = {
        path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
        for path in FILES
        if path.relative_to(ROOT).parts[0] == folder and path.name != "test_words.py"
    }
    found = {name: words_of(text) - ALLOWED.get(name, set()) for name, text in texts.items()}
    assert {name: words for name, words in found.items() if words} == {}
