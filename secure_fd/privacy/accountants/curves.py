"""The Renyi divergence of each kind of release as a function of the order."""

import math
from functools import lru_cache

import numpy as np
from scipy.special import gammaln, logsumexp

from secure_fd.knowledge import FloatArray
from secure_fd.privacy.accountants.concentrated import Concentrated, rho
from secure_fd.privacy.events import (
    DistributedSkellam,
    IntegerSum,
    Primitive,
    Response,
    Sampled,
    SampledGaussian,
)


def divergence(part: Primitive, orders: FloatArray) -> FloatArray:
    """[orders] of one release. Samples and Skellam noise have theirs at integer orders only."""
    if isinstance(part, Response):
        return _response(part, orders)
    if isinstance(part, SampledGaussian):
        return _sampled_gaussian(part, orders)
    if isinstance(part, Sampled):
        return _sampled(part, orders)
    return _unsampled(part, orders)


def _unsampled(part: Concentrated | IntegerSum, orders: FloatArray) -> FloatArray:
    return _skellam(part, orders) if isinstance(part, DistributedSkellam) else orders * rho(part)


def _response(part: Response, orders: FloatArray) -> FloatArray:
    """Exact, for subsets of d of k symbols, a subset weighing P with the truth and W without.

    Two truths differ in C(k-2, d-1) subsets each way, so exp((a-1) D) is
    C(k-2, d-1) (P^a W^(1-a) + W^a P^(1-a)) + 1 - C(k-2, d-1) (P + W). With P / W = e^eps that is
    1 + C(k-2, d-1) W (e^(a eps) - 1) (1 - e^((1-a) eps)), in which nothing cancels, and
    C(k-2, d-1) W = (k-d)/(k-1) / (e^eps + (k-d)/d).
    """
    if part.epsilon == 0 or math.isinf(part.epsilon):
        return np.full(orders.shape, part.epsilon)
    missing = part.alphabet_size - part.subset_size
    differing = math.log(missing / (part.alphabet_size - 1)) - np.logaddexp(
        part.epsilon, math.log(missing / part.subset_size)
    )
    up = orders * part.epsilon
    factors = up + np.log(-np.expm1(-up)) + np.log(-np.expm1((1 - orders) * part.epsilon))
    return np.asarray(np.logaddexp(0.0, differing + factors) / (orders - 1), dtype=np.float64)


def _skellam(part: DistributedSkellam, orders: FloatArray) -> FloatArray:
    """Agarwal, Kairouz and Liu ("The Skellam Mechanism", NeurIPS 2021), theorem 3.5 and corollary.

    With mu the variance of the sum, at integer orders:
    a l2^2 / (2 mu) + min(((2a - 1) l2^2 + 6 l1) / (4 mu^2), 3 l1 / (2 mu)).
    """
    if part.variance == 0:
        return np.full(orders.shape, math.inf)
    mu, square = part.shares * part.variance, part.l2**2
    extra = np.minimum(
        ((2 * orders - 1) * square + 6 * part.l1) / (4 * mu**2), 3 * part.l1 / (2 * mu)
    )
    return np.asarray(orders * square / (2 * mu) + extra, dtype=np.float64)


def _sampled_gaussian(part: SampledGaussian, orders: FloatArray) -> FloatArray:
    """Exact: exp((a-1) D) = sum_l C(a, l) (1-q)^(a-l) q^l exp(l (l-1) / 2z^2).

    Mironov, Talwar and Zhang ("Renyi Differential Privacy of the Sampled Gaussian Mechanism",
    2019), section 3.3.
    """
    if part.noise_multiplier == 0:
        return np.full(orders.shape, math.inf)
    draws = np.arange(orders.max() + 1)
    costs = draws * (draws - 1) / (2 * part.noise_multiplier**2)
    return _mixed(part.sample_rate, costs, orders)


def _sampled(part: Sampled, orders: FloatArray) -> FloatArray:
    """Zhu and Wang ("Poisson Subsampled Renyi Differential Privacy", ICML 2019), theorem 5.

    exp((a-1) D) is at most (1-q)^(a-1) (aq - q + 1) + C(a,2) (1-q)^(a-2) q^2 e^D(2), that is the
    terms of the binomial sum up to l = 2, and three times those above, each with e^((l-1) D(l)).
    Nor does a sample ever tell more than the sum of all.
    """
    draws = np.arange(orders.max() + 1)
    whole = _unsampled(part.event, np.maximum(draws, 2.0))
    if part.rate == 1 or math.isinf(whole[0]):
        return _unsampled(part.event, orders)
    # l = 0 and l = 1 cost nothing: (1-q)^a + a q (1-q)^(a-1) = (1-q)^(a-1) (aq - q + 1).
    costs = np.maximum(draws - 1, 0.0) * whole
    costs[3:] += math.log(3)
    return np.minimum(_mixed(part.rate, costs, orders), _unsampled(part.event, orders))


def _mixed(rate: float, costs: FloatArray, orders: FloatArray) -> FloatArray:
    """log(sum_l C(a, l) (1-q)^(a-l) q^l e^costs(l)) / (a - 1) at each integer order a."""
    if rate == 1:
        last = costs[orders.astype(np.int64)]
        return np.asarray(last / (orders - 1), dtype=np.float64)
    moments = [
        logsumexp(_binomial(int(a), rate) + costs[: int(a) + 1]) / (int(a) - 1) for a in orders
    ]
    return np.maximum(np.array(moments, dtype=np.float64), 0.0)


@lru_cache(maxsize=512)
def _binomial(trials: int, rate: float) -> FloatArray:
    """[trials + 1] log-probabilities of so many draws."""
    hits = np.arange(trials + 1.0)
    ways = gammaln(trials + 1) - gammaln(hits + 1) - gammaln(trials - hits + 1)
    weights = ways + hits * math.log(rate) + (trials - hits) * math.log1p(-rate)
    return np.asarray(weights, dtype=np.float64)
