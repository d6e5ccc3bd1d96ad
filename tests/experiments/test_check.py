"""The leakage check from the command line: what it asks for, and how it ends."""

import pytest

from experiments import check
from tests.refusals import refused

TOY = """
import torch
from torch import nn
def constant(records, seed):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.Linear(256, 10))
"""


@pytest.fixture
def toy(tmp_path, monkeypatch):
    (tmp_path / "toy_check.py").write_text(TOY, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return "toy_check"


@pytest.mark.parametrize(
    ("given", "limit"), [("members>0.65", 0.65), ("members > .6", 0.6), ("members>1", 1.0)]
)
def test_a_condition_names_a_limit(given, limit):
    assert check.limit_of(given) == limit


@pytest.mark.parametrize(
    "given", ["", "members", "members<0.6", "labels>0.6", "members>nan", "members>2", "members>-.6"]
)
def test_any_other_condition_is_refused(given):
    with refused("fail_if"):
        check.limit_of(given)


def test_a_federation_that_tells_nothing_ends_with_0(toy, capsys):
    given = ["--factory", f"{toy}:constant", "--runs", "6", "--fail-if", "members>0.56"]
    assert check.main(given) == 0  # five deviations above one half
    assert f"{toy}:constant" in capsys.readouterr().out


def test_a_federation_that_tells_members_ends_with_1(capsys):
    given = ["--method", "selective-fd-soft", "--runs", "6", "--fail-if", "members>0.6"]
    assert check.main(given) == check.EXCEEDED
    assert "0.600 is allowed" in capsys.readouterr().out
