"""The missing cells over worker processes, each saved when it ends."""

from collections import deque
from functools import partial
from pathlib import Path

from experiments.grouped import Grouped, Submission
from experiments.runs import Progress, WarmUp
from experiments.utility import federated, fleets
from experiments.utility.cells import Cell
from experiments.utility.results import CellResult
from experiments.utility.settings import Plan
from experiments.utility.store import Store
from experiments.workers import working
from secure_fd.data.sources import load
from secure_fd.errors import LocalError
from secure_fd.fleet import FleetVotes

Prepared = WarmUp | FleetVotes


def run_missing(plan: Plan, store: Store) -> None:
    """Run what the store lacks. An interrupt loses the cells that are running and no other."""
    missing = [cell for cell in plan.cells if store.find(cell) is None]
    groups: dict[Cell, list[Cell]] = {}
    for cell in missing:
        groups.setdefault(cell.group, []).append(cell)
    for image_set in dict.fromkeys(cell.image_set for cell in missing):
        load(image_set, plan.data_dir)  # what is not there is told before any work
    if not missing:
        return
    workers = plan.settings.workers
    with working(workers, len(groups) + len(missing)) as tasks:
        Grouped(
            tasks,
            deque(groups.items()),
            partial(_preparation, plan.data_dir),
            partial(_running, plan.data_dir),
            store.save,
            2 * workers,
        ).begin()
        tasks.drain()


def _preparation(data_dir: Path | None, group: Cell) -> Submission:
    label = f"{group.place}, {group.clients:,} clients, seed {group.seed}: preparation"
    return label, 100, _prepare, data_dir, group


def _running(data_dir: Path | None, cell: Cell, made: Prepared) -> Submission:
    return cell.label, 100, _run, data_dir, cell, made


def _prepare(data_dir: Path | None, group: Cell, progress: Progress) -> Prepared:
    if group.fleet is None:
        return federated.prepare(data_dir, group, progress)
    return fleets.prepare(data_dir, group, progress)


def _run(data_dir: Path | None, cell: Cell, made: Prepared, progress: Progress) -> CellResult:
    if isinstance(made, WarmUp):
        return federated.run_cell(data_dir, cell, made, progress)
    if isinstance(made, FleetVotes):
        return fleets.run_cell(data_dir, cell, made, progress)
    raise LocalError("a cell was given nothing that it could start from")
