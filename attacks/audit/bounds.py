"""Lower bounds on epsilon from trials of an attack, and what they mean for a claim.

Counts in, an epsilon out, wrong with probability at most `miss`; nothing here knows a mechanism. A
claim below a bound is refuted.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.stats import beta, norm

from secure_fd.errors import LocalError
from secure_fd.privacy.guarantee import Guarantee, PrivacyUnit
from secure_fd.votes.codec import FloatArray, IntArray


class Kind(StrEnum):
    """What an audit looks at, from closest to the noise to furthest."""

    NOISE = "noise-level"
    MECHANISM = "mechanism"


class Verdict(StrEnum):
    """What a bound means for a claim; CANNOT_TELL is no proof of privacy."""

    HOLDS = "holds"
    REFUTED = "refuted"
    CANNOT_TELL = "cannot tell"


@dataclass(frozen=True, slots=True)
class Proof:
    """A lower bound on epsilon, the most that the same counts could have shown, and the attack."""

    bound: float
    ceiling: float
    attack: str
    trials: int


@dataclass(frozen=True, slots=True)
class Finding:
    """One cell of the table.

    claimed: the epsilon at `delta` that the software prints for this unit and these neighbours;
    LocalError where it is not finite, for then there is nothing to audit.
    bound: what the attack proved, at least, but for probability `miss`. ceiling: the bound had
    every guess been right. assumes: what the bound needs of the mechanism's shape, in words;
    empty for nothing. also: further figures by name, none of them the verdict's. finds: the least
    loss that is found, in words, where it is known beforehand.
    """

    kind: Kind
    unit: PrivacyUnit
    name: str
    claimed: float
    delta: float
    bound: float
    ceiling: float
    miss: float
    attack: str
    trials: int
    assumes: str = ""
    also: tuple[tuple[str, float], ...] = ()
    finds: str = ""

    def __post_init__(self) -> None:
        if not math.isfinite(self.claimed):
            raise LocalError(f"{self.name}: a claim of {self.claimed} cannot be audited")

    @property
    def verdict(self) -> Verdict:
        """Refuted where more was proved than claimed; no verdict where that could not have been."""
        if self.bound > self.claimed:
            return Verdict.REFUTED
        return Verdict.HOLDS if self.ceiling > self.claimed else Verdict.CANNOT_TELL


def printed(guarantee: Guarantee | None) -> Guarantee:
    """What the software claims. Raises LocalError where it claims nothing."""
    if guarantee is None or not guarantee.holds:
        why = "no guarantee was made" if guarantee is None else guarantee.sentence()
        raise LocalError(f"there is no epsilon to audit: {why}")
    return guarantee


LARGEST = 100.0
"""No bound above this is told apart from any other: a claim of that size promises nothing."""


@dataclass(frozen=True, slots=True)
class Errors:
    """How a test between two worlds erred: flagged in the first, missed in the second."""

    false_alarms: int
    misses: int
    without: int
    present: int

    def __post_init__(self) -> None:
        if not (0 <= self.false_alarms <= self.without and 0 <= self.misses <= self.present):
            raise LocalError(
                f"errors {self.false_alarms} and {self.misses} are outside "
                f"[0, {self.without}] and [0, {self.present}]"
            )

    def at_most(self, miss: float) -> tuple[float, float]:
        """Upper bounds on both error rates, which hold together but for probability `miss`."""
        _, alarm = clopper_pearson(self.false_alarms, self.without, miss / 2)
        _, missed = clopper_pearson(self.misses, self.present, miss / 2)
        return alarm, missed


Shape = Callable[[float, float], float]
"""From both error rates of a test to the least epsilon at which it could exist."""


def clopper_pearson(hits: int, trials: int, miss: float) -> tuple[float, float]:
    """Bounds on a probability; each side is wrong with probability at most `miss`.

    Clopper and Pearson (1934), exact for every probability and number of trials.
    """
    if not (0 <= hits <= trials and trials > 0 and 0 < miss < 1):
        raise LocalError(f"{hits} hits of {trials} trials at miss {miss} bound nothing")
    low = beta.ppf(miss, hits, trials - hits + 1) if hits else 0.0
    high = beta.ppf(1 - miss, hits + 1, trials - hits) if hits < trials else 1.0
    return float(low), float(high)


def any_shape(delta: float) -> Shape:
    """What holds for every (epsilon, delta) mechanism: no assumption on its noise.

    A test of false-alarm rate a and miss rate b needs 1 - b <= e^eps a + delta, and the same with
    the worlds swapped (Wasserman and Zhou, 2010).
    """

    def least(alarm: float, missed: float) -> float:
        pairs = ((1 - missed, alarm), (1 - alarm, missed))
        return max(_log_ratio(power - delta, error) for power, error in pairs)

    return least


def separation(alarm: float, missed: float) -> float:
    """The mu of the Gaussian test with these error rates: a quick shape to choose attacks by."""
    return -float(norm.ppf(alarm) + norm.ppf(missed))


def gaussian_shape(delta: float) -> Shape:
    """For Gaussian noise: epsilon at delta of the least mu that allows both error rates.

    Sharper than `any_shape`, and a proof only for noise of Gaussian shape (Dong, Roth and Su,
    2019): so a bound above a claim of Gaussian noise refutes the claim, whatever the noise is.
    """

    def least(alarm: float, missed: float) -> float:
        return gaussian_epsilon(separation(alarm, missed), delta)

    return least


def gaussian_epsilon(mu: float, delta: float) -> float:
    """Epsilon at delta of mu-Gaussian privacy, exact (Balle and Wang, 2018, theorem 8)."""

    def excess(epsilon: float) -> float:
        below = float(norm.logcdf(-mu / 2 - epsilon / mu))
        return float(norm.cdf(mu / 2 - epsilon / mu)) - math.exp(epsilon + below) - delta

    if mu <= 0 or excess(0.0) <= 0:
        return 0.0
    return LARGEST if excess(LARGEST) > 0 else float(brentq(excess, 0.0, LARGEST))


def sampled_shape(sample_rate: float, steps: int, delta: float) -> Shape:
    """For DP-SGD: epsilon at delta of the most noise that allows both error rates.

    Steps of Gaussian noise on Poisson samples; a proof for these alone, as `gaussian_shape`.
    """

    def least(alarm: float, missed: float) -> float:
        if alarm + missed >= 1:  # a coin does as well
            return 0.0
        low, high = 2.0**-4, 2.0**6
        for _ in range(24):
            noise = math.sqrt(low * high)
            possible = SampledLoss.of(sample_rate, steps, noise).power(alarm) >= 1 - missed
            low, high = (noise, high) if possible else (low, noise)
        return SampledLoss.of(sample_rate, steps, high).epsilon(delta) if low > 2.0**-4 else LARGEST

    return least


_MESH = 2.0**-8
_REACH = 2.0**6
_ROUNDING = 1e-14


@dataclass(frozen=True, slots=True, eq=False)
class SampledLoss:
    """The privacy loss of `steps` sampled Gaussian steps, on a grid, when the record is there.

    losses: [G] falling. present, without: [G] its probabilities in both worlds. Losses are rounded
    up, by at most `slack` over all steps, so the power grants an attacker more than it has, and an
    epsilon is read off `slack` lower: both err to the side on which a bound stays one. What lies
    beyond 64 counts as 64, where the worlds differ by a factor of 10^27.
    """

    losses: FloatArray
    present: FloatArray
    without: FloatArray
    slack: float

    @classmethod
    def of(cls, sample_rate: float, steps: int, noise: float) -> "SampledLoss":
        """One step's loss is log(1 - q + q exp((2x - 1) / 2 z^2)), rising in x."""
        grid = np.arange(-_REACH, _REACH, _MESH)
        cumulative = _loss_cdf(grid, sample_rate, noise)
        mass = np.diff(cumulative, prepend=0.0)
        mass[-1] += 1 - cumulative[-1]
        size = steps * len(grid)  # room for every sum: none wraps around
        total = np.fft.irfft(np.fft.rfft(mass, size) ** steps, size)
        # What the transform's rounding leaves would grow with exp(-loss) in the other world.
        total = np.where(total > _ROUNDING, total, 0.0)
        present = _folded(total, len(grid))[::-1]
        losses = grid[::-1]
        return cls(losses, present, present * np.exp(-losses), steps * _MESH)

    def power(self, alarm: float) -> float:
        """The best chance, at most, to find the record at a false-alarm rate."""
        alarms = np.concatenate([[0.0], np.cumsum(self.without)])
        found = np.concatenate([[0.0], np.cumsum(self.present)])
        return float(np.interp(alarm, alarms, found) + max(0.0, 1 - found[-1]))

    def epsilon(self, delta: float) -> float:
        """At most the least epsilon of this delta: one present world against the other."""
        excess = np.cumsum(self.present) - np.exp(self.losses) * np.cumsum(self.without)
        # The first loss at which delta is exceeded: epsilon is not below it.
        first = min(int(np.count_nonzero(excess <= delta)), len(excess) - 1)
        return max(0.0, float(self.losses[first]) - self.slack)


