"""Samplers of noise. Randomness is an argument, n -> n bytes, by default os.urandom."""

import hashlib
import math
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal, localcontext
from functools import lru_cache
from itertools import accumulate
from typing import Final

import numpy as np

from secure_fd.crypto.keys import Keystream, SecretHolder, draw
from secure_fd.errors import ConfigurationError, LocalError
from secure_fd.votes.codec import FloatArray, IntArray, WordArray

Random = Callable[[int], bytes]
"""Gives exactly as many bytes as it is asked for, uniform and unpredictable."""


def words(random: Random, count: int) -> WordArray:
    """[count] uniform 64-bit words; for none, `random` is not called."""
    if count == 0:
        return np.empty(0, dtype=np.uint64)
    drawn = random(8 * count)
    if len(drawn) != 8 * count:
        raise LocalError(f"random: gave {len(drawn)} bytes where {8 * count} were asked for")
    return np.frombuffer(drawn, dtype="<u8").astype(np.uint64)


class SeededRandom:
    """A reproducible stream of bytes, for tests only: the seed reveals the noise.

    No guarantee made with it has an epsilon, and each states why: see `unmet_by`.

    >>> SeededRandom(1)(4) == SeededRandom(1)(4)
    True
    >>> unmet_by(SeededRandom(1))
    ('the noise was drawn from a seeded generator',)
    """

    def __init__(self, seed: int) -> None:
        self._key = seed.to_bytes(16, "big")
        self._calls = 0

    def __call__(self, count: int) -> bytes:
        """The next `count` bytes: SHAKE-256 of the seed and the number of the call."""
        self._calls += 1
        return hashlib.shake_256(self._key + self._calls.to_bytes(8, "big")).digest(count)


def unmet_by(random: Random) -> tuple[str, ...]:
    """Return why noise from `random` carries no guarantee; empty for the operating system's.

    A generator that can be repeated looks like one that cannot, so no other one is accepted.
    """
    if random is os.urandom:
        return ()
    if isinstance(random, SeededRandom):
        return ("the noise was drawn from a seeded generator",)
    return ("the noise came from a caller's generator, for which this package cannot vouch",)


# Draws from a table of probabilities by inversion: a uniform 128-bit number, compared exactly.
#
# The first 64 bits are looked up on the whole array; only where they tie with a threshold (for a
# table of n entries once in 2^64 / n) are the other 64 drawn and compared.
#
# Distance to the ideal. A threshold is the cumulative probability rounded down to a multiple of
# 2^-128, so a draw from n entries is within n 2^-129 of the table's law in total variation.


BITS: Final = 128
DIGITS: Final = 60
"""Decimal digits of every weight: 128 bits are 39, and sums of 2^18 weights lose 6 at most."""


@dataclass(frozen=True, slots=True, eq=False)
class Thresholds:
    """Probabilities of 0 .. n - 1, as n - 1 thresholds of 128 bits in ascending order.

    leading, trailing: [n - 1] the upper and the lower 64 bits of each.
    """

    leading: WordArray = field(repr=False)
    trailing: WordArray = field(repr=False)

    @classmethod
    def of(cls, weights: Sequence[Decimal]) -> "Thresholds":
        """Make the table of probabilities in proportion to `weights` [n], one or more above 0."""
        with localcontext() as context:
            context.prec = DIGITS
            *reached, total = accumulate(weights)
            scale = (1 << BITS) / total
            # The last entry's threshold is 1, which no uniform number reaches.
            cumulative = [min(int(reach * scale), (1 << BITS) - 1) for reach in reached]
        upper = np.array([threshold >> 64 for threshold in cumulative], dtype=np.uint64)
        lower = np.array([threshold % (1 << 64) for threshold in cumulative], dtype=np.uint64)
        return cls(upper, lower)

    def look_up(self, uniform: WordArray, random: Random) -> IntArray:
        """Return [m] independent entries: the number of thresholds that each number has reached.

        Args:
            uniform: [m] the first 64 bits of the numbers.
            random: gives the other 64 bits of a number that ties with a threshold.
        """
        first = np.searchsorted(self.leading, uniform, side="left")
        beyond = np.searchsorted(self.leading, uniform, side="right")
        for i in np.flatnonzero(first != beyond):
            tied = self.trailing[first[i] : beyond[i]]
            first[i] += np.searchsorted(tied, words(random, 1)[0], side="right")
        return first.astype(np.int64, copy=False)


# The discrete Gaussian, P(x) proportional to exp(-x^2 / 2 sigma^2) on the integers.
#
# Floating-point Gaussian noise has holes in its low bits that undo differential privacy (Mironov,
# 2012); integers have none. The sampler is the one of Ducas, Durmus, Lepoint and Lyubashevsky
# ("Lattice Signatures and Bimodal Gaussians", 2013, algorithms 11 and 12), on whole arrays: write
# a
# magnitude as x = kQ + R with k a power of two and 0 <= R < k;
#
# 1. draw Q with weight exp(-(kQ)^2 / 2 sigma^2) from a table, and R uniformly;
# 2. accept with probability exp(-R (R + 2kQ) / 2 sigma^2), which makes up the exponent of x;
# 3. draw a sign, and reject "minus zero".
#
# k is at most sigma / 8, so the table has at most 225 entries and 19 in 20 proposals are accepted.
# Below sigma = 16 there is nothing to split: one table has all of -14 sigma .. 14 sigma, and every
# draw from it is a sample.
#
# Distance to the ideal. All steps compare a uniform number of 128 bits with a threshold correct to
# 2^-127. The first 64 bits are compared on the whole array; only where they do not settle it (once
# in 2^43) are the other 64 drawn and compared as well. The tables leave out a tail below 2^-139.
# So
# a sample is within 2^-110 of the ideal in total variation, and m samples add at most
# (1 + e^eps) m 2^-110 to delta: for 2^20 samples at epsilon 8, 2^-78.
#
# Running time depends on what is drawn; a local observer with a clock is out of scope.


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
    table: Thresholds


