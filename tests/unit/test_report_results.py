"""results.json and reconstructions.npz: round trip, strictness, atomicity."""

import dataclasses
import json
import math
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pytest
from report_sample import images, sample, with_row

from experiments import results
from experiments import results as files
from experiments.results import (
    IMAGES_FILE,
    RESULTS_FILE,
    AttackFigure,
    load_images,
    load_results,
    save_images,
    save_results,
)
from secure_fd.errors import ConfigurationError


def test_round_trip(tmp_path: Path) -> None:
    original = sample()
    save_results(original, tmp_path)
    assert load_results(tmp_path) == original


def test_numpy_numbers_become_plain_ones(tmp_path: Path) -> None:
    original = with_row(sample(1), 0, bytes_up=np.float32(3.0), diagnostics={"n": np.int64(4)})
    save_results(original, tmp_path)
    row = load_results(tmp_path).rows[0]
    assert type(row.bytes_up) is float
    assert row.diagnostics == {"n": 4.0}


def test_infinite_epsilon_is_text_and_the_file_is_standard_json(tmp_path: Path) -> None:
    save_results(with_row(sample(1), 0, privacy={"epsilon": math.inf, "delta": None}), tmp_path)
    text = (tmp_path / RESULTS_FILE).read_text(encoding="utf-8")
    assert "Infinity" not in text
    assert load_results(tmp_path).rows[0].privacy == {"epsilon": "inf", "delta": None}


