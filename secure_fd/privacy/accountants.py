"""Accountants, and the two conversions from Renyi divergence that several of them use.

Both conversions are Proposition 12 of Canonne, Kamath and Steinke ("The Discrete Gaussian for
Differential Privacy", 2020): a mechanism whose Renyi divergence of order a is at most r has, for
every delta, epsilon = r + log(1 - 1/a) + (log(1/delta) - log a) / (a - 1).
"""

import math
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, lru_cache
from types import UnionType
from typing import Final

import numpy as np
from scipy.special import gammaln, log_ndtr, logsumexp

from secure_fd.errors import ConfigurationError, LocalError
from secure_fd.privacy.events import (
    DistributedGaussian,
    Event,
    Gaussian,
    Primitive,
    Response,
    SampledGaussian,
    check_delta,
    primitives,
)
from secure_fd.privacy.samplers import TOTAL_VARIATION
from secure_fd.votes.codec import FloatArray

_HALVINGS = 200


@dataclass(frozen=True, slots=True)
class Accountant:
    """A bound on the epsilon of some kinds of releases.

    name: the notion of privacy and the source of the bound, for a guarantee's sentence. kinds: the
    releases that it covers. bound: from their counts and delta to epsilon, infinite where nothing
    hides the data. resolution: relative precision to which a calibration is worth its time.
    """

    name: str
    kinds: type | UnionType
    bound: Callable[[Counter[Primitive], float], float]
    resolution: float = 1e-9

    def supports(self, event: Event) -> bool:
        """Return whether a bound is known for all releases of the event."""
        return all(isinstance(part, self.kinds) for part in primitives(event))

    def epsilon(self, event: Event, delta: float) -> float:
        """Return a sound epsilon at delta; of one randomised response it is exact at any delta.

        Raises:
            LocalError: no bound is known for the event.
            ConfigurationError: the bound does not exist at this delta.
        """
        if not self.supports(event):
            raise LocalError(f"{self.name}: no bound is known for {event}")
        parts = primitives(event)
        match list(parts.items()):
            case [(Response(epsilon=pure), 1)]:
                return pure
        check_delta(delta)
        return self.bound(parts, delta)


@lru_cache(maxsize=1024)
def zcdp_epsilon(rho: float, delta: float) -> float:
    """Convert rho-zCDP, a Renyi divergence of a rho at every order a, to an epsilon at delta.

    With x = a - 1 the derivative vanishes where rho x^2 + log(1 + x) = log(1 / delta): the left
    side increases, so halving finds the only minimum.
    """
    if rho == 0 or math.isinf(rho):
        return rho
    limit = -math.log(delta)
    x = least(lambda x: rho * x * x + math.log1p(x) >= limit, 0.0, math.sqrt(limit / rho))
    converted = (1 + x) * rho - math.log1p(1 / x) + (limit - math.log1p(x)) / x
    return max(0.0, converted)


def least(satisfied: Callable[[float], bool], low: float, high: float) -> float:
    """The least point of (low, high] that satisfies a monotone condition, which high does."""
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        low, high = (low, middle) if satisfied(middle) else (middle, high)
    return high


# Continuous Gaussian noise in closed form (Balle and Wang, ICML 2018).


def _analytic(parts: Counter[Primitive], delta: float) -> float:
    """Exact: releases compose into one whose mu^2 is the sum of theirs, mu = 1 / z."""
    multipliers = [
        (part.noise_multiplier, times)
        for part, times in parts.items()
        if isinstance(part, Gaussian | SampledGaussian)
    ]
    if any(z == 0 for z, _ in multipliers):
        return math.inf
    mu = math.sqrt(sum(times / z**2 for z, times in multipliers))
    if gaussian_delta(mu, 0.0) <= delta:
        return 0.0
    # The concentrated bound is sound, so the exact epsilon lies below it.
    most = zcdp_epsilon(mu * mu / 2, delta) * (1 + 1e-9)
    return least(lambda claimed: gaussian_delta(mu, claimed) <= delta, 0.0, most)


