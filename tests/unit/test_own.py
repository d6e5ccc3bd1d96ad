"""Methods and attacks of one's own run beside all others, from one file each."""

import sys
from dataclasses import replace
from pathlib import Path

from attacks import load
from attacks.core.base import AttackResult
from experiments.compare.comparison import attacked, run_of
from experiments.core import runs
from experiments.core.run_config import row_config
from experiments.privacy_compare import Settings, plan, row_specs
from secure_fd import cli
from secure_fd.cli import USAGE_ERROR

ROOT = Path(__file__).parents[2]
METHOD = "examples.own_method:Majority"
ATTACK = "examples.own_attack:LargestClass"


def test_a_method_and_an_attack_of_one_s_own_run_in_a_row_each():
    made = plan(
        Settings(
            dataset="digits",
            clients=3,
            rounds=1,
            proxies_per_round=32,
            secure_agg=True,
            methods=METHOD,
            attacks=ATTACK,
            quick=True,
        ),
        None,
    )
    own = [spec for spec in row_specs(made) if spec.own]
    assert [spec.key for spec in own] == ["majority", "majority-masks"]
    assert [spec.label for spec in own] == ["Majority", "Majority + masks"]
    clear, masked = (runs.run(row_config(made.base, spec), attacked=True) for spec in own)
    assert clear.accuracies == masked.accuracies
    assert clear.federation.transcript.distillation[0].uploads is not None
    assert masked.federation.transcript.distillation[0].uploads is None
    assert load(ATTACK).name == "largest-class"
    found = attacked(replace(run_of(clear), made={ATTACK: None}))
    assert isinstance(found[ATTACK], AttackResult)


def test_a_method_is_one_file():
    """No module of the project names the example."""
    for package in ("secure_fd", "attacks", "experiments"):
        for path in (ROOT / package).rglob("*.py"):
            assert "own_method" not in path.read_text(encoding="utf-8")


def test_the_command_lists_its_parts_and_runs_them(monkeypatch, capsys):
    for arguments, status in ((["--help"], 0), ([], 0), (["compar"], 2)):
        monkeypatch.setattr(sys, "argv", ["secure-fd", *arguments])
        assert cli.main() == status
        out, error = capsys.readouterr()
        assert "compare" in (error if status else out)
    monkeypatch.setattr(sys, "argv", ["secure-fd", "compare", "--clients", "1"])
    assert cli.main() == USAGE_ERROR
    assert capsys.readouterr().err.startswith("error: --clients: 1 is not allowed")


def test_the_console_script_is_this_command():
    assert 'secure-fd = "secure_fd.cli:main"' in (ROOT / "pyproject.toml").read_text()
