"""Plans of the comparison: rows, cells and saved commands that follow from the options."""

import pytest
import tyro

from experiments.cli import command
from experiments.core.study import key_of
from experiments.privacy_compare import Plan, Settings, cells, plan, row_specs
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


def planned(*arguments: str, environment: str | None = None) -> Plan:
    return plan(tyro.cli(Settings, args=list(arguments)), environment)


def keys(*arguments: str) -> list[str]:
    return [spec.key for spec in row_specs(planned(*arguments))]


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
    settings = Settings(dataset="digits", clients=3, methods="mine:Mine", rows="mine")
    keys = []
    for comment in ("", "# edited\n"):
        (tmp_path / "mine.py").write_text(text + comment)
        [cell] = cells(settings)
        keys.append(key_of(cell))
    assert keys[0] != keys[1]