ANALYTIC_GAUSSIAN: Final = Accountant(
    "the Gaussian mechanism's exact curve, by Balle and Wang (2018)", Gaussian, _analytic
)


def gaussian_delta(mu: float, epsilon: float) -> float:
    """Phi(mu/2 - eps/mu) - e^eps Phi(-mu/2 - eps/mu), theorem 8, without overflow."""
    if mu == 0:
        return 0.0
    gained = float(log_ndtr(mu / 2 - epsilon / mu))
    lost = epsilon + float(log_ndtr(-mu / 2 - epsilon / mu))
    return -math.exp(gained) * math.expm1(min(0.0, lost - gained))


# Zero-concentrated differential privacy: Renyi divergence at most a rho at every order a.


def rho(part: Gaussian | DistributedGaussian) -> float:
    """Return the zCDP parameter of one release, infinite without noise.

    Gaussian: Bun and Steinke (2016), proposition 1.6. A sum of n discrete Gaussians is not quite
    one: Kairouz, Liu and Steinke ("The Distributed Discrete Gaussian Mechanism for Federated
    Learning with Secure Aggregation", 2021), proposition 14. With s the sensitivity over the
    deviation of the sum and d its entries, the divergence of order a >= 1 is at most
    a s^2 / 2 + tau d, hence at most a (s^2 + 2 tau d) / 2, and at most a (s + tau sqrt(d))^2 / 2.
    """
    if isinstance(part, Gaussian):
        return math.inf if part.noise_multiplier == 0 else part.noise_multiplier**-2 / 2
    if part.variance == 0:
        return math.inf
    ratio = part.l2 / math.sqrt(part.shares * part.variance)
    tau = excess(part.variance, part.shares)
    added = ratio**2 + 2 * tau * part.dimension
    lengthened = (ratio + tau * math.sqrt(part.dimension)) ** 2
    return min(added, lengthened) / 2


@lru_cache(maxsize=1024)
def excess(variance: float, shares: int) -> float:
    """Return tau = 10 sum over k < n of exp(-2 pi^2 sigma^2 k / (k + 1)), the distance from one.

    Proved for a sigma of 1/2 or more, which the event ensures; at 2 the summands are below 1e-16.
    """
    k = np.arange(1, shares)
    return float(10 * np.exp(-2 * math.pi**2 * variance * k / (k + 1)).sum())


def _nearly_gaussian(parts: Counter[Primitive], delta: float) -> float:
    """Sums of discrete Gaussians by the exact curve of one Gaussian, slightly narrower.

    Claim: except with probability beta, one discrete Gaussian behaves as a *rounded* Gaussian whose
    variance is smaller by 1/12 unit^2, and a rounded Gaussian is post-processing of a Gaussian.
    A sum of h shares is within a factor e^(tau d) of one discrete Gaussian, see `excess`.
    The simple reading, "as a Gaussian of equal variance", is false, and a test shows it.
    Where the zCDP bound is smaller, it is taken. The proof stands at `_moved`.
    """
    sums = [(part, n) for part, n in parts.items() if isinstance(part, DistributedGaussian)]
    concentrated = zcdp_epsilon(math.fsum(times * rho(part) for part, times in sums), delta)
    if math.isinf(concentrated) or not sums:
        return concentrated  # no noise, or nothing under it
    if any(part.shares * part.variance < _LEAST_VARIANCE for part, _ in sums):
        return concentrated
    beta = delta * _SPARE / len(sums)  # half of what is set aside: e^(tau d) is below 2
    squared = sum(times * p.l2**2 / _narrower(p.shares * p.variance) for p, times in sums)
    moved = 2 * sum(_moved(part, times, beta) + beta for part, times in sums)
    if squared == 0 or moved >= min(concentrated, _MOST_MOVED):
        return concentrated
    mu, least_delta = math.sqrt(squared), delta * (1 - 2 * _SPARE) * math.exp(-moved)
    if gaussian_delta(mu, 0.0) <= least_delta:
        return min(moved, concentrated)
    exact = least(lambda e: gaussian_delta(mu, e) <= least_delta, 0.0, concentrated + 1.0)
    return min(exact + moved, concentrated)


