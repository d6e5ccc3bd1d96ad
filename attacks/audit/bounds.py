"""Terms of an audit, exact bounds on probabilities, and the verdict on a claim.

A bound is wrong with probability at most `MISS`. A claim below its bound is refuted.
"""

import math
import os
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
from scipy.stats import beta

from secure_fd.errors import LocalError
from secure_fd.privacy.guarantee import Guarantee
from secure_fd.privacy.samplers import Random
from secure_fd.votes.codec import FloatArray, IntArray

LARGEST = 100.0
"""Largest bound that is stated: a claim of that size guarantees nothing."""
MISS = 1e-5
"""Probability, at most, that the bound of one audit is wrong."""
UNSEEN = 1e-3
"""Probability that a loss which an audit states to find is not found."""


@dataclass(frozen=True, slots=True)
class Setting:
    """Terms of one audit.

    Attributes:
        epsilon: requested from the audited mechanism, with `delta`.
        size: share of the full number of trials.
        random: source of the mechanism's noise. A seeded one makes the audit repeatable and
            invalidates printed claims, so claims are always read from a release with noise of the
            operating system.
    """

    epsilon: float
    delta: float = 1e-5
    size: float = 1.0
    random: Random = field(default=os.urandom, repr=False)

    def trials(self, full: int) -> int:
        """Return the number of trials where a full audit makes `full`."""
        return max(100, round(full * self.size))


class Verdict(StrEnum):
    """Meaning of a bound for a claim; CANNOT_TELL is no evidence of privacy."""

    HOLDS = "holds"
    REFUTED = "refuted"
    CANNOT_TELL = "cannot tell"


@dataclass(frozen=True, slots=True)
class Finding:
    """Outcome of one audit.

    Attributes:
        claimed: epsilon at `delta` as the software prints it.
        bound: proven lower bound on epsilon.
        ceiling: bound of a perfect attack on as many trials.
        attack: what was seen, in words.
        finds: smallest loss of noise that the audit detects, in words, where it is known in
            advance.

    Raises:
        LocalError: the claim is not finite, so there is nothing to audit.
    """

    claimed: float
    delta: float
    bound: float
    ceiling: float
    attack: str
    trials: int
    finds: str = ""

    def __post_init__(self) -> None:
        if not math.isfinite(self.claimed):
            raise LocalError(f"a claim of {self.claimed} cannot be audited")

    @property
    def verdict(self) -> Verdict:
        """REFUTED if more was proved than claimed; no verdict if that was out of reach."""
        if self.bound > self.claimed:
            return Verdict.REFUTED
        return Verdict.HOLDS if self.ceiling > self.claimed else Verdict.CANNOT_TELL


def epsilon_of(guarantee: Guarantee | None) -> float:
    """Return the epsilon that the software claims. Raises LocalError where it claims none."""
    if guarantee is None or not guarantee.holds:
        why = "no guarantee was made" if guarantee is None else guarantee.sentence()
        raise LocalError(f"there is no epsilon to audit: {why}")
    return guarantee.epsilon


def rounded_down(share: float) -> str:
    """Return a share as text: a little less of what hides the data is found as well."""
    return f"x{math.floor(1000 * share) / 1000:.3f}"


def clopper_pearson(
    hits: int | IntArray, trials: int, miss: float
) -> tuple[FloatArray, FloatArray]:
    """Return bounds on probabilities; each side is wrong with probability at most `miss`.

    Clopper and Pearson (1934), exact for every probability and number of trials.
    """
    seen = np.asarray(hits)
    if not (seen.min() >= 0 and seen.max() <= trials and trials > 0 and 0 < miss < 1):
        raise LocalError(f"{hits} hits of {trials} trials at miss {miss} bound nothing")
    with np.errstate(invalid="ignore"):
        low = np.where(seen > 0, beta.ppf(miss, seen, trials - seen + 1), 0.0)
        high = np.where(seen < trials, beta.ppf(1 - miss, seen + 1, trials - seen), 1.0)
    return low, high


def symbol_bound(first: IntArray, second: IntArray, miss: float) -> float:
    """Return the largest log ratio of a symbol's probabilities that its counts prove, or 0.

    Pure epsilon; every symbol and direction is tested, each with its part of `miss` (Bonferroni).

    Args:
        first: [A] how often each symbol was seen in one world.
        second: [A] the same in the other.
        miss: probability, at most, that the bound is wrong.
    """
    part = miss / (4 * len(first))  # two sides, two directions, each symbol
    (low, high), (other_low, other_high) = (
        clopper_pearson(counts, int(counts.sum()), part) for counts in (first, second)
    )
    with np.errstate(divide="ignore"):
        ratios = np.log([low / other_high, other_low / high])
    return max(0.0, float(ratios.max()))
