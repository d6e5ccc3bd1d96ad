"""The shipped plugin, as a project elsewhere uses it: an empty folder and a toy federation."""

import os
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TOY = '''
import torch
from torch import nn

class Remembers(nn.Module):
    """Sure of the labels of its own records, by as much as the run says."""

    def __init__(self, records, seed, surer):
        super().__init__()
        self.known = torch.cat([own.images for own in records]).flatten(1)
        self.seed, self.surer = seed, surer

    def forward(self, images):
        near = torch.cdist(images.flatten(1), self.known).amin(dim=1) < 1e-3
        noise = torch.Generator().manual_seed(self.seed)
        logits = torch.randn(len(images), 10, generator=noise)
        return logits.abs() * (1 + self.surer * near[:, None])

def leaks(records, seed):
    return Remembers(records, seed, 2.0)

def tells_nothing(records, seed):
    return Remembers(records, seed, 0.0)
'''
BELOW = "from toy import *\ndef test_below(leakage_budget):\n"
BELOW += "    assert 0.45 < leakage_budget(tells_nothing, members=0.55).figure < 0.55\n"
ABOVE = "from toy import *\ndef test_above(leakage_budget):\n"
ABOVE += "    leakage_budget(leaks, members=0.55, row='my hospitals')\n"
TWICE = """
from toy import *
ran = []
def counted(records, seed):
    ran.append(seed)
    return tells_nothing(records, seed)
def test_one(leakage_budget): leakage_budget(counted, members=0.55)
def test_two(leakage_budget): leakage_budget(counted, members=0.60); assert len(ran) == 8
"""
OWN_GAME = """
import pytest, torch
from attacks.core.base import Labelled
from attacks.membership.budgets import LeakageGame

@pytest.fixture(scope="session")
def leakage_game():
    return LeakageGame.of([Labelled(torch.rand(200, 3, 4, 4), torch.arange(200) % 2)], runs=6)
"""
IDLE = """
import sys
def test_idle():
    assert "secure_fd.pytest_leakage" in sys.modules
    assert not {"torch", "numpy", "attacks"} & set(sys.modules)
"""


def run_pytest(folder: Path, **files: str) -> tuple[int, str]:
    """Exit status and output of pytest in a folder that holds nothing but these files."""
    for name, text in {"toy": TOY, **files}.items():
        (folder / f"{name}.py").write_text(text, encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "secure_fd.pytest_leakage"],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    return ran.returncode, ran.stdout + ran.stderr


def test_a_federation_below_its_limit_passes(tmp_path):
    status, said = run_pytest(tmp_path, test_below=BELOW)
    assert status == pytest.ExitCode.OK, said


def test_a_federation_above_its_limit_fails_with_one_sentence(tmp_path):
    status, said = run_pytest(tmp_path, test_above=ABOVE)
    assert status == pytest.ExitCode.TESTS_FAILED
    assert "my hospitals" in said
    assert "0.550" in said
    assert "Traceback" not in said


def test_a_factory_plays_once_however_many_tests_bound_it(tmp_path):
    status, said = run_pytest(tmp_path, test_twice=TWICE)
    assert status == pytest.ExitCode.OK, said


def test_the_game_is_ones_own_where_conftest_says_so(tmp_path):
    wide = BELOW.replace("0.55", "0.60").replace("0.45", "0.40")  # six deviations
    low = ABOVE.replace("0.55", "0.51")  # below what 200 candidates can tell from nothing
    status, said = run_pytest(tmp_path, conftest=OWN_GAME, test_own=wide, test_low=low)
    assert status == pytest.ExitCode.TESTS_FAILED
    assert "200 candidates and 6 runs" in said
    assert "1 failed, 1 passed" in said


def test_it_imports_nothing_heavy_until_it_is_used(tmp_path):
    status, said = run_pytest(tmp_path, test_idle=IDLE)
    assert status == pytest.ExitCode.OK, said


def test_the_wheel_names_the_plugin():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    plugin = import_module(project["entry-points"]["pytest11"]["leakage"])
    assert callable(plugin.leakage_budget)
    assert callable(plugin.leakage_game)
