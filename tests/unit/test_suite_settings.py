"""What the suite's command line refuses, and that its rows are found again and nothing else is."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from attacks.base import AttackResult, RocCurve
from experiments.attack_suite import Settings, plan
from experiments.scenes import SCENES, Job
from experiments.suite import Cell, Done, Store
from secure_fd.errors import ConfigurationError

CELL = Cell("selector", "kulsif", 10)


def result() -> AttackResult:
    return AttackResult(
        name="trilateration",
        title="Trilateration",
        figure=41.0,
        figure_name="PSNR",
        unit="dB",
        interval=(40.0, 42.0),
        control=14.0,
        control_name="its start",
        queries=7,
        caveats=("one image a client",),
        details={"worst": 39.0},
        roc=RocCurve(np.array([0.0, 1.0]), np.array([0.0, 1.0])),
        images={"attack": np.full((2, 4, 4), 0.5, dtype=np.float32)},
    )


def done() -> Done:
    return Done(CELL, {"trilateration": result(), "other": "not applicable: missing sums"}, 1.5)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"dataset": "mnits"}, "did you mean mnist"),
        ({"scenes": "selektor"}, "did you mean selector"),
        ({"scenes": "selector,"}, "use all, or one of"),
        ({"seeds": 0}, "use 1 or more"),
        ({"workers": 0}, "use 1 or more"),
        ({"dp_eps": 0.0}, "from 0.01 to 50"),
        ({"dp_eps": float("inf")}, "from 0.01 to 50"),
        ({"dp_delta": 1.0}, "between 0 and 1"),
        ({"data_dir": Path("missing")}, "existing folder"),
    ],
)
def test_a_mistake_is_named(changed: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        plan(replace(Settings(), **changed), None)  # type: ignore[arg-type]


def test_scenes_keep_their_order_and_quick_takes_one_seed() -> None:
    chosen = plan(Settings(scenes="selector,figure8", quick=True), None)
    assert chosen.scenes == ("figure8", "selector")
    assert chosen.seeds == (10,)
    assert plan(Settings(), None).scenes == tuple(SCENES)
    assert plan(Settings(), None).seeds == (10, 11, 12)


def test_a_row_comes_back_as_it_was(tmp_path: Path) -> None:
    store = Store(tmp_path, Job())
    assert store.find(CELL) is None
    store.save(done())
    found = store.find(CELL)
    assert found is not None
    assert found.seconds == 1.5
    assert found.findings["other"] == "not applicable: missing sums"
    back = found.findings["trilateration"]
    assert isinstance(back, AttackResult)
    assert back.to_json() == result().to_json()
    assert back.images is not None
    assert np.array_equal(back.images["attack"], np.full((2, 4, 4), 0.5))


@pytest.mark.parametrize(
    "job", [Job(epsilon=1.0), Job(delta=1e-6), Job(quick=True), Job(dataset="mnist")]
)
def test_another_job_or_code_has_other_rows(tmp_path: Path, job: Job) -> None:
    Store(tmp_path, Job()).save(done())
    assert Store(tmp_path, job).find(CELL) is None
    assert Store(tmp_path, Job(), "another version").find(CELL) is None
    assert Store(tmp_path, Job(data_dir=Path("elsewhere"))).find(CELL) is not None


@pytest.mark.parametrize(
    "harm",
    ["another cell", "truncated", "field", "number", "no pictures", "half a picture", "list"],
)
def test_a_file_that_is_not_what_it_says_is_refused(tmp_path: Path, harm: str) -> None:
    store = Store(tmp_path, Job())
    store.save(done())
    path = store.path(CELL)
    content = json.loads(path.read_text())
    if harm == "another cell":
        content["cell"]["seed"] = 11
    elif harm == "field":
        content["findings"]["trilateration"]["colour"] = "red"
    elif harm == "no pictures":
        path.with_suffix(".npz").unlink()
    elif harm == "half a picture":
        archive = path.with_suffix(".npz")
        archive.write_bytes(archive.read_bytes()[:100])
    elif harm == "list":
        content["findings"] = []
    elif harm == "number":
        content["seconds"] = "soon"
    path.write_text(json.dumps(content)[: 100 if harm == "truncated" else None])
    with pytest.raises(ConfigurationError, match="remove it to run this one again"):
        store.find(CELL)


def test_an_attack_of_ones_own_is_named_and_checked() -> None:
    own = "examples.own_attack:LargestClass"
    assert plan(Settings(attacks=own), None).job.own == (own,)
    assert "own" not in Job().settings()
    for wrong, words in (
        ("lira", "package.module:Name"),
        ("no.such:Attack", "a class that exists"),
    ):
        with pytest.raises(ConfigurationError, match=words):
            plan(Settings(attacks=wrong), None)
