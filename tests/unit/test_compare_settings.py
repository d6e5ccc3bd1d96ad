"""What the comparison's command line takes and refuses, before any work starts."""

import math
import pickle
from dataclasses import replace
from pathlib import Path

import pytest
import tyro

from attacks import COMPARED, PLAYED
from experiments.cli import command
from experiments.comparison import WARM_UP, needs
from experiments.privacy_compare import STUDY, Plan, Settings, cells, plan, row_specs
from experiments.rows import RowSpec
from experiments.study import Store, check_out
from secure_fd.errors import ConfigurationError
from secure_fd.recipes import IMAGE_SETS

CLEAR_ROWS = ["fedavg", "independent", "fedmd-soft", "selective-fd-soft", "selective-fd-hard"]
MASKED_ROWS = ["fedavg", "fedavg-masks", *CLEAR_ROWS[1:], "selective-fd-hard-masks"]
TEN_ROWS = [
    *MASKED_ROWS,
    "selective-fd-hard-masks-dp-label",
    "heads-masks-dp-record",
    "fedavg-dp-sgd",
]


def planned(*arguments: str, environment: str | None = None) -> Plan:
    return plan(tyro.cli(Settings, args=list(arguments)), environment)


@pytest.mark.parametrize(
    ("field", "value", "allowed", "arguments"),
    [
        ("dataset", "'mnist5'", "did you mean mnist5k", ["--dataset", "mnist5"]),
        ("dataset", "'xyz'", "mnist5k, digits, mnist, fashion_mnist", ["--dataset", "xyz"]),
        ("clients", "11", "a strong split of 10 classes takes 2 to 10", ["--clients", "11"]),
        ("clients", "46", "takes 2 to 45", ["--clients", "46", "--split", "weak"]),
        ("split", "'dirichlet:0'", "BETA above 0", ["--split", "dirichlet:0"]),
        ("split", "'dirichlet:inf'", "BETA above 0", ["--split", "dirichlet:inf"]),
        ("split", "'some'", "strong, weak, iid or dirichlet:BETA", ["--split", "some"]),
        ("dp_eps", "-1.0", "a number from 0.01 to 50, or inf", ["--dp-eps", "-1"]),
        ("dp_eps", "nan", "a number from 0.01 to 50, or inf", ["--dp-eps", "nan"]),
        ("dp_eps", "-inf", "a number from 0.01 to 50, or inf", ["--dp-eps=-inf"]),
        ("dp_eps", "1000.0", "a number from 0.01 to 50, or inf", ["--dp-eps", "1000"]),
        ("dp_delta", "1.0", "between 0 and 1", ["--dp-delta", "1"]),
        ("dp_unit", "'house'", "label, record, client", ["--dp-unit", "house"]),
        (
            "dp_unit",
            "'client'",
            "add --secure-agg",
            ["--dp-unit", "record,client", "--dp-eps", "4"],
        ),
        (
            "clients",
            "10",
            "300 or more for its noise to leave a signal; add --dp-small-fleet",
            ["--dp-unit", "client", "--dp-eps", "4", "--secure-agg"],
        ),
        ("attacks", "'bogus'", "all, none, or one or more of label-dist", ["--attacks", "bogus"]),
        ("attacks", "''", "all, none, or one or more of label-dist", ["--attacks", ""]),
        ("methods", "'no.such:X'", "a class that exists", ["--methods", "no.such:X"]),
        ("methods", "'math:pi'", "has client and server, or opinion", ["--methods", "math:pi"]),
        ("attacks", "'no.such:X'", "a class that exists", ["--attacks", "no.such:X"]),
        ("seeds", "0", "1 or more", ["--seeds", "0"]),
        ("proxies_per_round", "0", "1,000 proxies", ["--proxies-per-round", "0"]),
        ("data_dir", "'/no/such'", "an existing folder", ["--data-dir", "/no/such"]),
        ("drop", "-0.1", "from 0 to less than 1", ["--drop", "-0.1"]),
        ("drop", "nan", "from 0 to less than 1", ["--drop", "nan"]),
        ("releases", "0", "1 or more", ["--releases", "0"]),
        ("releases", "8", "1,000 proxies and the survey take 9 or more", ["--releases", "8"]),
        ("aggregation", "'prio3'", "together with --secure-agg", ["--aggregation", "prio3"]),
        ("vote_budget", "1.5", "add --aggregation prio3", ["--vote-budget", "1.5"]),
        (
            "budget",
            "0.5",
            "1 or more",
            ["--secure-agg", "--aggregation", "prio3", "--vote-budget", ".5"],
        ),
    ],
)
def test_a_setting_that_is_not_allowed_gets_one_sentence(field, value, allowed, arguments):
    with pytest.raises(ConfigurationError) as refused:
        planned(*arguments)
    said = str(refused.value)
    assert said.startswith(f"{field}: {value} is not allowed; ")
    assert allowed in said
    assert "\n" not in said


