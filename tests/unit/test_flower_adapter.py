"""The adapter to Flower: supported versions, and no import of flwr elsewhere."""

import re
from importlib.metadata import requires, version
from pathlib import Path

import pytest

import secure_fd

pytest.importorskip("flwr", reason='needs the extra: pip install "secure-fd[flower]"')

SUPPORTED = ("1.41", "1.42")
"""Versions of flwr with the private modules that the adapter imports."""


def test_the_installed_flwr_is_a_supported_version_and_the_extra_takes_no_other():
    assert version("flwr").rpartition(".")[0] in SUPPORTED
    first, last = (tuple(map(int, name.split("."))) for name in (SUPPORTED[0], SUPPORTED[-1]))
    [extra] = [line for line in requires("secure-fd") or [] if line.startswith("flwr")]
    bounds = dict(re.findall(r"([<>]=?)([0-9.]+)", extra))
    assert bounds == {">=": f"{first[0]}.{first[1]}", "<": f"{last[0]}.{last[1] + 1}"}


def test_only_the_adapter_imports_private_modules_of_flower():
    package = Path(secure_fd.__file__).parent
    users = [
        path.name
        for path in package.rglob("*.py")
        if re.search(r"^ *(from|import) flwr\.", path.read_text(), re.MULTILINE)
    ]
    assert users == ["flower.py"]