def _folded(total: FloatArray, width: int) -> FloatArray:
    """[width] the middle of all sums' probabilities, with what lies outside at its ends."""
    start = (len(total) - width) // 2
    middle = total[start : start + width].copy()
    middle[0] += total[:start].sum()
    middle[-1] += total[start + width :].sum()
    return middle


def _loss_cdf(losses: FloatArray, sample_rate: float, noise: float) -> FloatArray:
    """[G] the chance of a loss of at most this, where the record is there."""
    possible = np.expm1(losses) + sample_rate
    with np.errstate(divide="ignore"):
        x = noise**2 * np.log(np.maximum(possible, 0.0) / sample_rate) + 0.5
    missed, drawn = norm.cdf(x / noise), norm.cdf((x - 1) / noise)
    return np.asarray((1 - sample_rate) * missed + sample_rate * drawn)


def symbol_bound(
    first: IntArray, second: IntArray, miss: float
) -> tuple[float, tuple[int, bool] | None]:
    """The largest log ratio of a symbol's probabilities in two worlds that its counts prove.

    first, second: [A] how often each symbol was seen. Pure epsilon; every symbol and direction is
    looked at, each with its part of `miss` (Bonferroni). Returns also the symbol and whether the
    first world has it more often; None where nothing is proven.
    """
    part = miss / (4 * len(first))  # two sides, two directions, each symbol
    found, where = 0.0, None
    for forward, (one, other) in ((True, (first, second)), (False, (second, first))):
        low = _bounds(one, part, upper=False)
        high = _bounds(other, part, upper=True)
        with np.errstate(divide="ignore"):
            ratios = np.log(low / high)
        symbol = int(ratios.argmax())
        if ratios[symbol] > found:
            found, where = float(ratios[symbol]), (symbol, forward)
    return found, where