def test_the_data_folder_of_the_environment_is_checked_too(tmp_path):
    with pytest.raises(ConfigurationError, match="data_dir: '/no/such' is not allowed"):
        planned(environment="/no/such")
    assert planned(environment=str(tmp_path)).terms.data_dir == tmp_path
    assert planned("--data-dir", str(tmp_path), environment="/no/such").terms.data_dir == tmp_path


def test_files_that_lack_are_told_before_anything_is_loaded(tmp_path):
    """Also where the delta of a run with noise follows from its records."""
    for arguments in ((), ("--dp-eps", "4")):
        with pytest.raises(ConfigurationError, match=r"data_dir: .* the folder mnist/ must be in"):
            planned("--dataset", "mnist", *arguments, environment=str(tmp_path))
    (tmp_path / "mnist").mkdir()
    with pytest.raises(ConfigurationError, match=r"train-images.* this file must exist"):
        planned("--dataset", "mnist", environment=str(tmp_path))


def test_a_folder_that_cannot_be_made_is_refused_before_the_run(tmp_path):
    taken = tmp_path / "taken"
    taken.write_text("a file")
    for out in (taken, taken / "below"):
        with pytest.raises(ConfigurationError, match=r"out: .* it must be a folder, or one that"):
            check_out(out)
    check_out(tmp_path / "new" / "deep")
    assert not (tmp_path / "new").exists()


def test_a_small_fleet_gets_its_client_row_when_asked_for_twice():
    asked = planned("--dp-unit", "client", "--dp-eps", "4", "--secure-agg", "--dp-small-fleet")
    assert [spec.key for spec in row_specs(asked)] == [
        *MASKED_ROWS,
        "selective-fd-hard-masks-dp-client",
    ]


def test_defaults_are_those_of_the_image_set():
    usual = planned()
    known = IMAGE_SETS["mnist5k"]
    assert (usual.terms.rounds, usual.terms.schedule.proxies_per_round) == (known.rounds, 256)
    assert usual.attacks.names == (*COMPARED, *PLAYED)
    assert usual.units == ("label", "record")
    assert str(STUDY.out(Settings())).startswith("runs/mnist5k-strong-")
    beta = Settings(split="dirichlet:0.5")
    assert STUDY.out(beta).name.startswith("mnist5k-dirichlet0.5-")
    assert STUDY.out(Settings(out=Path("here"))) == Path("here")
    assert planned("--attacks", "none").attacks.names == ()
    assert planned("--dp-unit", "record, record").units == ("record",)


def test_quick_means_fewer_rounds_unless_rounds_are_given():
    quick = planned("--quick")
    assert quick.terms.rounds < planned().terms.rounds
    assert quick.terms.schedule.warmup_steps < planned().terms.schedule.warmup_steps
    assert planned("--quick", "--rounds", "9").terms.rounds == 9


def test_proxies_per_round_reach_the_schedule():
    assert planned("--proxies-per-round", "1000").terms.schedule.proxies_per_round == 1000


@pytest.mark.parametrize(
    ("epsilon", "effective"), [(None, None), ("inf", None), ("4", 4.0), ("50", 50.0)]
)
def test_epsilon_that_does_something(epsilon, effective):
    arguments = [] if epsilon is None else ["--dp-eps", epsilon]
    assert planned(*arguments).terms.epsilon == effective


