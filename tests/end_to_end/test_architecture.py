"""The structure of the package: one class a name, base classes, and few files on a vote's way."""

import ast
import sys
from collections import defaultdict
from pathlib import Path

import secure_fd
from secure_fd import simulate

ROOT = Path(secure_fd.__file__).parent
MOST_FILES = 14
"""Files that a masked round enters; this number may only fall."""
APART = ("secagg", "crypto", "training")


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
    run = simulate("digits", clients=4, secure="masks", seed=0)
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
