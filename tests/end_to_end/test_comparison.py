"""The whole comparison once, tiny, on bundled images: what it leaves is what it should be."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from experiments.results import AttackFigure, Results, Row, load_images, load_results
from secure_fd.aggregation.base import Stage

SCRIPT = Path(__file__).parents[2] / "experiments" / "privacy_compare.py"
ROWS = [
    "fedavg",
    "independent",
    "fedmd-soft",
    "selective-fd-soft",
    "selective-fd-hard",
    "selective-fd-hard-masks",
    "selective-fd-hard-masks-dp-label",
    "selective-fd-hard-masks-dp-record",
    "fedavg-dp-sgd",
]
ATTACKS = ["label-distribution", "inversion", "label-only", "update-inversion"]
COMMAND = ["--dataset", "digits", "--quick", "--rounds", "2", "--clients", "3", "--workers", "1"]


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The results of one run, made from a folder that is not the repository."""
    place = tmp_path_factory.mktemp("elsewhere")
    out = place / "results"
    command = [sys.executable, str(SCRIPT), *COMMAND, "--secure-agg", "--dp-eps", "4"]
    made = subprocess.run(  # noqa: S603 - our own script
        [*command, f"--out={out}"],
        cwd=place,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert made.returncode == 0, made.stderr
    assert "Traceback" not in made.stderr
    assert all(row in made.stdout for row in ("FedMD soft", "Selective-FD hard + masks"))
    assert [path.name for path in place.iterdir()] == ["results"]
    return out


@pytest.fixture(scope="session")
def results(folder: Path) -> Results:
    return load_results(folder)


@pytest.fixture(scope="session")
def rows(results: Results) -> dict[str, Row]:
    return {row.key: row for row in results.rows}


def test_every_row_is_there_with_every_attack(results: Results) -> None:
    assert [row.key for row in results.rows] == ROWS
    for row in results.rows:
        assert list(row.attacks) == ATTACKS
        assert row.rounds == 2
        assert [point.round for point in row.curve] == [1, 2]
        assert len(row.accuracy.per_client) == 3


def test_masks_cost_no_accuracy(rows: dict[str, Row]) -> None:
    clear, masked = rows["selective-fd-hard"], rows["selective-fd-hard-masks"]
    assert masked.accuracy == clear.accuracy
    assert masked.bytes_up > clear.bytes_up
    assert masked.attacks["inversion"] == clear.attacks["inversion"]


def test_a_sum_says_what_it_cost_and_who_was_in_it(rows: dict[str, Row]) -> None:
    assert rows["independent"].aggregation is None
    for key in set(ROWS) - {"independent"}:
        made = rows[key].aggregation
        assert made is not None
        assert made.name == ("masks" if "masks" in key else "plain")
        assert (made.void_rounds, made.survivors) == (0, 3.0)
        assert made.missing == {str(stage): [0, 0, 0] for stage in Stage}
    costs = [rows[key].aggregation for key in ("selective-fd-hard", "selective-fd-hard-masks")]
    clear, masked = (made.seconds for made in costs if made is not None)
    assert 0 < clear < masked


def figure(row: Row, attack: str) -> AttackFigure:
    found = row.figure(attack)
    assert found is not None
    return found


def test_masks_take_label_histograms_from_the_server(rows: dict[str, Row]) -> None:
    attack = "label-distribution"
    for key in ("selective-fd-soft", "selective-fd-hard"):
        assert figure(rows[key], attack).figure < 0.05
    for key in ROWS[5:7]:
        blind = figure(rows[key], attack)
        assert blind.figure == blind.control
        assert blind.figure > 0.4


def test_classes_that_the_record_unit_declares_are_known(rows: dict[str, Row]) -> None:
    declared = figure(rows["selective-fd-hard-masks-dp-record"], "label-distribution")
    assert declared.declared
    assert declared.figure < 0.05


def test_updates_tell_labels_and_pictures(rows: dict[str, Row]) -> None:
    assert figure(rows["fedavg"], "label-distribution").figure < 0.05
    assert figure(rows["fedavg"], "update-inversion").exact == 1.0
    private = figure(rows["fedavg-dp-sgd"], "update-inversion")
    assert private.exact == 0.0
    assert private.control is not None
    assert private.figure < private.control + 1.0
    for key in set(ROWS) - {"fedavg", "fedavg-dp-sgd"}:
        assert "no parameters cross" in str(rows[key].attacks["update-inversion"])


def test_every_private_row_says_what_its_epsilon_means(rows: dict[str, Row]) -> None:
    expected = {
        "selective-fd-hard-masks-dp-label": ("label", 4.0, 0.0),
        "selective-fd-hard-masks-dp-record": ("record", 4.0, 1e-5),
        "fedavg-dp-sgd": ("record", 4.0, 1e-5),
    }
    for key, row in rows.items():
        if key not in expected:
            assert row.privacy is None
            continue
        assert row.privacy is not None
        unit, epsilon, delta = expected[key]
        told = (row.privacy["unit"], row.privacy["epsilon"], row.privacy["delta"])
        assert told == (unit, pytest.approx(epsilon, rel=1e-6), delta)
        assert row.privacy["holds"] is True
        assert f"The {unit} unit has epsilon {epsilon:g} at delta {delta:g}" in row.guarantee
        for words in (
            "neighbours differ in",
            "it covers",
            "it does not cover",
            "the accounting is",
        ):
            assert words in row.guarantee


def test_an_attack_that_cannot_be_made_says_why(rows: dict[str, Row]) -> None:
    record = rows["selective-fd-hard-masks-dp-record"].attacks["label-only"]
    assert record == "not applicable: missing label queries to the final model (outsider)"
    alone = rows["independent"].attacks
    assert str(alone["label-distribution"]).startswith("not applicable: missing ")
    assert str(alone["inversion"]).startswith("not applicable: missing ")
    for key in set(ROWS) - {"selective-fd-hard-masks-dp-record"}:
        asked = figure(rows[key], "label-only")
        assert asked.queries > 0
        assert asked.control is not None
        assert asked.interval is not None


def test_nothing_names_this_machine(folder: Path, results: Results) -> None:
    text = (folder / "results.json").read_text()
    for place in {str(folder), str(Path.home()), str(SCRIPT.parents[1]), sys.prefix}:
        assert place not in text
        assert place not in (folder / "report.html").read_text()
    assert results.command == [
        "python",
        "experiments/privacy_compare.py",
        *COMMAND,
        "--secure-agg",
        "--dp-eps",
        "4",
        "--out=OUT",
    ]
    assert json.loads(text)["insecure"] == []
    assert "follow from the public seed 10, so that rows can be compared" in text


def test_the_report_needs_nothing_from_outside(folder: Path) -> None:
    page = (folder / "report.html").read_text()
    loaded = re.findall(r"""(?:src|href|action|data|poster)\s*=\s*["']([^"']*)""", page)
    loaded += re.findall(r"url\(([^)]*)\)", page)
    assert any(link.startswith("data:image/png") for link in loaded)
    assert [link for link in loaded if not link.startswith(("data:", "#"))] == []
    assert "@import" not in page
    assert all(name in page for name in ("Selective-FD hard + masks", "FedAvg + DP-SGD"))


def test_reconstructions_are_of_the_classes_that_somebody_holds(folder: Path) -> None:
    images = load_images(folder)
    assert {"fedavg", "selective-fd-hard-masks", "originals"} <= set(images)
    assert "independent" not in images
    assert {len(pictures) for pictures in images.values()} == {3}


def test_plots_are_there(folder: Path) -> None:
    assert {path.suffix for path in folder.iterdir()} == {".json", ".html", ".npz", ".png"}
    assert all(path.stat().st_size > 1000 for path in folder.glob("*.png"))
