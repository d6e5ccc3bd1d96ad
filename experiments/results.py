"""Measure the figures of docs/results again, one study after another.

make results
python experiments/results.py --study accuracy,alpha

Finished cells of a commit are kept in runs/results/COMMIT, so that an interrupted run goes on.
"""

import json
import os
import resource
import shutil
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from subprocess import Popen
from typing import BinaryIO

import tyro

from experiments.core.files import write_json
from experiments.core.provenance import ROOT, code, facts
from experiments.core.study import Study, at_least, listed, load, read_results
from experiments.report.results_page import MODULES
from experiments.report.tables import NONE, Table, human_bytes, new_table, rendered, terminal_width
from secure_fd.cli import INTERRUPTED, exit_status, expanded

COMPARISONS = {
    "mnist5k": ("--secure-agg", "--dp-eps", "4"),
    "mnist5k_drop": ("--drop", "0.2", "--secure-agg", "--aggregation", "he", "--attacks", "none"),
}
"""Result file of the main comparison -> its options."""
BENCHMARKS = {
    "performance": ("benchmarks/performance.py", (), ("--repeats=1", "--clients=10")),
    "many_machines": ("benchmarks/many_machines.py", ("FOLDER",), ("FOLDER",)),
}
"""Result file -> program that prints its JSON, its options, and those of a quick run.

FOLDER stands for an empty folder.
"""
_EMPTY = "FOLDER"
_PAGES = "experiments/report/results_page.py"
"""Program that writes the pages of studies: a page that fails ends no night of measuring."""
PAGES = {"performance": "benchmarks/performance_page.py"}
"""Result file of a benchmark -> program that writes its page in the docs."""
_KEPT = "finished cells are kept; run the same again to go on"


@dataclass(frozen=True, slots=True)
class Settings:
    """Measure every study, the main comparison and the benchmarks; write docs/results.

    Each study resumes where an earlier run at the same commit was interrupted.
    """

    study: str | None = None
    """Names of result files in docs/results, without .json, with commas; by default all."""
    workers: int = 2
    """Processes that share the work of a study."""
    scheduler: str | None = None
    """Address of a running Dask cluster that does the work."""
    quick: bool = False
    """Run every study with --quick, into runs/results/quick, and leave docs/results as it is."""


@dataclass(frozen=True, slots=True)
class Step:
    """One result file. study: None for a benchmark. given: the program's command line."""

    name: str
    given: tuple[str, ...]
    study: Study | None = None

    def result(self, folder: Path) -> Path:
        """Return the file of results that `run` leaves in its folder."""
        return folder / f"{self.study.name if self.study else self.name}.json"

    def run(self, folder: Path) -> int:
        """Measure what is missing in a folder; returns the exit status of the program."""
        if self.study is not None:
            return ended([*self.given, "--out", str(folder)])
        now = facts(("benchmarks",))  # a folder that measures too
        if self.result(folder).exists() and not now["dirty"]:
            kept = json.loads(self.result(folder).read_text(encoding="utf-8"))
            if kept["commit"] == now["commit"]:
                return 0
        shutil.rmtree(folder, ignore_errors=True)
        (folder / _EMPTY).mkdir(parents=True)
        before, printed = _cpu_seconds(), folder / "printed"
        given = [str(folder / _EMPTY) if word == _EMPTY else word for word in self.given]
        with printed.open("wb") as file:
            status = ended(given, file)
        if not status:
            found = {**now, **json.loads(printed.read_text())}
            found["command"] = ["python", *self.given]
            spent = round(_cpu_seconds() - before, 1)
            write_json(self.result(folder), {**found, "cpu_seconds": spent})
        return status

    def publish(self, folder: Path, root: Path) -> int:
        """Copy results and figure into the docs, write pages; returns 0 unless that failed."""
        result = self.result(folder)
        for kind in (".json", ".svg"):
            if (made := result.with_suffix(kind)).exists():
                shutil.copyfile(made, root / "docs" / "results" / f"{self.name}{kind}")
        status = ended([_PAGES, str(root)])
        return ended([PAGES[self.name]]) or status if self.name in PAGES else status


