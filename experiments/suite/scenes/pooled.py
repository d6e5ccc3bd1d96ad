"""Class sums of pooled heads: tracing the records of a block, by its size and the noise."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

from attacks.core.run import Run
from experiments.compare.leakage import Attempt
from experiments.suite.scenes import Cell, Scene
from experiments.suite.scenes.shared import federated
from secure_fd.data.federated import FederatedData
from secure_fd.data.image_sets import Sizes, image_set
from secure_fd.methods.pooled_heads import PooledHeads
from secure_fd.privacy.base import NoProtection
from secure_fd.privacy.record import PooledRecordUnit, sums_for
from secure_fd.selection.density_ratio import ReferenceSettings
from secure_fd.simulation.build import fresh_networks, secure_sum
from secure_fd.simulation.federation import Federation
from secure_fd.training.recipes import Schedule

_CLIENTS = 10
_HELD_OUT = 60
"""Records a class: what blocks of 300 leave of MNIST-5k."""
_FEATURES = ReferenceSettings(n_features=1000)
_BACK = 10 / 9
"""A client holds back a tenth of its records."""
_ALONE = Schedule(warmup_steps=0, local_steps=0, proxy_steps=0)


def _every(cell: Cell) -> dict[str, tuple[int, bool, str]]:
    """Row key -> records of a block, whether there is noise, and the label."""
    found = {}
    for block in (30,) if cell.quick else (30, 100, 300):
        key, label = f"heads-{block}-masks", f"Pooled heads, blocks of {block} + masks"
        noise = f"{label} + DP record unit (ε = {cell.epsilon:g})"
        found[key] = block, False, label
        found[f"{key}-dp-{cell.epsilon:g}"] = block, True, noise
    return found


def _rows(cell: Cell) -> Mapping[str, str]:
    """Masked, and masked under the pooled record unit."""
    return {key: label for key, (_, _, label) in _every(cell).items()}


def _prepare(cell: Cell, data_dir: Path | None) -> dict[int, FederatedData]:
    """One class a client, by records of a block."""
    proxies = image_set(cell.dataset).sizes.proxies
    blocks = dict.fromkeys(block for block, _, _ in _every(cell).values())
    sizes = {b: Sizes(proxies, 0, _HELD_OUT, local=round(b * _BACK)) for b in blocks}
    return {b: federated(cell, data_dir, _CLIENTS, sizes[b]) for b in blocks}


def _run(cell: Cell, data: FederatedData, *, noise: bool) -> Federation:
    """Sums alone: no network trains, as the attack reads nothing else."""
    method, unit = PooledHeads(features=_FEATURES), None
    if noise:
        sums = sums_for(cell.epsilon)
        unit = PooledRecordUnit(
            cell.epsilon,
            cell.delta,
            records=[len(client.train) for client in data.clients],
            n_proxies=len(data.proxies),
            n_classes=data.n_classes,
            sums=sums,
            features=_FEATURES,
        )
        method = replace(method, residual_rounds=sums - 1, features=unit.features)
    made = Federation(
        fresh_networks(data, cell.seed),
        data.clients,
        data.proxies.pixels,
        method,
        aggregation=secure_sum("masks", data, cell.seed),
        protection=unit or NoProtection(),
        schedule=_ALONE,
        seed=cell.seed,
    )
    made.fit(method.rounds)
    return made


def _attempts(cell: Cell, made: Mapping[int, FederatedData]) -> Mapping[str, Attempt]:
    """Tracing of the records in every block."""
    block, noise, _ = _every(cell)[cell.row]
    data = made[block]
    run = Run.of(data, _run(cell, data, noise=noise), cell.seed)
    return {"tracing": partial(run.attack, "tracing")}


SCENE = Scene(
    title="Class sums of pooled heads, by the size of a block",
    about="Every client holds one class, so that each block of the masked total is the sum of one "
    "client's records. The rows without noise make four sums, those under the pooled record unit "
    "as many as the unit plans for.",
    rows=_rows,
    prepare=_prepare,
    attempts=_attempts,
)
