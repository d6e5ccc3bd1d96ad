"""Figures of served rounds for tools that draw them, with tools of our own in their place."""

import json
import logging
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from secure_fd.data.federated import FederatedData, federate
from secure_fd.data.partition import parse_split
from secure_fd.data.sources import load
from secure_fd.flower import commands, serve
from secure_fd.flower.export import exporting, tools
from secure_fd.flower.roster import Terms
from secure_fd.flower.serving import described
from secure_fd.flower.virtual import ROSTER, SERVER, VirtualFederation
from secure_fd.recipes import Sizes
from secure_fd.reporting import figures
from secure_fd.transcript import RoundReport
from tests.flower_federation import Courier, World

SITES = 3
TERMS = Terms(image_set="digits", rounds=2, deadline=5)
Logged = list[tuple[int, dict[str, float]]]


class NotThereError(Exception):
    """What the tool in MLflow's place raises where its server does not answer."""


@pytest.fixture(scope="module")
def data() -> FederatedData:
    sizes = Sizes(proxies=40, test=10, held_out=4, local=100)
    return federate(load("digits"), parse_split("iid"), SITES, seed=0, sizes=sizes)


@pytest.fixture
def mlflow(monkeypatch: pytest.MonkeyPatch) -> Logged:
    """What was logged, by round."""
    logged: Logged = []
    fake: Any = ModuleType("mlflow")
    fake.log_metrics = lambda numbers, step: logged.append((step, numbers))
    fake.MlflowException = NotThereError
    monkeypatch.setitem(sys.modules, "mlflow", fake)
    return logged


@pytest.fixture
def writers(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[Any]]:
    """What was written, by folder; None stands for the end of a file."""
    written: dict[str, list[Any]] = {}

    class Writer:
        def __init__(self, folder: str) -> None:
            self.mine = written.setdefault(folder, [])

        def add_scalar(self, name: str, value: float, step: int) -> None:
            self.mine.append((name, value, step))

        def flush(self) -> None:
            pass

        def close(self) -> None:
            self.mine.append(None)

    fake: Any = ModuleType("torch.utils.tensorboard")
    fake.SummaryWriter = Writer
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", fake)
    return written


def _round(index: int, **other: Any) -> dict[str, Any]:  # noqa: ANN401 - fields of a line
    line: dict[str, Any] = {
        "event": "round",
        "index": index,
        "void": False,
        "kept": 0.5,
        "survivors": [[0, 1, 2]],
        "refused": {},
        "silent": [],
        "bytes_up": 300,
        "bytes_down": 30,
        "clock": {"computing": 2.0, "stages": 2},
    }
    return line | other


def test_rounds_of_the_loop_have_the_figures_of_a_run_in_one_process(
    data: FederatedData, tmp_path: Path, mlflow: Logged
) -> None:
    world = World(data, tmp_path, TERMS)
    outcomes = list(world.serve(Courier(world)).run(TERMS.rounds))
    lines = [json.loads(json.dumps({"event": "round"} | described(one))) for one in outcomes]
    with exporting(tools(None, mlflow=True), SITES) as export:
        for line in lines:
            export(line)
    assert [index for index, _ in mlflow] == [0, 1]
    last = mlflow[1][1]
    report = RoundReport(0, 1.0, 0.0, 0.0, 0.0, survivors=(), missing=())
    assert set(figures(report)) - set(last) == {"single_contributors"}
    assert 0 < last["kept"] <= 1
    assert last["clients_in_the_sum"] == SITES
    assert last["bytes_up"] == sum(one.bytes_up for one in outcomes) / SITES
    assert last["bytes_up"] > mlflow[0][1]["bytes_up"] > 1000
    assert last["seconds_computing"] == outcomes[1].clock.rounded()["computing"]


def test_a_void_round_has_nobody_in_its_sum(mlflow: Logged) -> None:
    with exporting(tools(None, mlflow=True), SITES) as export:
        export(_round(0, void=True, kept=0.0, refused={"1": "a word"}, silent=[2]))
    numbers = mlflow[0][1]
    counted = ("clients_in_the_sum", "void", "refused", "silent")
    assert [numbers[name] for name in counted] == [0.0, 1.0, 1.0, 1.0]


