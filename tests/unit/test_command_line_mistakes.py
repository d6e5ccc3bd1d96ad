"""Mistakes on the command line: one sentence each about what was typed, before any work."""

from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import numpy as np
import pytest
from PIL import Image

from experiments import study
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


COMPARE = [
    ("--dataset mnits", "--dataset", "mnist"),
    ("--dataset own", "--dataset", "--images or --federation"),
    ("--data-dir nowhere", "--data-dir", "existing folder"),
    ("--images nowhere", "--images", "a folder a class"),
    ("--images empty", "--images", "a folder a class"),
    ("--images file", "--images", "a folder a class"),
    ("--images few", "--images", "20 images or more"),
    ("--images torn --split iid --clients 2", "torn", "no image"),
    ("--images one --image-size 4", "--image-size", "16 to 256"),
    ("--images one --clients 40", "--clients", "takes 2 to"),
    ("--images one --dataset mnist", "--dataset", "leave it out"),
    ("--images one --proxies nowhere", "--proxies", "a folder of images"),
    ("--images one --federation a:b", "--federation", "or --images"),
    ("--proxies one", "--proxies", "--images"),
    ("--federation nowhere:make", "--federation", "package.module:name"),
    ("--federation bad_data", "--federation", "package.module:name"),
    ("--federation bad_data:make", "--federation", "function of a seed"),
    ("--federation bad_data:seed", "--federation", "FederatedData"),
    ("--split strng", "--split", "dirichlet:BETA"),
    ("--split dirichlet:-1", "--split", "above 0"),
    ("--clients 1", "--clients", "2 to 10"),
    ("--clients 2 --secure-agg", "--clients", "3 or more"),
    ("--rounds 0", "--rounds", "1 or more"),
    ("--rounds 1000000000000", "--rounds", "at most"),
    ("--seeds 1000000000", "--seeds", "at most"),
    ("--seed=-1", "--seed", "0 or more"),
    ("--workers 0", "--workers", "1 or more"),
    ("--proxies-per-round 1001", "--proxies-per-round", "1,000 proxies"),
    ("--dp-eps 0", "--dp-eps", "0.01 to 50"),
    ("--dp-eps 4 --dp-delta 2", "--dp-delta", "between 0 and 1"),
    ("--dp-eps 4 --dp-unit person", "--dp-unit", "label, record, client"),
    ("--dp-eps 4 --dp-unit client", "--dp-unit", "add --secure-agg"),
    ("--images-per-person 0", "--images-per-person", "use one of"),
    ("--drop 1", "--drop", "less than 1"),
    ("--releases 1", "--releases", "9 or more"),
    ("--aggregation he", "--aggregation", "--secure-agg"),
    ("--require-pq", "--require-pq", "--secure-agg"),
    ("--liars", "--liars", "--secure-agg"),
    ("--rows fedavgg", "--rows", "fedmd-soft"),
    ("--methods FedX", "--methods", "package.module:Name"),
    ("--attacks member", "--attacks", "label-distribution"),
    ("--out file", "--out", "a folder"),
    ("--out used", "--out", "another folder"),
    ("--config nowhere.toml", "--config", "can be read"),
    ("--config broken.toml", "--config", "TOML"),
    ("--config nested.toml", "--config", "a number, a text"),
    ("--config wrong.toml", "--dataset", "mnist"),
    ("--config", "--config", "can be read"),
]
"""Arguments of `compare`, the option that the sentence is about, and what it says to use."""
OTHERS = [
    ("audit --epsilon 99", "--epsilon", "0.1 to 16"),
    ("suite --scenes none", "--scenes", "use"),
    ("suite --dp-eps 0", "--dp-eps", "0.01 to 50"),
    ("study accuracy_table --methods foo", "--methods", "fedmd"),
    ("study thresholds --rounds 0", "--rounds", "1 or more"),
    ("check --fail-if members<2", "--fail-if", "members>0.65"),
    ("check --fail-if members>0.6 --method foo", "--method", "fedavg"),
    ("check --fail-if members>0.6 --factory foo", "--factory", "package.module:name"),
    ("check --fail-if members>0.6 --runs 3", "--runs", "even"),
]
PARSED = [
    ("compare --labels fuzzy", "--labels", "'soft', 'hard', 'both'"),
    ("compare --clinets 3", "--clinets", "--clients"),
    ("compare --clients three", "--clients", "'three'"),
    ("compare --dp-eps four", "--dp-eps", "'four'"),
    ("compare --rounds", "--rounds", "Missing value"),
    ("compare digits", "digits", "Unrecognized"),
    ("compare --config typo.toml", "--roundz", "Unrecognized"),
    ("check", "--fail-if", "members>0.65"),
]
"""Refused by the parser, in a box of its own."""

Ran = Callable[[str], tuple[int, str, str]]


@pytest.fixture
def ran(capsys):
    """Status, output and errors of a command line."""

    def run(line: str) -> tuple[int, str, str]:
        try:
            status = cli.main(line.split())
        except SystemExit as ended:
            status = int(ended.code or 0)
        found = capsys.readouterr()
        return status, found.out, found.err

    return run


@pytest.mark.parametrize(
    ("line", "option", "said"),
    [*((f"compare {line}", option, said) for line, option, said in COMPARE), *OTHERS],
)
def test_a_mistake_gets_one_sentence(ran, line, option, said):
    status, out, err = ran(line)
    assert (status, out) == (USAGE, "")
    *before, sentence = err.splitlines()
    assert sentence.startswith("error: ")
    assert all("cells, into" in line for line in before)
    assert option in sentence.split(" is not allowed")[0]
    assert said in sentence
    assert not Path("runs").exists()


@pytest.mark.parametrize(("line", "option", "said"), PARSED)
def test_what_cannot_be_parsed_is_named(ran, line, option, said):
    status, out, err = ran(line)
    assert (status, out) == (USAGE, "")
    assert option in err
    assert said in err
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


def test_there_are_forty_mistakes():
    assert len(COMPARE) + len(OTHERS) + len(PARSED) >= 40
