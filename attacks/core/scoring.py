"""One scorer for each kind of estimate: (estimate, truth) -> AttackResult."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from attacks.core.base import (
    AttackResult,
    BoolArray,
    Distributions,
    Estimate,
    FloatArray,
    Images,
    Scores,
    substream,
)
from attacks.core.images import Originals, compare, pictures
from attacks.core.result import POSITIVE
from attacks.core.run import Attack
from attacks.core.statistics import (
    RESAMPLES,
    Rate,
    distributions,
    mean,
    percentiles,
    proportion,
    total_variation,
)
from secure_fd.errors import LocalError

LOW_RATES = (0.01, 0.001)
"""False-positive rates at which members are counted."""
_ROUNDING = 1e-9
_AT_ONCE = 2_000_000
"""Weights of scores in memory at the same time."""


def score_images(
    attack: Attack[Any, Any],
    estimate: Images,
    truth: Originals,
    seed: int,
    *,
    controls: Mapping[str, Images],
    against: str,
    literal: bool = False,
    details: Mapping[str, float] | None = None,
    caveats: tuple[str, ...] = (),
    shown: Mapping[str, Tensor] | None = None,
) -> AttackResult:
    """Δ = A - A_H, or where `literal` A itself, in dB, beside the same of a control.

    controls: images made without access, by name. against: the one whose figure is the control.
    shown: images by name; the attack's by default.
    Raises LocalError where no reconstruction is about a private image.

    >>> import torch
    >>> from attacks.core.base import Labelled
    >>> from attacks.server.differencing import Differencing
    >>> one, first = torch.zeros(1, 1, 8, 8), torch.tensor([0])
    >>> truth = Originals(Labelled(one, first), Labelled(one + 1, first))
    >>> shown = {"controls": {"white": Images(one + 1, first)}, "against": "white"}
    >>> score_images(Differencing(), Images(one, first), truth, 0, **shown).figure
    120.0
    """
    found = compare(estimate, truth, seed)
    if found is None:
        raise LocalError("no class of the reconstructions is among the private images")
    figure = found.a if literal else found.excess
    numbers, values = dict(found.details), {}
    for name, made in controls.items():
        of_control = compare(made, truth, seed)
        if of_control is not None:
            values[name] = (of_control.a if literal else of_control.excess).value
            numbers |= of_control.named(f"{name}: ")
    return result_of(
        attack,
        estimate,
        figure,
        values[against],
        unit="dB",
        n_members=len(truth.private),
        n_non_members=len(truth.held_out),
        values=found.count,
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
    details: Mapping[str, float] | None = None,
    caveats: tuple[str, ...] = (),
) -> AttackResult:
    """AUC, and members found at low false-positive rates, with bootstrap intervals.

    is_member: [N] of all candidates, half of them members; or [R, N] of a game, whose runs 2 j and
    2 j + 1 hold each candidate once. Equal scores count half, as in scikit-learn's roc_auc_score.

    A candidate of a game is scored in many runs, and its scores resemble each other. So intervals
    resample candidates with all their scores, and a rate needs as many different candidates as it
    takes to have one false positive.

    Raises:
        LocalError: for any other truth.

    >>> from attacks.server.differencing import Differencing
    >>> kind = Differencing()
    >>> member = np.array([True, False] * 4)
    >>> score_scores(kind, Scores(member.astype(float)), member, 0).figure
    1.0
    """
    _check_truth(estimate.values, is_member)
    values, inside = np.atleast_2d(estimate.values), np.atleast_2d(is_member)
    weights = _bootstrap(inside, substream(seed, "candidates"))
    area, *rates = _rates(values, inside, weights)
    different = int((~inside).any(axis=0).sum())
    low: dict[str, float] = {}
    unresolved: list[str] = []
    for fpr, rate in zip(LOW_RATES, rates, strict=True):
        if different * fpr < 1:
            few = f"not resolvable with {different} different non-members"
            unresolved.append(f"TPR at {100 * fpr:g} % FPR: {few}")
        else:
            low |= _named(f"tpr_at_{fpr:g}_fpr", rate)
    return result_of(
        attack,
        estimate,
        area,
        0.5,
        n_members=int(inside.sum()),
        n_non_members=int((~inside).sum()),
        caveats=(*caveats, *unresolved),
        details={**low, **(details or {})},
    )


@dataclass(frozen=True, slots=True, eq=False)
class MembershipAttack(Attack[Scores, BoolArray]):
    """Attack that scores candidates for membership. truth: of `score_scores`."""

    figure_name = "AUC"
    control_name = "AUC of a coin"

    def score(self, estimate: Scores, seed: int) -> AttackResult:
        """Return the AUC with its interval."""
        return score_scores(self, estimate, self.truth, seed)


def _check_truth(values: FloatArray, is_member: BoolArray) -> None:
    if values.shape != is_member.shape:
        raise LocalError(f"is_member: {is_member.shape} is not allowed; use {values.shape}")
    if is_member.ndim == 1 and 2 * is_member.sum() != len(is_member):
        members = f"{is_member.sum()} of {len(is_member)}"
        raise LocalError(f"is_member: {members} is not allowed; use half of {len(is_member)}")
    if is_member.ndim == 2 and len(is_member) % 2:
        raise LocalError(f"is_member: {len(is_member)} runs are not allowed; use an even number")
    if is_member.ndim == 2 and not (is_member[::2] ^ is_member[1::2]).all():
        raise LocalError("is_member: runs 2 j and 2 j + 1 must hold each candidate once")


def _bootstrap(inside: BoolArray, seed: int) -> FloatArray:
    """[RESAMPLES, N] how often each candidate is drawn, from those that are in as many runs."""
    rng = np.random.default_rng(seed)
    weights = np.zeros((RESAMPLES, inside.shape[1]))
    held = inside.sum(axis=0)
    for runs in np.unique(held):
        alike = held == runs
        count = int(alike.sum())
        weights[:, alike] = rng.multinomial(count, np.full(count, 1 / count), size=RESAMPLES)
    return weights


def _rates(values: FloatArray, inside: BoolArray, weights: FloatArray) -> list[Rate]:
    """The area and the TPR at each of LOW_RATES, with intervals over resampled candidates."""
    [found] = _curve_figures(values, inside, np.ones((1, values.shape[1])))
    parts = np.array_split(weights, max(1, weights.size * len(values) // _AT_ONCE))
    resampled = np.concatenate([_curve_figures(values, inside, part) for part in parts])
    each = zip(found, resampled.T, strict=True)
    return [Rate(float(value), percentiles(spread)) for value, spread in each]


def _curve_figures(values: FloatArray, inside: BoolArray, weights: FloatArray) -> FloatArray:
    """[B, 1 + rates] area under the ROC, and its height at LOW_RATES, for weights [B, N]."""
    falling = np.argsort(-values, axis=None)
    last_of_equals = np.append(np.diff(values.ravel()[falling]) != 0, True)
    weight, member = weights[:, falling % values.shape[1]], inside.ravel()[falling]

    def rate(side: BoolArray) -> FloatArray:
        counts = np.cumsum(weight * side, axis=1)[:, last_of_equals]
        return np.pad(counts / counts[:, -1:], ((0, 0), (1, 0)))

    tpr, fpr = rate(member), rate(~member)
    heights = [np.where(fpr <= most + _ROUNDING, tpr, 0.0).max(axis=1) for most in LOW_RATES]
    return np.stack([np.trapezoid(tpr, fpr, axis=1), *heights], axis=1)


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
    known = np.asarray(truth)
    if known.shape != estimate.rows.shape:
        raise LocalError(f"truth: {known.shape} is not allowed; use {estimate.rows.shape}")
    if named:
        figure = _matching(estimate.rows, known, seed)
        guessed = _matching(estimate.guess, known, seed).value
        numbers: dict[str, float] = {}
        count = int((known >= 0).sum())
    else:
        known = distributions(known.astype(np.float64), np.asarray(estimate.guess, np.float64))
        figure = mean(total_variation(estimate.rows, known), seed)
        guessed = float(total_variation(estimate.guess, known).mean())
        right = estimate.rows.argmax(axis=1) == known.argmax(axis=1)
        numbers, count = {"largest_class_right": float(right.mean())}, len(known)
    return result_of(
        attack,
        estimate,
        figure,
        guessed,
        n_members=count,
        details={**numbers, **(details or {})},
        caveats=(),
    )


def _matching(claims: NDArray[Any], truth: NDArray[Any], seed: int) -> Rate:
    """Share of the true ids [n] that are claimed; of [G, ...] the mean over groups with any."""
    if truth.ndim == 1:
        return proportion(int((claims == truth).sum()), len(truth))
    known = truth.reshape(len(truth), -1)
    there = known >= 0
    right = (claims.reshape(known.shape) == known) & there
    cast = there.sum(axis=1)
    shares = right.sum(axis=1)[cast > 0] / cast[cast > 0]
    return mean(shares if shares.size else np.zeros(1), seed)


def result_of(
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


def _named(name: str, rate: Rate) -> dict[str, float]:
    low, high = rate.interval
    return {name: rate.value, f"{name}_low": low, f"{name}_high": high}
