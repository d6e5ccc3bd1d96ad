"""Options in a TOML file, the settings that a run leaves, and folders that hold one run."""

import math
from dataclasses import replace

import hypothesis
import pytest
import tyro
from hypothesis import given
from hypothesis import strategies as st

from experiments.core import study
from experiments.core.files import RUN, written
from experiments.core.provenance import code
from experiments.core.study import claim_folder
from experiments.privacy_compare import Settings, main
from secure_fd.cli import USAGE_ERROR, expanded
from tests.refusals import refused

TINY = ["--dataset", "digits", "--clients", "3", "--rounds", "1", "--attacks", "none"]


def settings(*arguments: str) -> Settings:
    return tyro.cli(Settings, args=expanded(arguments))


def test_options_of_a_file_yield_to_typed_ones(tmp_path):
    path = tmp_path / "any.toml"
    path.write_text('dp-eps = 2\nsecure_agg = true\nrows = ["fedavg", "fedmd-soft"]\nseeds = 3\n')
    found = settings("--seeds", "2", "--config", str(path))
    assert (found.dp_eps, found.secure_agg, found.rows) == (2.0, True, "fedavg,fedmd-soft")
    assert found.seeds == 2
    assert not settings(f"--config={path}", "--no-secure-agg").secure_agg


@pytest.mark.parametrize(
    "content",
    [
        *(b"dp-eps = ", b"\xff", b"x = 1\n" * 20_000, b"[terms]\ndp-eps = 1", b"seeds = [[1]]"),
        *(b"begun = 2026-01-01", b'config = "other.toml"', b'"--seeds" = 2'),
    ],
)
def test_a_file_of_anything_else_is_refused(tmp_path, content):
    path = tmp_path / "bad.toml"
    path.write_bytes(content)
    with refused("--config"):
        expanded(["--config", str(path)])


texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)


@hypothesis.settings(deadline=None)
@given(texts, st.floats(allow_nan=False), st.booleans())
def test_the_settings_that_a_run_stores_are_read_back(tmp_path_factory, text, number, truth):
    path = tmp_path_factory.mktemp("run") / RUN
    made = replace(settings(), split=text, drop=number, secure_agg=truth, dp_eps=math.inf)
    path.write_text(written(made), encoding="utf-8", newline="")
    assert settings("--config", str(path)) == made


def test_the_command_refuses_another_run_before_it_works(tmp_path, monkeypatch, capsys):
    def run(*_: object) -> None:
        pytest.fail("it began to work")

    monkeypatch.setattr(study, "run_missing", run)
    claim_folder(tmp_path, written(settings(*TINY)), code())
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    assert main([*TINY, "--seeds", "2", "--out", str(tmp_path)]) == USAGE_ERROR
    assert "(--seeds)" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before