def _bounds(hits: IntArray, miss: float, *, upper: bool) -> NDArray[np.float64]:
    """[A] one-sided Clopper-Pearson bounds on every symbol's probability."""
    trials = int(hits.sum())
    with np.errstate(invalid="ignore"):
        if upper:
            high = beta.ppf(1 - miss, hits + 1, trials - hits)
            return np.where(hits < trials, high, 1.0)
        return np.where(hits > 0, beta.ppf(miss, hits, trials - hits + 1), 0.0)


def _log_ratio(power: float, error: float) -> float:
    """log(power / error), at least 0; an error rate of an interval is never 0."""
    return math.log(power / error) if power > error else 0.0


PRACTICE = 0.2
"""Share of the trials on which the attack is chosen; they prove nothing."""
_HASTE = 1e-4  # strict, since the best of a hundred candidates is taken
_THRESHOLDS = 64


@dataclass(frozen=True, slots=True, eq=False)
class Worlds:
    """What an observer computes from each trial, where the unit is absent and where it is there.

    without, present: [N, S], one column a statistic. names: [S].
    """

    names: tuple[str, ...]
    without: FloatArray = field(repr=False)
    present: FloatArray = field(repr=False)

    def __post_init__(self) -> None:
        width = len(self.names)
        if self.without.shape[1:] != (width,) or self.present.shape[1:] != (width,):
            raise LocalError(f"worlds of {width} statistics need arrays [N, {width}]")


