"""The whole comparison once, tiny, on bundled images: what it leaves is what it should be."""

import json
import sys
from pathlib import Path

import pytest

from experiments.compare.comparison import ABORTED_ROUNDS, SURVIVORS
from experiments.core import pool
from experiments.core.measures import BYTES_UP
from experiments.core.study import read_results
from experiments.privacy_compare import STUDY, main
from secure_fd.wire import Stage
from tests.programs import ROOT, ended

SCRIPT = ROOT / "experiments" / "privacy_compare.py"
ROWS = [
    "fedavg",
    "fedavg-masks",
    "selective-fd-hard",
    "selective-fd-hard-masks",
    "selective-fd-hard-masks-dp-label",
    "fedavg-dp-sgd",
    "heads-masks-dp-record",
    "independent",
]
ATTACKS = ["label-distribution"]
"""test_compare_combinations.py has the others, which take longest."""
COMMAND = [
    *("--dataset", "digits", "--quick", "--rounds", "2", "--clients", "3", "--workers", "1"),
    *("--labels", "hard", "--secure-agg", "--dp-eps", "4", "--attacks", ",".join(ATTACKS)),
    *("--rows", ",".join(ROWS)),  # --quick alone keeps five
]


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """The results of one run, made from a folder that is not the repository."""
    place = tmp_path_factory.mktemp("elsewhere")
    made = ended(SCRIPT, *COMMAND, f"--out={place / 'results'}", cwd=place, timeout=600)
    assert made.returncode == 0, made.stderr
    assert "Traceback" not in made.stderr
    assert all(row in made.stdout for row in ("FedAvg + DP-SGD", "Pooled heads + masks"))
    assert [path.name for path in place.iterdir()] == ["results"]
    return place / "results"


@pytest.fixture(scope="session")
def rows(folder):
    found = read_results(STUDY, folder / "privacy_compare.json")
    return {result.cell.config.row.key: result for result in found.cells}


def test_every_row_is_there_with_every_attack_and_its_sum(rows):
    assert list(rows) == ROWS
    for key, row in rows.items():
        assert list(row.attacks) == ATTACKS
        assert [point.round for point in row.curve] == [1, 2]
        assert len(row.per_client) == 3
        if key == "independent":
            assert (row.notes["sum"], row.figures[BYTES_UP]) == (None, 0)
            continue
        assert row.notes["sum"] == ("masks" if "masks" in key else "plain")
        assert (row.figures[ABORTED_ROUNDS], row.figures[SURVIVORS]) == (0, 3)
        assert row.notes["missing"] == {str(stage): [0, 0, 0] for stage in Stage}


def test_masks_cost_bytes(rows):
    for key in ("fedavg", "selective-fd-hard"):
        assert rows[f"{key}-masks"].figures[BYTES_UP] > rows[key].figures[BYTES_UP] > 0


def test_masks_take_label_histograms_from_the_server(rows):
    found = {key: row.attacks["label-distribution"] for key, row in rows.items()}
    assert all(found[key].figure < 0.1 for key in ("fedavg", "selective-fd-hard"))
    for blind in (found[key] for key in ROWS if "masks" in key):
        assert blind.figure == blind.control
        assert blind.figure > 0.4


def test_every_private_row_has_the_epsilon_that_was_asked_for(rows):
    found = {
        key: (claim["unit"], claim["epsilon"], claim["delta"], claim["holds"])
        for key, row in rows.items()
        if (claim := row.notes["privacy"]) is not None
    }
    four = pytest.approx(4.0, rel=1e-6)
    assert found == {
        "selective-fd-hard-masks-dp-label": ("label", four, 0.0, True),
        "heads-masks-dp-record": ("record", four, pytest.approx(1e-5), True),
        "fedavg-dp-sgd": ("record", four, pytest.approx(1e-5), True),
    }


def test_the_run_leaves_its_page_and_names_nothing_of_this_machine(folder):
    text = (folder / "privacy_compare.json").read_text()
    page = (folder / "report.html").read_text()
    for place in {str(folder), str(Path.home()), str(SCRIPT.parents[1]), sys.prefix}:
        assert place not in text + page
    command = ["python", "experiments/privacy_compare.py", *COMMAND, "--out=OUT"]
    assert json.loads(text)["command"] == command
    assert "follow from the public seed 20, so that rows can be compared" in text
    assert all(name in page for name in ("Selective-FD hard + masks", "FedAvg + DP-SGD"))
    assert {path.name for path in folder.iterdir()} == {
        *("cells.jsonl", "code.json", "privacy_compare.json", "privacy_compare.txt"),
        "privacy_compare.cpu_seconds",
        *("report.html", "run.toml"),
        "accuracy_bytes.png",
    }


def test_a_second_run_into_the_same_folder_has_nothing_to_do(folder, monkeypatch):
    """In this process, where a worker would be missed."""
    monkeypatch.setattr(pool, "working", None)
    before = read_results(STUDY, folder / "privacy_compare.json").cells
    assert main([*COMMAND, f"--out={folder}"]) == 0
    assert read_results(STUDY, folder / "privacy_compare.json").cells == before
