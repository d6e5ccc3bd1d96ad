"""Discrete Gaussian samples against an outside reference: the sampler that libprio-rs publishes.

`reference` implements algorithms 1 to 3 of Canonne, Kamath and Steinke ("The Discrete Gaussian for
Differential Privacy", 2020) in exact rationals, apart from the package. On the random stream of
libprio-rs it gives the samples published there, so it draws what they draw. Our sampler is another
algorithm, so the two are compared by distribution.
"""

import json
import math
from collections.abc import Callable, Iterable
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from Crypto.Hash import TurboSHAKE128
from scipy.stats import chi2

from secure_fd.privacy.samplers import SeededRandom, discrete_gaussian

PUBLISHED = Path(__file__).parents[1] / "vectors" / "discrete_gaussian.json"
CASES = json.loads(PUBLISHED.read_text(encoding="utf-8"))["cases"]
FALSE_ALARM = 1e-6
Read = Callable[[int], bytes]


def below(bound: int, read: Read) -> int:
    """Return a uniform integer in [0, bound): 32-bit digits, the last one cut to size."""
    digits, rest = divmod(bound.bit_length(), 32)
    while True:
        drawn = bytearray(read(4 * (digits + (rest > 0))))
        if rest:
            last = int.from_bytes(drawn[-4:], "little") >> (32 - rest)
            drawn[-4:] = last.to_bytes(4, "little")
        value = int.from_bytes(drawn, "little")
        if value < bound:
            return value


def bernoulli(chance: Fraction, read: Read) -> bool:
    return 1 + below(chance.denominator, read) <= chance.numerator


def bernoulli_exp1(gamma: Fraction, read: Read) -> bool:
    """Return true with probability exp(-gamma), gamma at most 1; algorithm 1."""
    k = 1
    while bernoulli(gamma / k, read):
        k += 1
    return k % 2 == 1


def bernoulli_exp(gamma: Fraction, read: Read) -> bool:
    """Return true with probability exp(-gamma); algorithm 1."""
    whole = math.floor(gamma)
    ones = all(bernoulli_exp1(Fraction(1), read) for _ in range(whole))
    return ones and bernoulli_exp1(gamma - whole, read)


def laplace(scale: int, read: Read) -> int:
    """Return a discrete Laplace sample of an integer scale; algorithm 2."""
    while True:
        negative = bernoulli(Fraction(1, 2), read)
        fine = below(scale, read)
        while not bernoulli_exp1(Fraction(fine, scale), read):
            fine = below(scale, read)
        coarse = 0
        while bernoulli_exp1(Fraction(1), read):
            coarse += 1
        magnitude = fine + scale * coarse
        if magnitude or not negative:
            return -magnitude if negative else magnitude


def reference(sigma: Fraction, read: Read) -> int:
    """Return a discrete Gaussian sample; algorithm 3."""
    scale = math.floor(sigma) + 1
    while True:
        found = laplace(scale, read)
        if bernoulli_exp((abs(found) - sigma**2 / scale) ** 2 / (2 * sigma**2), read):
            return found


def stream_of(seed: bytes) -> Read:
    """Return the random stream of libprio-rs: XofTurboShake128 without tag and binder."""
    absorbed = TurboSHAKE128.new(domain=1)
    absorbed.update(bytes(2) + bytes([len(seed)]) + seed)
    return absorbed.read


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['std_num']}/{case['std_denom']}")
def test_the_reference_gives_the_published_samples(case):
    read = stream_of(bytes.fromhex(case["seed"]))
    sigma = Fraction(case["std_num"], case["std_denom"])
    assert [reference(sigma, read) for _ in case["samples"]] == case["samples"]


def p_value(samples: Iterable[int], sigma: float) -> float:
    """Return Pearson's chi-squared test against exp(-x^2 / 2 sigma^2) on the integers.

    Values beyond the last one that is expected 20 times share a cell on either side.
    """
    drawn = np.array(list(samples))
    x = np.arange(-math.ceil(12 * sigma), math.ceil(12 * sigma) + 1)
    weights = np.exp(-(x**2) / (2 * sigma**2))
    expected = len(drawn) * weights / weights.sum()
    reach = x[expected >= 20].max()
    cells = np.clip(x, -reach, reach) + reach
    wanted = np.bincount(cells, expected)
    found = np.bincount(np.clip(drawn, -reach, reach) + reach, minlength=len(wanted))
    statistic = float(((found - wanted) ** 2 / wanted).sum())
    return float(chi2.sf(statistic, len(wanted) - 1))


def test_the_reference_has_the_exact_probabilities():
    """4,000 samples of sigma 2.342; a false alarm once in a million."""
    read = stream_of(bytes(range(32)))
    drawn = [reference(Fraction(1171, 500), read) for _ in range(4000)]
    assert p_value(drawn, 2.342) > FALSE_ALARM


@pytest.mark.parametrize("sigma", [2.342, 9.0, 100.0])
def test_our_sampler_has_the_same_probabilities(sigma):
    """400,000 samples with a fixed seed; a false alarm once in a million, per sigma.

    The check has power: samples of a sigma that is 2 % off, and rounded continuous ones of equal
    sigma where the two laws differ, are rejected.
    """
    drawn = discrete_gaussian(sigma, 400_000, SeededRandom(7))
    assert p_value(drawn, sigma) > FALSE_ALARM
    assert p_value(discrete_gaussian(1.02 * sigma, 400_000, SeededRandom(7)), sigma) < FALSE_ALARM
    rounded = np.rint(np.random.default_rng(7).normal(0, sigma, 400_000)).astype(np.int64)
    assert (p_value(rounded, sigma) < FALSE_ALARM) == (sigma < 5)
