"""The record unit's only release: noisy class-conditional feature means of one client."""

import math
import os
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from secure_fd.errors import LocalError
from secure_fd.knowledge import FloatArray, IntArray
from secure_fd.privacy.alphabet import Alphabet
from secure_fd.privacy.calibration import calibrate
from secure_fd.privacy.entropy import Random, unmet_by
from secure_fd.privacy.events import DiscreteGaussian
from secure_fd.privacy.guarantees import record_guarantee
from secure_fd.privacy.mechanisms import Bounded, add_discrete_gaussian
from secure_fd.privacy.plans import RecordPlan
from secure_fd.privacy.units import Guarantee

UNIT = 1 << 16
"""Integer units in a feature of 1."""

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
    """The release that a client of so many records makes for this budget; reads no record."""
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
) -> NoisyClassMeans:
    """Sum integer features by class, add discrete Gaussian noise to every entry, divide by n.

    features: [n, D], each row's norm at most 1 whatever the record: the feature map's duty. A row
    above it is an error, for no noise would cover it. labels: [n] in [0, n_classes).
    declared_classes: release these blocks only; they are public then, and records of other
    classes are left out. An infinite epsilon adds no noise.
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
    noisy = add_discrete_gaussian(sums, plan.noise, random)
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
    """[n, D] rows in integer units, truncated towards zero: no entry, so no norm, grows.

    Raises LocalError for a row whose integer norm exceeds UNIT; the check is exact.
    """
    if not np.isfinite(features).all() or (features.size and np.abs(features).max() > 2):
        raise LocalError("features: an entry is not finite or above 2; rows need norm at most 1")
    units = np.trunc(features.astype(np.float64) * UNIT).astype(np.int64)
    if units.size and (units * units).sum(axis=1).max() > UNIT**2:
        raise LocalError("features: a row has a norm above 1, and the noise would not cover it")
    return units
