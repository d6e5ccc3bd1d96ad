"""Mistakes on the command line: one sentence each about what was typed, before any work."""

import shlex
from pathlib import Path
from typing import NoReturn

import numpy as np
import pytest
from PIL import Image

from experiments.core import study
from secure_fd import cli

USAGE = 2


@pytest.fixture(autouse=True)
def workplace(tmp_path, monkeypatch):
    """A folder with a few files, where nothing may be run."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SECURE_FD_DATA", raising=False)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(study, "claim_folder", _never)  # the last step before work
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("no folder")
    (tmp_path / "broken.toml").write_text("rounds =")
    (tmp_path / "typo.toml").write_text("roundz = 3\n")
    (tmp_path / "nested.toml").write_text("[compare]\nrounds = 3\n")
    (tmp_path / "wrong.toml").write_text('dataset = "mnits"\n')
    for client in ("a", "b"):
        (tmp_path / "few" / client / "ill").mkdir(parents=True)
        Image.new("L", (20, 20)).save(tmp_path / "few" / client / "ill" / "1.png")
    (tmp_path / "torn" / "ill").mkdir(parents=True)
    (tmp_path / "torn" / "ill" / "1.png").write_bytes(b"torn")
    for index in range(25):
        _noise(tmp_path / "one" / "ill" / f"{index}.png", index)
    (tmp_path / "bad_data.py").write_text(
        "def make():\n    return 1\n\ndef seed(n):\n    return n\n"
    )
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "privacy_compare.json").write_text("{}")
    return tmp_path


def _noise(path: Path, seed: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (20, 20)).astype(np.uint8)
    Image.fromarray(pixels).save(path)


def _never(*_: object, **__: object) -> NoReturn:
    pytest.fail("work began")


COMPARE = {
    "--dataset": ["--dataset mnits", "--dataset own", "--images one --dataset mnist"],
    "--data-dir": [
        *("--data-dir nowhere", "--dataset mnist --data-dir ."),
        "--dataset mnist --data-dir . --dp-eps 4",  # delta would follow from the records
    ],
    "--images": [
        *(f"--images {folder}" for folder in ("nowhere", "empty", "file", "few")),
    ],
    "--image-size": ["--images one --image-size 4"],
    "--clients": [
        *("--images one --clients 40", "--clients 1", "--clients 11"),
        *("--clients 46 --split weak", "--clients 2 --secure-agg"),
        "--dp-unit client --dp-eps 4 --secure-agg",
    ],
    "folder": ["--images torn --split iid --clients 2"],
    "--proxies": ["--images one --proxies nowhere", "--proxies one"],
    "--federation": [
        *("--images one --federation a:b", "--federation nowhere:make", "--federation bad_data"),
        *("--federation bad_data:make", "--federation bad_data:seed", "--federation json"),
    ],
    "--split": [
        *("--split strng", "--split dirichlet:-1", "--split dirichlet:0"),
        *("--split dirichlet:inf", "--split own"),
    ],
    "--rounds": ["--rounds 0", "--rounds 1000000000000"],
    "--seeds": ["--seeds 0", "--seeds 1000000000"],
    "--seed": ["--seed=-1"],
    "--workers": ["--workers 0"],
    "--proxies-per-round": ["--proxies-per-round 0", "--proxies-per-round 1001"],
    "--dp-eps": [f"--dp-eps={value}" for value in (0, -1, "nan", "-inf", 1000)],
    "--dp-delta": [
        *("--dp-eps 4 --dp-delta 1", "--dp-eps 4 --dp-delta 2"),
        "--dataset digits --clients 3 --dp-eps 1 --dp-delta .5",  # below one over the records
    ],
    "--dp-unit": [
        *("--dp-eps 4 --dp-unit person", "--dp-eps 4 --dp-unit client"),
        "--dp-unit record,client --dp-eps 4",
    ],
    "--images-per-person": ["--images-per-person 0"],
    "--drop": ["--drop 1", "--drop=-0.1", "--drop nan"],
    "--releases": ["--releases 0", "--releases 1", "--releases 8"],
    "--aggregation": ["--aggregation he", "--aggregation prio3"],
    "--vote-budget": ["--vote-budget 1.5"],
    "budget": ["--secure-agg --aggregation prio3 --vote-budget .5"],
    "--min-voters": [
        *("--min-voters 0", "--min-voters 11", "--min-voters 2 --liars --secure-agg"),
        "--min-voters 2 --secure-agg --aggregation prio3",
    ],
    "--liars": ["--liars"],
    "--show-private": ["--show-private"],
    "--rows": ["--rows fedavgg"],
    "--methods": ["--methods FedX", "--methods no.such:X", "--methods math:pi"],
    "--attacks": ["--attacks member", "--attacks ''", "--attacks no.such:X"],
    "--out": ["--out file", "--out file/below", "--out used"],
    "--config": [f"--config {name}.toml" for name in ("nowhere", "broken", "nested")],
}
"""Arguments of `compare` by the option, or the setting, that the sentence is about."""
TABLE = "study accuracy"
OTHERS = {
    "--config": ["compare --config"],
    "--dataset": ["compare --config wrong.toml", "suite --dataset mnits"],
    "--data-dir": [
        *("suite --data-dir missing", f"{TABLE} --data-dir missing"),
        f"{TABLE} --image-sets mnist --splits weak --data-dir .",
    ],
    "--out": [f"{TABLE} --out file"],
    "--epsilon": [f"audit --epsilon {value}" for value in (0, 17, 99)],
    "--delta": ["audit --delta .5"],
    "--unit": ["audit --unit person"],
    "--insecure-seed": ["audit --insecure-seed=-1"],
    "--scenes": ["suite --scenes none", "suite --scenes selektor"],
    "--dp-eps": ["suite --dp-eps 0"],
    "--image-sets": [f"{TABLE} --image-sets mnits", "study dafkd --image-sets dafdk"],
    "--splits": [f"{TABLE} --splits dirichlet:1", "study dafkd --splits dafdk"],
    "--rows": [
        *(f"{TABLE} --rows foo", "study dafkd --rows dafdk", "study private_rivals --rows gdd"),
    ],
    "--seeds": [
        *(f"{TABLE} --seeds 1,x", f"{TABLE} --seeds ²", "study dp_utility --seeds=-1"),
    ],
    "--epsilons": [f"study dp_utility --epsilons {value}" for value in ("0", "4,x", "nan")],
    "--rounds": ["study thresholds --rounds 0"],
    "--records": ["study dafkd_theory --records 0"],
    "--workers": [f"{TABLE} --workers 0"],
    "--fail-if": ["check --fail-if members<2"],
    "--method": ["check --fail-if members>0.6 --method foo"],
    "--factory": ["check --fail-if members>0.6 --factory foo"],
    "--runs": ["check --fail-if members>0.6 --runs 3"],
}
PARSED = {
    "--labels": "compare --labels fuzzy",
    "--clinets": "compare --clinets 3",
    "--clients": "compare --clients three",
    "--dp-eps": "compare --dp-eps four",
    "--rounds": "compare --rounds",
    "digits": "compare digits",
    "--roundz": "compare --config typo.toml",
    "--fail-if": "check",
}
"""Refused by the parser, in a box of its own."""


@pytest.fixture
def ran(capsys):
    """Status, output and errors of a command line."""

    def run(line):
        try:
            status = cli.main(shlex.split(line))
        except SystemExit as ended:
            status = int(ended.code or 0)
        found = capsys.readouterr()
        return status, found.out, found.err

    return run


@pytest.mark.parametrize(
    ("option", "line"),
    [
        *((option, f"compare {line}") for option, lines in COMPARE.items() for line in lines),
        *((option, line) for option, lines in OTHERS.items() for line in lines),
    ],
)
def test_a_mistake_gets_one_sentence(ran, option, line):
    status, out, err = ran(line)
    assert (status, out) == (USAGE, "")
    *before, sentence = err.splitlines()
    assert sentence.startswith(f"error: {option}: ")
    assert " is not allowed; " in sentence
    assert all("cells, into" in line for line in before)
    assert not Path("runs").exists()


@pytest.mark.parametrize(("option", "line"), PARSED.items())
def test_what_cannot_be_parsed_is_named(ran, option, line):
    status, out, err = ran(line)
    assert (status, out) == (USAGE, "")
    assert option in err
    assert "--help" in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("line", "said"), [("comprae", "'comprae' in secure-fd"), ("study alpah", "'alpah' in")]
)
def test_an_unknown_command_is_answered_with_those_that_there_are(ran, line, said):
    status, out, err = ran(line)
    assert (status, out) == (USAGE, "")
    assert said in err.splitlines()[0]
    assert "\n  " in err
