"""DP-SGD by numerical composition of privacy loss (Gopi, Lee and Wutschitz, NeurIPS 2021)."""

import warnings
from collections import Counter
from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np

from secure_fd.errors import ConfigurationError
from secure_fd.privacy.accountants.analytic import AnalyticGaussian
from secure_fd.privacy.accountants.base import parts_for
from secure_fd.privacy.accountants.renyi import IntegerRenyi
from secure_fd.privacy.events import (
    Composed,
    Event,
    Gaussian,
    Primitive,
    Repeated,
    SampledGaussian,
    primitives,
)

_LEAST_DELTA = 1e-11  # the sums of the composition are right to about 1e-14
_GRID_ERROR = 0.002  # of epsilon, and added to it; the time taken grows as it falls
_LEAST_ERROR = 0.001
_MOST_EPSILON = 300.0


@final
@dataclass(frozen=True, slots=True)
class PrivacyLoss:
    """Opacus' upper bound. It exceeds the truth by twice its grid's error at most.

    That error is .2 % of a rough bound, or .001. Above epsilon 300, where nobody is protected and
    exponentials overflow, the rough bound is the answer.
    """

    name: ClassVar = "Opacus PRV"
    resolution: ClassVar = 0.004

    def supports(self, event: Event) -> bool:
        """Gaussian noise, on samples or on all."""
        return all(isinstance(part, Gaussian | SampledGaussian) for part in primitives(event))

    def epsilon(self, event: Event, delta: float) -> float:
        """On a grid that is as fine as a rough Renyi bound asks for."""
        parts = parts_for(self, event, delta)
        if delta < _LEAST_DELTA:
            raise ConfigurationError("delta", delta, f"use {_LEAST_DELTA:g} or more for DP-SGD")
        rough = _rough(event, parts, delta)
        if rough == 0 or rough > _MOST_EPSILON:
            return rough
        return min(rough, _composed(parts, delta, max(_GRID_ERROR * rough, _LEAST_ERROR)))


def _rough(event: Event, parts: Counter[Primitive], delta: float) -> float:
    """By Renyi, or as if nothing had been sampled, which never tells less."""
    whole = tuple(
        Repeated(Gaussian(part.noise_multiplier), times)
        for part, times in parts.items()
        if isinstance(part, Gaussian | SampledGaussian)
    )
    unsampled = AnalyticGaussian().epsilon(Composed(whole), delta)
    return min(IntegerRenyi().epsilon(event, delta), unsampled)


def _composed(parts: Counter[Primitive], delta: float, error: float) -> float:
    from opacus.accountants import PRVAccountant

    accountant = PRVAccountant()
    accountant.history = [
        (part.noise_multiplier, getattr(part, "sample_rate", 1.0), times)
        for part, times in parts.items()
        if isinstance(part, Gaussian | SampledGaussian)
    ]
    # At a sampling rate of one it takes log(0), whose -inf is the right limit.
    with warnings.catch_warnings(), np.errstate(divide="ignore"):
        # It sizes its grid with an RDP bound whose tightness does not matter.
        warnings.filterwarnings("ignore", message="Optimal order is the")
        return float(accountant.get_epsilon(delta=delta, eps_error=error))
