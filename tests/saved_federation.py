"""Small runs with noise that are saved, and what must be equal of two of them."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from secure_fd import (
    FedAvg,
    Federation,
    MaskedSum,
    RecordUnit,
    Schedule,
    SelectiveFD,
    participants_of,
    saved,
)
from secure_fd.adversarial import AdversarialSettings
from secure_fd.data.federated import FederatedData
from secure_fd.methods.dafkd import DaFKD
from secure_fd.methods.fedavg import flatten
from secure_fd.methods.heads import PooledHeads
from secure_fd.privacy.ledger import BudgetLedger
from secure_fd.privacy.plans import ClientPlan
from secure_fd.privacy.samplers import SeededRandom
from secure_fd.protection.client import ClientUnit
from secure_fd.protection.pooled import LocalRecordUnit, PooledRecordUnit
from secure_fd.selection.density import ReferenceSettings
from secure_fd.simulation import fresh_networks, simulated_ledgers

STEPS = Schedule(warmup_steps=2, local_steps=1, proxy_steps=2, proxies_per_round=40)
FEATURES = ReferenceSettings(n_features=100)
EPSILON, DELTA, CLIENTS = 4.0, 1e-5, 3
Ledgers = Mapping[int, BudgetLedger]


def federation(digits: FederatedData, method: Any, **options: Any) -> Federation:  # noqa: ANN401
    shared = isinstance(method, FedAvg | DaFKD)
    people = participants_of(fresh_networks(digits, 0, shared=shared), digits.clients)
    return Federation(people, digits.proxies.pixels, method, schedule=STEPS, **options)


def masks() -> MaskedSum:
    return MaskedSum(CLIENTS, public_seed=0)


def pooled(
    digits: FederatedData,
    *,
    local: bool = False,
    ledgers: Ledgers | None = None,
    random: Callable[[int], bytes] | None = None,
) -> Federation:
    """Two noisy sums; the networks learn after the second."""
    known: dict[str, Any] = {
        "records": [len(client.train) for client in digits.clients],
        **{"n_proxies": len(digits.proxies), "n_classes": digits.n_classes, "sums": 2},
        **{"features": FEATURES, "ledgers": ledgers},
        **({} if random is None else {"random": random}),
    }
    unit = (
        LocalRecordUnit(EPSILON, DELTA, **known)
        if local
        else PooledRecordUnit(EPSILON, DELTA, **known)
    )
    sums = None if local else masks()
    method = PooledHeads(1, leave="mean")
    return federation(digits, method, protection=unit, aggregation=sums)


def dp_sgd(digits: FederatedData, method: Any, ledgers: Ledgers | None = None) -> Federation:  # noqa: ANN401
    return federation(digits, method.trained_privately(EPSILON, DELTA, 2, STEPS, ledgers))


def written(run: Federation, path: Path) -> dict[str, Any]:
    """What is read of the file of a run."""
    saved.write(path, {"run": saved.state_of_run(run)})
    found: dict[str, Any] = saved.read(path)["run"]
    return found


def same(one: Federation, other: Federation) -> None:
    pairs = zip(one.models, other.models, strict=True)
    assert all(torch.equal(flatten(a), flatten(b)) for a, b in pairs)
    assert one.guarantee() == other.guarantee()
    for a, b in zip(one.transcript.heads, other.transcript.heads, strict=True):
        np.testing.assert_array_equal(a.total, b.total)
    for c, d in zip(one.transcript.distillation, other.transcript.distillation, strict=True):
        np.testing.assert_array_equal(c.total, d.total)


# The same noise, handed on by the test: it is in no file.

Make = Callable[[FederatedData, SeededRandom], Federation]


def noisy_pooled(digits: FederatedData, random: SeededRandom) -> Federation:
    return pooled(digits, random=random, ledgers=simulated_ledgers(CLIENTS, EPSILON, DELTA))


def noisy_local(digits: FederatedData, random: SeededRandom) -> Federation:
    ledgers = simulated_ledgers(CLIENTS, EPSILON, DELTA)
    return pooled(digits, local=True, random=random, ledgers=ledgers)


def noisy_record(digits: FederatedData, random: SeededRandom) -> Federation:
    ledgers = simulated_ledgers(CLIENTS, EPSILON, DELTA)
    unit = RecordUnit(EPSILON, DELTA, random, ledgers=ledgers)
    return federation(digits, SelectiveFD("hard"), protection=unit)


def noisy_client(digits: FederatedData, random: SeededRandom) -> Federation:
    plan = ClientPlan(clients=CLIENTS, proxies=40, rounds=3, classes=10)
    unit = ClientUnit(EPSILON, DELTA, plan, small_fleet=True, random=random)
    method = SelectiveFD("hard", server_threshold=1.0, votes="counted")
    return federation(digits, method, protection=unit, aggregation=masks())


SMALL = AdversarialSettings(latent=4, hidden=16, judge=16, sums=1, steps=2, batch=16)
METHODS = [FedAvg(local_steps=2), DaFKD(adversarial=SMALL, generated=32, steps=2)]
