"""Class sums of pooled heads: tracing the records of a block, by its size and the noise."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path

from attacks.core.run import Run
from experiments.compare.leakage import Attempt
from experiments.core.run_config import RowSpec, row_config
from experiments.suite.scenes import Cell, Scene
from experiments.suite.scenes.shared import base, federated, noise, trained
from secure_fd.data.federated import FederatedData
from secure_fd.data.image_sets import Sizes, image_set

_CLIENTS = 10
_HELD_OUT = 60
"""Records a class: what blocks of 300 leave of MNIST-5k."""
_BACK = 10 / 9
"""A client holds back a tenth of its records."""
_BLOCKS = (30, 100, 300)
"""Records of a client, all of one class."""
_SPECS = (RowSpec("heads", secure="masks"), RowSpec("heads", secure="masks", unit="record"))


def _every(cell: Cell) -> dict[str, tuple[int, RowSpec]]:
    """Row key -> records of a block, and the row of the comparison."""
    blocks = _BLOCKS[:1] if cell.quick else _BLOCKS
    return {f"{spec.key}-{block}": (block, spec) for block in blocks for spec in _SPECS}


def _rows(cell: Cell) -> Mapping[str, str]:
    """Masked, and masked under the pooled record unit."""
    epsilon = f" (ε = {cell.epsilon:g})"
    return {
        key: f"{spec.label}{epsilon * bool(spec.unit)}, blocks of {block}"
        for key, (block, spec) in _every(cell).items()
    }


def _prepare(cell: Cell, data_dir: Path | None) -> dict[int, FederatedData]:
    """One class a client, by records of a block."""
    proxies = image_set(cell.dataset).sizes.proxies
    sizes = {b: Sizes(proxies, 0, _HELD_OUT, local=round(b * _BACK)) for b in _BLOCKS}
    return {b: federated(cell, data_dir, _CLIENTS, sizes[b]) for b in _BLOCKS}


def _attempts(cell: Cell, made: Mapping[int, FederatedData]) -> Mapping[str, Attempt]:
    """Make the row's sums alone, and trace the records in every block.

    No network trains, as the attack reads nothing else.
    """
    block, spec = _every(cell)[cell.row]
    row = row_config(base(cell, "strong", _CLIENTS), spec, noise(cell))
    run = Run.of(made[block], trained(row, made[block]), cell.seed)
    return {"tracing": partial(run.attack, "tracing")}


SCENE = Scene(
    title="Class sums of pooled heads, by the size of a block",
    about="Every client holds one class, so that each block of the masked total is the sum of one "
    "client's records. The rows without noise make four sums, those under the pooled record unit "
    "as many as the unit plans for.",
    rows=_rows,
    prepare=_prepare,
    attempts=_attempts,
    limits=("Each block of the sum has one holder: masks hide nothing there.",),
)
