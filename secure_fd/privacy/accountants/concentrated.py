"""Zero-concentrated differential privacy: Renyi divergence at most a rho at every order a."""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, TypeAlias, final

import numpy as np

from secure_fd.privacy.accountants.base import parts_for, zcdp_epsilon
from secure_fd.privacy.events import (
    DiscreteGaussian,
    DistributedGaussian,
    Event,
    Gaussian,
    primitives,
)

Concentrated: TypeAlias = Gaussian | DiscreteGaussian | DistributedGaussian


@final
@dataclass(frozen=True, slots=True)
class ZeroConcentrated:
    """Adds up the rho of Gaussian, discrete Gaussian and summed discrete Gaussian releases."""

    name: ClassVar = "zero-concentrated, converted by Canonne, Kamath and Steinke (2020)"
    resolution: ClassVar = 1e-9

    def supports(self, event: Event) -> bool:
        """Gaussians of any of the three kinds, in any mixture."""
        return all(isinstance(part, Concentrated) for part in primitives(event))

    def epsilon(self, event: Event, delta: float) -> float:
        """Of the sum of all rho."""
        parts = parts_for(self, event, delta)
        spent = (times * rho(p) for p, times in parts.items() if isinstance(p, Concentrated))
        return zcdp_epsilon(math.fsum(spent), delta)


def rho(part: Concentrated) -> float:
    """The zCDP parameter of one release; infinite without noise.

    Gaussian: Bun and Steinke (2016), proposition 1.6. Discrete: Canonne et al. (2020), theorem 14.
    """
    if isinstance(part, DistributedGaussian):
        return _distributed_rho(part)
    return math.inf if part.noise_multiplier == 0 else part.noise_multiplier**-2 / 2


def _distributed_rho(part: DistributedGaussian) -> float:
    """Of a sum of n discrete Gaussians, which is not quite one, on d entries.

    Kairouz, Liu and Steinke ("The Distributed Discrete Gaussian Mechanism for Federated Learning
    with Secure Aggregation", 2021), proposition 14: with s the sensitivity over the deviation of
    the sum, the divergence of order a >= 1 is at most a s^2 / 2 + tau d, hence at most
    a (s^2 + 2 tau d) / 2, and at most a (s + tau sqrt(d))^2 / 2.
    """
    if part.variance == 0:
        return math.inf
    ratio = part.l2 / math.sqrt(part.shares * part.variance)
    tau = excess(part.variance, part.shares)
    added = ratio**2 + 2 * tau * part.dimension
    lengthened = (ratio + tau * math.sqrt(part.dimension)) ** 2
    return min(added, lengthened) / 2


@lru_cache(maxsize=1024)
def excess(variance: float, shares: int) -> float:
    """tau = 10 sum over k < n of exp(-2 pi^2 sigma^2 k / (k + 1)): how far the sum is from one.

    Proved for a sigma of 1/2 or more, which the event sees to; at 2 the summands are below 1e-16.
    """
    k = np.arange(1, shares)
    return float(10 * np.exp(-2 * math.pi**2 * variance * k / (k + 1)).sum())