# Rows.


def keys(*arguments: str) -> list[str]:
    return [spec.key for spec in row_specs(planned(*arguments))]


def test_quick_keeps_five_rows_and_a_short_warm_up_and_all_rows_that_are_asked_for():
    asked = ("--secure-agg", "--dp-eps", "4")
    assert keys("--quick", *asked) == [
        "fedavg",
        "fedmd-soft",
        "selective-fd-hard-masks",
        "selective-fd-hard-masks-dp-label",
        "heads-masks-dp-record",
    ]
    assert keys("--quick") == ["fedavg", "fedmd-soft", "selective-fd-soft", "selective-fd-hard"]
    assert keys("--quick", *asked, "--rows", "fedavg-masks") == ["fedavg-masks"]
    short, whole = (planned(*extra, *asked).terms.schedule for extra in (["--quick"], []))
    assert short.warmup_steps < whole.warmup_steps


def test_the_rows_follow_from_the_flags():
    assert keys() == CLEAR_ROWS
    assert keys("--secure-agg") == MASKED_ROWS
    assert keys("--secure-agg", "--dp-eps", "4") == TEN_ROWS
    assert keys("--secure-agg", "--dp-eps", "inf") == TEN_ROWS
    assert keys("--labels", "soft", "--dp-eps", "4") == [
        "fedavg",
        "independent",
        "fedmd-soft",
        "selective-fd-soft",
        "selective-fd-soft-dp-label",
        "heads-dp-record",
        "fedavg-dp-sgd",
    ]
    assert "fedavg-dp-sgd" not in keys("--dp-eps", "4", "--dp-unit", "label")


def test_encryption_has_a_row_beside_the_masked_one():
    both = keys("--secure-agg", "--aggregation", "he", "--dp-eps", "4")
    assert both == [*MASKED_ROWS, "selective-fd-hard-he", *TEN_ROWS[7:]]
    assert keys("--secure-agg", "--aggregation", "masks") == MASKED_ROWS
    [spec] = row_specs(
        planned("--secure-agg", "--aggregation", "he", "--rows", "selective-fd-hard-he")
    )
    assert (spec.label, spec.secure) == ("Selective-FD hard + HE", "he")


def test_proven_votes_have_a_row_beside_the_masked_one_and_a_budget():
    asked = ("--secure-agg", "--aggregation", "prio3")
    assert keys(*asked) == [*MASKED_ROWS, "selective-fd-hard-prio3"]
    with_liars = keys(*asked, "--liars", "--rows", "all")
    assert with_liars[-2:] == ["selective-fd-hard-prio3-liar-1", "selective-fd-hard-prio3-liar-3"]
    terms = planned(*asked, "--vote-budget", "1.5").terms
    proven = RowSpec("selective-fd", "hard", "prio3")
    masked = replace(proven, secure="masks")
    assert (terms.run(proven, 0).budget, terms.run(masked, 0).budget) == (1.5, None)


def test_liars_have_rows_of_their_own_that_nobody_attacks():
    asked = Settings(dataset="digits", secure_agg=True, liars=True, out=Path("unused"))
    found = {cell.row.key: cell for cell in cells(asked)}
    at = list(found).index("selective-fd-hard-masks")
    assert list(found)[at : at + 3] == [
        "selective-fd-hard-masks",
        "selective-fd-hard-masks-liar-1",
        "selective-fd-hard-masks-liar-3",
    ]
    assert [bool(cell.attacks.names) for cell in list(found.values())[at:][:3]] == [
        True,
        False,
        False,
    ]
    assert found["selective-fd-hard-masks-liar-3"].row.label.endswith("one liar at 3 x bound")


def test_as_many_releases_as_the_run_asks_for_are_enough():
    """Thirty rounds of 256 among 1,000 proxies, and a round less, or fewer proxies in each.

    The survey is one release of every proxy; with one release it is not made.
    """
    assert planned("--releases", "9").settings.releases == 9
    assert planned("--releases", "8", "--rounds", "27").terms.rounds == 27
    assert planned("--releases", "1", "--proxies-per-round", "33").terms.rounds == 30
    with pytest.raises(ConfigurationError, match="releases: 1 is not allowed"):
        planned("--releases", "1", "--proxies-per-round", "34")


