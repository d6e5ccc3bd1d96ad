"""One scorer for each kind of estimate: (estimate, truth) -> AttackResult."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from attacks.core.base import (
    POSITIVE,
    AttackResult,
    BoolArray,
    Distributions,
    Estimate,
    FloatArray,
    Images,
    RocCurve,
    Scores,
    substream,
)
from attacks.core.images import Originals, compare, pictures
from attacks.core.run import Attack
from attacks.core.statistics import (
    LEVEL,
    Ranks,
    Rate,
    advantage,
    auc,
    distributions,
    mean,
    proportion,
    rank,
    roc_curve,
    shuffled_auc,
    total_variation,
    tpr_at_fpr,
)
from secure_fd.errors import LocalError
from secure_fd.votes.codec import IntArray

RATES: Mapping[str, float] = {"1 %": 0.01, "0.1 %": 0.001}
"""False-positive rates at which members are counted, by the name of their random stream."""


def score_images(
    attack: Attack[Any, Any],
    estimate: Images,
    truth: Originals,
    seed: int,
    *,
    controls: Mapping[str, Images],
    against: str = "",
    literal: bool = False,
    details: Mapping[str, float] | None = None,
    caveats: tuple[str, ...] = (),
    shown: Mapping[str, Tensor] | None = None,
) -> AttackResult:
    """Δ = A - A_H, or where `literal` A itself, in dB, beside the same of a control.

    controls: images made without access, by name. against: the one whose figure is the control;
    the best of them where it is not named. shown: images by name; the attack's by default.
    Raises LocalError where no reconstruction is about a private image.

    >>> import torch
    >>> from attacks.server.differencing import Differencing
    >>> one = torch.zeros(1, 1, 8, 8)
    >>> kind = Differencing()
    >>> truth = Originals({0: one}, {0: [one + 1]})
    >>> white = {"white": Images(one + 1, torch.tensor([0]))}
    >>> score_images(kind, Images(one, torch.tensor([0])), truth, 0, controls=white).figure
    120.0
    """
    found = compare(estimate, truth, seed)
    if found is None:
        raise LocalError("no class of the reconstructions is among the private images")
    figure = found.a if literal or found.excess is None else found.excess
    numbers, values = dict(found.details), {}
    for name, made in controls.items():
        of_control = compare(made, truth, seed)
        if of_control is not None:
            same = of_control.a if literal or found.excess is None else of_control.excess
            values[name] = same.value if same is not None else 0.0
            numbers |= of_control.named(f"{name}: ")
    best = against or max(values, key=lambda name: values[name])
    n = truth.count
    return _result(
        attack,
        estimate,
        figure,
        values[best],
        unit="dB",
        n_members=n,
        n_non_members=n if truth.held_out else 0,
        details={**numbers, **(details or {})},
        caveats=caveats,
        images=pictures(shown or {"attack": estimate.images}),
    )


def score_scores(
    attack: Attack[Any, Any],
    estimate: Scores,
    is_member: BoolArray,
    seed: int,
    *,
    rates: Mapping[str, float] = RATES,
    details: Mapping[str, float] | None = None,
    caveats: tuple[str, ...] = (),
) -> AttackResult:
    """AUC with its interval, members found at low false-positive rates, and a p-value.

    is_member: [M] of all candidates, half of them members; or [R, N] of a game, whose runs 2 j and
    2 j + 1 hold each candidate once. Raises LocalError for any other truth.

    >>> from attacks.server.differencing import Differencing
    >>> kind = Differencing()
    >>> member = np.array([True, False] * 4)
    >>> score_scores(kind, Scores(member.astype(float)), member, 0).figure
    1.0
    """
    score = _score_game if estimate.values.ndim == 2 else _score_list
    return score(attack, estimate, is_member, seed, rates, details or {}, caveats)


def score_distributions(
    attack: Attack[Any, Any],
    estimate: Distributions,
    truth: ArrayLike,
    seed: int,
    *,
    details: Mapping[str, float] | None = None,
) -> AttackResult:
    """Shares: mean total-variation error over rows. Class ids: share of the true ones that match.

    truth: [K, C] counts or shares; or class ids shaped as the rows, negative where there is none.
    The interval is over rows, over groups [G, ...], or exact for [n] ids.

    >>> from attacks.server.differencing import Differencing
    >>> kind = Differencing()
    >>> known = Distributions(np.eye(2), np.array([0.5, 0.5]))
    >>> score_distributions(kind, known, np.eye(2), 0).figure
    0.0
    """
    named = np.issubdtype(estimate.rows.dtype, np.integer)
    known = np.asarray(truth) if named else shares_of(truth, estimate)
    if known.shape != estimate.rows.shape:
        raise LocalError(f"truth: {known.shape} is not allowed; use {estimate.rows.shape}")
    if named:
        figure = _matching(estimate.rows, known, seed)
        guessed = _matching(estimate.guess, known, seed).value
        numbers: dict[str, float] = {}
        count = int((known >= 0).sum())
    else:
        figure = mean(total_variation(estimate.rows, known), seed)
        guessed = float(total_variation(estimate.guess, known).mean())
        right = estimate.rows.argmax(axis=1) == known.argmax(axis=1)
        numbers, count = {"largest_class_right": float(right.mean())}, len(known)
    return _result(
        attack,
        estimate,
        figure,
        guessed,
        n_members=count,
        details={**numbers, **(details or {})},
        caveats=(),
    )


def shares_of(histograms: ArrayLike, estimate: Distributions) -> FloatArray:
    """[K, C] true label counts as shares; the guess for a client without any.

    Raises LocalError unless they are of as many clients and classes as the estimate.
    """
    counts = np.asarray(histograms, dtype=np.float64)
    if counts.shape != estimate.rows.shape:
        raise LocalError(f"histograms: {counts.shape} is not allowed; use {estimate.rows.shape}")
    return distributions(counts, np.asarray(estimate.guess, dtype=np.float64))


def right_by_group(claims: ArrayLike, truth: ArrayLike) -> FloatArray:
    """[g] of the true ids [G, ...], the share claimed, in each group that has any; [0] in none."""
    known = np.asarray(truth)
    known = known.reshape(len(known), -1)
    there = known >= 0
    same = np.asarray(claims).reshape(known.shape) == known
    hits, cast = (same & there).sum(axis=1), there.sum(axis=1)
    shares = hits[cast > 0] / cast[cast > 0]
    return np.asarray(shares if shares.size else np.zeros(1))


def _matching(claims: NDArray[Any], truth: NDArray[Any], seed: int) -> Rate:
    if truth.ndim == 1:
        return proportion(int((claims == truth).sum()), len(truth))
    return mean(right_by_group(claims, truth), seed)


def _result(
    attack: Attack[Any, Any],
    estimate: Estimate,
    figure: Rate,
    control: float,
    *,
    details: Mapping[str, float],
    caveats: tuple[str, ...],
    **rest: Any,  # noqa: ANN401 - further fields of the result
) -> AttackResult:
    """The one place that fills an AttackResult; what the estimate brings comes along."""
    positive = {} if attack.positive is None else {POSITIVE: attack.positive}
    return AttackResult(
        name=attack.name,
        title=f"{attack.title} ({estimate.target})" if estimate.target else attack.title,
        figure=figure.value,
        figure_name=attack.figure_name,
        unit=rest.pop("unit", ""),
        interval=figure.interval,
        control=control,
        control_name=estimate.control_name or attack.control_name,
        queries=estimate.queries,
        caveats=(*estimate.caveats, *caveats, *attack.caveats),
        details={**details, **estimate.details, **positive},
        **rest,
    )


def _score_list(
    attack: Attack[Any, Any],
    estimate: Scores,
    is_member: BoolArray,
    seed: int,
    rates: Mapping[str, float],
    details: Mapping[str, float],
    caveats: tuple[str, ...],
) -> AttackResult:
    members, mask = int(is_member.sum()), estimate.mask
    if is_member.shape != mask.shape or 2 * members != len(is_member):
        raise LocalError(
            f"is_member: {members} of {len(is_member)} is not allowed; use half of {len(mask)}"
        )
    member = is_member[mask]
    ranks = _ranked(estimate.values, member, substream(seed, "ties"))
    area = auc(ranks, substream(seed, "area"))
    control = 0.5
    if estimate.control is not None:
        blind = _ranked(estimate.control, member, substream(seed, "control ties"))
        control = auc(blind, substream(seed, "control area")).value
    low, unresolved = _low(
        rates,
        f"{ranks.non_members.size} non-members",
        lambda stream, fpr: tpr_at_fpr(ranks, fpr, substream(seed, stream)),
    )
    chance = shuffled_auc(ranks, substream(seed, "shuffled"))
    some = f"{mask.sum()} of {mask.size} candidates were attacked, drawn at random: classes are"
    fewer = () if mask.all() else (f"{some} matched on average only",)
    return _result(
        attack,
        estimate,
        area,
        control,
        n_members=int(member.sum()),
        n_non_members=int((~member).sum()),
        caveats=(*fewer, *caveats, *unresolved),
        details={
            **low,
            **_guessed(estimate, member, seed),
            "shuffled_membership_auc": float(chance.mean()),
            "p_value": float((1 + (chance >= area.value).sum()) / (1 + len(chance))),
            "queries_per_candidate": estimate.queries / len(member),
            **details,
        },
        roc=roc_curve(ranks),
    )


def _ranked(scores: FloatArray, member: BoolArray, seed: int) -> Ranks:
    return rank(scores[member], scores[~member], seed)


def _low(
    rates: Mapping[str, float], few: str, found: Callable[[str, float], Rate | None]
) -> tuple[dict[str, float], tuple[str, ...]]:
    """TPR at low FPR with intervals, and a caveat for each that cannot be resolved."""
    made: dict[str, float] = {}
    unresolved: list[str] = []
    for stream, fpr in rates.items():
        rate = found(stream, fpr)
        if rate is None:
            unresolved.append(f"TPR at {100 * fpr:g} % FPR: not resolvable with {few}")
        else:
            made |= _named(f"tpr_at_{fpr:g}_fpr", rate)
    return made, tuple(unresolved)


def _guessed(estimate: Scores, member: BoolArray, seed: int) -> dict[str, float]:
    """Advantage at the threshold; the gap attack (Yeom et al. 2018) where labels were seen."""
    found: dict[str, float] = {}
    if estimate.threshold is not None:
        inside, outside = estimate.values[member], estimate.values[~member]
        gain = advantage(inside, outside, estimate.threshold, substream(seed, "advantage"))
        found = {"threshold": estimate.threshold, **_named("advantage", gain)}
    if estimate.right is not None:
        right = estimate.right.astype(float)
        found["gap_attack_accuracy"] = float(
            0.5 + (right[member].mean() - right[~member].mean()) / 2
        )
    return found


REPORT_RESAMPLES = 400
_CHUNK = 50
Curve = tuple[FloatArray, FloatArray]


def _score_game(
    attack: Attack[Any, Any],
    estimate: Scores,
    inside: BoolArray,
    seed: int,
    rates: Mapping[str, float],
    details: Mapping[str, float],
    caveats: tuple[str, ...],
) -> AttackResult:
    """Figures over every run of a game; repeated scores of a candidate count once in intervals.

    A candidate is scored in many runs, and its scores resemble each other. So intervals resample
    candidates with all their scores, never single scores; the p-value exchanges membership within
    pairs of runs, as the game's own coin did; and a rate needs as many different candidates as it
    takes to have one false positive.
    """
    _check_game(estimate, inside)
    falling = _Falling.of(estimate.values, inside, substream(seed, "ties"))
    one = np.ones((1, falling.candidates), dtype=np.float64)
    weights = _bootstrap(falling.candidates, substream(seed, "candidates"))

    def found(_: str, fpr: float) -> Rate | None:
        if falling.candidates * fpr < 1:
            return None
        return _rate(falling.found(one, fpr), falling.found(weights, fpr))

    low, unresolved = _low(rates, f"{falling.candidates} different candidates", found)
    area = _rate(falling.areas(one), falling.areas(weights))
    chance = _exchanged_areas(falling, inside, substream(seed, "exchanges"))
    return _result(
        attack,
        estimate,
        area,
        float(chance.mean()),
        n_members=int(inside.sum()),
        n_non_members=int((~inside).sum()),
        caveats=(*caveats, *unresolved),
        details={
            **low,
            **_guesses(estimate, inside, weights),
            "p_value": float((1 + (chance >= area.value).sum()) / (1 + len(chance))),
            "candidates": float(falling.candidates),
            "targets": float(len(estimate.values)),
            **details,
        },
        roc=falling.curve(),
    )


def _check_game(estimate: Scores, inside: BoolArray) -> None:
    if estimate.values.shape != inside.shape or len(inside) % 2:
        raise LocalError(
            f"scores {estimate.values.shape} and inside {inside.shape} are not allowed; "
            "both need [R, N] with R even"
        )
    if not (inside[::2] ^ inside[1::2]).all():
        raise LocalError("inside: runs 2 j and 2 j + 1 must hold each candidate once")


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
    def of(cls, values: FloatArray, inside: BoolArray, seed: int) -> "_Falling":
        scores = values.ravel()
        order = np.lexsort((np.random.default_rng(seed).random(scores.size), -scores))
        place = np.empty(scores.size, dtype=np.int64)
        place[order] = np.arange(scores.size)
        runs, candidates = values.shape
        who = np.tile(np.arange(candidates), runs)[order]
        return cls(who, inside.ravel()[order], place.reshape(runs, candidates))

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


def _guesses(estimate: Scores, inside: BoolArray, weights: FloatArray) -> dict[str, float]:
    """Advantage of the guess, and the gap attack (Yeom et al. 2018) where labels were seen."""
    least = estimate.threshold
    said = estimate.values > 0 if least is None else estimate.values >= least
    made = _named("advantage", _difference(said, inside, weights))
    if estimate.right is not None:
        gap = _difference(estimate.right.astype(np.bool_), inside, weights)
        made["gap_attack_accuracy"] = 0.5 + gap.value / 2
    return made


def _difference(said: BoolArray, inside: BoolArray, weights: FloatArray) -> Rate:
    """Share of members that `said` is true of, less that of non-members."""
    runs = len(said)
    true, false = (said & inside).sum(axis=0), (said & ~inside).sum(axis=0)
    each = 2 * (true - false) / runs  # every candidate is inside in half of the runs
    return _rate(each.mean(keepdims=True), weights @ each / weights.sum(axis=1))


def _exchanged_areas(falling: _Falling, inside: BoolArray, seed: int) -> FloatArray:
    """[RESAMPLES] areas with membership drawn by a coin within each pair of runs."""
    height = falling.place.size - falling.place
    first, second = height[::2], height[1::2]
    rng = np.random.default_rng(seed)
    n = inside.sum()
    sums = [
        np.where(rng.random(first.shape) < 0.5, first, second).sum()
        for _ in range(REPORT_RESAMPLES)
    ]
    # Mann and Whitney: heights count from 1, so n members outrank each other n (n + 1) / 2 times.
    return np.asarray((np.array(sums) - n * (n + 1) / 2) / (n * (~inside).sum()))


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
    return Rate(float(value[0]), (float(low), float(high)))


def _named(name: str, rate: Rate) -> dict[str, float]:
    low, high = rate.interval
    return {name: rate.value, f"{name}_low": low, f"{name}_high": high}
