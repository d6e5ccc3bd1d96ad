"""A fleet of thousands of clients, simulated: where differential privacy at the client unit pays.

A record's way: `deal` gives it to a client, `cast_votes` lets that client answer proxies through
the public feature map, `released_sums` adds every client's answers and noise, and `measure` trains
the network that anyone could train from the noisy sums.
"""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from experiments.core.measures import ACCURACY
from experiments.core.runs import federated_data
from experiments.core.study import Result
from experiments.privacy.dp_utility import Cell
from secure_fd.data.federated import FederatedData
from secure_fd.data.images import Images, concatenate
from secure_fd.data.partition import Split
from secure_fd.errors import ConfigurationError
from secure_fd.privacy.base import NoProtection, PrivacyMechanism
from secure_fd.privacy.calibration import calibrate
from secure_fd.privacy.client import ClientPlan, ClientUnit
from secure_fd.privacy.samplers import SeededRandom
from secure_fd.selection.density_ratio import (
    ProxyReference,
    RatioSolver,
    ReferenceSettings,
    shared_reference,
)
from secure_fd.training import models
from secure_fd.training.recipes import SGD
from secure_fd.training.trainer import Trainer, accuracy, default_device
from secure_fd.votes.codec import IntArray, KnowledgeCodec

Labels = NDArray[np.int8]
ABSTAIN = -1
ACCEPTED = 0.75
"""A client with k of C classes answers about this share, times k / C, of the proxies."""
ABSENT, CORRUPT = 0.1, 0.1
"""Share of the clients that are away, and of those that give no noise of their own."""
DELTA = 1e-5
_SIZES = {False: (1500, 2048), True: (100, 256)}
"""Quick -> steps of the network, and most proxies that are asked about."""
LEAST_A_CLASS = 10
"""Proxies of a class below which no network can be trained, however right the labels are."""
_MARGINS = 4
"""Deviations of noise that fit between a right class's votes and none."""
_RIDGE_RECORDS = 20
"""Ridge 1 / (20 n): a mean of n records is uncertain by 1 / n. The 20 was chosen on seed 0."""


# Records and votes.


