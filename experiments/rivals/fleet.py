"""A fleet of thousands of clients, simulated: where differential privacy at the client unit pays.

A record's way through the files: `deal` gives it to a client, `votes` lets that client answer
proxies through the public feature map, `release` adds every client's answers and noise, and
`lesson` trains the network that anyone could train from the noisy sums.
"""

import math
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from secure_fd.data.images import Images
from secure_fd.errors import ConfigurationError, LocalError
from secure_fd.privacy.base import NoNoise
from secure_fd.privacy.calibration import calibrate
from secure_fd.privacy.client import ClientPlan, ClientUnit
from secure_fd.selection.density_ratio import ProxyReference, RatioSolver
from secure_fd.training import models
from secure_fd.training.recipes import SGD
from secure_fd.training.trainer import Trainer, default_device
from secure_fd.votes.codec import IntArray, KnowledgeCodec
from secure_fd.votes.packing import LaneLayout

# Which of thousands of clients holds which record.


Dealt = Literal["strong", "iid"]


def deal(
    labels: IntArray, split: Dealt, n_clients: int, n_classes: int, rng: np.random.Generator
) -> IntArray:
    """[N] the owner of each record, as even as can be.

    strong: client k holds records of class k mod C alone. iid: records are dealt at random.
    Raises ConfigurationError where some client would hold none.
    """
    owners = np.empty(len(labels), dtype=np.int64)
    if split == "iid":
        owners[rng.permutation(len(labels))] = np.arange(len(labels)) % n_clients
    else:
        for c in range(n_classes):
            records = rng.permutation(np.flatnonzero(labels == c))
            holders = np.arange(c, n_clients, n_classes)
            owners[records] = holders[np.arange(len(records)) % max(1, len(holders))]
    if len(np.unique(owners)) != n_clients:
        raise ConfigurationError(
            "clients", n_clients, f"some would hold none of the {len(labels)} records: use fewer"
        )
    return owners


def expected_classes(split: Dealt, records: float, n_classes: int) -> float:
    """How many of C balanced classes a client of so many records is expected to hold."""
    if split == "strong":
        return 1.0
    return float(n_classes * (1 - (1 - 1 / n_classes) ** records))


# Every client's hard votes, from its few records through the public feature map.
#
# A client's ratio for class c at proxy x is phi(x)^T (H + beta I)^-1 h_c, and h_c is a mean over
# its
# records (see `selection.density`). So the ratios of all clients are sums of rows of one matrix,
# records by proxies, which is made and reduced in blocks of clients.


ABSTAIN = -1
ACCEPTED = 0.75
"""A client with k of C classes answers about this share, times k / C, of the proxies."""
_BLOCK = 2048
"""Records in a block: features and scores of one take 40 MB for 2,000 features and proxies."""
_RIDGE_RECORDS = 20
"""Ridge 1 / (20 n): a mean of n records is uncertain by 1 / n. The 20 was chosen on seed 0."""

Scores = NDArray[np.float32]
Labels = NDArray[np.int8]


@dataclass(frozen=True, slots=True, eq=False)
class FleetVotes:
    """labels: [K, M], each client's label of each proxy, or ABSTAIN. indices: [M], the proxies."""

    labels: Labels = field(repr=False)
    indices: IntArray = field(repr=False)


def cast_votes(
    records: Images,
    owners: IntArray,
    reference: ProxyReference,
    indices: IntArray,
) -> FleetVotes:
    """Votes of clients 0..max(owners) about the proxies at `indices` [M].

    owners: [N]. Raises LocalError where a client holds no record.
    """
    labels = records.labels.cpu().numpy()
    order = np.lexsort((labels, owners))
    starts = _runs(owners[order])
    n_clients = len(starts)
    if not np.array_equal(owners[order][starts], np.arange(n_clients)):
        raise LocalError("a client of the fleet holds no record")
    n_classes = int(labels.max()) + 1
    weights = _weights(reference, indices, len(labels) / n_clients)
    votes = np.empty((n_clients, len(indices)), dtype=np.int8)
    ends = np.append(starts[1:], len(order))
    first = 0
    while first < n_clients:
        last = max(first + 1, int(np.searchsorted(ends, starts[first] + _BLOCK, side="right")))
        block = order[starts[first] : ends[last - 1]]
        scores = _scores(records, block, reference, weights)
        votes[first:last] = _block_votes(scores, owners[block], labels[block], n_classes)
        first = last
    return FleetVotes(votes, indices)


