"""The pages as a site, and what reference pages and citation must agree with."""

import re
import tomllib
from dataclasses import fields
from importlib.util import find_spec

import pytest

import secure_fd
from experiments.compare.leakage import AttackResult
from experiments.core.study import SCHEMA, Result, Results
from experiments.privacy_compare import Settings
from secure_fd.cli import COMMANDS
from tests.programs import ROOT, printed

DOCS = ROOT / "docs"


def test_every_page_is_in_the_navigation_once():
    named = re.findall(r": (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    assert sorted(named) == sorted(p.relative_to(DOCS).as_posix() for p in DOCS.rglob("*.md"))


@pytest.mark.skipif(
    any(find_spec(name) is None for name in ("mkdocs", "material", "mkdocstrings")),
    reason="the extra docs is not installed",
)
def test_the_site_builds_without_a_warning(tmp_path):
    printed("-m", "mkdocs", "build", "--strict", "-q", "-d", str(tmp_path))
    assert (tmp_path / "tutorial" / "index.html").is_file()


def test_the_reference_names_what_exists():
    named = re.findall(r"^::: (\S+)$", (DOCS / "reference" / "api.md").read_text(), re.MULTILINE)
    assert len(named) > 10
    for place in named:
        module, _, name = place.rpartition(".")
        assert getattr(secure_fd, name).__module__ == module


def test_the_schema_page_has_every_field_and_no_other():
    page = (DOCS / "reference" / "results_file.md").read_text()
    tables = re.findall(r"(?:^\| `\w+` \|.*\n)+", page, re.MULTILINE)
    documented = [re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE) for table in tables]
    written = [f for f in fields(Result) if f.name != "pictures"]  # in a file of their own
    assert documented == [[f.name for f in fields(Results)], [f.name for f in written]]
    assert f"`{SCHEMA}`" in page
    figure = page[page.index("An **attack's figure** has") : page.index("Files beside it")]
    assert set(re.findall(r"`(\w+)`", figure)) == {f.name for f in fields(AttackResult)}


def test_a_citation_is_of_this_version():
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert version == secure_fd.__version__
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text()


def test_the_command_page_has_every_command_and_options_that_exist():
    page = (DOCS / "reference" / "command_line.md").read_text()
    assert set(COMMANDS) == set(re.findall(r"`secure-fd (\w+)", page)) - {"NAME"}
    known = {field.name for field in fields(Settings)} | {"config"}
    typed = set(re.findall(r"`--([a-z-]+)", page)) - {"help"}
    assert {name.replace("-", "_") for name in typed} <= known
