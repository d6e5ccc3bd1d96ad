"""A cell of the paper's studies: trained over all rounds, tested, measured."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from experiments.measures import ACCURACY, measured
from experiments.papers.build import Prepared, Runner, data_of, runner_of, warmed_up
from experiments.papers.cells import POINTS, Cell
from experiments.study import Point, Progress, Result
from secure_fd.data.federated import FederatedData
from secure_fd.data.images import Images

_MOST_TESTED = 2000
"""Test images of a point before the last one: enough for a curve, at a fifth of the time."""


@dataclass(slots=True)
class Steps:
    """Training steps of all networks of a cell or warm-up, told in percent of `total`.

    >>> told = []
    >>> steps = Steps(told.append, total=50)
    >>> steps.add(25)
    >>> steps.reach(20)
    >>> told
    [50]
    """

    tell: Callable[[int], None]
    total: int
    taken: int = 0

    def add(self, more: int) -> None:
        """So many more are done."""
        self.reach(self.taken + more)

    def reach(self, taken: int) -> None:
        """So many are done in all, or were passed over."""
        if taken > self.taken:
            self.taken = taken
            self.tell(100 * taken // max(1, self.total))


def prepare(data_dir: Path | None, cells: Sequence[Cell], progress: Progress) -> Prepared:
    """The data and the warm-up that cells of a group share; FedAvg alone needs no warm-up."""
    group = cells[0].group
    if all(cell.method == "fedavg" for cell in cells):
        return Prepared(data_of(data_dir, group), ())
    return warmed_up(data_dir, group, Steps(progress, group.steps).add)


def run_cell(data_dir: Path | None, cell: Cell, made: Prepared, progress: Progress) -> Result:  # noqa: ARG001 - the data is prepared
    """Train and test one cell."""
    start, steps = time.process_time(), Steps(progress, cell.steps)
    runner = runner_of(cell, made, steps.add)
    *points, last = _curve(cell, runner, made.data, steps)
    per_client = tuple(runner.accuracies(made.data.test))
    end = Point(last.round, float(np.mean(per_client)), last.up, last.down)
    return Result(
        cell=cell,
        figures={ACCURACY: end.accuracy, **measured(cell, runner, made)},
        per_client=per_client,
        curve=(*points, end),
        seconds=time.process_time() - start,
    )


def _curve(cell: Cell, runner: Runner, data: FederatedData, steps: Steps) -> Iterator[Point]:
    """Run all rounds; a point at a few of them, and one without accuracy at the end."""
    every = cell.every or max(1, cell.rounds // POINTS)
    some = spread(data.test, _MOST_TESTED)
    for done, _ in enumerate(runner.rounds(cell.rounds), start=1):
        if runner.transcript.parameters:
            del runner.transcript.parameters[:-1]  # a large model every round fills the memory
        if done == cell.rounds or done % every == 0:
            tested = 0.0 if done == cell.rounds else float(np.mean(runner.accuracies(some)))
            moved = runner.transcript
            yield Point(done, tested, float(moved.up.mean()), float(moved.down.mean()))
        steps.reach(cell.steps * done // cell.rounds)


def spread(images: Images, most: int) -> Images:
    """At most so many images, evenly spaced: published test sets are not in random order."""
    if len(images) <= most:
        return images
    return images[torch.from_numpy(np.linspace(0, len(images) - 1, most).astype(np.int64))]
