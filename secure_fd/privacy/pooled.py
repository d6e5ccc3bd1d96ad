"""What a client adds to a pooled sum: its records' residuals in integers, and a share of noise.

A record adds phi(x) r^T, its features times what a head is wrong by about it. Both are rounded to
integers of bounded norm before they are multiplied, so that what one record can move a sum by is
exact: `UNITS` in L2, whatever the record.
"""

import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from secure_fd.errors import LocalError
from secure_fd.knowledge import FloatArray, IntArray, UnitArray
from secure_fd.privacy.plans import UNITS, PooledPlan
from secure_fd.privacy.release import Bounded, Features, room_for
from secure_fd.privacy.samplers import Random, discrete_gaussian

FEATURE_UNITS: Final = 1 << 12
RESIDUAL_UNITS: Final = UNITS // FEATURE_UNITS
"""Units in features of norm 1, and in residuals of norm 1."""


def shrink(n_features: int) -> float:
    """What features are multiplied by before they are rounded: no norm then exceeds its units.

    Rounding moves each of D entries by half a unit at most, so a row by sqrt(D) / 2.

    >>> shrink(4096) * FEATURE_UNITS
    4064.0
    """
    return 1.0 - math.sqrt(n_features) / (2 * FEATURE_UNITS)


def feature_units(features: Features) -> IntArray:
    """Rows [n, D] of norm 1 at most as integers of norm `FEATURE_UNITS` at most.

    Raises LocalError for a row beyond it; the check is exact.
    """
    _check_entries(features)
    scaled = features.astype(np.float64) * (FEATURE_UNITS * shrink(features.shape[1]))
    return _checked(np.rint(scaled).astype(np.int64), FEATURE_UNITS)


def residual_units(residuals: Features) -> IntArray:
    """Rows [n, C], shortened to norm 1 where they are longer, truncated to `RESIDUAL_UNITS`.

    >>> residual_units(np.array([[1.0, 0.0], [3.0, -4.0]])).tolist()
    [[256, 0], [153, -204]]
    """
    _check_entries(residuals)
    norms = np.linalg.norm(residuals, axis=1, keepdims=True)
    # A quotient that was rounded up must not come out a unit too long.
    within = residuals / np.where(norms > 1, norms * (1 + 1e-12), 1.0)
    return _checked(np.trunc(within * RESIDUAL_UNITS).astype(np.int64), RESIDUAL_UNITS)


def _check_entries(values: Features) -> None:
    if not np.isfinite(values).all() or (values.size and np.abs(values).max() > _LARGEST):
        raise LocalError("a record's features or residuals are not finite, or far too large")


_LARGEST: Final = 1e6


def _checked(units: IntArray, most: int) -> IntArray:
    if units.size and (units * units).sum(axis=1).max() > most**2:
        raise LocalError("a record would move the sum by more than its noise covers")
    return units


def pooled_sums(parts: Iterable[tuple[Features, Features]], shape: tuple[int, int]) -> Bounded:
    """[D C] exact sum of phi(x) r^T over records, from parts of features and of their residuals."""
    total = np.zeros(shape, dtype=np.int64)
    for features, residuals in parts:
        # Products of integers below 2^53 in all: exact in floating point, and far faster.
        one, other = feature_units(features), residual_units(residuals)
        product = one.T.astype(np.float64) @ other.astype(np.float64)
        total += product.astype(np.int64)
    return Bounded(total.ravel(), l2=UNITS)


@dataclass(frozen=True, slots=True)
class PooledShares:
    """What every client of a plan adds to its sums before they are masked.

    A share alone hides nothing: only the sum of the plan's honest ones is noise enough.
    """

    plan: PooledPlan
    random: Random = field(default=os.urandom, repr=False)

    def perturb(self, sums: Bounded) -> IntArray:
        """[entries] sums and a share of noise. LocalError for others than planned."""
        if sums.l2 > UNITS or sums.values.size != self.plan.entries:
            raise LocalError(f"a sum has {sums.values.size} entries; use {self.plan.entries}")
        deviation = math.sqrt(self.plan.share_variance)
        return sums.values + discrete_gaussian(deviation, self.plan.entries, self.random)

    def room(self, clients: int) -> int:
        """How far the noise of so many clients may move a sum, in units."""
        total = clients * self.plan.share_variance
        return room_for(total, self.plan.entries * self.plan.sums)


@dataclass(frozen=True, slots=True)
class UnitCodec:
    """Pooled sums as they travel: moved up, so that none is negative but for noise.

    records: by client, public. n_features: D. room: how far a client's own noise may move its sums,
    where these are to be in range by themselves.

    >>> codec = UnitCodec((2, 3), n_features=1000)
    >>> sums = np.array([5 * UNITS // 100], dtype=np.int64)
    >>> codec.decode(2 * codec.encode(sums, noisy=True), (0, 1)).round(4).tolist()
    [0.0201]
    """

    records: tuple[int, ...]
    n_features: int
    room: int = 0

    @property
    def limit(self) -> int:
        """The most that an entry of a client's sums can be, without noise beyond the room."""
        entry = math.ceil(math.sqrt(2 / self.n_features) * FEATURE_UNITS)
        return max(self.records) * entry * RESIDUAL_UNITS + self.room

    @property
    def levels(self) -> int:
        """The most that travels, without noise."""
        return 2 * self.limit

    def encode(self, sums: IntArray, *, noisy: bool) -> UnitArray:
        """[m] sums in units, moved up.

        noisy: whether noise may carry some out of range, as masks allow; else they end there.
        """
        if noisy:
            return sums + self.limit
        return (np.clip(sums, -self.limit, self.limit) + self.limit).astype(np.uint64)

    def decode(self, total: UnitArray, survivors: Sequence[int]) -> FloatArray:
        """[m] mean over the records of all clients in the sum."""
        sums = total.astype(np.float64) - float(len(survivors) * self.limit)
        scale = UNITS * shrink(self.n_features) * sum(self.records[k] for k in survivors)
        return np.asarray(sums / scale)
