"""Lower bounds on epsilon from trials of an attack, and the verdict on a claim.

A bound is wrong with probability at most `miss`; nothing here depends on a mechanism. A claim below
its bound is refuted.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from scipy.optimize import brentq
from scipy.stats import beta, norm

from secure_fd.errors import LocalError
from secure_fd.privacy.guarantee import Guarantee
from secure_fd.votes.codec import FloatArray, IntArray

LARGEST = 100.0
"""Largest bound that is stated: a claim of that size guarantees nothing."""


class Verdict(StrEnum):
    """Meaning of a bound for a claim; CANNOT_TELL is no evidence of privacy."""

    HOLDS = "holds"
    REFUTED = "refuted"
    CANNOT_TELL = "cannot tell"


@dataclass(frozen=True, slots=True)
class Proof:
    """A lower bound on epsilon, the bound of a perfect attack on as many trials, and the attack."""

    bound: float
    ceiling: float
    attack: str
    trials: int


@dataclass(frozen=True, slots=True)
class Finding:
    """Outcome of one audit.

    Attributes:
        proof: wrong with probability at most `miss`.
        claimed: epsilon at `delta` as the software prints it.
        finds: smallest loss of noise that the audit detects, in words, where it is known in
            advance.

    Raises:
        LocalError: the claim is not finite, so there is nothing to audit.
    """

    proof: Proof
    claimed: float
    delta: float
    miss: float
    finds: str = ""

    def __post_init__(self) -> None:
        if not math.isfinite(self.claimed):
            raise LocalError(f"a claim of {self.claimed} cannot be audited")

    @property
    def verdict(self) -> Verdict:
        """REFUTED if more was proved than claimed; no verdict if that was out of reach."""
        if self.proof.bound > self.claimed:
            return Verdict.REFUTED
        return Verdict.HOLDS if self.proof.ceiling > self.claimed else Verdict.CANNOT_TELL


def printed(guarantee: Guarantee | None) -> float:
    """Return the epsilon that the software claims. Raises LocalError where it claims none."""
    if guarantee is None or not guarantee.holds:
        why = "no guarantee was made" if guarantee is None else guarantee.sentence()
        raise LocalError(f"there is no epsilon to audit: {why}")
    return guarantee.epsilon


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


# Tests between two worlds, with and without one unit's data.


Shape = Callable[[float, float], float]
"""From the rates of false alarms and misses of a test to the least epsilon that allows it."""


def any_shape(delta: float) -> Shape:
    """Return the bound for every (epsilon, delta) mechanism: no assumption on its noise.

    A test of false-alarm rate a and miss rate b needs 1 - b <= e^eps a + delta, and the same with
    the worlds swapped (Wasserman and Zhou, 2010).
    """

    def least(alarm: float, missed: float) -> float:
        pairs = ((1 - missed, alarm), (1 - alarm, missed))
        return max(0.0, *(math.log(max(power - delta, error) / error) for power, error in pairs))

    return least


def gaussian_shape(delta: float) -> Shape:
    """Return the bound for Gaussian noise: epsilon at delta of the least mu that allows both rates.

    Sharper than `any_shape`, and a proof only for noise of Gaussian shape (Dong, Roth and Su,
    2019): a bound above a claim of Gaussian noise refutes the claim, whatever the noise is.
    """
    return lambda alarm, missed: gaussian_epsilon(-float(norm.ppf(alarm) + norm.ppf(missed)), delta)


def gaussian_epsilon(mu: float, delta: float) -> float:
    """Return epsilon at delta of mu-Gaussian privacy, exact (Balle and Wang, 2018, theorem 8)."""

    def excess(epsilon: float) -> float:
        below = float(norm.logcdf(-mu / 2 - epsilon / mu))
        return float(norm.cdf(mu / 2 - epsilon / mu)) - math.exp(epsilon + below) - delta

    if mu <= 0 or excess(0.0) <= 0:
        return 0.0
    return LARGEST if excess(LARGEST) > 0 else float(brentq(excess, 0.0, LARGEST))


_PRACTICE = 0.2
"""Share of the trials on which the attack is chosen; they prove nothing."""
_HASTE = 1e-4  # strict, since the best of a hundred candidates is taken
_THRESHOLDS = 64


def prove(without: FloatArray, present: FloatArray, shape: Shape, miss: float) -> Proof:
    """Return the bound of the best attack on the first trials, from the other trials alone.

    An attack says "present" where one statistic is above, or below, a threshold. Choosing it on
    the trials of the proof would prove too much.

    Args:
        without: [N, S] statistics of each trial without the unit's data.
        present: [M, S] the same with it.
        shape: what the bound assumes of the noise.
        miss: probability, at most, that the bound is wrong.
    """
    first, second = (int(_PRACTICE * len(part)) for part in (without, present))
    seen, rest = (without[:first], present[:second]), (without[first:], present[second:])
    spread = np.linspace(0.0, 1.0, _THRESHOLDS)
    levels = np.quantile(np.concatenate(seen), spread, axis=0)
    candidates = [
        (column, sign, float(level))
        for column in range(without.shape[1])
        for level in levels[:, column]
        for sign in (1.0, -1.0)
    ]

    def promise(attack: tuple[int, float, float]) -> tuple[float, float]:
        """Return the bound in practice; of equals, the attack with fewer errors."""
        errors = errors_of(*attack, *seen)
        rates = errors[0] / len(seen[0]) + errors[1] / len(seen[1])
        return _bound(errors, seen, shape, _HASTE), -rates

    column, sign, threshold = max(candidates, key=promise)
    errors = errors_of(column, sign, threshold, *rest)
    return Proof(
        bound=_bound(errors, rest, shape, miss),
        ceiling=_bound((0, 0), rest, shape, miss),
        attack=f"statistic {column} {'>' if sign > 0 else '<'} {threshold:.3g}",
        trials=sum(map(len, rest)),
    )


def errors_of(
    column: int, sign: float, threshold: float, without: FloatArray, present: FloatArray
) -> tuple[int, int]:
    """Return false alarms and misses; a statistic on the threshold counts as absent."""
    alarms, found = (
        int(np.count_nonzero(sign * part[:, column] > sign * threshold))
        for part in (without, present)
    )
    return alarms, len(present) - found


def _bound(
    errors: tuple[int, int], trials: tuple[FloatArray, FloatArray], shape: Shape, miss: float
) -> float:
    """Return the bound by upper bounds on both error rates, which hold together but for `miss`."""
    alarm, missed = (
        float(clopper_pearson(count, len(part), miss / 2)[1])
        for count, part in zip(errors, trials, strict=True)
    )
    return shape(alarm, missed)


def symbol_bound(
    first: IntArray, second: IntArray, miss: float
) -> tuple[float, tuple[int, bool] | None]:
    """Return the largest log ratio of a symbol's probabilities that the counts of it prove.

    Pure epsilon; every symbol and direction is tested, each with its part of `miss` (Bonferroni).

    Args:
        first: [A] how often each symbol was seen in one world.
        second: [A] the same in the other.
        miss: probability, at most, that the bound is wrong.

    Returns:
        The bound; and the symbol with whether the first world has it more often, None where
        nothing is proven.
    """
    part = miss / (4 * len(first))  # two sides, two directions, each symbol
    (low, high), (other_low, other_high) = (
        clopper_pearson(counts, int(counts.sum()), part) for counts in (first, second)
    )
    with np.errstate(divide="ignore"):
        ratios = np.log([low / other_high, other_low / high])
    direction, symbol = np.unravel_index(ratios.argmax(), ratios.shape)
    bound = float(ratios[direction, symbol])
    return (bound, (int(symbol), direction == 0)) if bound > 0 else (0.0, None)
