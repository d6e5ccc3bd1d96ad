"""The missing cells of a study over worker processes, a group of cells at a time."""

from collections.abc import Sequence
from pathlib import Path

from experiments.papers.cells import Cell, Group
from experiments.papers.results import Store
from experiments.papers.run import run_group, steps_of
from experiments.workers import working
from secure_fd.data.sources import load


def run_missing(cells: Sequence[Cell], store: Store, data_dir: Path | None, workers: int) -> None:
    """Run what the store lacks. An interrupt loses the cells that are running and no other."""
    groups = missing_groups(cells, store)
    for image_set in dict.fromkeys(group.image_set for group in groups):
        load(image_set, data_dir)  # what is not there is told before any work
    if not groups:
        return
    with working(workers, len(groups)) as tasks:
        for group, members in groups.items():
            label = f"{group.place}, seed {group.seed}: {len(members)} cells"
            tasks.submit(_nothing, label, steps_of(members), run_group, data_dir, members, store)
        tasks.drain()


def missing_groups(cells: Sequence[Cell], store: Store) -> dict[Group, list[Cell]]:
    """What the store lacks, by what the cells share; the most steps come first."""
    groups: dict[Group, list[Cell]] = {}
    for cell in cells:
        if store.find(cell) is None:
            groups.setdefault(cell.group, []).append(cell)
    ordered = sorted(groups.items(), key=lambda item: -steps_of(item[1]))
    return dict(ordered)


def _nothing(_: None) -> None:
    """The worker has saved what it found."""