def test_rows_are_chosen_by_key():
    assert keys("--rows", "selective-fd-hard, fedavg") == ["fedavg", "selective-fd-hard"]
    with pytest.raises(ConfigurationError, match="rows: 'selective-fd-hard-masks' is not allowed"):
        keys("--rows", "selective-fd-hard-masks")


def test_labels_name_the_method_and_what_protects_it():
    assert RowSpec("fedavg", unit="record").label == "FedAvg + DP-SGD"
    full = RowSpec("selective-fd", "hard", "masks", "label")
    assert full.label == "Selective-FD hard + masks + noise on labels"


# What is saved of the command, and what a worker sends home.


@pytest.mark.parametrize(
    ("given", "saved"),
    [
        (["--out", "/home/me/x", "--quick"], ["--out", "OUT", "--quick"]),
        (["--out=/home/me/x"], ["--out=OUT"]),
        (["--data-dir", "/home/me"], ["--data-dir", "DATA_DIR"]),
        (["--data_dir=/home/me"], ["--data_dir=DATA_DIR"]),
        (["--out", "--out"], ["--out", "OUT"]),
        (
            ["--out", "/a", "--seeds", "2", "--out", "/b"],
            ["--out", "OUT", "--seeds", "2", "--out", "OUT"],
        ),
        (["--rounds", "2"], ["--rounds", "2"]),
    ],
)
def test_the_saved_command_has_no_path_of_this_machine(given, saved):
    assert command("run.py", given) == ["python", "experiments/run.py", *saved]


@pytest.mark.parametrize("value", [3, "text", math.inf, None])
def test_an_error_survives_the_way_from_a_worker(value):
    error = ConfigurationError("field", value, "use another")
    again = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes
    assert (str(again), again.field, type(again)) == (str(error), "field", ConfigurationError)


def test_cells_wait_for_what_their_rows_share():
    """The first seed alone is attacked; FedAvg needs no warm-up; other rows share both."""
    made = cells(Settings(dataset="digits", clients=3, seeds=2, attacks="server-members,inversion"))
    shared = {cell: [part.name for part in needs(cell)] for cell in made}
    assert [cell.seed for cell in made] == [20] * 5 + [21] * 5
    assert list(shared.values())[:2] == [
        ["inversion", "server-members"],
        [WARM_UP, "inversion", "server-members"],
    ]
    assert list(shared.values())[5:7] == [[], [WARM_UP]]
    assert len({part for cell in made for part in needs(cell)}) == 4
    assert pickle.loads(pickle.dumps(made)) == made  # noqa: S301 - our own bytes


def test_repetitions_count_up_from_the_first_seed():
    made = cells(Settings(dataset="digits", clients=3, seed=7, seeds=2, rows="fedavg,fedmd-soft"))
    assert [cell.seed for cell in made] == [7, 7, 8, 8]
    assert [bool(cell.attacks.names) for cell in made] == [True, True, False, False]


def test_delta_must_be_below_one_over_the_records():
    with pytest.raises(ConfigurationError, match=r"dp_delta: 0\.5 is not allowed; use less"):
        cells(Settings(dataset="digits", clients=3, dp_eps=1.0, dp_delta=0.5))


def test_a_method_of_ones_own_that_was_edited_is_run_again(tmp_path, monkeypatch):
    """Its file is no part of a commit, so its content is a part of the cell."""
    monkeypatch.syspath_prepend(tmp_path)
    text = "from secure_fd.methods.fedmd import FedMD as Mine\n"
    settings = Settings(dataset="digits", clients=3, methods="mine:Mine", rows="mine")
    paths = []
    for comment in ("", "# edited\n"):
        (tmp_path / "mine.py").write_text(text + comment)
        [cell] = cells(settings)
        paths.append(Store(tmp_path, STUDY).path(cell))
    assert paths[0] != paths[1]
