"""A small study of random walks, whose marked cell waits until its worker is killed.

A walk draws from the generator of torch, which all tasks of a process share, as training does.

The folder of data holds the marks: `die` asks one worker to wait, `wait-STEPS` each worker that
measures the cell of that number of steps. A worker that waits to be killed writes its process
number into `doomed`.
"""

import os
import time
from dataclasses import dataclass

import torch

from experiments.core.shared_options import SharedOptions
from experiments.core.study import Result, Study, main

MODULE = "tests.drivers.cluster_study"
STEPS = (1, 2, 3, 4)


@dataclass(frozen=True, slots=True)
class Options(SharedOptions):
    """Four walks from one start."""


@dataclass(frozen=True, slots=True)
class Cell:
    """A walk of this number of steps."""

    label: str
    steps: int


class ClusterStudy(Study):
    module = MODULE


def walked(start, steps):
    """Walk with a pause before each step, in which another task could draw."""
    torch.manual_seed(steps)
    for _ in range(steps):
        time.sleep(0.01)
        start = start + torch.randn_like(start)
    return start


def prepare(marks, _):
    (marks / f"prepared-{os.getpid()}").touch()
    return walked(torch.zeros(100), 5)


def measure(marks, cell, made):
    """The worker that made the start, and holds it, is the one to be killed."""
    pid = os.getpid()
    (marks / f"began-{cell.steps}-{pid}").touch()
    doomed = (marks / "die").exists() and (marks / f"prepared-{pid}").exists()
    if doomed and not (marks / "doomed").exists():
        (marks / "doomed.new").write_text(str(pid))
        (marks / "doomed.new").rename(marks / "doomed")
        time.sleep(600)
    while (marks / f"wait-{cell.steps}").exists():
        time.sleep(0.1)
    return Result(cell, {"distance": float(walked(made["start"], cell.steps).norm())}, 0.0)


STUDY = ClusterStudy(
    name="cluster_study",
    folder="tests",
    about="Four walks from one start.",
    settings=Options,
    cell=Cell,
    cells=lambda _: [Cell(f"{steps} steps", steps) for steps in STEPS],
    needs=lambda _: ("start",),
    prepare=prepare,
    measure=measure,
    shown=lambda results: [f"{len(results.cells)} cells"],
    cost=lambda cell: cell.steps,
)

if __name__ == "__main__":
    raise SystemExit(main(MODULE))