def ended(arguments: Sequence[str], stdout: BinaryIO | None = None) -> int:
    """Run a Python program to its end; returns its exit status.

    Raises KeyboardInterrupt after a Ctrl-C, unless the program has printed a line about it.
    """
    paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": paths}
    program = [sys.executable, *arguments]
    with Popen(program, cwd=ROOT, env=environment, stdout=stdout) as child:  # noqa: S603
        try:
            return child.wait()
        except KeyboardInterrupt:
            child.send_signal(signal.SIGINT)
            if child.wait() != INTERRUPTED:
                raise
            return INTERRUPTED
        except BaseException:
            child.terminate()
            raise


def _cpu_seconds() -> float:
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    return spent.ru_utime + spent.ru_stime


def steps(settings: Settings) -> list[Step]:
    """Return the steps that are asked for. Raises ConfigurationError for an unknown name."""
    at_least(1, workers=settings.workers)
    scheduler = (f"--scheduler={settings.scheduler}",) if settings.scheduler else ()
    shared = (f"--workers={settings.workers}", *scheduler)

    def of(study: Study, name: str, *options: str) -> Step:
        quick = settings.quick and hasattr(study.settings, "quick")
        more = ("--quick",) if quick else ()
        return Step(name, (f"experiments/{study.script}", *options, *shared, *more), study)

    main = load("experiments.privacy_compare")
    every = [of(study, study.name) for study in map(load, MODULES)]
    every += [of(main, name, *options) for name, options in COMPARISONS.items()]
    for name, (program, usual, quick) in BENCHMARKS.items():
        every.append(Step(name, (program, *(quick if settings.quick else usual))))
    names = listed("study", settings.study, [step.name for step in every])
    return [step for step in every if step.name in names]


def run(settings: Settings, root: Path = ROOT, every: Sequence[Step] | None = None) -> int:
    """Run all steps; returns the exit status, 1 where one failed. root: of runs/ and docs/."""
    every, docs, version = every or steps(settings), root / "docs" / "results", code()
    changed = f"-{version.changes[:7]}" if version.dirty else ""
    kept = root / "runs" / "results" / (f"{version.commit[:7]}{changed}")
    if settings.quick:
        kept = root / "runs" / "results" / "quick"
        shutil.rmtree(kept, ignore_errors=True)
    if version.dirty:
        print("the code has changes that are in no commit; the results will say so")
    left = [_seconds(docs / f"{step.name}.json") / settings.workers for step in every]
    failed = []
    for i, step in enumerate(every):
        own = f"about {_time(left[i])}" if left[i] else "not measured yet"
        ahead = "" if settings.quick else f": {own}; {_time(sum(left[i:]))} left in all"
        print(f"{i + 1}/{len(every)} {step.name}{ahead}", flush=True)
        status = step.run(kept / step.name)
        # An audit that refutes a claim fails, and its results are published.
        made = status != INTERRUPTED and step.result(kept / step.name).exists()
        if made and not settings.quick:
            status = step.publish(kept / step.name, root) or status
        if status == INTERRUPTED:
            return status
        if status:
            failed.append(step.name)
    print(rendered(_shown(every, kept, docs), terminal_width()))
    if failed:
        print(f"failed: {', '.join(failed)}")
    return 1 if failed else 0


def _seconds(path: Path) -> float:
    """Return the CPU seconds that a file of results took; 0 where it does not say."""
    found = json.loads(path.read_bytes()) if path.exists() else {}
    return float(found.get("cpu_seconds", 0.0))


def _time(seconds: float) -> str:
    return f"{seconds / 3600:.1f} h" if seconds > 5400 else f"{max(1, round(seconds / 60))} min"


def _shown(every: Sequence[Step], kept: Path, docs: Path) -> list[Table | str]:
    table, total = new_table("Results", ("study", "cells", "CPU hours", "size of its file")), 0.0
    for step in every:
        path = step.result(kept / step.name)
        if path.exists():
            cells = len(read_results(step.study, path).cells) if step.study else NONE
            total += _seconds(path)
            hours, size = f"{_seconds(path) / 3600:.2f}", human_bytes(path.stat().st_size)
            table.add_row(step.name, str(cells), hours, size)
    size = human_bytes(sum(path.stat().st_size for path in docs.glob("*")))
    return [table, f"{total / 3600:.1f} CPU hours in all; docs/results has {size}"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the options and run; returns the exit status."""
    given = sys.argv[1:] if arguments is None else arguments

    def work() -> int:
        return run(tyro.cli(Settings, prog="results.py", args=expanded(given)))

    return exit_status(work, interrupted=_KEPT, options=("study", "workers", "scheduler"))


if __name__ == "__main__":
    raise SystemExit(main())