NEARLY_GAUSSIAN: Final = Accountant(
    "the Gaussian's exact curve (Balle and Wang, 2018), for sums of whole units",
    DistributedGaussian,
    _nearly_gaussian,
)

_LEAST_VARIANCE: Final = 4.0
"""Least variance of the noise in a sum, in units squared: below, the zCDP bound is taken."""
_SPARE: Final = 1e-4
"""Share of delta that is set aside for noise in its far tail."""
_MOST_MOVED: Final = 1.0
"""Largest difference of epsilon: above, the zCDP bound is taken without the exact curve."""


def _narrower(variance: float) -> float:
    """v, of a Gaussian that is rounded, for s^2: the larger root of 12 v^2 - 12 s^2 v + s^2 = 0."""
    return variance / 2 * (1 + math.sqrt(1 - 1 / (3 * variance)))


def _moved(part: DistributedGaussian, times: int, beta: float) -> float:
    """eta, but for a chance of beta, and tau d: how far apart the two laws are, as a logarithm.

    A Gaussian of variance v, rounded to integers, is post-processing of one that was not, and so it
    is where neighbours lie whole units apart: its delta is at most a Gaussian's. It gives x the
    weight exp(-x^2 / 2v) E exp(2yt), y = x / 2v, over t in [-1/2, 1/2] of density ~ exp(-t^2 / 2v).
    Such a t is more often near 0 than a uniform one, whence E exp(2yt) <= sinh(y) / y <= e^(y^2/6);
    and E exp(2yt) >= 1 + 2 y^2 E t^2, E t^2 >= 1/12 - 1 / 160v, log(1 + u) >= u - u^2 / 2, whence

        y^2 / 6 - y^2 / 80v - y^4 / 72 <= log E exp(2yt) <= y^2 / 6.

    With 1 / s^2 = (1 - 1 / 12v) / v the rounded Gaussian is thus, but for a constant, below the
    discrete one of parameter s everywhere, and above it by a factor e^-eta where the entries x_i in
    which neighbours differ have sum x_i^2 / 320 v^3 + x_i^4 / 1152 v^4 <= eta. They do but for a
    chance beta, by the tails of their largest and of their sum of squares, which are no heavier
    than a Gaussian's (Laurent and Massart, 2000). So delta(epsilon) of the discrete one is at most
    beta + e^eta times the Gaussian's at epsilon - 2 eta + log(1 - beta). The bound is of the joint
    law of all releases, each under noise of its own, for any choice of what it was about.
    """
    variance, entries = part.shares * part.variance, part.dimension * times
    v, odds = _narrower(variance), math.log(4 * entries / beta)
    farthest = 2 * variance * odds
    squares = variance * (entries + 2 * math.sqrt(entries * odds) + 2 * odds)
    eta = squares / (320 * v**3) + min(squares, entries * farthest) * farthest / (1152 * v**4)
    return eta + excess(part.variance, part.shares) * entries


# The Renyi divergence of each kind of release as a function of the order.


def divergence(part: Primitive, orders: FloatArray) -> FloatArray:
    """[orders] of one release; sampled Gaussians have theirs at integer orders only."""
    if isinstance(part, Response):
        return _response(part, orders)
    if isinstance(part, SampledGaussian):
        return _sampled_gaussian(part, orders)
    return orders * rho(part)


