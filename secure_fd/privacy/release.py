"""Noise is added only to a value that carries its sensitivity, and the event is made with it.

Integers in, integers out: floating-point noise would leave its low bits behind (Mironov, 2012).
"""

import math
import os
from dataclasses import dataclass, field
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from secure_fd.crypto.primitives import fields
from secure_fd.errors import LocalError
from secure_fd.knowledge import FloatArray, IntArray, WordArray
from secure_fd.privacy.calibration import calibrate
from secure_fd.privacy.events import DiscreteGaussian
from secure_fd.privacy.guarantees import record_guarantee
from secure_fd.privacy.ledger import BudgetLedger
from secure_fd.privacy.plans import UNIT, ClientPlan, RecordPlan
from secure_fd.privacy.response import Alphabet
from secure_fd.privacy.samplers import Random, discrete_gaussian, unmet_by
from secure_fd.privacy.units import Guarantee


@dataclass(frozen=True, slots=True, eq=False)
class Bounded:
    """Integers before any noise, so private, and the most that a neighbour moves them.

    values: of any shape, in units. l2: sensitivity in units, of all entries together.
    """

    values: IntArray = field(repr=False)
    l2: int

    def __post_init__(self) -> None:
        _check_integers(self.values)
        if not self.l2 > 0:
            raise LocalError(f"l2: {self.l2} is no sensitivity; use the units a neighbour may move")

    def rows(self, indices: tuple[int, ...]) -> "Bounded":
        """Some of the rows: leaving entries out moves nothing further."""
        return Bounded(self.values[list(indices)], self.l2)

    def __reduce__(self) -> NoReturn:
        raise LocalError("values without noise stay in this process: they cannot be pickled")


@dataclass(frozen=True, slots=True, eq=False)
class Noisy:
    """Integers under noise, and what an accountant must be told of it. `add_...` makes them.

    values: of the shape that the bounded ones had, in their units.
    """

    values: IntArray = field(repr=False)
    event: DiscreteGaussian

    def __post_init__(self) -> None:
        _check_integers(self.values)


def add_discrete_gaussian(bounded: Bounded, noise_multiplier: float, random: Random) -> Noisy:
    """Independent discrete Gaussian noise of sigma = noise_multiplier * l2 on every entry.

    Canonne, Kamath and Steinke, "The Discrete Gaussian for Differential Privacy" (2020), theorem
    14. A noise multiplier of 0 adds nothing and draws nothing.
    """
    event = DiscreteGaussian(noise_multiplier)
    noise = discrete_gaussian(noise_multiplier * bounded.l2, bounded.values.size, random)
    return Noisy(bounded.values + noise.reshape(bounded.values.shape), event)


def _check_integers(values: IntArray) -> None:
    if values.dtype != np.int64:
        raise LocalError(f"values: {values.dtype} is not allowed; only integers take exact noise")


# The record unit's only release: noisy class-conditional feature means of one client.


Features = NDArray[np.float64] | NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class NoisyClassMeans:
    """What a client may publish of its records, with the event and the claim made with the noise.

    means: [C, D], noisy sums of each class's features over n_records; zero where not released.
    classes: the released blocks. n_records: of all classes, public.
    """

    means: FloatArray = field(repr=False)
    classes: tuple[int, ...]
    n_records: int
    event: DiscreteGaussian
    guarantee: Guarantee = field(repr=False)

    @property
    def noise_multiplier(self) -> float:
        """z, the noise's standard deviation over the L2 sensitivity."""
        return self.event.noise_multiplier


def record_plan(epsilon: float, delta: float, n_records: int) -> RecordPlan:
    """Plan the release that a client of so many records makes for this budget; reads no record.

    >>> round(record_plan(4.0, 1e-5, n_records=300).noise, 3)
    1.081
    """
    plan = RecordPlan(n_records)
    return plan.with_noise(calibrate(epsilon, delta, plan))


def release_class_means(
    features: Features,
    labels: IntArray,
    n_classes: int,
    *,
    epsilon: float,
    delta: float,
    random: Random = os.urandom,
    declared_classes: tuple[int, ...] | None = None,
    ledger: BudgetLedger | None = None,
    request: bytes = b"",
) -> NoisyClassMeans:
    """Sum integer features by class, add discrete Gaussian noise to every entry, divide by n.

    features: [n, D], each row's norm at most 1 whatever the record: the feature map's duty. A row
    above it is an error, for no noise would cover it. labels: [n] in [0, n_classes).
    declared_classes: release these blocks only; they are public then, and records of other
    classes are left out. An infinite epsilon adds no noise. ledger: of the data set; it books the
    release before noise is drawn, and gives the same one to the same request, which names the
    features' map in public terms. BudgetError beyond its total.
    """
    if len(features) == 0 or features.ndim != 2 or labels.shape != (len(features),):
        raise LocalError(
            f"a release needs features [n, D] and labels [n], n of 1 or more, "
            f"not {features.shape} and {labels.shape}"
        )
    blocks = (
        Alphabet.full(n_classes)
        if declared_classes is None
        else Alphabet(n_classes, declared_classes)
    )
    plan = record_plan(epsilon, delta, len(features))
    sums = class_sums(features, labels, n_classes).rows(blocks.classes)
    if sums.values.size > plan.entries:
        raise LocalError(f"a release has {sums.values.size} entries; use {plan.entries} at most")
    if ledger is None:
        noisy = add_discrete_gaussian(sums, plan.noise, random)
    else:
        asked = fields(request, repr((sums.values.shape, blocks)).encode())
        noisy = _booked(ledger, asked, sums, plan, random)
    means = np.zeros((n_classes, features.shape[1]))
    means[list(blocks.classes)] = noisy.values / (len(features) * UNIT)
    claim = record_guarantee(
        noise_multiplier=noisy.event.noise_multiplier,
        delta=delta,
        n_records=len(features),
        entries=noisy.values.size,
        declared=declared_classes is not None,
    )
    if math.isfinite(epsilon):
        claim = claim.voided_by(unmet_by(random))
    return NoisyClassMeans(means, blocks.classes, len(features), noisy.event, claim)


