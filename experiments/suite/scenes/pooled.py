"""Class sums of pooled heads: who is in a block, and its mean image, by its size and the noise."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

from attacks.on_run import Run, attack
from experiments.compare.leakage import Attempt
from experiments.suite.scenes import Job, Scene, Turn
from secure_fd.data.federated import FederatedData, federate
from secure_fd.data.image_sets import Sizes, image_set
from secure_fd.data.partition import Split
from secure_fd.data.sources import load
from secure_fd.methods.pooled_heads import PooledHeads
from secure_fd.privacy.base import NoProtection
from secure_fd.privacy.record import PooledRecordUnit, sums_for
from secure_fd.selection.density_ratio import ReferenceSettings
from secure_fd.simulation.build import fresh_networks, secure_sum
from secure_fd.simulation.federation import Federation
from secure_fd.training.recipes import Schedule

_BLOCKS, _QUICK_BLOCKS = (30, 100, 300), (30,)
_CLIENTS = 10
_HELD_OUT = 60
"""Records a class: what blocks of 300 leave of MNIST-5k."""
_FEATURES = 1000
_BACK = 10 / 9
"""A client holds back a tenth of its records."""
_ALONE = Schedule(warmup_steps=0, local_steps=0, proxy_steps=0)


@dataclass(frozen=True, slots=True)
class _Row:
    """block: records of a class, all of one client. epsilon: of a record; inf without noise."""

    block: int
    masks: bool
    epsilon: float = math.inf

    @property
    def key(self) -> str:
        """Of the row."""
        noise = "" if math.isinf(self.epsilon) else f"-dp-{self.epsilon:g}"
        return f"heads-{self.block}" + "-masks" * self.masks + noise

    @property
    def label(self) -> str:
        """Of the row, for a reader."""
        noise = "" if math.isinf(self.epsilon) else f" + DP record unit (ε = {self.epsilon:g})"
        return f"Pooled heads, blocks of {self.block}" + " + masks" * self.masks + noise


def _every(job: Job) -> list[_Row]:
    blocks = _QUICK_BLOCKS if job.quick else _BLOCKS
    kinds = ((False, math.inf), (True, math.inf), (True, job.epsilon), (True, job.epsilon / 4))
    return [_Row(block, masks, epsilon) for block in blocks for masks, epsilon in kinds]


def _rows(job: Job) -> Mapping[str, str]:
    """In clear, masked, and masked under the pooled record unit at epsilon and a quarter of it."""
    return {row.key: row.label for row in _every(job)}


def _prepare(job: Job, seed: int) -> dict[int, FederatedData]:
    """One class a client, by records of a block."""
    source, proxies = load(job.dataset, job.data_dir), image_set(job.dataset).sizes.proxies
    blocks = dict.fromkeys(row.block for row in _every(job))
    sizes = {b: Sizes(proxies, 0, _HELD_OUT, local=round(b * _BACK)) for b in blocks}
    return {b: federate(source, Split("strong"), _CLIENTS, seed, sizes[b]) for b in blocks}


def _run(row: _Row, job: Job, data: FederatedData, seed: int) -> Federation:
    """Sums alone: nobody trains, as networks see what was released and nothing else."""
    features = ReferenceSettings(n_features=_FEATURES)
    method = PooledHeads(features=features)
    unit = None
    if not math.isinf(row.epsilon):
        sums = sums_for(row.epsilon)
        unit = PooledRecordUnit(
            row.epsilon,
            job.delta,
            records=[len(client.train) for client in data.clients],
            n_proxies=len(data.proxies),
            n_classes=data.n_classes,
            sums=sums,
            features=features,
        )
        method = replace(method, residual_rounds=sums - 1, features=unit.features)
    made = Federation(
        fresh_networks(data, seed),
        data.clients,
        data.proxies.pixels,
        method,
        aggregation=secure_sum("masks" if row.masks else None, data, seed),
        protection=unit or NoProtection(),
        schedule=_ALONE,
        seed=seed,
    )
    made.fit(method.rounds)
    return made


def _attempts(turn: Turn[dict[int, FederatedData]]) -> Mapping[str, Attempt]:
    """Tracing of the records in every block."""
    row = next(row for row in _every(turn.job) if row.key == turn.row)
    data = turn.made[row.block]
    run = Run.of(data, _run(row, turn.job, data, turn.seed), turn.seed)
    return {"tracing": partial(attack, "tracing", run)}


SCENE = Scene(
    name="pooled",
    title="Class sums of pooled heads, by the size of a block",
    about="Every client holds one class, so that each block of the masked total is the sum of one "
    "client's records. The rows without noise make four sums, those under the pooled record unit "
    "as many as the unit plans for.",
    rows=_rows,
    prepare=_prepare,
    attempts=_attempts,
)