def _response(part: Response, orders: FloatArray) -> FloatArray:
    """Exact, for k symbols, the truth answered with probability P and any other with W.

    exp((a-1) D) is P^a W^(1-a) + W^a P^(1-a) + 1 - P - W. With P / W = e^eps that is
    1 + W (e^(a eps) - 1) (1 - e^((1-a) eps)), in which nothing cancels, and
    W = 1 / (e^eps + k - 1).
    """
    if part.epsilon == 0 or math.isinf(part.epsilon):
        return np.full(orders.shape, part.epsilon)
    differing = -np.logaddexp(part.epsilon, math.log(part.alphabet_size - 1))
    up = orders * part.epsilon
    factors = up + np.log(-np.expm1(-up)) + np.log(-np.expm1((1 - orders) * part.epsilon))
    return np.asarray(np.logaddexp(0.0, differing + factors) / (orders - 1), dtype=np.float64)


def _sampled_gaussian(part: SampledGaussian, orders: FloatArray) -> FloatArray:
    """Exact: exp((a-1) D) = sum_l C(a, l) (1-q)^(a-l) q^l exp(l (l-1) / 2z^2).

    Mironov, Talwar and Zhang ("Renyi Differential Privacy of the Sampled Gaussian Mechanism",
    2019), section 3.3.
    """
    if part.noise_multiplier == 0:
        return np.full(orders.shape, math.inf)
    draws = np.arange(orders.max() + 1)
    costs = draws * (draws - 1) / (2 * part.noise_multiplier**2)
    moments = [
        logsumexp(_binomial(int(a), part.sample_rate) + costs[: int(a) + 1]) / (int(a) - 1)
        for a in orders
    ]
    return np.maximum(np.array(moments, dtype=np.float64), 0.0)


@lru_cache(maxsize=512)
def _binomial(trials: int, rate: float) -> FloatArray:
    """Return [trials + 1] log-probabilities of the number of hits."""
    hits = np.arange(trials + 1.0)
    ways = gammaln(trials + 1) - gammaln(hits + 1) - gammaln(trials - hits + 1)
    weights = ways + hits * math.log(rate) + (trials - hits) * math.log1p(-rate)
    return np.asarray(weights, dtype=np.float64)


# Renyi differential privacy: divergences add up order by order (Mironov, 2017).


# Any order is sound: the grids cost accuracy, not privacy.
_ORDERS: FloatArray = 1.0 + np.logspace(-6, 6, 6001)
_INTEGERS: FloatArray = np.unique(
    np.concatenate([np.arange(2, 65), np.logspace(6, 11, 41, base=2).round()])
).astype(np.float64)


def _renyi(parts: Counter[Primitive], delta: float) -> float:
    """Return the bound at the best order; for answers alone at most the sum of their epsilons.

    Sampled Gaussians have their bound (Mironov, Talwar and Zhang, 2019) at integer orders only.
    """
    sampled = any(isinstance(part, SampledGaussian) for part in parts)
    orders = _INTEGERS if sampled else _ORDERS
    total = np.zeros(orders.shape)
    for part, times in parts.items():
        total += times * divergence(part, orders)
    if not total.any():
        return 0.0  # neighbours look the same
    slack = (-math.log(delta) - np.log(orders)) / (orders - 1) + np.log1p(-1 / orders)
    converted = max(0.0, float((total + slack).min()))
    answers = {p: times for p, times in parts.items() if isinstance(p, Response)}
    if len(answers) < len(parts):
        return converted
    return min(converted, sum(times * p.epsilon for p, times in answers.items()))


RENYI: Final = Accountant(
    "Renyi, exact for each answer, converted by Canonne et al. (2020)", Primitive, _renyi
)


# DP-SGD by numerical composition (Gopi, Lee and Wutschitz, 2021), as Opacus computes it.


_ERROR = 0.003  # of Opacus's bound, as a part of epsilon
_LEAST_DELTA = 1e-11
_ROUNDING = 1e-13  # of the composition's sums, in delta
_MOST_EPSILON = 50.0
_MOST_POINTS = 2**22


