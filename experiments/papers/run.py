"""The missing cells of a group, one after another in one process, each saved when it ends."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from experiments.papers.build import Prepared, Runner, data_of, prepare, runner_of
from experiments.papers.cells import POINTS, Cell
from experiments.papers.figures import measured
from experiments.papers.results import CellResult, Point, Store
from secure_fd.data.federated import FederatedData
from secure_fd.data.images import Images
from secure_fd.errors import ConfigurationError

_MOST_TESTED = 2000
"""Test images of a point before the last one: enough for a curve, at a fifth of the time."""


@dataclass(slots=True)
class Steps:
    """Training steps so far. tell: hears of their number whenever it grows."""

    tell: Callable[[int], None]
    taken: int = 0

    def add(self, more: int) -> None:
        """So many more are done."""
        self.reach(self.taken + more)

    def reach(self, taken: int) -> None:
        """So many are done in all, or were passed over."""
        if taken > self.taken:
            self.taken = taken
            self.tell(taken)


def steps_of(cells: Sequence[Cell]) -> int:
    """Of cells of one group, with the warm-up that all but FedAvg share."""
    warm_up = max((c.group.steps for c in cells if c.method != "fedavg"), default=0)
    return warm_up + sum(cell.steps for cell in cells)


def run_group(
    data_dir: Path | None, cells: Sequence[Cell], store: Store, progress: Callable[[int], None]
) -> None:
    """Run what the store lacks of cells of one group. progress: hears of steps, as `steps_of`
    counts them.
    """
    if Store(store.folder).version != store.version:
        raise ConfigurationError("code", "changed", "it was edited while workers start: run again")
    missing = [cell for cell in cells if store.find(cell) is None]
    if not missing:
        return
    steps = Steps(progress)
    group = missing[0].group
    if all(cell.method == "fedavg" for cell in missing):
        made = Prepared(data_of(data_dir, group), ())
    else:
        made = prepare(data_dir, group, steps.add)
    steps.add(steps_of(cells) - steps_of(missing))
    for cell in missing:
        store.save(run_cell(cell, made, steps))


def run_cell(cell: Cell, made: Prepared, steps: Steps) -> CellResult:
    """Train and test one cell. steps: grow by those of the cell."""
    start = time.process_time()
    runner = runner_of(cell, made, steps.add)
    *points, last = _curve(cell, runner, made.data, steps)
    per_client = tuple(runner.accuracies(made.data.test))
    end = Point(last.round, float(np.mean(per_client)), last.up, last.down)
    return CellResult(
        cell=cell,
        accuracy=end.accuracy,
        per_client=per_client,
        curve=(*points, end),
        figures=measured(cell, runner, made),
        seconds=time.process_time() - start,
    )


def _curve(cell: Cell, runner: Runner, data: FederatedData, steps: Steps) -> Iterator[Point]:
    """Run all rounds; a point at a few of them, and one without accuracy at the end."""
    before = steps.taken
    every = cell.every or max(1, cell.rounds // POINTS)
    some = spread(data.test, _MOST_TESTED)
    for done, _ in enumerate(runner.rounds(cell.rounds), start=1):
        if runner.transcript.parameters:
            del runner.transcript.parameters[:-1]  # a large model every round fills the memory
        if done == cell.rounds or done % every == 0:
            tested = 0.0 if done == cell.rounds else float(np.mean(runner.accuracies(some)))
            moved = runner.transcript
            yield Point(done, tested, float(moved.up.mean()), float(moved.down.mean()))
        steps.reach(before + cell.steps * done // cell.rounds)


def spread(images: Images, most: int) -> Images:
    """At most so many images, evenly spaced: published test sets are not in random order."""
    if len(images) <= most:
        return images
    return images[torch.from_numpy(np.linspace(0, len(images) - 1, most).astype(np.int64))]
