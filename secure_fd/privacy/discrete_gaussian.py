"""The discrete Gaussian, P(x) proportional to exp(-x^2 / 2 sigma^2) on the integers.

Floating-point Gaussian noise has holes in its low bits that undo differential privacy (Mironov,
2012); integers have none. The sampler is the one of Ducas, Durmus, Lepoint and Lyubashevsky
("Lattice Signatures and Bimodal Gaussians", 2013, algorithms 11 and 12), on whole arrays: write a
magnitude as x = kQ + R with k a power of two and 0 <= R < k;

1. draw Q with weight exp(-(kQ)^2 / 2 sigma^2) from a table, and R uniformly;
2. accept with probability exp(-R (R + 2kQ) / 2 sigma^2), which makes up the exponent of x;
3. draw a sign, and reject "minus zero".

k is at most sigma / 8, so the table has at most 225 entries and 19 in 20 proposals are accepted.
Below sigma = 16 there is nothing to split: one table has all of -14 sigma .. 14 sigma, and every
draw from it is a sample.

Distance to the ideal. All steps compare a uniform number of 128 bits with a threshold correct to
2^-127. The first 64 bits are compared on the whole array; only where they do not settle it (once
in 2^43) are the other 64 drawn and compared as well. The tables leave out a tail below 2^-139. So
a sample is within 2^-110 of the ideal in total variation, and m samples add at most
(1 + e^eps) m 2^-110 to delta: for 2^20 samples at epsilon 8, 2^-78.

Running time depends on what is drawn; a local observer with a clock is out of scope.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal, localcontext
from functools import lru_cache
from typing import Final

import numpy as np

from secure_fd.errors import ConfigurationError
from secure_fd.knowledge import FloatArray, IntArray, WordArray
from secure_fd.privacy.entropy import Random, words
from secure_fd.privacy.inverse_cdf import BITS, DIGITS, Table

TOTAL_VARIATION: Final = 2.0**-110
"""Bound on the distance of one sample to the ideal distribution."""
MAX_SIGMA: Final = 2.0**28
"""Up to here every exponent is an exact 64-bit integer."""

_SPLIT: Final = 16.0
_TAIL: Final = 14  # exp(-14^2 / 2) < 2^-141
_DOUBT: Final = 2.0**-44  # float error of a threshold is below 2^-48


@dataclass(frozen=True, slots=True, eq=False)
class _Proposal:
    """log2 k, twice the variance, and the distribution of Q."""

    shift: int
    twice_variance: Decimal
    table: Table


def discrete_gaussian(sigma: float, size: int, random: Random) -> IntArray:
    """[size] independent integers of parameter sigma (their standard deviation, nearly).

    sigma: in [0, 2^28], taken as the exact value of the float; 0 gives zeros and draws nothing.
    """
    if not 0 <= sigma <= MAX_SIGMA:
        raise ConfigurationError("sigma", sigma, f"use a number in [0, {MAX_SIGMA:g}]")
    if sigma == 0:
        return np.zeros(size, dtype=np.int64)
    if sigma < _SPLIT:
        return _whole(float(sigma)).draw(size, random) - _reach(sigma)
    samples = np.empty(size, dtype=np.int64)
    proposal, filled = _proposal(float(sigma)), 0
    while filled < size:
        missing = size - filled
        accepted = _accepted(proposal, missing + missing // 8 + 16, random)[:missing]
        samples[filled : filled + len(accepted)] = accepted
        filled += len(accepted)
    return samples


def _accepted(proposal: _Proposal, count: int, random: Random) -> IntArray:
    """The accepted ones of `count` proposals."""
    coarse = proposal.table.draw(count, random) << proposal.shift
    bits = words(random, count)
    fine = (bits & np.uint64((1 << proposal.shift) - 1)).astype(np.int64)
    negative = (bits >> np.uint64(63)).astype(np.bool_)
    keep = _below_exp(words(random, count), fine * (fine + 2 * coarse), proposal, random)
    magnitude = coarse + fine
    keep &= ~(negative & (magnitude == 0))
    return np.where(negative, -magnitude, magnitude)[keep]


def _below_exp(
    leading: WordArray,
    exponent: IntArray,
    proposal: _Proposal,
    random: Random,
    doubt: float = _DOUBT,
) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
    """[n] whether a uniform number, `leading` its first 64 bits, is below exp(-exponent / 2s^2)."""
    threshold: FloatArray = np.exp(exponent / -float(proposal.twice_variance))
    distance = leading / 2.0**64 - threshold
    below = distance < 0
    for i in np.flatnonzero(np.abs(distance) <= doubt):
        exact = _scaled_exp(-Decimal(int(exponent[i])), proposal.twice_variance)
        below[i] = _extended(leading[i], random) < exact
    return below


def _extended(leading: np.uint64, random: Random) -> int:
    """A uniform 128-bit integer with the given first 64 bits."""
    return int(leading) << 64 | int(words(random, 1)[0])


def _scaled_exp(numerator: Decimal, denominator: Decimal) -> int:
    """2^128 exp(numerator / denominator), rounded down."""
    with localcontext() as context:
        context.prec = DIGITS
        return int((numerator / denominator).exp() * (1 << BITS))


def _reach(sigma: float) -> int:
    """Beyond it nothing is ever drawn."""
    return math.ceil(_TAIL * sigma)


@lru_cache(maxsize=64)
def _whole(sigma: float) -> Table:
    """All of -reach .. reach."""
    return _table(range(-_reach(sigma), _reach(sigma) + 1), _twice_variance(sigma))


@lru_cache(maxsize=64)
def _proposal(sigma: float) -> _Proposal:
    """sigma is 16 or more."""
    shift = math.floor(math.log2(sigma / 8))
    coarse = range(0, _reach(sigma) + (1 << shift), 1 << shift)
    twice_variance = _twice_variance(sigma)
    return _Proposal(shift, twice_variance, _table(coarse, twice_variance))


def _twice_variance(sigma: float) -> Decimal:
    with localcontext() as context:
        context.prec = DIGITS
        return 2 * Decimal(sigma) ** 2


def _table(support: Iterable[int], twice_variance: Decimal) -> Table:
    with localcontext() as context:
        context.prec = DIGITS
        return Table.of([(-Decimal(x * x) / twice_variance).exp() for x in support])