def test_a_share_that_the_server_does_not_know_is_left_out(mlflow: Logged) -> None:
    with exporting(tools(None, mlflow=True), SITES) as export:
        export(_round(0, kept=None))
    assert "kept" not in mlflow[0][1]


def _served(lines: list[dict[str, Any]]) -> Callable[..., bool]:
    """In the place of Flower's processes: what the journal says."""

    def run(_: serve.Place, tell: Callable[[Mapping[str, Any]], None]) -> bool:
        for line in lines:
            tell(line)
        return True

    return run


def _home(data: FederatedData, folder: Path) -> list[str]:
    """What is typed for a server's home whose first round was in an earlier life."""
    VirtualFederation.create(data, TERMS, folder)
    (folder / SERVER / serve.JOURNAL).write_text(json.dumps(_round(0)) + "\n")
    return ["--roster", str(folder / ROSTER)]


def test_serve_hands_rounds_to_both_tools(
    data: FederatedData,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    mlflow: Logged,
    writers: dict[str, list[Any]],
) -> None:
    typed = _home(data, tmp_path)
    lines = [{"event": "begun", "pid": 1}, _round(1), {"event": "ended"}]
    monkeypatch.setattr(serve, "serve", _served(lines))
    options = tmp_path / "serve.toml"
    options.write_text('tensorboard = "figures"\nmlflow = true\n')
    assert commands.main([*typed, "--config", str(options)], "secure-fd serve") == 0
    [(index, numbers)] = mlflow
    assert (index, numbers["bytes_up"]) == (1, 200.0)  # the earlier life's too
    *scalars, end = writers["figures"]
    assert end is None
    assert scalars == [(f"round/{name}", value, 1) for name, value in numbers.items()]


def test_without_options_no_tool_is_needed(
    data: FederatedData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    typed = _home(data, tmp_path)
    for name in ("mlflow", "torch.utils.tensorboard"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setattr(serve, "serve", _served([_round(1)]))
    assert commands.main(typed, "secure-fd serve") == 0


@pytest.mark.parametrize("asked", [("--mlflow",), ("--tensorboard", "figures")])
def test_what_is_not_installed_is_said_before_anything_starts(
    asked: tuple[str, ...],
    data: FederatedData,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    typed = _home(data, tmp_path)
    for name in ("mlflow", "tensorboard"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, "torch.utils.tensorboard", raising=False)
    monkeypatch.setattr(serve, "serve", lambda *_: pytest.fail("work began"))
    assert commands.main([*typed, *asked], "secure-fd serve") == commands.USAGE_ERROR
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert f"secure-fd[{asked[0].removeprefix('--')}]" in said


def test_a_tool_that_fails_ends_no_rounds(
    mlflow: Logged, writers: dict[str, list[Any]], caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    def fail(*_: object, **__: object) -> None:
        mlflow.append((-1, {}))
        raise NotThereError("no answer")

    sys.modules["mlflow"].log_metrics = fail  # type: ignore[attr-defined]
    with (
        caplog.at_level(logging.WARNING),
        exporting(tools(tmp_path, mlflow=True), SITES) as export,
    ):
        export(_round(0))
        export(_round(1))
    assert len(mlflow) == 1  # it was not asked again
    assert caplog.messages == ["MLflow gets no more figures"]
    steps = {step for _, _, step in writers[str(tmp_path)][:-1]}
    assert steps == {0, 1}


def test_a_mistake_of_ours_is_no_failure_of_a_tool(mlflow: Logged) -> None:
    def fail(*_: object, **__: object) -> None:
        raise TypeError("a mistake")

    sys.modules["mlflow"].log_metrics = fail  # type: ignore[attr-defined]
    with (
        pytest.raises(TypeError, match="a mistake"),
        exporting(tools(None, mlflow=True), SITES) as export,
    ):
        export(_round(0))
    assert mlflow == []