def discrete_gaussian(sigma: float, size: int, random: Random) -> IntArray:
    """Draw [size] independent integers of parameter sigma (their standard deviation, nearly).

    sigma: in [0, 2^28], taken as the exact value of the float; 0 gives zeros and draws nothing.

    >>> discrete_gaussian(3.0, 6, SeededRandom(1))
    array([-3,  4, -4,  0,  5,  0])
    """
    if not 0 <= sigma <= MAX_SIGMA:
        raise ConfigurationError("sigma", sigma, f"use a number in [0, {MAX_SIGMA:g}]")
    if sigma == 0:
        return np.zeros(size, dtype=np.int64)
    if sigma < _SPLIT:
        return _whole(float(sigma)).look_up(words(random, size), random) - _reach(sigma)
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
    coarse = proposal.table.look_up(words(random, count), random) << proposal.shift
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
        below[i] = (int(leading[i]) << 64 | int(words(random, 1)[0])) < exact
    return below


def _scaled_exp(numerator: Decimal, denominator: Decimal) -> int:
    """2^128 exp(numerator / denominator), rounded down."""
    with localcontext() as context:
        context.prec = DIGITS
        return int((numerator / denominator).exp() * (1 << BITS))


def _reach(sigma: float) -> int:
    """Return the largest magnitude that is drawn."""
    return math.ceil(_TAIL * sigma)


@lru_cache(maxsize=64)
def _whole(sigma: float) -> Thresholds:
    """Return the table of all of -reach .. reach."""
    return _table(range(-_reach(sigma), _reach(sigma) + 1), _twice_variance(sigma))


@lru_cache(maxsize=64)
def _proposal(sigma: float) -> _Proposal:
    """Return the proposal for a sigma of 16 or more."""
    shift = math.floor(math.log2(sigma / 8))
    coarse = range(0, _reach(sigma) + (1 << shift), 1 << shift)
    twice_variance = _twice_variance(sigma)
    return _Proposal(shift, twice_variance, _table(coarse, twice_variance))


def _twice_variance(sigma: float) -> Decimal:
    with localcontext() as context:
        context.prec = DIGITS
        return 2 * Decimal(sigma) ** 2


def _table(support: Iterable[int], twice_variance: Decimal) -> Thresholds:
    with localcontext() as context:
        context.prec = DIGITS
        return Thresholds.of([(-Decimal(x * x) / twice_variance).exp() for x in support])


# Gaussian noise in floating point, from a keystream: for libraries that cannot take integers.
#
# Floating point has holes in its low bits (Mironov, CCS 2012), so its guarantee states it.
# What it does not have is a seed that could be searched: torch's generators keep 32 bits of
# theirs.


_LOW: Final = 2.0**-33
FLOAT_CUT: Final = 2.0**-106
"""Probability that a pair of normal values is beyond the end of `FloatGaussian`'s tail."""


class FloatGaussian(SecretHolder):
    """Uniform and normal variates from AES-256-CTR under a key that is drawn once.

    unmet: why a guarantee made with it has no epsilon; empty unless the key came from a seed.

    >>> FloatGaussian(SeededRandom(0)).normal(3).shape
    (3,)
    """

    __slots__ = ("_stream", "unmet")

    def __init__(self, random: Random = os.urandom) -> None:
        self._stream = Keystream(draw(random, 32))
        self.unmet = unmet_by(random)

    def uniform(self, count: int) -> FloatArray:
        """[count] values in (0, 1), multiples of 2^-53 shifted by half a step."""
        words = np.frombuffer(self._stream.read(8 * count), dtype="<u8")
        return np.asarray(((words >> np.uint64(11)) + 0.5) / 2.0**53)

    def normal(self, count: int) -> FloatArray:
        """[count] standard normal values (Box and Muller, 1958); none exceeds 12.2.

        Steps of 2^-53 would end the tail at 8.6, which 1e-16 of all pairs are beyond: the lowest of
        them are divided by 2^53 once more.
        """
        half = (count + 1) // 2
        chosen = self.uniform(half)
        low = np.flatnonzero(chosen < _LOW)
        if len(low):
            chosen[low] += (self.uniform(len(low)) - 0.5) / 2.0**53
        radius = np.sqrt(-2.0 * np.log(chosen))
        angle = 2.0 * np.pi * self.uniform(half)
        return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:count]


# The room that noise needs in a sum.


_FAILURE = 2.0**-40
"""Probability, over all sums of a plan, that noise leaves its lane and spoils its neighbour's."""


def room_for(variance: float, entries: int) -> int:
    """Return how far noise may move any of `entries` entries, except with probability 2^-40.

    Bernstein's inequality, P(|X| > t) <= 2 exp(-t^2 / (2 (v + t / 3))), for noise of variance v; a
    sum of discrete Gaussians keeps it without the t / 3 as well.

    >>> room_for(0.0, 10), room_for(100.0, 10)
    (0, 90)
    """
    if variance == 0:
        return 0
    log_odds = math.log(2 * entries / _FAILURE)
    return math.ceil(log_odds / 3 + math.sqrt((log_odds / 3) ** 2 + 2 * variance * log_odds))
