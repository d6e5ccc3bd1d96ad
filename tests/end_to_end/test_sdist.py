"""The source distribution holds the package, its tests, and all that these read."""

import tarfile

import pytest

from tests.programs import ROOT, printed

pytest.importorskip("setuptools")
BUILD = "import setuptools; setuptools.setup()"
TOP = {"README.md", "LICENSE", "CHANGELOG.md", "pyproject.toml", "Makefile", "constraints.txt"}
FOLDERS = ("tests", "examples", "docs", "experiments", "attacks", "secure_fd")


def test_what_is_read_is_in_it_and_what_was_built_is_not(tmp_path):
    out = ("--egg-base", str(tmp_path), "sdist", "-d", str(tmp_path))
    printed("-c", BUILD, "-q", "egg_info", *out)
    [archive] = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as found:
        held = {name.partition("/")[2] for name in found.getnames()}
    paths = (path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.is_file())
    wanted = {path.relative_to(ROOT) for path in paths}
    wanted = {str(path) for path in wanted if not {"__pycache__", ".hypothesis"} & {*path.parts}}
    assert len(wanted) > 300
    assert wanted | TOP <= held
    built, own = (".pyc", ".lock", ".state", ".ledger"), (".venv", ".git/", "runs/", "dist/")
    assert not [name for name in held if name.endswith(built) or name.startswith(own)]