def _booked(
    ledger: BudgetLedger, request: bytes, sums: Bounded, plan: RecordPlan, random: Random
) -> Noisy:
    """Of a ledger: what it gave before, or noise that is paid for first."""

    def drawn() -> IntArray:
        return add_discrete_gaussian(sums, plan.noise, random).values.ravel()

    size = sums.values.size
    values = ledger.release_integers(
        "class means", plan.event(), request, drawn, size=size, unmet=unmet_by(random)
    )
    return Noisy(values.reshape(sums.values.shape), DiscreteGaussian(plan.noise))


def class_sums(features: Features, labels: IntArray, n_classes: int) -> Bounded:
    """[C, D] exact sums of each class's rows, in units, and their sensitivity.

    A record touches one block, by a vector of norm at most UNIT (see `to_units`), so zeroing it
    out moves all entries together by at most UNIT in L2.
    """
    if labels.size and not 0 <= labels.min() <= labels.max() < n_classes:
        raise LocalError(f"labels: one is outside [0, {n_classes})")
    sums = np.zeros((n_classes, features.shape[1]), dtype=np.int64)
    for label in range(n_classes):
        sums[label] = to_units(features[labels == label]).sum(axis=0)
    return Bounded(sums, l2=UNIT)


def to_units(features: Features) -> IntArray:
    """Convert rows [n, D] to integer units, truncated towards zero: no entry, so no norm, grows.

    Raises LocalError for a row whose integer norm exceeds UNIT; the check is exact.

    >>> to_units(np.array([[0.5, -0.25]]))
    array([[ 32768, -16384]])
    """
    if not np.isfinite(features).all() or (features.size and np.abs(features).max() > 2):
        raise LocalError("features: an entry is not finite or above 2; rows need norm at most 1")
    units = np.trunc(features.astype(np.float64) * UNIT).astype(np.int64)
    if units.size and (units * units).sum(axis=1).max() > UNIT**2:
        raise LocalError("features: a row has a norm above 1, and the noise would not cover it")
    return units


# One client's share of the noise in a sum, and the room that all shares together need.


_FAILURE = 2.0**-40
"""Probability, over all sums of a plan, that noise leaves its lane and spoils its neighbour's."""


@dataclass(frozen=True, slots=True)
class ClientShares:
    """What every client of a plan adds to its votes before they are masked.

    A share alone hides nothing: whoever reads one client's vector in clear reads its votes. Only
    the sum of all is noisy enough, and it needs the plan's number of honest shares.
    """

    plan: ClientPlan
    random: Random = field(default=os.urandom, repr=False)

    def perturb(self, units: WordArray) -> IntArray:
        """Votes [m * C] in units of the plan's scale, plus a share of noise.

        Raises LocalError for votes that the plan's noise would not cover.
        """
        self._check(units)
        return units.astype(np.int64) + self.draw(len(units))

    def _check(self, units: WordArray) -> None:
        """At most one vote of `scale` units a proxy, on the planned proxies: the sensitivity."""
        plan = self.plan
        if units.dtype != np.uint64:
            raise LocalError(f"votes are {units.dtype}; use uint64, which has no negative ones")
        if units.size > plan.proxies * plan.classes or units.size % plan.classes:
            raise LocalError(
                f"{units.size} votes are not those of up to {plan.proxies} proxies, "
                f"{plan.classes} classes each"
            )
        votes = units.reshape(-1, plan.classes)
        # Entries first: the sum of any that are larger might wrap.
        if units.size and max(int(votes.max()), int(votes.sum(axis=1).max())) > plan.scale:
            raise LocalError(f"a proxy has more than one vote of {plan.scale} units")

    def draw(self, size: int) -> IntArray:
        """[size] noise of one client."""
        return discrete_gaussian(math.sqrt(self.plan.share_variance), size, self.random)

    @property
    def deviation(self) -> float:
        """Of the noise in a sum that nobody is missing from, in votes."""
        return math.sqrt(self.plan.clients * self.plan.share_variance) / self.plan.scale

    @property
    def room(self) -> int:
        """How far the noise of all may move a sum, in units, but for a chance of 2^-40 a plan;
        see `room_for`.
        """
        variance = self.plan.clients * self.plan.share_variance
        return room_for(variance, self.plan.proxies * self.plan.classes * self.plan.rounds)


def room_for(variance: float, entries: int) -> int:
    """How far noise of a variance may move any of so many entries, but for a chance of 2^-40.

    Bernstein's inequality, P(|X| > t) <= 2 exp(-t^2 / (2 (v + t / 3))), for noise of variance v; a
    sum of discrete Gaussians keeps it without the t / 3 as well.

    >>> room_for(0.0, 10), room_for(100.0, 10)
    (0, 90)
    """
    if variance == 0:
        return 0
    log_odds = math.log(2 * entries / _FAILURE)
    return math.ceil(log_odds / 3 + math.sqrt((log_odds / 3) ** 2 + 2 * variance * log_odds))
