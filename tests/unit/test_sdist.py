"""What the source distribution holds: the package, its tests, and all that these read."""

import tarfile
from pathlib import Path

import pytest

from tests.programs import printed

pytest.importorskip("setuptools")
ROOT = Path(__file__).parents[2]
BUILD = "import setuptools; setuptools.setup()"


@pytest.fixture(scope="module")
def held(tmp_path_factory):
    out = tmp_path_factory.mktemp("sdist")
    folder = str(out)
    printed("-c", BUILD, "-q", "egg_info", "--egg-base", folder, "sdist", "-d", folder)
    [archive] = out.glob("*.tar.gz")
    with tarfile.open(archive) as found:
        return {name.partition("/")[2] for name in found.getnames()}


def test_tests_and_what_they_read_are_in_it(held):
    wanted = {
        path.relative_to(ROOT).as_posix()
        for folder in ("tests", "examples", "docs", "experiments", "attacks", "secure_fd")
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and ".hypothesis" not in path.parts
    }
    assert len(wanted) > 500
    assert wanted <= held
    top = {"README.md", "LICENSE", "CHANGELOG.md", "pyproject.toml", "Makefile", "constraints.txt"}
    assert top <= held


def test_nothing_that_was_built_is_in_it(held):
    assert not [name for name in held if name.endswith((".pyc", ".lock", ".state", ".ledger"))]
    assert not [name for name in held if name.startswith((".venv", ".git/", "runs/", "dist/"))]
