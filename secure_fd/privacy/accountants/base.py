"""What an accountant is, and the two conversions from Renyi divergence that several of them use.

Both are Proposition 12 of Canonne, Kamath and Steinke ("The Discrete Gaussian for Differential
Privacy", 2020): a mechanism whose Renyi divergence of order a is at most r has, for every delta,
epsilon = r + log(1 - 1/a) + (log(1/delta) - log a) / (a - 1).
"""

import math
from collections import Counter
from collections.abc import Callable
from functools import lru_cache
from typing import Protocol

import numpy as np

from secure_fd.errors import ConfigurationError, UnsupportedEventError
from secure_fd.knowledge import FloatArray
from secure_fd.privacy.events import Event, Primitive, primitives

_HALVINGS = 200


class Accountant(Protocol):
    """Turns what happened into an epsilon that holds."""

    @property
    def name(self) -> str:
        """For a guarantee's sentence: the notion of privacy, and the source of the bound."""

    @property
    def resolution(self) -> float:
        """How close, relative to its epsilon, a calibration is worth the time that it takes."""

    def supports(self, event: Event) -> bool:
        """Whether this accountant knows a bound for all that is in the event."""

    def epsilon(self, event: Event, delta: float) -> float:
        """A sound epsilon at delta; infinite where nothing hides the data.

        Raises UnsupportedEventError, and ConfigurationError for a delta that it cannot serve.
        """


def parts_for(accountant: Accountant, event: Event, delta: float) -> Counter[Primitive]:
    """How often each kind of release happened, where accountant and delta fit."""
    if not accountant.supports(event):
        raise UnsupportedEventError("event", event, f"{accountant.name} accounting knows no bound")
    check_delta(delta)
    return primitives(event)


def check_delta(delta: float) -> None:
    """Refuses what is no probability of failure."""
    if not 0 < delta < 1:
        raise ConfigurationError("delta", delta, "use a number in (0, 1), such as 1e-5")


@lru_cache(maxsize=1024)
def zcdp_epsilon(rho: float, delta: float) -> float:
    """The least epsilon at delta of rho-zCDP: Renyi divergence a rho at every order a.

    With x = a - 1 the derivative vanishes where rho x^2 + log(1 + x) = log(1 / delta): the left
    side increases, so halving finds the only minimum.
    """
    check_delta(delta)
    if rho == 0 or math.isinf(rho):
        return rho
    limit = -math.log(delta)
    x = least(lambda x: rho * x * x + math.log1p(x) >= limit, 0.0, math.sqrt(limit / rho))
    converted = (1 + x) * rho - math.log1p(1 / x) + (limit - math.log1p(x)) / x
    return max(0.0, converted)


def renyi_epsilon(orders: FloatArray, divergence: FloatArray, delta: float) -> float:
    """The least epsilon at delta over a grid of orders; any grid is sound."""
    if not divergence.any():
        return 0.0  # neighbours look the same
    slack = (-math.log(delta) - np.log(orders)) / (orders - 1) + np.log1p(-1 / orders)
    return max(0.0, float((divergence + slack).min()))


def least(satisfied: Callable[[float], bool], low: float, high: float) -> float:
    """The least point of (low, high] that satisfies a monotone condition, which high does."""
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        low, high = (low, middle) if satisfied(middle) else (middle, high)
    return high
