"""The driver of all results: two small studies end to end, a failure, and what is resumed."""

import json
from unittest.mock import MagicMock

from experiments import results
from experiments.core.study import load
from experiments.results import Settings, Step, main, run, steps
from tests.refusals import refused

AUDIT = load("experiments.privacy.privacy_audit")
FACTS = {"command", "created", "commit", "dirty", "versions", "machine", "cpu_seconds"}


_REFUTED = """
import pathlib, shutil, sys
out = pathlib.Path(sys.argv[-1])
shutil.copytree(out.parent / "privacy_audit", out)
sys.exit(1)
"""
"""An audit that writes its results and refutes a claim."""


def small(name: str) -> Step:
    program = "experiments/privacy/privacy_audit.py"
    return Step(name, (program, "--quick", "--unit=label", "--workers=1"), AUDIT)


def test_studies_and_benchmarks_are_measured_published_and_not_repeated(tmp_path, capfd):
    docs = tmp_path / "docs" / "results"
    docs.mkdir(parents=True)
    (docs / "privacy_audit.json").write_text('{"cpu_seconds": 10800}')
    program = tmp_path / "program.py"
    program.write_text("import sys; print('{\"rows\": [1]}'); open(sys.argv[1] + '/kept', 'x')")
    every = [
        small("privacy_audit"),
        Step("broken", ("-c", "raise SystemExit(2)"), AUDIT),
        Step("timed", (str(program), "FOLDER")),
        Step("refuted", ("-c", _REFUTED), AUDIT),
    ]
    assert run(Settings(), tmp_path, every) == 1
    shown = capfd.readouterr().out
    assert "1/4 privacy_audit: about 90 min; 90 min left in all" in shown
    assert "failed: broken, refuted" in shown
    assert (docs / "refuted.json").exists()
    assert "# Tables: privacy audit" in (docs / "privacy_audit.md").read_text()
    assert FACTS | {"cells"} <= json.loads((docs / "privacy_audit.json").read_text()).keys()
    assert json.loads((docs / "timed.json").read_text()).keys() == FACTS | {"rows"}
    made = (docs / "timed.json").read_text()
    assert run(Settings(), tmp_path, [every[2]]) == 0
    assert (docs / "timed.json").read_text() == made


def test_a_quick_run_leaves_the_docs_as_they_are(tmp_path):
    timed = Step("timed", ("-c", "print('{\"rows\": [1]}')"))
    assert run(Settings(quick=True), tmp_path, [timed]) == 0
    assert (tmp_path / "runs/results/quick/timed/timed.json").exists()
    assert not (tmp_path / "docs").exists()


def test_an_interrupt_ends_all_with_one_line(tmp_path, monkeypatch, capsys):
    child = MagicMock()
    child.return_value.__enter__.return_value.wait.side_effect = [KeyboardInterrupt, 130]
    monkeypatch.setattr(results, "Popen", child)
    assert run(Settings(), tmp_path, [small("first"), small("second")]) == 130
    assert "2/2" not in capsys.readouterr().out


def test_options_are_passed_on_and_names_are_checked():
    every = steps(Settings(workers=3, scheduler="tcp://a:1", quick=True))
    assert [step.name for step in every] == list(dict.fromkeys(step.name for step in every))
    given = {step.name: step.given for step in every}
    assert given["accuracy"][1:] == ("--workers=3", "--scheduler=tcp://a:1", "--quick")
    assert "--quick" not in given["dafkd_theory"]
    assert [step.name for step in steps(Settings(study="alpha, accuracy"))] == ["accuracy", "alpha"]
    assert not any("scheduler" in word for step in steps(Settings()) for word in step.given)
    for bad in (Settings(study="accurate"), Settings(workers=0)):
        with refused("study" if bad.study else "workers"):
            steps(bad)


def test_a_mistake_at_the_command_line_is_one_sentence(capsys):
    assert main(["--study", "accurate"]) == 2
    assert capsys.readouterr().err.startswith("error: --study")
