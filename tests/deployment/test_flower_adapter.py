"""The adapter to Flower: supported versions, and no import of flwr elsewhere."""

import re
from importlib.metadata import requires, version

import pytest

from tests.programs import ROOT

pytest.importorskip("flwr", reason='needs the extra: pip install "secure-fd[flower]"')
SUPPORTED = ("1.41", "1.42")
"""Versions of flwr with the private modules that the adapter imports."""


def test_the_extra_takes_the_supported_versions_of_flower_and_the_adapter_alone_imports_them():
    assert version("flwr").rpartition(".")[0] in SUPPORTED
    [extra] = [line for line in requires("secure-fd") or [] if line.startswith("flwr")]
    bounds = dict(re.findall(r"([<>]=?)([0-9.]+)", extra))
    beyond = f"1.{int(SUPPORTED[-1].partition('.')[2]) + 1}"
    assert bounds == {">=": SUPPORTED[0], "<": beyond}
    modules = {path: path.read_text() for path in (ROOT / "secure_fd").rglob("*.py")}
    users = [
        path.name
        for path, text in modules.items()
        if re.search(r"(?m)^ *(from|import) flwr\.", text)
    ]
    assert users == ["flower.py"]
