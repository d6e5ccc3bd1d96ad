"""Membership metrics and intervals. Scores: larger means "more likely a member".

ROC and TPR at a low FPR as asked for by Carlini et al. 2022 ("Membership Inference Attacks From
First Principles"). Intervals are 95 % percentile bootstraps, or exact where counts allow; over
seeds they are Student's.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import binomtest, norm, t

from attacks.base import AttackResult, BoolArray, FloatArray, RocCurve, substream
from secure_fd.errors import ConfigurationError, LocalError
from secure_fd.knowledge import IntArray

Interval = tuple[float, float]
RESAMPLES = 1000
LEVEL = 0.95
GRID = np.geomspace(1e-4, 1, 81)
"""False-positive rates, twenty a decade, at which curves of several seeds are averaged."""
_ROUNDING = 1e-9
"""Differences below are of floating point, not of attacks."""


@dataclass(frozen=True, slots=True)
class Rate:
    """A figure and its 95 % interval."""

    value: float
    interval: Interval


@dataclass(frozen=True, slots=True)
class OverSeeds:
    """A mean over seeds and its 95 % interval, which is None for one seed: that has no spread."""

    value: float
    interval: Interval | None

    @property
    def sign(self) -> int:
        """1 or -1 where the whole interval lies above or below 0, else 0."""
        low, high = self.interval or (0.0, 0.0)
        return int(low > _ROUNDING) - int(high < -_ROUNDING)


@dataclass(frozen=True, slots=True, eq=False)
class Scores:
    """Members' and non-members' scores as ranks without ties; build it with `rank`."""

    members: NDArray[np.int64]
    non_members: NDArray[np.int64]


def rank(members: ArrayLike, non_members: ArrayLike, seed: int) -> Scores:
    """Scores [n], [k] as ranks from 0 up; equal scores are ordered at random by `seed`.

    A score with ties would otherwise give an attacker the better, or the worse, of a coin toss.
    """
    inside = np.asarray(members, dtype=np.float64)
    outside = np.asarray(non_members, dtype=np.float64)
    both = np.concatenate([inside, outside])
    if not inside.size or not outside.size or not np.isfinite(both).all():
        raise LocalError(
            f"scores: {inside.size} members and {outside.size} non-members are not allowed; "
            "both sides need finite scores"
        )
    order = np.lexsort((np.random.default_rng(seed).random(both.size), both))
    ranks = np.empty(both.size, dtype=np.int64)
    ranks[order] = np.arange(both.size)
    return Scores(ranks[: inside.size], ranks[inside.size :])


def roc_curve(scores: Scores) -> RocCurve:
    """The curve through every threshold, from (0, 0) to (1, 1)."""
    ranks = np.concatenate([scores.members, scores.non_members])
    is_member = np.arange(ranks.size) < scores.members.size
    falling = is_member[np.argsort(-ranks)]
    tpr = np.concatenate([[0.0], np.cumsum(falling) / scores.members.size])
    fpr = np.concatenate([[0.0], np.cumsum(~falling) / scores.non_members.size])
    return RocCurve(fpr, tpr)


def auc(scores: Scores, seed: int) -> Rate:
    """Area under the curve: the chance that a member outranks a non-member."""
    outranked = np.searchsorted(np.sort(scores.non_members), scores.members)
    value = float(outranked.mean() / scores.non_members.size)
    inside, outside = _resample(scores, seed)
    areas = np.array([_area(a, b) for a, b in zip(inside, outside, strict=True)])
    return Rate(value, _percentiles(areas))


def shuffled_auc(scores: Scores, seed: int) -> FloatArray:
    """[RESAMPLES] areas with membership shuffled: what chance alone makes of these scores."""
    ranks = np.tile(np.concatenate([scores.members, scores.non_members]), (RESAMPLES, 1))
    n = scores.members.size
    chosen = np.random.default_rng(seed).permuted(ranks, axis=1)[:, :n]
    # Mann-Whitney: ranks count from 0, so n chosen ones outrank each other n (n - 1) / 2 times.
    outranked = chosen.sum(axis=1) - n * (n - 1) / 2
    return np.asarray(outranked / (n * scores.non_members.size))


def tpr_at_fpr(scores: Scores, fpr: float, seed: int) -> Rate | None:
    """Members found at the strictest threshold with at most `fpr` of non-members flagged.

    None, "not resolvable", where fewer than 1 / fpr non-members exist: then one false positive
    is already too many and the figure would describe a single record.
    """
    allowed = int(np.floor(fpr * scores.non_members.size + 1e-9))
    if allowed < 1:
        return None
    inside, outside = _resample(scores, seed)
    cut = np.sort(outside, axis=1)[:, -allowed - 1]
    found = (inside > cut[:, None]).mean(axis=1)
    threshold = np.sort(scores.non_members)[-allowed - 1]
    return Rate(float((scores.members > threshold).mean()), _percentiles(found))


def advantage(members: ArrayLike, non_members: ArrayLike, threshold: float, seed: int) -> Rate:
    """TPR - FPR at a threshold chosen beforehand, in [-1, 1]; 0 is a coin.

    The best threshold in hindsight would be above 0 even for a coin (Yeom et al. 2018, def. 4).
    """
    inside = np.asarray(members) >= threshold
    outside = np.asarray(non_members) >= threshold
    rng = np.random.default_rng(seed)
    spread = rng.binomial(inside.size, inside.mean(), RESAMPLES) / inside.size
    spread = spread - rng.binomial(outside.size, outside.mean(), RESAMPLES) / outside.size
    return Rate(float(inside.mean() - outside.mean()), _percentiles(spread))


def mean(values: ArrayLike, seed: int) -> Rate:
    """The mean of [n] values with a bootstrap interval over them."""
    sample = np.asarray(values, dtype=np.float64)
    picks = np.random.default_rng(seed).integers(0, sample.size, (RESAMPLES, sample.size))
    return Rate(float(sample.mean()), _percentiles(sample[picks].mean(axis=1)))


def proportion(hits: int, trials: int) -> Rate:
    """hits / trials with the exact interval of Clopper and Pearson (1934)."""
    bounds = binomtest(hits, trials).proportion_ci(LEVEL, method="exact")
    return Rate(hits / trials, (float(bounds.low), float(bounds.high)))


def total_variation(p: ArrayLike, q: ArrayLike) -> FloatArray:
    """Half the L1 distance of distributions [..., C]: 0 for equal ones, 1 for disjoint ones."""
    gap = np.abs(np.asarray(p, dtype=np.float64) - np.asarray(q, dtype=np.float64))
    return np.asarray(gap.sum(axis=-1) / 2)


def over_seeds(values: ArrayLike) -> OverSeeds:
    """The mean of one figure a seed [s], with Student's interval: mean ± t(s - 1) · sd / √s.

    It covers all that a seed draws (split, training, attack, choice of records) where figures are
    about normal; two or three seeds make it wide. Raises LocalError without a finite figure.
    """
    sample = np.asarray(values, dtype=np.float64)
    if sample.ndim != 1 or not sample.size or not np.isfinite(sample).all():
        raise LocalError(f"figures: {sample.tolist()} is not allowed; use a finite one a seed")
    center = float(sample.mean())
    if sample.size == 1:
        return OverSeeds(center, None)
    quantile = t.ppf((1 + LEVEL) / 2, sample.size - 1)
    half = float(quantile * sample.std(ddof=1) / np.sqrt(sample.size))
    return OverSeeds(center, (center - half, center + half))


def paired(figures: ArrayLike, controls: ArrayLike) -> OverSeeds:
    """Figure minus control, seed by seed: what both owe to the seed's records cancels."""
    a, b = np.asarray(figures, dtype=np.float64), np.asarray(controls, dtype=np.float64)
    if a.shape != b.shape:
        raise LocalError(f"controls: {b.size} for {a.size} figures; use one a seed")
    return over_seeds(a - b)


