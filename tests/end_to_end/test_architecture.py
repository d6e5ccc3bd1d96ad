"""The structure of the package: one class a name, base classes, and few files on a vote's way."""

import ast
import re
import sys
from collections import defaultdict
from importlib.metadata import requires, version
from pathlib import Path

import pytest

import secure_fd
from secure_fd import simulate
from secure_fd.training.recipes import Recipe
from tests.small_federation import BRIEF

ROOT = Path(secure_fd.__file__).parent
MOST_FILES = 14
"""Files that a masked round enters; this number may only fall."""
APART = ("secagg", "crypto", "training", "deployment")
"""Counted apart. Deployment has the formatter of log lines, if an earlier test ran its commands."""
SUPPORTED = ("1.41", "1.42")
"""Versions of flwr with the private modules that the adapter imports."""


def test_a_class_name_is_defined_once_and_no_class_is_probed_at_run_time():
    places = defaultdict(list)
    for path in ROOT.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        assert "runtime_checkable" not in text
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(path.name)
    assert {name: files for name, files in places.items() if len(files) > 1} == {}


def test_a_masked_round_enters_few_files():
    run = simulate("digits", clients=4, secure="masks", recipe=Recipe(2, BRIEF))
    run.fit(1)
    entered = set()

    def note(frame, event, _):
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(ROOT):
            entered.add(path.relative_to(ROOT))

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        run.fit(1)
    finally:
        sys.setprofile(before)
    counted = [path.as_posix() for path in entered if path.parts[0] not in APART]
    assert 5 < len(counted) <= MOST_FILES, sorted(counted)


def test_the_extra_takes_the_supported_versions_of_flower_and_the_adapter_alone_imports_them():
    pytest.importorskip("flwr", reason='needs the extra: pip install "secure-fd[flower]"')
    assert version("flwr").rpartition(".")[0] in SUPPORTED
    [extra] = [line for line in requires("secure-fd") or [] if line.startswith("flwr")]
    beyond = f"1.{int(SUPPORTED[-1].partition('.')[2]) + 1}"
    bounds = dict(re.findall(r"([<>]=?)([0-9.]+)", extra))
    assert bounds == {">=": SUPPORTED[0], "<": beyond}
    imported = re.compile(r"^ *(from|import) flwr\.", re.MULTILINE)
    users = [path.name for path in ROOT.rglob("*.py") if imported.search(path.read_text())]
    assert users == ["flower.py"]
