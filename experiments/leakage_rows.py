"""Protocol rows of the main table as factories of a leakage game: small federations of digits.

Five clients hold eleven records of each class, half of 22 candidates each, and share 300 proxies:
small mixed sets are where membership shows. Everything is bundled, and a run takes about a second.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Final

import numpy as np
import torch
from torch import nn

from attacks.base import Labelled, seeded, substream
from attacks.budgets import Factory, LeakageGame, server_sees
from attacks.on_run import labelled
from attacks.view import View
from secure_fd.aggregation.masked import MaskedSum
from secure_fd.data.federated import ClientData
from secure_fd.data.images import Images
from secure_fd.data.sources import load
from secure_fd.errors import ConfigurationError
from secure_fd.federation import AnyMethod, Federation, Participant, participants_of
from secure_fd.methods.fedavg import FedAvg
from secure_fd.methods.fedmd import FedMD
from secure_fd.methods.heads import PooledHeads
from secure_fd.methods.selective_fd import SelectiveFD
from secure_fd.private_training import PrivateSGD
from secure_fd.protection.base import NoProtection, Protection
from secure_fd.protection.label import LabelUnit
from secure_fd.protection.pooled import PooledRecordUnit
from secure_fd.recipes import SGD, Schedule
from secure_fd.selection.density import ReferenceSettings

CLIENTS: Final = 5
CLASSES: Final = 10
CANDIDATES: Final = 22
"""A client's of each class, of which half take part in a run."""
PROXIES: Final = 30
"""Of each class."""
EPSILON: Final = 4.0
DELTA: Final = 1e-5
FEATURES: Final = ReferenceSettings(n_features=500)
_ROUNDS: Final = 4
_FEDAVG_STEPS: Final = 10
_FEDAVG_ROUNDS: Final = 12
_SIDE: Final = 28
_ALONE: Final = Schedule(warmup_steps=0, local_steps=0, proxy_steps=0)
_SCHEDULE: Final = Schedule(
    100,
    5,
    6,
    PROXIES * CLASSES,
    sgd=SGD(local_batch=32, distillation_batch=32),
)


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the main table. noise: none, or of the label or the record unit at epsilon.

    method: of votes; None of FedAvg and pooled heads, by `kind`.
    """

    label: str
    make: Callable[["Row", Sequence[Labelled], int], View] = field(repr=False)
    method: AnyMethod | None = None
    masks: bool = False
    epsilon: float | None = None


@cache
def world() -> tuple[tuple[Labelled, ...], Labelled]:
    """Candidates of every client, and proxies with their labels: different digits."""
    pool = load("digits").pool
    order = torch.from_numpy(np.random.default_rng(0).permutation(len(pool.labels)))
    shuffled = labelled(pool[order])
    rows = [torch.nonzero(shuffled.labels == c)[:, 0] for c in range(CLASSES)]
    bounds = [PROXIES + k * CANDIDATES for k in range(CLIENTS + 1)]
    proxies = shuffled.take(torch.cat([own[:PROXIES] for own in rows]))
    clients = tuple(
        shuffled.take(torch.cat([own[bounds[k] : bounds[k + 1]] for own in rows]))
        for k in range(CLIENTS)
    )
    return clients, proxies


def network(seed: int) -> nn.Module:
    """One hidden layer of 32."""

    def layers() -> nn.Module:
        first, last = nn.Linear(_SIDE * _SIDE, 32), nn.Linear(32, CLASSES)
        return nn.Sequential(nn.Flatten(), first, nn.ReLU(), last)

    return seeded(layers, seed)


def participants(records: Sequence[Labelled], seed: int) -> list[Participant]:
    """One a client, all of whose records train."""
    networks = [network(substream(seed, f"network {k}")) for k in range(len(records))]
    data = []
    for own in records:
        train = Images(own.images, own.labels)
        data.append(ClientData(train, train[torch.zeros(0, dtype=torch.int64)], CLASSES))
    return participants_of(networks, data)


def secure(row: Row, clients: int, seed: int) -> MaskedSum | None:
    """Masks, where the row has them."""
    return MaskedSum(clients, public_seed=seed) if row.masks else None


def votes(row: Row, records: Sequence[Labelled], seed: int) -> View:
    """A method of votes on proxies, all of which every round asks about."""
    proxies = world()[1]
    noise: Protection = NoProtection()
    if row.epsilon is not None:
        noise = LabelUnit(row.epsilon, DELTA)
    run = Federation(
        participants(records, seed),
        proxies.images,
        row.method,
        aggregation=secure(row, len(records), seed),
        protection=noise,
        schedule=_SCHEDULE,
        seed=seed,
    )
    run.fit(_ROUNDS)
    return server_sees(run, proxies, CLASSES)


def parameters(row: Row, records: Sequence[Labelled], seed: int) -> View:
    """FedAvg, whose server keeps every upload that it reads."""
    optimiser: SGD | PrivateSGD = _SCHEDULE.sgd
    if row.epsilon is not None:
        steps = _FEDAVG_STEPS * _FEDAVG_ROUNDS
        optimiser = PrivateSGD(row.epsilon, DELTA, steps, batch=_SCHEDULE.sgd.local_batch)
    run = Federation(
        participants(records, seed),
        None,
        FedAvg(optimiser, _FEDAVG_STEPS),
        aggregation=secure(row, len(records), seed),
        seed=seed,
        keep_uploads=True,
    )
    run.fit(_FEDAVG_ROUNDS)
    return server_sees(run, None, CLASSES)


def class_sums(row: Row, records: Sequence[Labelled], seed: int) -> View:
    """Pooled heads: one sum under the pooled record unit, or without noise."""
    proxies = world()[1]
    unit: Protection = NoProtection()
    features = FEATURES
    if row.epsilon is not None:
        pooled = PooledRecordUnit(
            row.epsilon,
            DELTA,
            records=[len(own) for own in records],
            n_proxies=len(proxies),
            n_classes=CLASSES,
            features=FEATURES,
        )
        unit, features = pooled, pooled.features
    run = Federation(
        participants(records, seed),
        proxies.images,
        PooledHeads(residual_rounds=0, leave="network", features=features, none_of_mine=False),
        aggregation=secure(row, len(records), seed),
        protection=unit,
        schedule=_ALONE,
        seed=seed,
    )
    run.fit(1)
    return server_sees(run, proxies, CLASSES)


ROWS: Final[Mapping[str, Row]] = {
    "fedavg": Row("FedAvg", parameters),
    "fedavg-masks": Row("FedAvg + masks", parameters, masks=True),
    "fedavg-dp-sgd": Row("FedAvg + DP-SGD", parameters, epsilon=EPSILON),
    "fedmd-soft": Row("FedMD soft", votes, FedMD("soft")),
    "selective-fd-soft": Row("Selective-FD soft", votes, SelectiveFD("soft")),
    "selective-fd-hard": Row("Selective-FD hard", votes, SelectiveFD("hard")),
    "selective-fd-hard-masks": Row(
        "Selective-FD hard + masks", votes, SelectiveFD("hard"), masks=True
    ),
    "selective-fd-hard-dp-label": Row(
        "Selective-FD hard + DP label unit", votes, SelectiveFD("hard"), epsilon=EPSILON
    ),
    "pooled-dp-record": Row("Pooled heads, record unit", class_sums, masks=True, epsilon=EPSILON),
}
"""By key, as the command line names them."""


def factory(row: Row) -> Factory:
    """What plays a row."""
    return partial(row.make, row)


def game(seed: int = 0, runs: int = 8) -> LeakageGame:
    """The game that all rows are played in."""
    return LeakageGame.of(world()[0], runs, seed)


def row_named(name: str) -> Row:
    """A row by its key; ConfigurationError for another."""
    if name not in ROWS:
        raise ConfigurationError("row", name, f"use one of {', '.join(ROWS)}")
    return ROWS[name]


def without_noise(row: Row) -> Row:
    """The same row, its protection's noise left out."""
    return replace(row, epsilon=None)