def mean_roc(curves: Sequence[RocCurve]) -> RocCurve:
    """The mean of TPRs at each rate of GRID: vertical averaging (Fawcett 2006, section 7.1).

    A curve's TPR there is that of its strictest threshold with at most so many false positives.
    The mean starts at the first rate at which every curve can afford one false positive.
    """
    if not curves:
        raise LocalError("curves: 0 have no mean; use one or more")
    finest = max(float(curve.fpr[curve.fpr > 0][0]) for curve in curves)
    grid = GRID[np.searchsorted(GRID, finest * (1 - _ROUNDING)) :]
    rates = [
        curve.tpr[np.searchsorted(curve.fpr, grid * (1 + _ROUNDING), side="right") - 1]
        for curve in curves
    ]
    return RocCurve(grid, np.mean(rates, axis=0))


def _resample(scores: Scores, seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """[RESAMPLES, n] members and non-members, each drawn with replacement from its own side."""
    rng = np.random.default_rng(seed)
    n, k = scores.members.size, scores.non_members.size
    return (
        scores.members[rng.integers(0, n, (RESAMPLES, n))],
        scores.non_members[rng.integers(0, k, (RESAMPLES, k))],
    )


def _area(members: NDArray[np.int64], non_members: NDArray[np.int64]) -> float:
    """A side's repeats are equal to themselves only: ranks of the two sides never tie."""
    return float(np.searchsorted(np.sort(non_members), members).mean() / non_members.size)


def _percentiles(values: FloatArray) -> Interval:
    low, high = np.quantile(values, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


# Figures of a membership attack on every run of a game: one way for all, honest about repeats.
#
# A candidate is scored in many runs, and its scores resemble each other. So intervals resample
# candidates with all their scores, never single scores; the p-value exchanges membership within
# pairs of runs, as the game's own coin did; and a rate is "not resolvable" unless as many
# *different*
# candidates exist as it takes to have one false positive.


REPORT_RESAMPLES = 400
_CHUNK = 50
_RATES = (("1 %", 0.01), ("0.1 %", 0.001))
Curve = tuple[FloatArray, FloatArray]


@dataclass(frozen=True, slots=True, eq=False)
class Verdicts:
    """scores: [R, N] of N candidates in R attacked runs, in pairs; above 0 the guess is "member".

    inside: [R, N] the truth. queries: to all targets together. right: whether a candidate got its
    own label, [R, N], where the attack saw labels.
    """

    scores: FloatArray = field(repr=False)
    inside: BoolArray = field(repr=False)
    queries: int = 0
    right: BoolArray | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        same = self.scores.shape == self.inside.shape
        if not same or self.scores.ndim != 2 or len(self.scores) % 2 or not self.scores.size:
            raise LocalError(
                f"scores {self.scores.shape} and inside {self.inside.shape} are not allowed; "
                "both need [R, N] with R even"
            )
        if not np.isfinite(self.scores).all():
            raise LocalError("scores: one is not finite")
        if not (self.inside[::2] ^ self.inside[1::2]).all():
            raise LocalError("inside: runs 2 j and 2 j + 1 must hold each candidate once")

    def of(self, chosen: BoolArray) -> "Verdicts":
        """About the chosen [N] candidates alone; queries stay those of the whole attack."""
        right = None if self.right is None else self.right[:, chosen]
        return Verdicts(self.scores[:, chosen], self.inside[:, chosen], self.queries, right)


def report(
    verdicts: Verdicts, name: str, title: str, seed: int, caveats: tuple[str, ...] = ()
) -> AttackResult:
    """AUC with its interval and control; TPR at 1 % and 0.1 % FPR, advantage, gap, p-value."""
    falling = _Falling.of(verdicts, substream(seed, "ties"))
    one = np.ones((1, falling.candidates), dtype=np.float64)
    weights = _bootstrap(falling.candidates, substream(seed, "candidates"))
    rates, unresolved = _rates(falling, one, weights)
    area = _rate(falling.areas(one), falling.areas(weights))
    chance = _exchanged_areas(falling, verdicts, substream(seed, "exchanges"))
    return AttackResult(
        name=name,
        title=title,
        figure=area.value,
        figure_name="AUC",
        unit="",
        interval=area.interval,
        control=float(chance.mean()),
        control_name="AUC of the same scores, membership exchanged at random within pairs of runs",
        queries=verdicts.queries,
        n_members=int(verdicts.inside.sum()),
        n_non_members=int((~verdicts.inside).sum()),
        caveats=(*caveats, *unresolved),
        details={
            **rates,
            **_guesses(verdicts, weights),
            "p_value": float((1 + (chance >= area.value).sum()) / (1 + len(chance))),
            "candidates": float(falling.candidates),
            "targets": float(len(verdicts.scores)),
        },
        roc=falling.curve(),
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Falling:
    """All scores from the highest down, ties in random order.

    candidate: [R N] whose score it is. member: [R N] whether it took part. place: [R, N] where each
    score stands.
    """

    candidate: IntArray
    member: BoolArray
    place: IntArray

    @classmethod
    def of(cls, verdicts: Verdicts, seed: int) -> "_Falling":
        scores = verdicts.scores.ravel()
        order = np.lexsort((np.random.default_rng(seed).random(scores.size), -scores))
        place = np.empty(scores.size, dtype=np.int64)
        place[order] = np.arange(scores.size)
        runs, candidates = verdicts.scores.shape
        who = np.tile(np.arange(candidates), runs)[order]
        return cls(who, verdicts.inside.ravel()[order], place.reshape(runs, candidates))

    @property
    def candidates(self) -> int:
        return int(self.place.shape[1])

    def curves(self, weights: FloatArray) -> Curve:
        """[B, R N] weight of members, and of non-members, down to each score; weights: [B, N]."""
        each = weights[:, self.candidate]
        return np.cumsum(each * self.member, axis=1), np.cumsum(each * ~self.member, axis=1)

    def areas(self, weights: FloatArray) -> FloatArray:
        """[B] areas under the curve: what share of non-members each member stands above."""
        return _chunked(weights, self._areas)

    def _areas(self, weights: FloatArray) -> FloatArray:
        hits, false = self.curves(weights)
        each = weights[:, self.candidate] * ~self.member
        return np.asarray((hits * each).sum(axis=1) / (hits[:, -1] * false[:, -1]))

    def found(self, weights: FloatArray, fpr: float) -> FloatArray:
        """[B] TPR at the strictest threshold that flags at most `fpr` of the non-members."""
        return _chunked(weights, lambda part: self._found(part, fpr))

    def _found(self, weights: FloatArray, fpr: float) -> FloatArray:
        hits, false = self.curves(weights)
        allowed = (false <= fpr * false[:, -1:] + 1e-9).sum(axis=1) - 1
        found = np.where(allowed >= 0, hits[np.arange(len(hits)), allowed], 0.0)
        return np.asarray(found / hits[:, -1])

    def curve(self) -> RocCurve:
        """The curve through every threshold."""
        hits, false = self.curves(np.ones((1, self.candidates)))
        tpr, fpr = (np.concatenate([[0.0], c[0] / c[0, -1]]) for c in (hits, false))
        return _corners(RocCurve(fpr, tpr))


def _corners(curve: RocCurve) -> RocCurve:
    """Without points in the middle of a step, which a table of many runs has thousands of."""
    rises = np.diff(curve.tpr) > 0
    turn = np.concatenate([[True], rises[1:] != rises[:-1], [True]])
    return RocCurve(curve.fpr[turn], curve.tpr[turn])


def _rates(
    falling: _Falling, one: FloatArray, weights: FloatArray
) -> tuple[dict[str, float], tuple[str, ...]]:
    """TPR at low FPR with intervals, and a caveat for each that too few candidates resolve."""
    made: dict[str, float] = {}
    unresolved = []
    for words, fpr in _RATES:
        if falling.candidates * fpr < 1:
            few = f"{falling.candidates} different candidates"
            unresolved.append(f"TPR at {words} FPR: not resolvable with {few}")
            continue
        rate = _rate(falling.found(one, fpr), falling.found(weights, fpr))
        made |= _named(f"tpr_at_{fpr:g}_fpr", rate)
    return made, tuple(unresolved)


def _guesses(verdicts: Verdicts, weights: FloatArray) -> dict[str, float]:
    """Advantage of the guess, and the gap attack (Yeom et al. 2018) where labels were seen."""
    gain = _difference(verdicts.scores > 0, verdicts.inside, weights)
    made = _named("advantage", gain)
    if verdicts.right is not None:
        gap = _difference(verdicts.right, verdicts.inside, weights)
        made["gap_attack_accuracy"] = 0.5 + gap.value / 2
    return made


def _difference(said: BoolArray, inside: BoolArray, weights: FloatArray) -> Rate:
    """Share of members that `said` is true of, less that of non-members."""
    runs = len(said)
    true, false = (said & inside).sum(axis=0), (said & ~inside).sum(axis=0)
    each = 2 * (true - false) / runs  # every candidate is inside in half of the runs
    return _rate(each.mean(keepdims=True), weights @ each / weights.sum(axis=1))


def _exchanged_areas(falling: _Falling, verdicts: Verdicts, seed: int) -> FloatArray:
    """[RESAMPLES] areas where a coin says who was in which run of a pair."""
    height = falling.place.size - falling.place
    first, second = height[::2], height[1::2]
    rng = np.random.default_rng(seed)
    n = verdicts.inside.sum()
    sums = [
        np.where(rng.random(first.shape) < 0.5, first, second).sum()
        for _ in range(REPORT_RESAMPLES)
    ]
    # Mann and Whitney: heights count from 1, so n members outrank each other n (n + 1) / 2 times.
    return np.asarray((np.array(sums) - n * (n + 1) / 2) / (n * (~verdicts.inside).sum()))


def _bootstrap(candidates: int, seed: int) -> FloatArray:
    """[RESAMPLES, N] how often each candidate is drawn, with replacement."""
    rng = np.random.default_rng(seed)
    even = np.full(candidates, 1 / candidates)
    return rng.multinomial(candidates, even, size=REPORT_RESAMPLES).astype(np.float64)


def _chunked(weights: FloatArray, figure: Callable[[FloatArray], FloatArray]) -> FloatArray:
    parts = [figure(weights[i : i + _CHUNK]) for i in range(0, len(weights), _CHUNK)]
    return np.concatenate(parts)


def _rate(value: FloatArray, resampled: FloatArray) -> Rate:
    low, high = np.quantile(resampled, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    interval: Interval = float(low), float(high)
    return Rate(float(value[0]), interval)


def _named(name: str, rate: Rate) -> dict[str, float]:
    low, high = rate.interval
    return {name: rate.value, f"{name}_low": low, f"{name}_high": high}


# What (epsilon, delta) differential privacy allows a membership attack at most.
#
# The game is the claim's: one record in or out of the data with all else fixed, its neighbouring
# relation as printed. Then for every test of false-positive rate a the miss rate is at least
#
#     f(a) = max(0, 1 - delta - e^eps a, e^-eps (1 - delta - a))
#
# (Wasserman and Zhou, 2010; Kairouz, Oh and Viswanath, 2015). Both bounds are attained by some
# mechanism, so noise of a known shape can only allow less: for Gaussian noise see `gaussian_auc`.
# The bounds are of probabilities, so an estimate may exceed them by its own error.


def auc_bound(epsilon: float, delta: float) -> float:
    """The largest area under the curve: 1 less the integral of f.

    f is symmetric in its two error rates; its lines meet at a* = (1 - delta) / (1 + e^eps), and
    the two trapezoids below them add up to (1 - delta)^2 / (1 + e^eps). Infinite epsilon gives 1.
    """
    _check(epsilon, delta)
    return 1.0 - (1.0 - delta) ** 2 * _odds(epsilon)


def tpr_bound(fpr: float, epsilon: float, delta: float) -> float:
    """The largest true-positive rate at a false-positive rate: 1 - f(fpr)."""
    _check(epsilon, delta)
    _check_rate(fpr)
    if math.isinf(epsilon):
        return 1.0
    # Beyond 700 the exponential overflows; at any false-positive rate above 0 it allows all.
    grown = math.exp(min(epsilon, 700.0)) * fpr
    missed = max(0.0, 1 - delta - grown, math.exp(-epsilon) * (1 - delta - fpr))
    return 1.0 - missed


def gaussian_auc(noise_multiplier: float) -> float:
    """The largest area under Gaussian noise: Phi(mu / sqrt 2), mu = 1 / z.

    noise_multiplier: z, the noise's standard deviation over the L2 sensitivity; 0 is no noise.
    Sharper than `auc_bound` at the epsilon of the same noise (Dong, Roth and Su, 2019).
    """
    mu = _mu(noise_multiplier)
    return float(norm.cdf(mu / math.sqrt(2)))


def gaussian_tpr(fpr: float, noise_multiplier: float) -> float:
    """The largest true-positive rate under Gaussian noise: Phi(mu + Phi^-1(fpr))."""
    _check_rate(fpr)
    mu = _mu(noise_multiplier)
    if math.isinf(mu):
        return 1.0
    return float(norm.cdf(mu + norm.ppf(fpr)))


def _odds(epsilon: float) -> float:
    """1 / (1 + e^eps) without overflow."""
    return math.exp(-epsilon) / (1.0 + math.exp(-epsilon))


def _mu(noise_multiplier: float) -> float:
    if not noise_multiplier >= 0:
        raise ConfigurationError("noise_multiplier", noise_multiplier, "use 0 or more")
    return math.inf if noise_multiplier == 0 else 1.0 / noise_multiplier


def _check(epsilon: float, delta: float) -> None:
    if not epsilon >= 0:
        raise ConfigurationError("epsilon", epsilon, "use 0 or more, or inf")
    if not 0 <= delta <= 1:
        raise ConfigurationError("delta", delta, "use a number from 0 to 1")


def _check_rate(fpr: float) -> None:
    if not 0 <= fpr <= 1:
        raise ConfigurationError("fpr", fpr, "use a number from 0 to 1")


# What scores of candidates amount to: one result for every membership attack on a selector.


LOW_FPR = 0.01


@dataclass(frozen=True, slots=True)
class Claim:
    """A record's (epsilon, delta) in the game that was played. noise_multiplier: z, of Gaussian
    noise; None where the noise has another shape.
    """

    epsilon: float
    delta: float
    noise_multiplier: float | None = None

    def bounds(self) -> dict[str, float]:
        """What it allows at most, by name for a report."""
        found = {
            "claimed_epsilon": self.epsilon,
            "auc_bound": auc_bound(self.epsilon, self.delta),
            "tpr_at_0.01_fpr_bound": tpr_bound(LOW_FPR, self.epsilon, self.delta),
        }
        if self.noise_multiplier is not None:
            found["auc_bound_of_the_noise"] = gaussian_auc(self.noise_multiplier)
            found["tpr_at_0.01_fpr_bound_of_the_noise"] = gaussian_tpr(
                LOW_FPR, self.noise_multiplier
            )
        return found


@dataclass(frozen=True, slots=True)
class Words:
    """What a result says beside its figures."""

    name: str
    title: str
    control: str
    caveats: tuple[str, ...]


def verdict(
    words: Words,
    scores: FloatArray,
    control_scores: FloatArray,
    is_member: NDArray[np.bool_],
    queries: int,
    details: Mapping[str, float],
    seed: int,
) -> AttackResult:
    """AUC with its interval over [N] candidates, half of them members."""
    members = int(is_member.sum())
    if scores.shape != is_member.shape or 2 * members != len(is_member):
        raise LocalError(
            f"is_member: {members} of {len(is_member)} is not allowed; use half of {len(scores)}"
        )
    ranks = _ranked(scores, is_member, substream(seed, "ties"))
    control = _ranked(control_scores, is_member, substream(seed, "control ties"))
    area = auc(ranks, substream(seed, "area"))
    chance = shuffled_auc(ranks, substream(seed, "shuffled"))
    low, unresolved = _at_low_fpr(ranks, seed)
    return AttackResult(
        name=words.name,
        title=words.title,
        figure=area.value,
        figure_name="AUC",
        unit="",
        interval=area.interval,
        control=auc(control, substream(seed, "control area")).value,
        control_name=words.control,
        queries=queries,
        n_members=members,
        n_non_members=len(is_member) - members,
        caveats=(*words.caveats, *unresolved),
        details={
            "p_value": float((1 + (chance >= area.value).sum()) / (1 + len(chance))),
            **low,
            **details,
        },
        roc=roc_curve(ranks),
    )


def _ranked(scores: FloatArray, is_member: NDArray[np.bool_], seed: int) -> Scores:
    return rank(scores[is_member], scores[~is_member], seed)


def _at_low_fpr(ranks: Scores, seed: int) -> tuple[dict[str, float], tuple[str, ...]]:
    rate = tpr_at_fpr(ranks, LOW_FPR, substream(seed, "low"))
    if rate is None:
        few = ranks.non_members.size
        return {}, (f"TPR at 1 % FPR: not resolvable with {few} non-members",)
    names = ("tpr_at_0.01_fpr", "tpr_at_0.01_fpr_low", "tpr_at_0.01_fpr_high")
    return dict(zip(names, (rate.value, *rate.interval), strict=True)), ()


# Label histograms as shares of one, and how far a guess of them is off: for whoever guesses.


def distribution(counts: FloatArray, otherwise: FloatArray) -> FloatArray:
    """Counts [C], negative ones as zero, rescaled to total one; `otherwise` without any."""
    clipped = np.clip(counts, 0.0, None)
    total = clipped.sum()
    return np.asarray(clipped / total) if total > 0 else otherwise


def distributions(rows: FloatArray, otherwise: FloatArray) -> FloatArray:
    """The same of every row of [K, C]."""
    return np.stack([distribution(row, otherwise) for row in rows])


def true_shares(histograms: ArrayLike, shares: FloatArray, guess: FloatArray) -> FloatArray:
    """[K, C] true label counts as shares. LocalError unless they are of as many as `shares`."""
    counts = np.asarray(histograms, dtype=np.float64)
    if counts.shape != shares.shape:
        raise LocalError(f"histograms: {counts.shape} is not allowed; use {shares.shape}")
    return distributions(counts, guess)


def share_error(
    named: tuple[str, str],
    shares: FloatArray,
    guess: FloatArray,
    truth: FloatArray,
    *,
    caveats: tuple[str, ...],
    details: Mapping[str, float],
    seed: int,
    control_name: str = "the same guess for every client, from the totals",
) -> AttackResult:
    """Mean total-variation error over clients, beside that of one guess for all.

    named: name and title of the attack. shares, truth: [K, C]. guess: [C].
    """
    error = mean(total_variation(shares, truth), seed)
    right = float((shares.argmax(axis=1) == truth.argmax(axis=1)).mean())
    name, title = named
    return AttackResult(
        name=name,
        title=title,
        figure=error.value,
        figure_name="TV error (0: known)",
        unit="",
        interval=error.interval,
        control=float(total_variation(guess, truth).mean()),
        control_name=control_name,
        n_members=len(truth),
        caveats=caveats,
        details={"largest_class_right": right, **details},
    )