def _privacy_loss(parts: Counter[Primitive], delta: float) -> float:
    """The upper bound of Opacus's PRV accountant, or Renyi's where that is tighter.

    Opacus composes the privacy loss of a record that is removed; the tests compare with
    dp-accounting, which takes the worse of removed and added. Above epsilon 50, where no record is
    protected and Opacus's error is no longer bounded, Renyi's bound is the answer.
    """
    if delta < _LEAST_DELTA:
        raise ConfigurationError("delta", delta, f"use {_LEAST_DELTA:g} or more for DP-SGD")
    # As if nothing had been sampled, which never costs less.
    rough = min(_renyi(parts, delta), _analytic(parts, delta))
    if rough == 0 or rough > 3 * _MOST_EPSILON:
        return rough
    found = _composed(parts, delta, _ERROR * min(rough, _MOST_EPSILON))
    if found < rough / 2:
        found = min(found, _composed(parts, delta, _ERROR * found))
    return rough if found > _MOST_EPSILON else min(found, rough)


def _composed(parts: Counter[Primitive], delta: float, error: float) -> float:
    """Opacus's upper bound, about `error` above epsilon; infinite where it finds none.

    Where its grid would be longer than `_MOST_POINTS`, the error is as much larger.
    """
    from opacus.accountants import PRVAccountant

    accountant, aside = PRVAccountant(), max(delta / 1000, _ROUNDING)
    accountant.history = [
        (part.noise_multiplier, getattr(part, "sample_rate", 1.0), times)
        for part, times in parts.items()
        if isinstance(part, Gaussian | SampledGaussian)
    ]
    # Its grid spans 6 or more, in steps of the error over this root.
    root = math.sqrt(parts.total() * math.log(12 / aside) / 2)
    error = max(error, 8 * root / _MOST_POINTS)
    try:
        with warnings.catch_warnings(), np.errstate(divide="ignore", over="ignore"):
            # It sizes its grid with a bound whose tightness does not matter.
            warnings.filterwarnings("ignore", message="Optimal order is the")
            found = float(accountant.get_epsilon(delta, eps_error=error, delta_error=aside))
    except (RuntimeError, ValueError):  # its grid is too coarse, or delta below its precision
        return math.inf
    return found if found > 0 else math.inf


PRIVACY_LOSS: Final = Accountant(
    "numerical composition (Gopi et al., 2021) by Opacus",
    Gaussian | SampledGaussian,
    _privacy_loss,
    resolution=0.002,
)


# From events to epsilons: the tightest accountant that covers the event is taken.


ACCOUNTANTS: Final = (ANALYTIC_GAUSSIAN, PRIVACY_LOSS, NEARLY_GAUSSIAN, RENYI)
"""Tightest first: where two cover an event, the earlier one's epsilon is not above the other's."""


def accountant_for(event: Event) -> Accountant:
    """Choose the tightest accountant that has a bound for the event.

    >>> from secure_fd.privacy.events import Repeated
    >>> event = Repeated(Gaussian(10.0), 4)  # as one release at a multiplier of 5
    >>> round(accountant_for(event).epsilon(event, 1e-5), 2)
    0.73
    """
    return next(accountant for accountant in ACCOUNTANTS if accountant.supports(event))


def sampled_cost(event: Event, delta: float, draws: int) -> tuple[float, float]:
    """Return epsilon and delta under noise of `draws` draws, each within 2^-110 of the ideal one.

    The outcomes of both worlds are that close to those of ideal noise, so (1 + e^epsilon) times
    the distance adds to delta. Where that is more than a hundredth of it nothing is claimed: a
    sampler's noise ends somewhere, and worlds further apart have no outcome in common.
    """
    epsilon = cost(event, delta)
    slack = draws * TOTAL_VARIATION * (1 + math.exp(min(epsilon, 200.0)))
    return (epsilon, delta + slack) if slack <= delta / 100 else (math.inf, delta)


@cache
def cost(event: Event, delta: float) -> float:
    """Epsilon at delta, by the tightest accountant; worked out once for each event."""
    return accountant_for(event).epsilon(event, delta)
