"""The shipped plugin, as a project elsewhere uses it: an empty folder and a toy federation."""

from pathlib import Path

import pytest

from tests.programs import ROOT, ended

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

ran = []
def leaks(records, seed):
    return Remembers(records, seed, 2.0)

def tells_nothing(records, seed):
    ran.append(seed)
    return Remembers(records, seed, 0.0)
'''
OWN_GAME = """
import pytest, torch
from attacks.core.base import Labelled
from attacks.membership.budgets import LeakageGame

@pytest.fixture(scope="session")
def leakage_game():
    return LeakageGame.of([Labelled(torch.rand(200, 3, 4, 4), torch.arange(200) % 2)], runs=6)
"""
OWN = """
from toy import leaks, ran, tells_nothing
def test_below(leakage_budget):  # six deviations
    assert 0.40 < leakage_budget(tells_nothing, members=0.60).figure < 0.60
def test_plays_once(leakage_budget):
    leakage_budget(tells_nothing, members=0.65)
    assert len(ran) == 6
def test_above(leakage_budget):
    leakage_budget(leaks, members=0.60, row='my hospitals')
def test_low(leakage_budget):  # below what 200 candidates can tell from nothing
    leakage_budget(tells_nothing, members=0.51)
"""
IDLE = """
import sys
def test_idle():
    assert "secure_fd.pytest_leakage" in sys.modules
    assert not {"torch", "numpy", "attacks"} & set(sys.modules)
"""


def run_pytest(folder: Path, **files: str) -> tuple[int, str]:
    """Exit status and output of pytest in a folder that holds nothing but these files."""
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text, encoding="utf-8")
    given = ("-m", "pytest", "-q", "-p", "secure_fd.pytest_leakage")
    ran = ended(*given, cwd=folder, PYTHONPATH=str(ROOT), PYTEST_DISABLE_PLUGIN_AUTOLOAD="1")
    return ran.returncode, ran.stdout + ran.stderr


def test_a_budget_passes_below_its_limit_and_fails_above_it_with_one_sentence(tmp_path):
    """A factory plays once however many tests bound it; conftest.py brings its own game."""
    status, shown = run_pytest(tmp_path, toy=TOY, conftest=OWN_GAME, test_it=OWN)
    assert status == pytest.ExitCode.TESTS_FAILED
    expected = ("2 failed, 2 passed", "my hospitals", "0.600", "200 candidates and 6 runs")
    assert all(word in shown for word in expected)
    assert "Traceback" not in shown


def test_it_imports_nothing_heavy_until_it_is_used(tmp_path):
    status, shown = run_pytest(tmp_path, test_idle=IDLE)
    assert status == pytest.ExitCode.OK, shown
