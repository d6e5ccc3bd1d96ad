"""One client's share of the noise in a sum, and the room that all shares together need."""

import math
import os
from dataclasses import dataclass, field

import numpy as np

from secure_fd.errors import LocalError
from secure_fd.knowledge import IntArray, WordArray
from secure_fd.privacy.discrete_gaussian import discrete_gaussian
from secure_fd.privacy.entropy import Random, words
from secure_fd.privacy.plans import ClientPlan
from secure_fd.privacy.skellam import skellam

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
        """Votes [m * C] in units of the plan's scale, or none at all by the coin, plus a share.

        Raises LocalError for votes that the plan's noise would not cover.
        """
        self._check(units)
        votes = units.astype(np.int64) if self._drawn() else np.zeros(len(units), dtype=np.int64)
        return votes + self.draw(len(units))

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
        variance = self.plan.share_variance
        if self.plan.noise_kind == "skellam":
            return skellam(variance, size, self.random)
        return discrete_gaussian(math.sqrt(variance), size, self.random)

    def _drawn(self) -> bool:
        """The client's own coin: heads with a probability of at most the plan's rate."""
        rate = self.plan.sample_rate
        return rate == 1 or int(words(self.random, 1)[0]) < math.floor(rate * 2**64)

    @property
    def deviation(self) -> float:
        """Of the noise in a sum that nobody is missing from, in votes."""
        return math.sqrt(self.plan.clients * self.plan.share_variance) / self.plan.scale

    @property
    def room(self) -> int:
        """How far the noise of all may move a sum, in units, but for a chance of 2^-40 a plan.

        Bernstein's inequality, P(|X| > t) <= 2 exp(-t^2 / (2 (v + t / 3))), holds for Skellam
        noise of variance v and, without the t / 3, for a sum of discrete Gaussians.
        """
        variance = self.plan.clients * self.plan.share_variance
        if variance == 0:
            return 0
        entries = self.plan.proxies * self.plan.classes * self.plan.rounds
        log_odds = math.log(2 * entries / _FAILURE)
        return math.ceil(log_odds / 3 + math.sqrt((log_odds / 3) ** 2 + 2 * variance * log_odds))
