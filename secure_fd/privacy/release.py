"""Noise is added only to a value that carries its sensitivity.

Integers in, integers out: floating-point noise would leave its low bits behind (Mironov, 2012).
"""

import math
import os
from dataclasses import dataclass, field
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from secure_fd.errors import LocalError
from secure_fd.knowledge import IntArray, WordArray
from secure_fd.privacy.plans import ClientPlan
from secure_fd.privacy.samplers import Random, discrete_gaussian

Features = NDArray[np.float64] | NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class Bounded:
    """Integers before any noise, so private, and the most that a neighbour moves them.

    values: of any shape, in units. l2: sensitivity in units, of all entries together.
    """

    values: IntArray = field(repr=False)
    l2: int

    def __post_init__(self) -> None:
        if self.values.dtype != np.int64:
            raise LocalError(
                f"values: {self.values.dtype} is not allowed; only integers take exact noise"
            )
        if not self.l2 > 0:
            raise LocalError(f"l2: {self.l2} is no sensitivity; use the units a neighbour may move")

    def __reduce__(self) -> NoReturn:
        raise LocalError("values without noise stay in this process: they cannot be pickled")


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
