"""CPU seconds until ten clients' MNIST accuracy passes 94.68 and 98.0 %: a table and JSON.

python benchmarks/seconds_to_accuracy.py --out seconds.json

One class a client, seed 20. 94.68 % is where the paper's soft labels end (Shao, Wu and Zhang, 2024,
Table 1). Counted is all that parties compute, features and warm-up included, and not the test; data
and its features on disk are made before. Methods of many rounds are tested after some of them, and
run to their end, or until their limit is spent. Heads teach networks at the end, so each
number of their steps is a run of its own. Timings are of one thread, of one machine.
"""

import argparse
import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from experiments import runs
from experiments.equal_rows import ROWS, Setting, cell_of
from experiments.grid import our_recipe
from experiments.rows import Cell
from secure_fd.data.images import Images
from secure_fd.errors import SecureFDError
from secure_fd.federation import Federation
from secure_fd.methods.heads import HeadLearner
from secure_fd.recipes import one_lesson

MARKS = (0.9468, 0.98)
SEED = 20
LIMIT_S = 900.0
_STEPS = 1500
"""Of a network, in the methods of many rounds."""
_LESSONS = (250, 500, 1000, 1500)


@dataclass(frozen=True, slots=True)
class Timing:
    """Mean accuracy over clients after so many CPU seconds of all parties together."""

    seconds: float
    accuracy: float


def many_rounds(key: str, rate: float, rounds: int) -> Cell:
    """A row of the table at equal terms, over more steps."""
    return cell_of(ROWS[key], "mnist", "strong", SEED, Setting(rate, rounds), _STEPS)


def cells() -> Mapping[str, Sequence[Cell]]:
    """By method: one run, or several of which each is a point."""
    recipe = our_recipe("mnist", "strong")
    ours = {
        labels: replace(
            cell_of(ROWS[f"selective-fd-{labels}"], "mnist", "strong", SEED, Setting(0.05, 20)),
            rounds=recipe.rounds,
            schedule=recipe.schedule,
        )
        for labels in ("hard", "soft")
    }
    taught = cell_of(ROWS["heads-taught"], "mnist", "strong", SEED, Setting(0.05, 4))
    lesson = one_lesson(6000, image_set="mnist").schedule
    return {
        "Pooled head, one sum": [cell_of(ROWS["heads-1"], "mnist", "strong", SEED, None)],
        "Pooled head, 3 residual rounds": [cell_of(ROWS["heads"], "mnist", "strong", SEED, None)],
        "AFL": [cell_of(ROWS["afl"], "mnist", "strong", SEED, None)],
        "Networks that the pooled head teaches": [
            replace(taught, schedule=replace(lesson, proxy_steps=steps)) for steps in _LESSONS
        ],
        "Selective-FD hard": [ours["hard"]],
        "Selective-FD soft": [ours["soft"]],
        "FedMD soft": [many_rounds("fedmd-soft", 0.05, 50)],
        "EdgeFD soft": [many_rounds("edgefd-soft", 0.05, 50)],
        "FedAvg": [many_rounds("fedavg", 0.01, 150), many_rounds("fedavg", 0.02, 300)],
    }


def timings(cell: Cell, data_dir: Path | None, limit: float) -> Iterator[Timing]:
    """After some rounds of a run, and after the last one."""
    made = runs.prepare(data_dir, [cell], lambda _: None)
    every, spent, start = max(1, cell.rounds // 25), 0.0, time.process_time()
    run = runs.federation(cell, made)
    for done, _ in enumerate(run.rounds(cell.rounds), start=1):
        spent += time.process_time() - start
        if done % every == 0 or done == cell.rounds or spent > limit:
            yield Timing(spent, reached(run, made.data.test))
        if spent > limit:
            return
        start = time.process_time()


def reached(run: Federation, test: Images) -> float:
    """Mean test accuracy: of networks where a head taught them, of what clients leave with else."""
    halves = [client.half for client in run.clients]
    taught = [h for h in halves if isinstance(h, HeadLearner) and h.learner.schedule.proxy_steps]
    if taught:
        return float(np.mean([half.accuracies(test)["network"] for half in taught]))
    return float(np.mean(run.accuracies(test)))


def seconds_to(mark: float, found: Sequence[Timing]) -> float | None:
    """The least time at which a mark was passed, None where it never was."""
    return min((one.seconds for one in found if one.accuracy >= mark), default=None)


def _shown(name: str, found: Sequence[Timing], limit: float) -> str:
    last = max(found, key=lambda one: one.seconds)
    at = (seconds_to(mark, found) for mark in MARKS)
    shown = ["never" if s is None else f"{s:.0f} s" for s in at]
    end = f"ends at {100 * last.accuracy:.2f} after {last.seconds:.0f} s"
    stopped = ", stopped" if last.seconds > limit else ""
    return f"{name:<40}{shown[0]:>10}{shown[1]:>10}   {end}{stopped}\n"


def main() -> None:
    """Measure every method and print it as it ends."""
    arguments, every = _arguments(), cells()
    named = [name for name in every if arguments.only.lower() in name.lower()]
    if not named:
        sys.exit(f"error: --only {arguments.only}: use a part of one of {', '.join(every)}")
    torch.set_num_threads(1)
    sys.stdout.write(f"{'CPU seconds of all parties to':<40}{'94.68 %':>10}{'98.0 %':>10}\n")
    report = {}
    for name in named:
        found = [
            t for cell in every[name] for t in timings(cell, arguments.data_dir, arguments.limit)
        ]
        report[name] = [[one.seconds, one.accuracy] for one in found]
        sys.stdout.write(_shown(name, found, arguments.limit))
        sys.stdout.flush()
        if arguments.out is not None:  # what is done stays, whatever comes after it
            arguments.out.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data-dir", type=Path, help="folder that holds mnist/")
    parser.add_argument("--limit", type=float, default=LIMIT_S, help="CPU seconds of one run")
    parser.add_argument("--only", default="", help="methods whose names have these words in them")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    return parser.parse_args()


if __name__ == "__main__":
    try:
        main()
    except SecureFDError as error:
        sys.exit(f"error: {error}")