@pytest.mark.parametrize(
    ("changes", "place"),
    [
        ({"seconds": math.nan}, "results.rows[1].seconds"),
        ({"bytes_up": math.inf}, "results.rows[1].bytes_up"),
        ({"privacy": {"epsilon": math.nan}}, "results.rows[1].privacy.epsilon"),
        ({"privacy": {"sampler": object()}}, "results.rows[1].privacy.sampler"),
        ({"rounds": 2.5}, "results.rows[1].rounds"),
    ],
)
def test_save_refuses_what_load_would(tmp_path: Path, changes: dict[str, Any], place: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        save_results(with_row(sample(2), 1, **changes), tmp_path)
    assert caught.value.field == place
    assert list(tmp_path.iterdir()) == []


def _edit(folder: Path, path: list[Any], value: object) -> None:
    """Put a value at a place of the JSON file; the last step of `path` is a key."""
    file = folder / RESULTS_FILE
    content = json.loads(file.read_text(encoding="utf-8"))
    place = content
    for step in path[:-1]:
        place = place[step]
    if value is ...:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    file.write_text(json.dumps(content), encoding="utf-8")


@pytest.mark.parametrize(
    ("path", "value", "field"),
    [
        (["schema"], "secure-fd/privacy-compare/1", "schema"),
        (["schema"], ..., "schema"),
        (["seeds"], ..., "results.seeds"),
        (["surprise"], 1, "results.surprise"),
        (["rows", 0, "guarantee"], ..., "results.rows[0].guarantee"),
        (["rows", 0, "accuracy", "mean"], "high", "results.rows[0].accuracy.mean"),
        (["rows", 0, "accuracy", "mean"], True, "results.rows[0].accuracy.mean"),
        (["rows", 0, "accuracy", "mean"], 1.01, "accuracy"),
        (["rows", 0, "bytes_up"], -1, "bytes_up"),
        (["rows", 0, "aggregation"], ..., "results.rows[0].aggregation"),
        (["rows", 0, "aggregation", "seconds"], -1.0, "seconds"),
        (["rows", 0, "aggregation", "missing", "input", 0], 0.5, None),
        (["rows", 0, "attacks", "inversion"], "skipped", "inversion"),
        (["rows", 0, "attacks", "inversion"], 3, "results.rows[0].attacks.inversion"),
        (
            ["rows", 0, "attacks", "inversion", "interval"],
            [1.0],
            "results.rows[0].attacks.inversion.interval",
        ),
        (["rows", 0, "attacks", "inversion", "interval"], [2.0, 1.0], "interval"),
        (["rows", 0, "attacks", "label-only", "roc"], {"fpr": [0.0]}, "roc"),
        (["rows", 0, "curve", 0, "round"], 1.5, "results.rows[0].curve[0].round"),
        (["rows", 1, "key"], "fedavg", "rows"),
        (["rows"], [], "rows"),
        (["created"], "yesterday", "created"),
        (["created"], "2025-01-31T12:00:00", "created"),
    ],
)
def test_load_names_what_is_wrong(
    tmp_path: Path, path: list[Any], value: object, field: str | None
) -> None:
    save_results(sample(2), tmp_path)
    _edit(tmp_path, path, value)
    with pytest.raises(ConfigurationError) as caught:
        load_results(tmp_path)
    message = str(caught.value)
    assert caught.value.field == field if field else str(path[-2]) in message
    assert "\n" not in message
    assert len(message) < 300


@pytest.mark.parametrize("content", ["", "[]", "nonsense", '{"schema": NaN}', "\xff"])
def test_load_refuses_other_files(tmp_path: Path, content: str) -> None:
    (tmp_path / RESULTS_FILE).write_bytes(content.encode("latin-1"))
    with pytest.raises(ConfigurationError):
        load_results(tmp_path)


def test_load_refuses_a_number_too_large_for_a_float(tmp_path: Path) -> None:
    save_results(sample(1), tmp_path)
    file = tmp_path / RESULTS_FILE
    text = file.read_text(encoding="utf-8")
    file.write_text(text.replace('"seconds": 412.7', '"seconds": 1e999'), encoding="utf-8")
    with pytest.raises(ConfigurationError, match=r"results\.seconds"):
        load_results(tmp_path)


def test_load_of_an_empty_folder(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=RESULTS_FILE):
        load_results(tmp_path)


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_failure_in_the_middle_keeps_the_old_file(
    tmp_path: Path, error: type[BaseException]
) -> None:
    def half(file: BinaryIO) -> None:
        file.write(b"half of it")
        raise error

    path = tmp_path / "file"
    with pytest.raises(error):
        files.write_atomically(path, half)
    assert list(tmp_path.iterdir()) == []
    path.write_bytes(b"old")
    with pytest.raises(error):
        files.write_atomically(path, half)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_save_survives_an_interrupt_before_the_replacement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_results(sample(1), tmp_path)

    def interrupted(descriptor: int) -> None:
        raise KeyboardInterrupt(descriptor)

    monkeypatch.setattr(files.os, "fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        save_results(sample(2), tmp_path)
    with pytest.raises(KeyboardInterrupt):
        save_images(images(), tmp_path)
    assert load_results(tmp_path) == sample(1)
    assert [path.name for path in tmp_path.iterdir()] == [RESULTS_FILE]


def test_images_round_trip(tmp_path: Path) -> None:
    original = images()
    save_images(original, tmp_path)
    loaded = load_images(tmp_path)
    assert list(loaded) == list(original)
    for name, array in original.items():
        np.testing.assert_allclose(loaded[name], array, atol=1e-6)


def test_no_images_is_no_error(tmp_path: Path) -> None:
    assert load_images(tmp_path) == {}


@pytest.mark.parametrize(
    ("name", "array"),
    [
        ("fedavg", np.zeros((8, 27, 28))),
        ("fedavg", np.zeros((28, 28))),
        ("fedavg", np.full((8, 28, 28), np.nan)),
    ],
)
def test_images_of_another_shape_are_refused(tmp_path: Path, name: str, array: np.ndarray) -> None:
    with pytest.raises(ConfigurationError, match=name):
        save_images(images() | {name: array}, tmp_path)
    assert not (tmp_path / IMAGES_FILE).exists()


def test_images_need_originals(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="originals"):
        save_images({"fedavg": np.zeros((1, 28, 28))}, tmp_path)


@pytest.mark.parametrize(
    ("interval", "control", "expected"),
    [
        ((0.4, 0.6), 0.5, False),
        ((0.4, 0.6), 0.6, False),
        ((0.4, 0.6), 0.61, False),  # the control is uncertain too
        ((0.4, 0.6), 0.65, True),
        ((0.4, 0.6), 0.35, True),
        (None, 0.1, False),
        ((0.4, 0.6), None, False),
    ],
)
def test_differs_from_control(
    interval: tuple[float, float] | None, control: float | None, *, expected: bool
) -> None:
    found = sample(1).rows[0].figure("label-only")
    assert isinstance(found, AttackFigure)
    changed = dataclasses.replace(found, figure=0.5, interval=interval, control=control)
    assert changed.differs_from_control is expected


@pytest.mark.parametrize(("p_value", "expected"), [(0.01, True), (0.2, False)])
def test_a_stated_p_value_must_agree(p_value: float, *, expected: bool) -> None:
    found = sample(1).rows[0].figure("inversion")
    assert isinstance(found, AttackFigure)
    details = {**found.details, "delta_p_value": p_value}
    changed = dataclasses.replace(
        found, figure=2.0, interval=(1.9, 2.1), control=0.0, details=details
    )
    assert changed.differs_from_control is expected


def test_schema_constant_is_the_contract() -> None:
    assert results.SCHEMA == "secure-fd/privacy-compare/2"


COMMITTED = ("fashion_mnist", "mnist", "mnist5k", "mnist5k_drop", "mnist_declared")


@pytest.mark.parametrize("name", COMMITTED)
def test_committed_comparisons_stay_readable(name: str) -> None:
    path = Path(__file__).parents[2] / "docs" / "results" / f"{name}.json"
    found = results.read(path, results.Results, "results")
    assert found.rows
    assert all(row.curve for row in found.rows)
