"""Mistakes on the command line: one sentence that names the option, before any work."""

import re
import shlex
from pathlib import Path
from typing import NoReturn

import numpy as np
import pytest
from PIL import Image

from experiments.core import study
from secure_fd import cli
from secure_fd.cli import USAGE_ERROR


@pytest.fixture(autouse=True)
def workplace(tmp_path, monkeypatch):
    """A folder with a few files, where nothing may be run."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SECURE_FD_DATA", raising=False)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(study, "claim_folder", _never)  # the last step before work
    for name, content in (
        ("file", "no folder"),
        ("broken.toml", "rounds ="),
        ("typo.toml", "roundz = 3\n"),
        ("wrong.toml", 'dataset = "mnits"\n'),
        ("bad_data.py", "def make():\n    return 1\n\ndef seed(n):\n    return n\n\nn = 3\n"),
        ("torn/ill/1.png", "torn"),
        ("texts/ill/1.gif", "no format that is read"),
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    (tmp_path / "loop" / "ill").mkdir(parents=True)
    (tmp_path / "loop" / "ill" / "1.png").symlink_to("1.png")
    for name in ("few/a/ill/0", "few/b/ill/0", *(f"one/ill/{index}" for index in range(25))):
        path = tmp_path / f"{name}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng([*name.encode()]).integers(0, 256, (20, 20))
        Image.fromarray(pixels.astype(np.uint8)).save(path)


def _never(*_: object, **__: object) -> NoReturn:
    pytest.fail("work began")


MISTAKES = (
    ("--dataset", "compare --dataset mnits"),
    ("--dataset", "compare --images one --dataset mnist"),
    ("--dataset", "compare --config wrong.toml"),
    ("--data-dir", "compare --data-dir nowhere"),
    ("--data-dir", "compare --dataset mnist --data-dir . --dp-eps 4"),  # delta needs the records
    ("--data-dir", "suite --data-dir missing"),
    ("--data-dir", "study accuracy --image-sets mnist --splits weak --data-dir ."),
    ("--images", "compare --images few"),
    ("--images", "compare --images nowhere"),
    ("--images", "compare --images file"),
    ("--images", "compare --images texts"),
    ("folder", "compare --images loop --split iid --clients 2"),
    ("--image-size", "compare --images one --image-size 4"),
    ("folder", "compare --images torn --split iid --clients 2"),
    ("--proxies", "compare --images one --proxies nowhere"),
    ("--federation", "compare --federation nowhere:make"),
    ("--federation", "compare --federation bad_data:seed"),
    ("--clients", "compare --clients 2 --secure-agg"),
    ("--clients", "compare --clients 0"),
    ("--clients", "compare --clients 1000000000"),
    ("--clients", "compare --images one --clients 30 --split iid"),
    ("--clients", "compare --dp-unit client --dp-eps 4 --secure-agg"),
    ("--split", "compare --split dirichlet:-1"),
    ("--rounds", "compare --rounds 1000000000000"),
    ("--rounds", "compare --rounds=-1"),
    ("--seeds", "study accuracy --seeds 1,x"),
    ("--seed", "compare --seed=-1"),
    ("--workers", "compare --workers 0"),
    ("--scheduler", "compare --images one --scheduler tcp://127.0.0.1:9"),
    ("--scheduler", "study accuracy --scheduler nowhere"),
    ("--proxies-per-round", "compare --proxies-per-round 1001"),
    *(("--dp-eps", f"compare --dp-eps={value}") for value in ("nan", "0", "-1", "1e9", "1e-9")),
    ("--dp-delta", "compare --dp-eps 4 --dp-delta 0"),
    ("--dp-delta", "compare --dp-delta 1e-5"),
    ("--dp-unit", "compare --dp-unit record"),
    ("--dp-unit", "compare --dp-eps 4 --dp-unit recrod"),
    ("--dp-delta", "compare --dataset digits --clients 3 --dp-eps 1 --dp-delta .5"),
    ("--dp-unit", "compare --dp-eps 4 --dp-unit client"),
    ("--images-per-person", "compare --images-per-person 0"),
    ("--drop", "compare --drop nan"),
    ("--drop", "compare --drop 1"),
    ("--releases", "compare --releases 8"),
    ("--aggregation", "compare --aggregation he"),
    ("--vote-budget", "compare --vote-budget 1.5"),
    ("budget", "compare --secure-agg --aggregation prio3 --vote-budget .5"),
    ("--min-voters", "compare --min-voters 2 --secure-agg --aggregation prio3"),
    ("--liars", "compare --liars"),
    ("--show-private", "compare --show-private"),
    ("--rows", "compare --rows fedavgg"),
    ("--methods", "compare --methods no.such:X"),
    ("--attacks", "compare --attacks member"),
    ("--out", "compare --out file/below"),
    ("--config", "compare --config broken.toml"),
    ("--epsilon", "audit --epsilon 99"),
    ("--unit", "audit --unit person"),
    ("--scenes", "suite --scenes selektor"),
    ("--splits", "study accuracy --splits dirichlet:1"),
    ("--fail-if", "check --fail-if members<2"),
    ("--method", "check --fail-if members>0.6 --method foo"),
    ("--runs", "check --fail-if members>0.6 --runs 3"),
    ("members", "check --fail-if members>0.501"),
    ("epsilon", "check --fail-if members>0.6 --dp-eps=-1"),
    ("--factory", "check --fail-if members>0.6 --factory bad_data:n"),
)
"""(option or setting, command line): the sentence is about this option."""
PARSED = (
    ("--clinets", "compare --clinets 3"),
    ("--clients", "compare --clients three"),
    ("--rounds", "compare --rounds"),
    ("digits", "compare digits"),
    ("--roundz", "compare --config typo.toml"),
    ("--fail-if", "check"),
    ("comprae", "comprae"),
    ("lira", "attacks lira"),
)
"""Refused by the parser or the list of commands, in more than one line."""


def refusal(line, capsys) -> str:
    """Errors of a command line that ends with the status of a wrong use."""
    try:
        status = cli.main(shlex.split(line))
    except SystemExit as ended:
        status = int(ended.code or 0)
    found = capsys.readouterr()
    assert (status, found.out) == (USAGE_ERROR, "")
    assert "Traceback" not in found.err
    assert not Path("runs").exists()
    return found.err


@pytest.mark.parametrize(("option", "line"), MISTAKES)
def test_a_mistake_gets_one_sentence(capsys, option, line):
    *before, sentence = refusal(line, capsys).splitlines()
    assert re.fullmatch(f"error: {option}: .+ is not allowed; .+", sentence)
    assert all("cells, into" in other for other in before)


@pytest.mark.parametrize(("option", "line"), PARSED)
def test_a_word_that_cannot_be_parsed_is_named(capsys, option, line):
    assert option in refusal(line, capsys)


def test_memory_that_runs_out_ends_a_run_with_one_sentence(capsys):
    def work() -> NoReturn:
        raise MemoryError

    assert cli.exit_status(work, interrupted="kept", options=set()) == cli.FAILED
    assert len(capsys.readouterr().err.splitlines()) == 1
