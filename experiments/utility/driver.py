"""The missing cells over worker processes, each saved when it ends."""

from collections import deque
from collections.abc import Iterable
from functools import partial
from pathlib import Path

from experiments.compare.run import Progress, WarmUp
from experiments.utility import federated, fleets
from experiments.utility.cells import Cell
from experiments.utility.results import CellResult
from experiments.utility.settings import Plan
from experiments.utility.store import Store
from experiments.workers import Tasks, working
from secure_fd.data.sources import load
from secure_fd.errors import LocalError
from secure_fd.fleet.votes import FleetVotes

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
        _Work(plan.data_dir, store, tasks, 2 * workers, groups.items()).begin()
        tasks.drain()


class _Work:
    """Groups that wait for their preparation, so that few prepared ones are held at a time."""

    def __init__(
        self,
        data_dir: Path | None,
        store: Store,
        tasks: Tasks,
        enough: int,
        groups: Iterable[tuple[Cell, list[Cell]]],
    ) -> None:
        self._data_dir = data_dir
        self._store = store
        self._tasks = tasks
        self._enough = enough
        self._waiting = deque(groups)

    def begin(self) -> None:
        """Prepare groups until enough tasks are on their way to keep every worker busy."""
        while self._waiting and len(self._tasks.pending) < self._enough:
            group, cells = self._waiting.popleft()
            label = f"{group.place}, {group.clients:,} clients, seed {group.seed}: preparation"
            then = partial(self._prepared, cells)
            self._tasks.submit(then, label, 100, _prepare, self._data_dir, group)

    def _prepared(self, cells: list[Cell], made: Prepared) -> None:
        for cell in cells:
            self._tasks.submit(self._finished, cell.label, 100, _run, self._data_dir, cell, made)

    def _finished(self, result: CellResult) -> None:
        self._store.save(result)
        self.begin()


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
