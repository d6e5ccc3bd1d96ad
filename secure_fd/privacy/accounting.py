"""From noise to epsilon and back: zero-concentrated and Renyi differential privacy.

All functions are pure, and monotone: more noise never costs more. Every conversion to
(epsilon, delta) is Proposition 12 of Canonne, Kamath and Steinke ("The Discrete Gaussian for
Differential Privacy", 2020): a mechanism whose Renyi divergence of order a is at most r has, for
every delta, epsilon = r + log(1 - 1/a) + (log(1/delta) - log a) / (a - 1).
"""

import math
from collections.abc import Callable
from functools import lru_cache

import numpy as np

from secure_fd.errors import ConfigurationError
from secure_fd.knowledge import FloatArray

REPLACE_ONE = 2.0
"""L2 sensitivity of replacing a record, in units of that of adding or removing one."""

_HALVINGS = 200
_ORDERS: FloatArray = 1.0 + np.logspace(-6, 6, 6001)  # any order is sound: the grid costs < 0.01 %


def gaussian_rho(noise_multiplier: float, sensitivity: float = 1.0) -> float:
    """zCDP parameter rho of (discrete) Gaussian noise; rhos of several releases add up.

    noise_multiplier: z, the noise's standard deviation over the agreed L2 sensitivity.
    sensitivity: the actual L2 sensitivity over the agreed one. Canonne et al., theorem 14.
    """
    if not noise_multiplier >= 0:
        raise ConfigurationError("noise_multiplier", noise_multiplier, "use 0 or more")
    if noise_multiplier == 0:
        return math.inf
    return (sensitivity / noise_multiplier) ** 2 / 2


@lru_cache(maxsize=1024)
def zcdp_epsilon(rho: float, delta: float) -> float:
    """The least epsilon at delta that rho-zCDP gives.

    With x = a - 1 the derivative vanishes where rho x^2 + log(1 + x) = log(1 / delta): the left
    side increases, so halving finds the only minimum.
    """
    _check_delta(delta)
    if rho == 0 or math.isinf(rho):
        return rho
    limit = -math.log(delta)
    x = _least(lambda x: rho * x * x + math.log1p(x) >= limit, 0.0, math.sqrt(limit / rho))
    converted = (1 + x) * rho - math.log1p(1 / x) + (limit - math.log1p(x)) / x
    return max(0.0, converted)


def gaussian_epsilon(noise_multiplier: float, delta: float, sensitivity: float = 1.0) -> float:
    """Epsilon of one Gaussian release; `sensitivity=REPLACE_ONE` for replace-one neighbours."""
    return zcdp_epsilon(gaussian_rho(noise_multiplier, sensitivity), delta)


@lru_cache(maxsize=256)
def gaussian_noise_multiplier(epsilon: float, delta: float) -> float:
    """The least noise multiplier whose epsilon is at most `epsilon`; 0 where that is infinite."""
    _check_epsilon(epsilon)
    _check_delta(delta)
    if math.isinf(epsilon):
        return 0.0
    high = 1.0
    while gaussian_epsilon(high, delta) > epsilon:
        high *= 2
    return _least(lambda z: gaussian_epsilon(z, delta) <= epsilon, 0.0, high)


def response_divergence(epsilon: float, alphabet_size: int, orders: FloatArray) -> FloatArray:
    """Renyi divergence of randomised response over A symbols, exact, at each order a.

    For two truths the answers' distributions swap p and q at two symbols and agree elsewhere:
    exp((a - 1) D) = p^a q^(1-a) + q^a p^(1-a) + (A - 2) q = q (e^(a eps) + e^((1-a) eps) + A - 2).
    """
    log_q = -np.logaddexp(epsilon, math.log(alphabet_size - 1))
    swapped = np.logaddexp(orders * epsilon, (1 - orders) * epsilon)
    rest = math.log(alphabet_size - 2) if alphabet_size > 2 else -math.inf
    log_moment = np.asarray(log_q + np.logaddexp(swapped, rest), dtype=np.float64)
    return np.maximum(log_moment, 0.0) / (orders - 1)


def response_epsilon(epsilon: float, alphabet_size: int, releases: int, delta: float) -> float:
    """Epsilon at delta of `releases` answers, each of `epsilon`, when all may change at once.

    That is the record and the client level of the label unit: one record moves the network, and
    the network moves every answer. Never above the plain sum, releases * epsilon.
    """
    _check_epsilon(epsilon)
    _check_delta(delta)
    if alphabet_size < 2:
        raise ConfigurationError("alphabet_size", alphabet_size, "use 2 or more symbols")
    if releases < 0:
        raise ConfigurationError("releases", releases, "use 0 or more")
    if releases == 0 or math.isinf(epsilon):
        return epsilon if releases else 0.0
    divergence = releases * response_divergence(epsilon, alphabet_size, _ORDERS)
    slack = (-math.log(delta) - np.log(_ORDERS)) / (_ORDERS - 1) + np.log1p(-1 / _ORDERS)
    return min(releases * epsilon, max(0.0, float((divergence + slack).min())))


def response_calibration(total: float, alphabet_size: int, releases: int, delta: float) -> float:
    """The largest epsilon of one answer for which `releases` of them cost at most `total`."""
    _check_epsilon(total)
    if math.isinf(total):
        return total
    if releases < 1:
        raise ConfigurationError("releases", releases, "use 1 or more")
    # Searching the inverse, noise, keeps the sound side: `_least` returns a point that satisfies.
    noise = _least(
        lambda inverse: response_epsilon(1 / inverse, alphabet_size, releases, delta) <= total,
        0.0,
        releases / total,
    )
    return 1 / noise


def _least(satisfied: Callable[[float], bool], low: float, high: float) -> float:
    """The least point of (low, high] that satisfies a monotone condition, which high does."""
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        low, high = (low, middle) if satisfied(middle) else (middle, high)
    return high


def _check_epsilon(epsilon: float) -> None:
    if not epsilon > 0:
        raise ConfigurationError("epsilon", epsilon, "use a number above 0, or inf for no noise")


def _check_delta(delta: float) -> None:
    if not 0 < delta < 1:
        raise ConfigurationError("delta", delta, "use a number in (0, 1), such as 1e-5")