def _weights(reference: ProxyReference, indices: IntArray, records: float) -> Scores:
    """[D, M] (H + beta I)^-1 phi(x), for clients of so many records; public."""
    ridge = max(1.0 / len(reference.proxy_features), 1.0 / (_RIDGE_RECORDS * records))
    solver = RatioSolver.with_ridge(reference.second_moment, ridge)
    return solver.solve(reference.proxy_features[indices].T).astype(np.float32)


def _scores(records: Images, block: IntArray, reference: ProxyReference, weights: Scores) -> Scores:
    """[n, M] what each record of a block adds to its client's ratios."""
    import torch

    parts = np.array_split(block, max(1, -(-len(block) // _BLOCK)))  # one client may exceed it
    return np.concatenate(
        [
            reference.features(records.pixels[torch.from_numpy(p)]).astype(np.float32) @ weights
            for p in parts
        ]
    )


def _block_votes(scores: Scores, owners: IntArray, labels: IntArray, n_classes: int) -> Labels:
    """[clients, M] of a block that is sorted by owner and label.

    Each client's own number of records scales all its ratios alike, so sums serve as means.
    """
    groups = _runs(owners * n_classes + labels)
    ratios = np.add.reduceat(scores, groups, axis=0)
    clients = _runs(owners[groups])
    ends = np.append(clients[1:], len(groups))
    votes = np.full((len(clients), scores.shape[1]), ABSTAIN, dtype=np.int8)
    for row, (begin, end) in enumerate(zip(clients, ends, strict=True)):
        own = ratios[begin:end]
        accepted = _accepted(own.max(axis=0), (end - begin) / n_classes)
        votes[row, accepted] = labels[groups[begin:end]][own[:, accepted].argmax(axis=0)]
    return votes


def _accepted(best: Scores, share: float) -> IntArray:
    """The proxies of the largest ratios: a rule of ranks, which needs no data to be set."""
    count = max(1, round(ACCEPTED * share * len(best)))
    return np.argpartition(-best, count - 1)[:count]


def _runs(keys: IntArray) -> IntArray:
    """Where each run of equal keys starts; keys are sorted."""
    return np.flatnonzero(np.append(True, keys[1:] != keys[:-1]))


# What leaves a fleet: how many proxies are answered, and the sum of all votes and noise.


LEAST_A_CLASS = 10
"""Proxies of a class below which there is nothing to learn from, however right the labels are."""
_MARGINS = 4
"""How many deviations of noise fit between a right class's votes and none."""


@dataclass(frozen=True, slots=True)
class Fleet:
    """What a fleet agrees on in public. absent, corrupt: clients that the noise provides for.

    held: how many classes a client is expected to hold, from the split and not from the records.
    """

    clients: int
    n_classes: int
    absent: int = 0
    corrupt: int = 0
    held: float = 1.0

    def __post_init__(self) -> None:
        if self.n_classes < 2:
            raise ConfigurationError("n_classes", self.n_classes, "use 2 or more")
        if not 1 <= self.held <= self.n_classes:
            raise ConfigurationError("held", self.held, f"use 1 to {self.n_classes} classes")

    @property
    def margin(self) -> float:
        """Votes that the right class of a proxy may expect, were every accepted one right."""
        return ACCEPTED * (self.clients - self.absent) * self.held / self.n_classes

    def plan(self, proxies: int) -> ClientPlan:
        """One round about so many proxies, still without noise."""
        return ClientPlan(
            clients=self.clients,
            proxies=proxies,
            rounds=1,
            classes=self.n_classes,
            absent=self.absent,
            corrupt=self.corrupt,
        )


def planned(fleet: Fleet, epsilon: float, delta: float, most: int) -> ClientPlan:
    """The plan with the most proxies whose noise stays within a quarter of the expected margin.

    A sum's noise has deviation z sqrt(m) votes for m proxies, so m = (margin / 4z)^2, but at most
    `most` and at least LEAST_A_CLASS a class. Nothing in it is private. An infinite epsilon takes
    `most` and no noise. Raises ConfigurationError where `most` is below the least.
    """
    least = LEAST_A_CLASS * fleet.n_classes
    if most < least:
        raise ConfigurationError("proxies", most, f"use {least} or more, some of every class")
    if math.isinf(epsilon):
        return fleet.plan(most)
    noise = calibrate(epsilon, delta, fleet.plan(least))
    proxies = math.floor((fleet.margin / (_MARGINS * noise)) ** 2)
    plan = fleet.plan(min(most, max(least, proxies)))
    return plan.with_noise(calibrate(epsilon, delta, plan))


@dataclass(frozen=True, slots=True, eq=False)
class NoisySums:
    """labels: [m], the class of most votes. kept: [m], whether it stands out of the noise.

    votes: [m, C], debiased. layout: lanes of a client's upload.
    """

    labels: IntArray = field(repr=False)
    kept: NDArray[np.bool_] = field(repr=False)
    votes: NDArray[np.float64] = field(repr=False)
    layout: LaneLayout


def released_sums(
    votes: FleetVotes,
    plan: ClientPlan,
    unit: ClientUnit | None,
    present: IntArray,
) -> NoisySums:
    """Every present client's vector, votes and noise, added up as a secure sum would.

    Masks would change no bit of the sum. present: the clients that are there; the shares of all
    others are missing too.
    """
    total = np.zeros(plan.proxies * plan.classes, dtype=np.int64)
    for client in present:
        sent = one_vote_each(votes.labels[client, : plan.proxies], plan.classes, plan.scale)
        mechanism = NoNoise() if unit is None else unit.client(int(client))
        total += mechanism.perturb(sent).astype(np.int64)
    room = 0 if unit is None else unit.noise_terms.room
    tally = KnowledgeCodec(plan.classes, plan.scale).decode(total, len(present), room)
    sums = (tally if unit is None else unit.debias(tally, present.tolist())).total
    ordered = np.sort(sums, axis=1)
    return NoisySums(
        labels=sums.argmax(axis=1),
        kept=ordered[:, -1] > ordered[:, -2],
        votes=sums,
        layout=LaneLayout(plan.clients, plan.scale, room),
    )


def one_vote_each(labels: NDArray[np.int8], n_classes: int, scale: int) -> NDArray[np.uint64]:
    """[m * C] `scale` units for each proxy's label, none where the client abstains."""
    said = np.flatnonzero(labels >= 0)
    units = np.zeros(len(labels) * n_classes, dtype=np.uint64)
    units[said * n_classes + labels[said]] = scale
    return units


# What anyone can learn from a fleet's noisy sums: one network, taught by the released labels.


def learnt(
    pixels: Tensor,
    labels: IntArray,
    n_classes: int,
    *,
    steps: int,
    seed: int,
) -> nn.Module:
    """The paper's shared network after SGD on proxies [m, ...] and their released labels [m].

    Where no label stands out of the noise there is nothing to learn: the network as it begins.
    """
    lesson = Images(pixels, torch.from_numpy(labels))
    model = models.build(models.SHARED, n_classes, seed)
    if len(lesson) == 0:
        return model
    trainer = Trainer(model, lesson, SGD(), seed, default_device())
    trainer.take_steps(steps)
    return model
