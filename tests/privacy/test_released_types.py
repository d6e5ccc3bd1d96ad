"""The types refuse to encode what no protection released, and the layer loads no torch."""

import os
import pkgutil
import re
import subprocess
import sys
from importlib import import_module

import numpy as np
import pytest
from mypy import api

from secure_fd.errors import LocalError
from secure_fd.votes.codec import Contribution, KnowledgeCodec, Released

REFUSED = """
from secure_fd.votes.codec import Contribution, IntArray, KnowledgeCodec, Released
from secure_fd.privacy.base import Answer, ClientMechanism


def encodes_a_contribution(codec: KnowledgeCodec, honest: Contribution) -> None:
    codec.encode(honest)  # arg-type


class Unprotected(ClientMechanism):
    def release(self, indices: IntArray, answer: Answer) -> Contribution:  # override
        return answer(indices)


def reads_a_contribution_as_released(honest: Contribution) -> Released:
    return honest  # return-value
"""

ALLOWED = """
from secure_fd.votes.codec import IntArray, KnowledgeCodec
from secure_fd.privacy.base import Answer, NoNoise


def encodes(codec: KnowledgeCodec, indices: IntArray, answer: Answer) -> None:
    codec.encode(NoNoise().release(indices, answer))
"""


SETTINGS = """
[mypy]
strict = True
follow_imports = silent
ignore_missing_imports = True
warn_unused_ignores = False
warn_return_any = False
[mypy-numpy.*,torch.*,scipy.*,cryptography.*]
follow_imports = skip
follow_imports_for_stubs = True
"""
"""Libraries whose types the snippets do not turn on are skipped: their stubs take ten seconds."""


def test_the_types_refuse_what_would_leak_and_nothing_else(tmp_path):
    settings, refused, allowed = (tmp_path / name for name in ("mypy.ini", "no.py", "yes.py"))
    settings.write_text(SETTINGS)
    refused.write_text(REFUSED)
    allowed.write_text(ALLOWED)
    shown, trouble, status = api.run(
        ["--config-file", str(settings), "--cache-dir", os.devnull, "--no-error-summary",
         str(refused), str(allowed)]
    )  # fmt: skip
    assert (trouble, status) == ("", 1)
    errors = re.findall(r"(\w+)\.py:(\d+): error: .*\[([a-z-]+)\]$", shown, re.MULTILINE)
    assert len(errors) == shown.count(": error: ")
    lines = enumerate(REFUSED.splitlines(), start=1)
    expected = [("no", str(n), line.rsplit("# ", 1)[1]) for n, line in lines if "  # " in line]
    assert len(expected) == 3
    assert sorted(errors) == sorted(expected)


def test_the_codec_refuses_at_run_time_too():
    codec, honest = KnowledgeCodec(3, 1), Contribution(np.ones(2), np.eye(3)[:2])
    with pytest.raises(LocalError, match="passed the privacy mechanism"):
        codec.encode(honest)
    assert codec.encode(Released.of(honest)).tolist() == [1, 0, 0, 0, 1, 0]


def test_no_module_of_privacy_and_cryptography_loads_torch():
    names = [
        f"secure_fd.{folder}.{each.name}"
        for folder in ("privacy", "crypto")
        for each in pkgutil.iter_modules(import_module(f"secure_fd.{folder}").__path__)
    ]
    code = f"import sys, {', '.join(names)}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0  # noqa: S603