def by_inclusion(name: str, scores: FloatArray, included: FloatArray) -> Worlds:
    """The worlds of canaries that are each a trial: one score [m] and a coin [m] apiece."""
    return Worlds((name,), scores[included == 0, None], scores[included == 1, None])


@dataclass(frozen=True, slots=True)
class Attack:
    """Says "present" where sign * statistic is above sign * threshold."""

    statistic: int
    sign: float
    threshold: float

    def errors(self, worlds: Worlds) -> Errors:
        """Its errors; a statistic on the threshold counts as absent."""
        flagged = [
            int(np.count_nonzero(self.sign * part[:, self.statistic] > self.sign * self.threshold))
            for part in (worlds.without, worlds.present)
        ]
        without, present = len(worlds.without), len(worlds.present)
        return Errors(flagged[0], present - flagged[1], without, present)


def prove(worlds: Worlds, shape: Shape, miss: float, choose: Shape = separation) -> Proof:
    """The bound of the attack that did best in practice; wrong with probability at most `miss`.

    Statistic, direction and threshold are chosen on the first part of both worlds, and the bound
    comes from the rest alone: choosing on the data of the proof would prove too much.
    choose: what the choice goes by; any is sound.
    """
    practice, rest = _split(worlds)
    attack = max(_candidates(practice), key=lambda a: _promise(a, practice, choose))
    errors = attack.errors(rest)
    nothing = Errors(0, 0, errors.without, errors.present)
    return Proof(
        bound=shape(*errors.at_most(miss)),
        ceiling=shape(*nothing.at_most(miss)),
        attack=f"{worlds.names[attack.statistic]} {'>' if attack.sign > 0 else '<'} "
        f"{attack.threshold:.3g}",
        trials=errors.without + errors.present,
    )


def prove_shaped(
    worlds: Worlds, shape: Shape, delta: float, miss: float
) -> tuple[Proof, tuple[tuple[str, float]]]:
    """The sharper bound of a claimed shape, and the one that needs no shape to print beside it."""
    plain = prove(worlds, any_shape(delta), miss, any_shape(delta))
    return prove(worlds, shape, miss), (("no shape assumed", plain.bound),)


def _split(worlds: Worlds) -> tuple[Worlds, Worlds]:
    cut = [int(PRACTICE * len(part)) for part in (worlds.without, worlds.present)]
    first = Worlds(worlds.names, worlds.without[: cut[0]], worlds.present[: cut[1]])
    return first, Worlds(worlds.names, worlds.without[cut[0] :], worlds.present[cut[1] :])


def _candidates(practice: Worlds) -> list[Attack]:
    """Every statistic, both directions, thresholds spread over what was seen."""
    spread = np.linspace(0.0, 1.0, _THRESHOLDS)
    found = []
    for statistic in range(len(practice.names)):
        seen = np.concatenate([practice.without[:, statistic], practice.present[:, statistic]])
        for threshold in np.unique(np.quantile(seen, spread)):
            found += [Attack(statistic, sign, float(threshold)) for sign in (1.0, -1.0)]
    return found


def _promise(attack: Attack, practice: Worlds, shape: Shape) -> float:
    """What the attack would prove here; the sharper of equals has fewer errors."""
    errors = attack.errors(practice)
    rates = errors.false_alarms / errors.without + errors.misses / errors.present
    return shape(*errors.at_most(_HASTE)) - 1e-9 * rates
