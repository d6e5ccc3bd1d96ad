"""What leaves a fleet: how many proxies are answered, and the sum of all votes and noise."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from secure_fd.errors import ConfigurationError
from secure_fd.fleet.votes import ACCEPTED, FleetVotes
from secure_fd.knowledge import IntArray, KnowledgeCodec
from secure_fd.privacy.calibration import calibrate
from secure_fd.privacy.plans import ClientPlan
from secure_fd.protection.client_unit import ClientUnit
from secure_fd.secagg.packing import LaneLayout

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
    sample_rate: float = 1.0
    held: float = 1.0

    def __post_init__(self) -> None:
        if self.n_classes < 2:
            raise ConfigurationError("n_classes", self.n_classes, "use 2 or more")
        if not 1 <= self.held <= self.n_classes:
            raise ConfigurationError("held", self.held, f"use 1 to {self.n_classes} classes")

    @property
    def margin(self) -> float:
        """Votes that the right class of a proxy may expect, were every accepted one right."""
        senders = (self.clients - self.absent) * self.sample_rate
        return ACCEPTED * senders * self.held / self.n_classes

    def plan(self, proxies: int) -> ClientPlan:
        """One round about so many proxies, still without noise."""
        return ClientPlan(
            clients=self.clients,
            proxies=proxies,
            rounds=1,
            classes=self.n_classes,
            absent=self.absent,
            corrupt=self.corrupt,
            sample_rate=self.sample_rate,
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
    unit: ClientUnit,
    present: IntArray,
    progress: Callable[[int], None] = lambda _: None,
) -> NoisySums:
    """Every present client's vector, votes and noise, added up as a secure sum would.

    Masks would change no bit of the sum. present: the clients that are there; the shares of all
    others are missing too. progress hears percent.
    """
    plan = unit.plan
    scale = unit.levels(1)
    total = np.zeros(plan.proxies * plan.classes, dtype=np.int64)
    for done, client in enumerate(present, start=1):
        sent = one_vote_each(votes.labels[client, : plan.proxies], plan.classes, scale)
        total += unit.perturb(int(client), sent).astype(np.int64)
        progress(100 * done // len(present))
    room = unit.noise_terms.room
    tally = KnowledgeCodec(plan.classes, scale).decode(total, len(present), room)
    sums = unit.debias(tally, present.tolist()).total
    ordered = np.sort(sums, axis=1)
    return NoisySums(
        labels=sums.argmax(axis=1),
        kept=ordered[:, -1] > ordered[:, -2],
        votes=sums,
        layout=LaneLayout(plan.clients, scale, room),
    )


def one_vote_each(labels: NDArray[np.int8], n_classes: int, scale: int) -> NDArray[np.uint64]:
    """[m * C] `scale` units for each proxy's label, none where the client abstains."""
    said = np.flatnonzero(labels >= 0)
    units = np.zeros(len(labels) * n_classes, dtype=np.uint64)
    units[said * n_classes + labels[said]] = scale
    return units
