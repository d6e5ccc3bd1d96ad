"""Tracing: which records are in the class sums of public features.

Tracing (Homer et al., PLoS Genetics 2008; Dwork, Smith, Steinke, Ullman and Vadhan, FOCS 2015) asks
whether a block leans towards a record more than the public does. With g the record's own part of a
sum, m what public images of its class add on average, d the block less what public images would
make of it, and W = (H + ridge I)^-1, the score is

    (g - m)^T W d / |g - m|_W

the matched filter for a block whose other records are drawn like the public. It is put in
deviations of the same score of public images of the class, each left out of m, d and H. Scores of
all sums are added: the first is about phi alone, and residuals are about what a head makes of the
record too, so later sums reveal more.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, Self

import numpy as np
import torch
from scipy.stats import norm
from sklearn.metrics import roc_auc_score

from attacks.core.base import (
    AttackResult,
    BoolArray,
    Challenge,
    FloatArray,
    Labelled,
    Scores,
    draw_challenge,
    joined,
    match_classes,
)
from attacks.core.run import Attack, Run, SumNoise
from attacks.core.scoring import score_scores
from attacks.core.view import Public, View
from attacks.membership import overfitted
from attacks.server.class_sums import (
    NEEDS,
    TOTAL,
    PublicRecords,
    SumRead,
    check_readable,
    held_by,
    of_block,
    sums_read,
)
from secure_fd.cache import freed_with_owner
from secure_fd.data.federated import FederatedData
from secure_fd.errors import LocalError
from secure_fd.methods.least_squares import HIGHEST_ANSWER, LOWEST_ANSWER
from secure_fd.methods.pooled_heads import PooledHeads
from secure_fd.votes.codec import IntArray

ONE_HOLDER: Final = "each block of the sum has one holder: masks hide nothing there"
_RIDGE: Final = 0.03
"""Ridge of H, by public image. On seed 0 of MNIST-5k its AUC is within .01 of the best."""


_TINY, _ALL_BUT = 1e-300, 1 - 1e-15


@dataclass(frozen=True, slots=True, eq=False)
class Blocks:
    """Truth for scoring. is_member: [N]. histograms: [clients, classes] training records."""

    is_member: BoolArray = field(repr=False)
    histograms: FloatArray = field(repr=False)

    def facts(self, *, in_clear: bool) -> dict[str, float]:
        """Holders and records of a block as it was read, means over blocks."""
        held = self.histograms > 0
        blocks = self.histograms[held] if in_clear else self.histograms.sum(axis=0)
        blocks = blocks[blocks > 0]
        holders = 1.0 if in_clear else held.sum() / len(blocks)
        return {"holders_of_a_block": float(holders), "records_of_a_block": float(blocks.mean())}


@dataclass(frozen=True, slots=True, eq=False)
class Traced(Scores):
    """by_sum: [sums, N] scores from each sum alone."""

    by_sum: FloatArray = field(repr=False, kw_only=True)


@freed_with_owner
def overfitted_area(data: FederatedData, seed: int) -> float:
    """Return the AUC on the class sums of 30 records a client, all in clear."""
    return overfitted.area(data, PooledHeads(residual_rounds=0), Tracing.among, seed)


@dataclass(frozen=True, slots=True, eq=False)
class Tracing(Attack[Traced, Blocks]):
    """Membership attack on class sums: finds the candidates that are in them; see the module.

    Where several blocks of a candidate's class were read, its largest score counts, corrected for
    their number (Sidak). noise: of the pooled unit.
    """

    name = "tracing"
    title = "Tracing: membership from class sums"
    figure_name = "AUC"
    control_name = "AUC of a coin"
    needs = NEEDS

    candidates: Labelled = field(repr=False)
    noise: SumNoise | None = None

    @classmethod
    def for_run(cls, run: Run) -> Self:
        """Records of all clients against as many held-out ones of each class."""
        run.view.require_any(*cls.needs)
        sides = match_classes(run.members, run.held_out, run.seed)
        challenge = draw_challenge(*sides, run.seed)
        return cls(
            challenge.candidates,
            run.noise,
            truth=Blocks(challenge.is_member, run.histograms),
            positive=overfitted_area(run.data, run.seed),
        )

    @classmethod
    def among(cls, public: Public, challenges: Mapping[int, Challenge], _: object) -> Self:
        """The candidates of all clients together."""
        every = [each.candidates for each in challenges.values()]
        inside = [torch.from_numpy(each.is_member) for each in challenges.values()]
        counts = [
            torch.bincount(own.labels[side], minlength=public.n_classes).double()
            for own, side in zip(every, inside, strict=True)
        ]
        return cls(
            joined(every), truth=Blocks(torch.cat(inside).numpy(), torch.stack(counts).numpy())
        )

    def estimate(self, view: View, seed: int) -> Traced:  # noqa: ARG002 - nothing is drawn
        """Scores: deviations above public images of the class."""
        view.require_any(*self.needs)
        check_readable(view, self.noise)
        sums, public = sums_read(view), PublicRecords.of(view)
        shares = held_by(public, sums[0], self.noise)
        each_record = of_block(self.noise, sums[0].head.shape[1])
        weight = public.weight(public.reference.second_moment, _RIDGE, each_record)
        weighed, short = public.features @ weight, self.noise is not None
        rounds = [AskedSum(public, one, weight, weighed, shares, short) for one in sums]
        features = public.reference.features(self.candidates.images)
        by_sum, together = np.zeros((len(sums), len(features))), np.zeros(len(features))
        for c in torch.unique(self.candidates.labels).tolist():
            if c not in public.classes:
                raise LocalError(f"labels: class {c} has fewer than 2 public images")
            own = (self.candidates.labels == c).numpy()
            n, found = int(own.sum()), []
            for owner, held in shares.items():
                if held[c] > 0 and all(owner in one.gaps for one in rounds):
                    each = [one.scores(c, owner, features[own]) for one in rounds]
                    found.append(_deviations(np.stack(each), n))
            by_sum[:, own] = _largest([z[:, :n] for z in found], by_sum[:, own])
            added = [_deviations(z.sum(axis=0), n)[:n] for z in found]
            together[own] = _largest(added, together[own])
        in_clear = TOTAL not in sums[0].means
        details = {"sums": float(len(sums)), "blocks_in_clear": float(in_clear)}
        return Traced(together, by_sum=by_sum, details=details)

    def score(self, estimate: Traced, seed: int) -> AttackResult:
        """AUC with its interval, and of each sum alone; under noise, what the claim allows."""
        truth = self.truth
        member, in_clear = truth.is_member, bool(estimate.details["blocks_in_clear"])
        alone = {
            f"auc_of_sum_{index + 1}": float(roc_auc_score(member, one))
            for index, one in enumerate(estimate.by_sum)
        }
        facts = truth.facts(in_clear=in_clear)
        single = not in_clear and facts["holders_of_a_block"] == 1.0
        bounds = {} if self.noise is None else self.noise.claim.bounds()
        return score_scores(
            self,
            estimate,
            member,
            seed,
            details={**alone, **facts, **bounds},
            caveats=(ONE_HOLDER,) if single else (),
        )


@dataclass(frozen=True, eq=False)
class AskedSum:
    """One sum, prepared to score how likely each record is in it.

    weight: [D, D], W. weighed: [K, D], public features times W. shares: by owner, [C] of each
    class. shortened: residuals are cut to norm 1, as in the pooled unit.
    """

    public: PublicRecords
    read: SumRead
    weight: FloatArray
    weighed: FloatArray
    shares: Mapping[int, FloatArray]
    shortened: bool

    @cached_property
    def wrong(self) -> FloatArray:
        """[K, C] residuals of the public images."""
        return self.residuals(self.public.features, self.public.labels)

    @cached_property
    def usual(self) -> FloatArray:
        """[C, D, C] what one record of each class adds on average."""
        head, labels = self.read.head, self.public.labels
        found = np.zeros((head.shape[1], *head.shape))
        for c in self.public.classes:
            own = labels == c
            found[c] = self.public.features[own].T @ self.wrong[own] / own.sum()
        return found

    @cached_property
    def gaps(self) -> Mapping[int, FloatArray]:
        """[D, C] blocks less the part of their public images, by owner whose first sum was read."""
        return {
            owner: mean - np.einsum("c,cde->de", self.shares[owner], self.usual)
            for owner, mean in self.read.means.items()
            if owner in self.shares
        }

    @cached_property
    def pulled(self) -> FloatArray:
        """[C, D, C] W times `usual`."""
        return self.weight @ self.usual

    @cached_property
    def leaning(self) -> Mapping[int, FloatArray]:
        """[D, C] W times the gap, by owner."""
        return {owner: self.weight @ gap for owner, gap in self.gaps.items()}

    def residuals(self, features: FloatArray, labels: IntArray) -> FloatArray:
        """[n, C] what the head [D, C] is wrong by about records [n, D]."""
        head = self.read.head
        answers = np.clip(features @ head, LOWEST_ANSWER, HIGHEST_ANSWER)
        wrong = np.eye(head.shape[1])[labels] - answers
        if not self.shortened:
            return np.asarray(wrong)
        return np.asarray(wrong / np.maximum(np.linalg.norm(wrong, axis=1, keepdims=True), 1.0))

    def scores(self, label: int, owner: int, features: FloatArray) -> FloatArray:
        """[n + k] of candidates [n, D] of a class, then of its k public images, left out."""
        labels = np.full(len(features), label)
        wrong = self.residuals(features, labels)
        along, square = self._matched(label, owner, features, features @ self.weight, wrong)
        return np.concatenate([along / np.sqrt(square), self.left_out(label, owner)])

    def _matched(
        self, label: int, owner: int, features: FloatArray, weighed: FloatArray, wrong: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """[n] (g - m)^T W d and [n] (g - m)^T W (g - m), g = phi r^T."""
        mean = self.usual[label]
        pulled, leaning = self.pulled[label], self.leaning[owner]
        along = ((features @ leaning) * wrong).sum(axis=1) - (mean * leaning).sum()
        square = (weighed * features).sum(axis=1) * (wrong**2).sum(axis=1)
        square += (mean * pulled).sum() - 2 * ((features @ pulled) * wrong).sum(axis=1)
        return along, square

    def left_out(self, label: int, owner: int) -> FloatArray:
        """[k] the score of each public image of the class, as if it were not public.

        Without image i, m moves by (m - g_i) / (k - 1), d by the block's share of the class as
        much the other way, and W by Sherman and Morrison.
        """
        own = self.public.labels == label
        features, weighed = self.public.features[own], self.weighed[own]
        wrong = self.wrong[own]
        along, square = self._matched(label, owner, features, weighed, wrong)
        part = self.shares[owner][label] / (own.sum() - 1)
        leverage = (weighed * features).sum(axis=1)
        across = wrong * leverage[:, None] - weighed @ self.usual[label]
        moved = weighed @ self.gaps[owner] + part * across
        spare = len(self.weighed) - leverage
        along += part * square + (across * moved).sum(axis=1) / spare
        square += (across**2).sum(axis=1) / spare
        return np.asarray(along / np.sqrt(square))


def _deviations(scores: FloatArray, candidates: int) -> FloatArray:
    """Scores [..., n + k] of n candidates and k public images, in deviations of the latter."""
    usual = scores[..., candidates:]
    middle, spread = usual.mean(axis=-1, keepdims=True), usual.std(axis=-1, keepdims=True)
    return np.asarray((scores - middle) / spread)


def _largest(found: Sequence[FloatArray], otherwise: FloatArray) -> FloatArray:
    """The largest of scores from several blocks, as a deviate that is as rare as it is."""
    if not found:
        return otherwise
    chance = norm.sf(np.max(found, axis=0))
    every = -np.expm1(len(found) * np.log1p(-np.minimum(chance, _ALL_BUT)))
    return np.asarray(norm.isf(np.maximum(every, _TINY)))
