"""A small study on the bundled digits, whose marked cell waits until its worker is killed.

The folder of data holds the marks: `die` asks one worker to wait, `wait` all of them. A worker that
waits writes its process number into `doomed`.
"""

import os
import time
from dataclasses import dataclass, replace

from experiments.core import runs
from experiments.core.grid import default_cell
from experiments.core.run_config import RunConfig
from experiments.core.shared_options import SharedOptions
from experiments.core.study import Study, main

MODULE = "tests.drivers.cluster_study"


@dataclass(frozen=True, slots=True)
class Options(SharedOptions):
    """Four runs from one warm-up."""


class ClusterStudy(Study):
    module = MODULE


def cells(_):
    cell = default_cell("digits", "weak", 3)
    steps = replace(cell.schedule, warmup_steps=20, proxy_steps=2)
    first = replace(cell, clients=3, rounds=1, schedule=steps, method="fedmd", labels="soft")
    return [replace(first, rounds=rounds) for rounds in (1, 2, 3, 4)]


def prepare(marks, part):
    (marks / f"prepared-{os.getpid()}").touch()
    return runs.prepare(None, part)


def measure(marks, cell, made):
    """The worker that made the warm-up, and holds it, is the one to be killed."""
    pid = os.getpid()
    (marks / f"began-{cell.rounds}-{pid}").touch()
    doomed = (marks / "die").exists() and (marks / f"prepared-{pid}").exists()
    if doomed and not (marks / "doomed").exists():
        (marks / "doomed.new").write_text(str(pid))
        (marks / "doomed.new").rename(marks / "doomed")
        time.sleep(600)
    while (marks / "wait").exists() and cell.rounds < 4:
        time.sleep(0.1)
    return runs.run_cell(None, cell, made)


STUDY = ClusterStudy(
    name="cluster_study",
    folder="tests",
    about="Four runs from one warm-up.",
    settings=Options,
    cell=RunConfig,
    cells=cells,
    needs=runs.needs,
    prepare=prepare,
    measure=measure,
    shown=lambda results: [f"{len(results.cells)} cells"],
    cost=lambda cell: cell.rounds,
)

if __name__ == "__main__":
    raise SystemExit(main(MODULE))
