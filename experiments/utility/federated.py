"""A cell of few clients: the comparison's own row, at the cell's unit and epsilon."""

import math
from pathlib import Path

import numpy as np

from experiments import runs
from experiments.rows import RowSpec, Terms
from experiments.utility.cells import Cell
from experiments.utility.results import CellResult
from secure_fd.data.partition import parse_split
from secure_fd.errors import LocalError
from secure_fd.protection.base import NoProtection, Protection
from secure_fd.protection.label import LabelUnit
from secure_fd.protection.record import RecordUnit

_HARD = RowSpec("selective-fd", "hard")


def prepare(data_dir: Path | None, cell: Cell, progress: runs.Progress) -> runs.WarmUp:
    """The warm-up that all rows of a seed share."""
    share = 100 / cell.clients
    return runs.warm_up(_terms(data_dir, cell), cell.seed, lambda done: progress(int(share * done)))


def run_cell(
    data_dir: Path | None, cell: Cell, warm: runs.WarmUp, progress: runs.Progress
) -> CellResult:
    """Train and test one cell. Sums are in clear: masks change no bit of them."""
    share = 100 / cell.rounds
    made = runs.run_row(
        _terms(data_dir, cell),
        _HARD,
        cell.seed,
        warm,
        lambda done: progress(int(share * done)),
        chosen=_protection(cell),
    )
    return CellResult(
        cell=cell,
        accuracy=float(np.mean(made.accuracies)),
        per_client=list(made.accuracies),
        figures={**made.diagnostics, "bytes up a client": float(made.transcript.up.mean())},
        guarantee=made.guarantee,
        privacy=None if made.privacy is None else made.privacy.to_json(),
        seconds=made.seconds - warm.seconds,
    )


def _terms(data_dir: Path | None, cell: Cell) -> Terms:
    """The terms of a row of the comparison, with the cell's own schedule."""
    if cell.schedule is None:
        raise LocalError("a cell of a fleet has no federation")
    return Terms(
        dataset=cell.image_set,
        split=parse_split(cell.split),
        clients=cell.clients,
        rounds=cell.rounds,
        schedule=cell.schedule,
        data_dir=data_dir,
        delta=cell.delta,
    )


def _protection(cell: Cell) -> Protection:
    epsilon = math.inf if cell.epsilon is None else cell.epsilon
    if cell.unit == "record":
        return RecordUnit(epsilon, cell.delta)
    if cell.unit == "label":
        return LabelUnit(epsilon, cell.delta, "declared" if cell.alphabet == "declared" else "full")
    return NoProtection()
