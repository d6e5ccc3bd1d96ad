"""Studies on other executors: a Dask cluster whose worker is killed, threads, a broken pool."""

import gc
import json
import os
import signal
import sys
import threading
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial

import pytest

from experiments.core import provenance
from experiments.core import study as engine
from experiments.core.study import CELLS
from secure_fd.cli import FAILED
from secure_fd.errors import MissingCapabilityError
from tests.drivers import cluster_study
from tests.programs import ROOT, started, wait_for
from tests.refusals import refused

distributed = pytest.importorskip("distributed")
from experiments.core import cluster as clusters  # noqa: E402 - after the extra it needs

CELLS_OF_STUDY = len(cluster_study.STEPS)
SETTINGS = {"PYTHONPATH": str(ROOT), "DASK_DISTRIBUTED__SCHEDULER__WORK_STEALING": "False"}
"""Without stealing, no other worker copies what a worker holds before that is killed."""
program = partial(started, "-m", **SETTINGS)


@pytest.fixture(scope="module", autouse=True)
def patient_dask():
    """Give Dask's loop a minute to start: its ten seconds are short beside other tests.

    Dask waits for itself if a client that failed is collected while another one starts.
    """
    wait = threading.Event.wait

    def longer(event, timeout=None):
        return wait(event, 60 if timeout == 10 else timeout)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(threading.Event, "wait", longer)
        gc.disable()
        yield
        gc.enable()


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    """A scheduler with two workers, as the docs start them."""
    folder = tmp_path_factory.mktemp("cluster")
    written, logs = folder / "scheduler.json", (folder / "scheduler", folder / "workers")
    where = ("--host", "127.0.0.1", "--port", "0", "--no-dashboard", "--scheduler-file", written)
    with program("dask", "scheduler", *where, log=logs[0]):
        wait_for(written.exists, logs[0])
        found = json.loads(written.read_text())["address"]
        two = ("--nworkers", "2", "--nthreads", "1", "--no-dashboard", "--memory-limit", "0")
        with (
            program("dask", "worker", found, *two, "--local-directory", folder, log=logs[1]),
            distributed.Client(found, set_as_default=False) as client,
        ):
            wait_for(lambda: len(client.nthreads()) == 2, *logs)
            yield found


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    return measured_here(tmp_path_factory.mktemp("threads"))


def measured_here(folder):
    """The figures of the study, measured by two threads of this process."""
    settings = cluster_study.Options(data_dir=folder, out=folder / "out")
    with ThreadPoolExecutor(2) as executor:
        assert engine.run(cluster_study.STUDY, settings, [], executor) == 0
    return figures(folder / "out")


def figures(out):
    """The content of a results file, without when, where and how long."""
    found = json.loads((out / "cluster_study.json").read_text())
    for name in ("created", "machine", "cpu_seconds", "command"):
        found.pop(name)
    for cell in found["cells"]:
        cell["each"].pop("seconds")
    assert len(found["cells"]) == CELLS_OF_STUDY
    return found


@contextmanager
def running(folder, *marks, more=()):
    """A run of the study in a process of its own."""
    (folder / "marks").mkdir(exist_ok=True)
    for mark in marks:
        (folder / "marks" / mark).touch()
    places = ("--data-dir", folder / "marks", "--out", folder / "out")
    with program(cluster_study.MODULE, *places, *more, log=folder / "log") as run:
        yield run


def lines(path):
    return len(path.read_text().splitlines()) if path.exists() else 0


def kill_worker(run, folder):
    """Kill the worker that holds the warm-up, while it computes a cell."""
    doomed = folder / "marks" / "doomed"
    wait_for(lambda: doomed.exists() or run.poll() is not None, folder / "log")
    assert run.poll() is None, (folder / "log").read_text()
    os.kill(int(doomed.read_text()), signal.SIGKILL)


