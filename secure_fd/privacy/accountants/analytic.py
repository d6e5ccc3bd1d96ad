"""Continuous Gaussian noise in closed form (Balle and Wang, ICML 2018)."""

import math
from dataclasses import dataclass
from typing import ClassVar, final

from scipy.special import log_ndtr

from secure_fd.privacy.accountants.base import least, parts_for, zcdp_epsilon
from secure_fd.privacy.events import Event, Gaussian, primitives


@final
@dataclass(frozen=True, slots=True)
class AnalyticGaussian:
    """Exact. Releases compose into one whose mu^2 is the sum of theirs, mu = 1 / z."""

    name: ClassVar = "the Gaussian mechanism's exact curve, by Balle and Wang (2018)"
    resolution: ClassVar = 1e-9

    def supports(self, event: Event) -> bool:
        """Gaussian noise alone."""
        return all(isinstance(part, Gaussian) for part in primitives(event))

    def epsilon(self, event: Event, delta: float) -> float:
        """Where the exact delta, which falls with epsilon, reaches the given one."""
        parts = parts_for(self, event, delta)
        multipliers = [(p.noise_multiplier, n) for p, n in parts.items() if isinstance(p, Gaussian)]
        if any(z == 0 for z, _ in multipliers):
            return math.inf
        mu = math.sqrt(sum(times / z**2 for z, times in multipliers))
        if gaussian_delta(mu, 0.0) <= delta:
            return 0.0
        # The concentrated bound is sound, so the exact epsilon lies below it.
        most = zcdp_epsilon(mu * mu / 2, delta) * (1 + 1e-9)
        return least(lambda claimed: gaussian_delta(mu, claimed) <= delta, 0.0, most)


def gaussian_delta(mu: float, epsilon: float) -> float:
    """Phi(mu/2 - eps/mu) - e^eps Phi(-mu/2 - eps/mu), theorem 8, without overflow."""
    if mu == 0:
        return 0.0
    gained = float(log_ndtr(mu / 2 - epsilon / mu))
    lost = epsilon + float(log_ndtr(-mu / 2 - epsilon / mu))
    return -math.exp(gained) * math.expm1(min(0.0, lost - gained))
