"""Options of a command line or a TOML file, and the rows, cells and saved commands of a run."""

import math
import sys
from dataclasses import replace

import hypothesis
import pytest
import tyro
from hypothesis import given
from hypothesis import strategies as st

from experiments.cli import command
from experiments.core import study
from experiments.core.files import RUN, written
from experiments.core.provenance import code
from experiments.core.study import claim_folder, key_of
from experiments.privacy_compare import STUDY, Plan, Settings, cells, main, plan, row_specs
from secure_fd.cli import USAGE_ERROR, expanded
from secure_fd.errors import MissingCapabilityError
from tests.refusals import refused

OTHERS = ["fedmd-soft", "selective-fd-soft"]
CLEAR_ROWS = ["fedavg", "selective-fd-hard", *OTHERS, "independent"]
MASKED = ["fedavg", "fedavg-masks", "selective-fd-hard", "selective-fd-hard-masks"]
MASKED_ROWS = [*MASKED, *OTHERS, "independent"]
NOISY = "selective-fd-hard-masks-dp-label"
RECORD = ["fedavg-dp-sgd", "heads-masks-dp-record", "independent"]
TEN_ROWS = [*MASKED, NOISY, *OTHERS, *RECORD]
SOFT_ROWS = [
    *("fedavg", "selective-fd-soft", "selective-fd-soft-dp-label", "fedmd-soft"),
    *("fedavg-dp-sgd", "heads-dp-record", "independent"),
]


def settings(*arguments: str) -> Settings:
    return tyro.cli(Settings, args=expanded(arguments))


def planned(*arguments: str) -> Plan:
    return plan(settings(*arguments), None)


@pytest.mark.parametrize(("kind", "library"), [("he", "tenseal"), ("prio3", "Crypto")])
def test_a_sum_whose_library_is_missing_is_refused_before_any_work(monkeypatch, kind, library):
    monkeypatch.setitem(sys.modules, library, None)  # as if it were not installed
    with pytest.raises(MissingCapabilityError, match=rf"secure-fd\[{kind}\]"):
        planned("--secure-agg", "--aggregation", kind)


def keys(*arguments: str) -> list[str]:
    return [spec.key for spec in row_specs(planned(*arguments))]


def test_two_runs_that_start_in_one_second_have_two_folders():
    assert STUDY.folder_of(settings()) != STUDY.folder_of(settings())


@pytest.mark.parametrize(
    ("asked", "rows"),
    [
        ("", CLEAR_ROWS),
        ("--secure-agg", MASKED_ROWS),
        ("--secure-agg --aggregation masks", MASKED_ROWS),
        ("--secure-agg --dp-eps 4", TEN_ROWS),
        ("--secure-agg --dp-eps inf", TEN_ROWS),
        ("--labels soft --dp-eps 4", SOFT_ROWS),
        (
            "--secure-agg --aggregation he --dp-eps 4",
            [*MASKED, "selective-fd-hard-he", *TEN_ROWS[4:]],
        ),
        (
            "--secure-agg --aggregation prio3",
            [*MASKED, "selective-fd-hard-prio3", *MASKED_ROWS[4:]],
        ),
        (
            "--dp-unit client --dp-eps 4 --secure-agg --dp-small-fleet",
            [*MASKED, "selective-fd-hard-masks-dp-client", *MASKED_ROWS[4:]],
        ),
        (
            "--dp-unit label --dp-eps 4",
            [*CLEAR_ROWS[:2], "selective-fd-hard-dp-label", *CLEAR_ROWS[2:]],
        ),
        ("--rows fedmd-soft,fedavg", ["fedavg", "fedmd-soft"]),
        (
            "--secure-agg --methods examples.own_method:Majority --rows majority,majority-masks",
            ["majority", "majority-masks"],
        ),
    ],
)
def test_the_rows_follow_from_the_flags(asked, rows):
    assert keys(*asked.split()) == rows


@pytest.mark.parametrize("sums", ["masks", "prio3"])
def test_liars_have_rows_of_their_own_that_are_not_attacked(sums):
    asked = Settings(dataset="digits", secure_agg=True, aggregation=sums, liars=True)
    found = {cell.config.row.key: bool(cell.attacks) for cell in cells(asked)}
    key = f"selective-fd-hard-{sums}"
    attacked = {key: True, f"{key}-liar-1": False, f"{key}-liar-3": False}
    assert {name: each for name, each in found.items() if name.startswith(key)} == attacked


def test_as_many_releases_as_the_run_asks_for_are_enough():
    """Thirty rounds of 256 among 1,000 proxies, and a round less, or fewer proxies in each.

    The survey is one release of every proxy; with one release it is not made.
    """
    assert planned("--releases", "9").settings.releases == 9
    assert planned("--releases", "8", "--rounds", "27").base.rounds == 27
    assert planned("--releases", "1", "--proxies-per-round", "33").base.rounds == 30
    with refused("releases"):
        planned("--releases", "1", "--proxies-per-round", "34")


@pytest.mark.parametrize(
    ("given", "saved"),
    [
        (["--out", "/home/me/x", "--quick"], ["--out", "OUT", "--quick"]),
        (["--out=/home/me/x"], ["--out=OUT"]),
        (["--data-dir", "/home/me"], ["--data-dir", "DATA_DIR"]),
        (["--data_dir=/home/me"], ["--data_dir=DATA_DIR"]),
        (["--out", "--out"], ["--out", "OUT"]),
        (["--rounds", "2"], ["--rounds", "2"]),
    ],
)
def test_the_saved_command_has_no_path_of_this_machine(given, saved):
    assert command("run.py", given) == ["python", "experiments/run.py", *saved]


def test_a_user_supplied_method_that_was_edited_is_run_again(tmp_path, monkeypatch):
    """Its file is no part of a commit, so its content is a part of the cell."""
    monkeypatch.syspath_prepend(tmp_path)
    text = "from secure_fd.methods.fedmd import FedMD as Mine\n"
    chosen = Settings(dataset="digits", clients=3, methods="mine:Mine", rows="mine")
    keys = []
    for comment in ("", "# edited\n"):
        (tmp_path / "mine.py").write_text(text + comment)
        [cell] = cells(chosen)
        keys.append(key_of(cell))
    assert keys[0] != keys[1]


# Files of options.

TINY = ["--dataset", "digits", "--clients", "3", "--rounds", "1", "--attacks", "none"]


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