def test_a_cluster_makes_again_what_a_killed_worker_had(address, expected, tmp_path):
    with running(tmp_path, "die", more=("--scheduler", address)) as run:
        kill_worker(run, tmp_path)
        assert run.wait(timeout=240) == 0, (tmp_path / "log").read_text()
    assert figures(tmp_path / "out") == expected
    doomed = (tmp_path / "marks" / "doomed").read_text()
    (lost,) = [path.name for path in (tmp_path / "marks").glob(f"began-*-{doomed}")]
    assert len([*(tmp_path / "marks").glob(f"{lost.removesuffix(doomed)}*")]) == 2
    assert len([*(tmp_path / "marks").glob("prepared-*")]) == 2
    command = json.loads((tmp_path / "out" / "cluster_study.json").read_text())["command"]
    assert command[-2:] == ["--scheduler", "ADDRESS"]


def test_a_killed_worker_process_ends_a_run_with_a_sentence_and_keeps_cells(expected, tmp_path):
    kept = tmp_path / "out" / CELLS
    with running(tmp_path, "die") as run:
        wait_for(lambda: run.poll() is not None or lines(kept) == CELLS_OF_STUDY - 1)
        kill_worker(run, tmp_path)
        assert run.wait(timeout=120) == FAILED
    shown = (tmp_path / "log").read_text()
    assert "error: a process was ended from outside" in shown
    assert engine.KEPT in shown
    assert "Traceback" not in shown
    assert measured_here(tmp_path) == expected
    assert lines(kept) == CELLS_OF_STUDY  # none is measured twice


def test_ctrl_c_keeps_finished_cells_and_cancels_the_tasks_of_a_cluster(address, tmp_path):
    kept, waits = tmp_path / "out" / CELLS, [f"wait-{steps}" for steps in cluster_study.STEPS[:-1]]
    with running(tmp_path, *waits, more=("--scheduler", address)) as run:
        wait_for(lambda: kept.exists() or run.poll() is not None, tmp_path / "log")
        os.killpg(run.pid, signal.SIGINT)
        assert run.wait(timeout=120) == 130, (tmp_path / "log").read_text()
    shown = (tmp_path / "log").read_text()
    assert shown.endswith(f"interrupted: {engine.KEPT}\n"), shown
    assert "Traceback" not in shown
    assert lines(kept) == 1
    with distributed.Client(address, set_as_default=False) as client:
        assert client.run_on_scheduler(lambda dask_scheduler: [*dask_scheduler.tasks]) == []
    for mark in waits:
        (tmp_path / "marks" / mark).unlink()


# What is refused before any work.


def test_a_scheduler_that_does_not_answer_or_whose_code_differs_is_refused(address, monkeypatch):
    monkeypatch.setattr(clusters, "SECONDS_TO_ANSWER", 1)
    for wrong in ("tcp://127.0.0.1:9", "no-such-host.invalid:8786", "nonsense", "tcp://", "x://y"):
        with refused("scheduler"), clusters.connected(wrong):
            pass
    with clusters.connected(address):
        pass
    with monkeypatch.context() as patched, refused("scheduler"):
        patched.setattr(provenance, "versions", lambda: {"torch": "0"})
        with clusters.connected(address):
            pass
    monkeypatch.setattr(provenance, "code", lambda: provenance.Code("another"))
    with refused("scheduler"), clusters.connected(address):
        pass


@pytest.mark.parametrize("lost", [distributed.KilledWorker("cell", None, 3), CancelledError()])
def test_a_task_that_a_cluster_gives_up_ends_a_run_with_a_sentence(address, lost):
    with pytest.raises(OSError, match="task"), clusters.connected(address):
        raise lost


class Workers:
    """A client of workers with these numbers of threads, which lack the code."""

    def __init__(self, *threads):
        self.threads = threads

    def nthreads(self):
        return dict(enumerate(self.threads))

    def run(self, _, on_error):
        assert on_error == "return"
        return {0: ModuleNotFoundError("No module named 'experiments'")}

    def run_on_scheduler(self, _):
        raise ModuleNotFoundError


@pytest.mark.parametrize("threads", [(), (1, 2), (1,)])
def test_workers_with_threads_or_without_the_code_are_refused(threads):
    with refused("scheduler"):
        clusters._check(Workers(*threads), "tcp://here")


def test_without_the_extra_it_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    monkeypatch.delitem(sys.modules, "experiments.core.cluster")
    with pytest.raises(MissingCapabilityError, match="cluster"):
        engine._cluster("tcp://here:8786")