def deal(
    labels: IntArray, split: str, n_clients: int, n_classes: int, rng: np.random.Generator
) -> list[IntArray]:
    """Return the records of each client, as even as can be.

    strong: client k holds records of class k mod C alone. iid: records are dealt at random.
    Raises ConfigurationError where some client would hold none.
    """
    pools = [np.arange(len(labels))]
    if split == "strong":
        pools = [np.flatnonzero(labels == c) for c in range(n_classes)]
    dealt, count = [rng.permutation(pool) for pool in pools], len(pools)
    holders = [len(range(c, n_clients, count)) for c in range(count)]
    parts = [np.sort(dealt[k % count][k // count :: holders[k % count]]) for k in range(n_clients)]
    if not all(map(len, parts)):
        raise ConfigurationError(
            "clients", n_clients, f"some would hold none of the {len(labels)} records: use fewer"
        )
    return parts


def cast_votes(
    records: Images, parts: Sequence[IntArray], reference: ProxyReference, indices: IntArray
) -> Labels:
    """Return [K, M] labels of the proxies at `indices` [M] by every client, or ABSTAIN.

    A client answers about the proxies of its largest ratios: a rule of ranks needs no data to be
    set. parts: the records of each client, of which it has one or more.
    """
    labels, n_clients = records.labels.cpu().numpy(), len(parts)
    n_classes = int(labels.max()) + 1
    ridge = max(1 / len(reference.proxy_features), n_clients / (_RIDGE_RECORDS * len(labels)))
    solver = RatioSolver.with_ridge(reference.second_moment, ridge)
    weights = solver.solve(reference.proxy_features[indices].T).astype(np.float32)
    votes = np.full((n_clients, len(indices)), ABSTAIN, dtype=np.int8)
    for client, part in enumerate(parts):
        features = reference.features(records.pixels[torch.from_numpy(part)])
        scores, held = features.astype(np.float32) @ weights, labels[part]
        classes = np.unique(held)
        # The number of a client's records scales all its ratios alike: sums serve as means.
        ratios = np.stack([scores[held == c].sum(axis=0) for c in classes])
        count = max(1, round(ACCEPTED * len(classes) / n_classes * len(indices)))
        accepted = np.argpartition(-ratios.max(axis=0), count - 1)[:count]
        votes[client, accepted] = classes[ratios[:, accepted].argmax(axis=0)]
    return votes


# The noisy sum, and the network that is trained on it.


def planned(fleet: ClientPlan, held: float, epsilon: float, delta: float, most: int) -> ClientPlan:
    """Return the plan with the most proxies whose noise is within a quarter of the margin.

    The margin is the votes that the right class of a proxy may expect, were every accepted one
    right. A sum's noise has deviation z sqrt(m) votes for m proxies, so m = (margin / 4z)^2, but at
    most `most` and at least LEAST_A_CLASS a class. An infinite epsilon takes `most` and no noise.

    Args:
        fleet: of one round; its proxies and noise do not matter.
        held: classes that a client is expected to hold, from the split and not from the records.
        epsilon: of a client.
        delta: of the same.
        most: proxies.

    Raises:
        ConfigurationError: `most` is below the least.
    """
    least = LEAST_A_CLASS * fleet.classes
    if most < least:
        raise ConfigurationError("proxies", most, f"use {least} or more, some of every class")
    if math.isinf(epsilon):
        return replace(fleet, proxies=most)
    noise = calibrate(epsilon, delta, replace(fleet, proxies=least))
    margin = ACCEPTED * fleet.survivors * held / fleet.classes
    proxies = math.floor((margin / (_MARGINS * noise)) ** 2)
    plan = replace(fleet, proxies=min(most, max(least, proxies)))
    return plan.with_noise(calibrate(epsilon, delta, plan))


def released_sums(
    votes: Labels, plan: ClientPlan, unit: PrivacyMechanism, present: IntArray
) -> tuple[IntArray, NDArray[np.bool_]]:
    """Add every present client's votes and noise, as a secure sum would: masks change no bit.

    Returns:
        [m] classes of most votes, and [m] whether they stand out of the noise.
    """
    total = np.zeros(plan.proxies * plan.classes, dtype=np.int64)
    for client in present.tolist():
        chosen = votes[client, : plan.proxies, None] == np.arange(plan.classes)
        units = chosen.ravel() * np.uint64(plan.scale)
        total += unit.client(client).perturb(units).astype(np.int64)
    codec = KnowledgeCodec(plan.classes, plan.scale)
    tally = codec.decode(total, len(present), unit.noise_terms.room)
    sums = unit.debias(tally, present.tolist()).total
    ordered = np.sort(sums, axis=1)
    return sums.argmax(axis=1), ordered[:, -1] > ordered[:, -2]


# A cell of the study.


def measure(data_dir: Path | None, cell: Cell, made: Mapping[Any, Any]) -> Result:
    """Release one noisy sum of the fleet's votes, train the paper's shared network on it, test it.

    made: the cell's only part, of `all_votes`.
    """
    start = time.process_time()
    data = _data(data_dir, cell)
    ((votes, indices),) = made.values()
    plan, unit = _protected(cell, data, len(indices))
    order = np.random.default_rng([cell.seed, cell.clients, 1]).permutation(cell.clients)
    present = np.sort(order[plan.absent :])  # as many are missing as the noise provides for
    labels, kept = released_sums(votes, plan, unit, present)
    asked, student = indices[: plan.proxies], models.build(models.SHARED, data.n_classes, cell.seed)
    if kept.any():
        lesson = Images(data.proxies.pixels[asked[kept]], torch.from_numpy(labels[kept]))
        trainer = Trainer(student, lesson, SGD(), cell.seed, default_device())
        trainer.take_steps(_SIZES[cell.quick][0])
    return Result(cell, {ACCURACY: accuracy(student, data.test)}, time.process_time() - start)


def _protected(cell: Cell, data: FederatedData, most: int) -> tuple[ClientPlan, PrivacyMechanism]:
    """Return the plan of a fleet's sum, and its unit; none at an infinite epsilon."""
    epsilon = float(cell.epsilon)
    fleet = ClientPlan(
        clients=cell.clients,
        proxies=1,
        rounds=1,
        classes=data.n_classes,
        absent=math.floor(ABSENT * cell.clients),
        corrupt=math.floor(CORRUPT * cell.clients),
    )
    # An iid client of n records is expected to hold this many of C balanced classes.
    records = sum(len(c.train) + len(c.validation) for c in data.clients) / cell.clients
    mixed = data.n_classes * (1 - (1 - 1 / data.n_classes) ** records)
    held = 1.0 if cell.split == "strong" else mixed
    plan = planned(fleet, held, epsilon, DELTA, most)
    if math.isinf(epsilon):
        return plan, NoProtection()
    unit = ClientUnit(epsilon, DELTA, plan, small_fleet=True, random=SeededRandom(cell.seed))
    return unit.plan, unit


def all_votes(data_dir: Path | None, cell: Cell) -> tuple[Labels, IntArray]:
    """Return all votes of a fleet [K, M], and the public order of their proxies [M].

    They do not depend on epsilon.
    """
    data = _data(data_dir, cell)
    records, rng = _records(data), np.random.default_rng([cell.seed, cell.clients])
    parts = deal(records.labels.numpy(), cell.split, cell.clients, data.n_classes, rng)
    indices = rng.permutation(len(data.proxies))[: _SIZES[cell.quick][1]]
    reference = shared_reference(data.proxies.pixels, ReferenceSettings())
    return cast_votes(records, parts, reference, indices), indices


def _data(data_dir: Path | None, cell: Cell) -> FederatedData:
    """Return the image set as other studies divide it; fleets deal its local records anew."""
    return federated_data(cell.image_set, data_dir, Split("strong"), 10, cell.seed)


def _records(data: FederatedData) -> Images:
    return concatenate([part for c in data.clients for part in (c.train, c.validation)])
