"""The missing cells of a group, one after another in one process, each saved when it ends."""

import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch

from experiments.papers.build import Prepared, Progress, Runner, data_of, prepare, runner_of
from experiments.papers.cells import POINTS, Cell
from experiments.papers.figures import measured
from experiments.papers.results import CellResult, Point, Store
from secure_fd.data.federated import FederatedData
from secure_fd.data.images import Images
from secure_fd.errors import ConfigurationError
from secure_fd.methods.fedavg import FedAvg

_MOST_TESTED = 2000
"""Test images of a point before the last one: enough for a curve, at a fifth of the time."""


def run_group(
    data_dir: Path | None, cells: Sequence[Cell], store: Store, progress: Progress
) -> None:
    """Run what the store lacks of cells of one group. progress hears of steps."""
    if Store(store.folder).version != store.version:
        raise ConfigurationError("code", "changed", "it was edited while workers start: run again")
    missing = [cell for cell in cells if store.find(cell) is None]
    done = sum(cell.steps for cell in cells if cell not in missing)
    if not missing:
        return
    group = missing[0].group
    if all(cell.method == "fedavg" for cell in missing):
        made = Prepared(data_of(data_dir, group), ())
    else:
        made = prepare(data_dir, group)
    for cell in missing:
        before = done
        store.save(run_cell(cell, made, lambda steps, b=before: progress(b + steps)))  # type: ignore[misc]
        done += cell.steps


def run_cell(cell: Cell, made: Prepared, progress: Progress) -> CellResult:
    """Train and test one cell. progress hears of steps."""
    start = time.process_time()
    runner = runner_of(cell, made)
    *points, last = _curve(cell, runner, made.data, progress)
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


def _curve(cell: Cell, runner: Runner, data: FederatedData, progress: Progress) -> Iterator[Point]:
    """Run all rounds; a point at a few of them, and one without accuracy at the end."""
    every = cell.every or max(1, cell.rounds // POINTS)
    some = spread(data.test, _MOST_TESTED)
    for done, _ in enumerate(runner.rounds(cell.rounds), start=1):
        if isinstance(runner, FedAvg):
            del runner.transcript.parameters[:-1]  # a large model every round fills the memory
        if done == cell.rounds or done % every == 0:
            tested = 0.0 if done == cell.rounds else float(np.mean(runner.accuracies(some)))
            moved = runner.transcript
            yield Point(done, tested, float(moved.up.mean()), float(moved.down.mean()))
        progress(cell.steps * done // cell.rounds)


def spread(images: Images, most: int) -> Images:
    """At most so many images, evenly spaced: published test sets are not in random order."""
    if len(images) <= most:
        return images
    return images[torch.from_numpy(np.linspace(0, len(images) - 1, most).astype(np.int64))]
