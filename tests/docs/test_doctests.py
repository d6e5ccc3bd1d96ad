"""Every example of a docstring runs, in every package; one test a module that has any."""

import doctest
import importlib
import inspect
from pathlib import Path

import pytest

import secure_fd

PACKAGES = ("secure_fd", "attacks", "experiments")
_ROOT = Path(__file__).parents[2]


def _modules_with_examples() -> list[str]:
    """Names of the modules whose source has an example: no other is imported to look for one."""
    return [
        ".".join(path.relative_to(_ROOT).with_suffix("").parts).removesuffix(".__init__")
        for package in PACKAGES
        for path in sorted((_ROOT / package).rglob("*.py"))
        if ">>>" in path.read_text(encoding="utf-8")
    ]


@pytest.mark.parametrize("name", _modules_with_examples())
def test_examples_give_what_they_show(name):
    flags = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
    result = doctest.testmod(importlib.import_module(name), optionflags=flags)
    assert result.attempted > 0
    assert result.failed == 0


def test_every_public_name_shows_an_example():
    public = {name: getattr(secure_fd, name) for name in secure_fd.__all__}
    kinds = {n: found for n, found in public.items() if not inspect.ismodule(found)}
    assert [n for n, found in kinds.items() if ">>>" not in (inspect.getdoc(found) or "")] == []
