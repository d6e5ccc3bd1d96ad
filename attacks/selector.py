"""A server that injects proxies asks a client's selector about its raw records: membership."""

import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal, Self

import numpy as np
import torch
from torch import Tensor

from attacks.audit.setting import replaced
from attacks.base import (
    Attack,
    AttackResult,
    BoolArray,
    FloatArray,
    Labelled,
    Scores,
    Words,
    substream,
)
from attacks.scoring import score_scores
from attacks.statistics import LOW_FPR, Claim
from attacks.view import AnswerFunction, Capability, Oracle, Public, View
from secure_fd.data.federated import ClientData
from secure_fd.data.images import Images
from secure_fd.errors import ConfigurationError, LocalError
from secure_fd.knowledge import HARD_LEVELS, IntArray, KnowledgeCodec, Released
from secure_fd.privacy import release as record_release
from secure_fd.privacy.release import Features, NoisyClassMeans, record_plan
from secure_fd.privacy.response import RandomizedResponse
from secure_fd.privacy.samplers import Random
from secure_fd.protection import record as record_unit
from secure_fd.protection.record import RecordRules, RecordUnit, ridge_for, size_for
from secure_fd.selection.client import FittedKulsif, FittedSelector, KulsifSelector

Answers = Callable[[Tensor], Released]
"""What one client releases about images [N, 1, H, W]."""


@dataclass(frozen=True, slots=True, eq=False)
class Victim:
    """One class, the clients whose votes the server has to read it from, and the records at stake.

    levels: units of a vote in the codec.
    """

    column: int
    cohort: tuple[Answers, ...] = field(repr=False)
    records: Images = field(repr=False)
    levels: int = HARD_LEVELS

    def votes(self, n_classes: int) -> AnswerFunction:
        """Images [N, 1, H, W] -> [N, 1, C], the cohort's sum as the codec would send it."""
        codec = KnowledgeCodec(n_classes, self.levels)

        def answer(images: Tensor) -> Tensor:
            sent = [codec.encode(client(images)) for client in self.cohort]
            total = np.sum(sent, axis=0, dtype=np.float64).reshape(-1, 1, n_classes)
            return torch.from_numpy(total / codec.levels)

        return answer

    def sides(self, held_out: Images, most: int) -> tuple[Labelled, Labelled]:
        """At most so many records of the class, and as many held-out ones."""
        inside, outside = (x[x.labels == self.column] for x in (self.records, held_out))
        count = min(len(inside), len(outside), most)
        members, others = (Labelled(x.pixels[:count], x.labels[:count]) for x in (inside, outside))
        return members, others


def behind(fitted: FittedSelector, train: Images, column: int) -> Images:
    """The records of a class that a client's estimator was built from."""
    own = train[train.labels == column]
    if not isinstance(fitted, FittedKulsif):
        return own
    points = torch.from_numpy(fitted.settings.points(own.pixels))
    local = torch.from_numpy(fitted.estimators[fitted.classes.index(column)][0].local)
    return own[torch.cdist(local, points).argmin(dim=1)]


Accepts = Callable[[FloatArray], BoolArray]
"""Images [N, d] -> [N] whether any client answered with the class."""
_SPECK = 2.0**-20
"""What makes a repeated image another one, and moves no distance that is measured."""


@dataclass(frozen=True, slots=True)
class Asking:
    """How an image is asked about. repeats: times, each as a proxy of its own.

    needed: answers naming the class that count as acceptance; more than one pays under noise only.
    """

    repeats: int = 1
    needed: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.needed <= self.repeats:
            raise ConfigurationError("needed", self.needed, f"use 1 to {self.repeats}")


def asking_through(noise: RandomizedResponse, repeats: int) -> Asking:
    """The likelihood-ratio rule for a bit repeated through public noise of one symbol.

    An answer that names the class adds log p / q, one that does not log (1 - p) / (1 - q).
    """
    named = math.log(noise.p / noise.q)
    silent = math.log((1 - noise.q) / (1 - noise.p))
    return Asking(repeats, max(1, math.ceil(repeats * silent / (named + silent))))


@dataclass(frozen=True, slots=True, eq=False)
class Mask:
    """The bit: did a vote name class `column` (of any client, where only the sum is read)?

    oracle: of injected proxies, votes [N, R, C]. shape: (C, H, W) of an image.
    """

    oracle: Oracle = field(repr=False)
    shape: tuple[int, ...]
    column: int
    row: int | None = None
    asking: Asking = field(default_factory=Asking)

    def __call__(self, points: FloatArray) -> BoolArray:
        """[N] bits about images [N, H * W] in [0, 1]."""
        named = [self.weights(_speckled(points, k)) > 0 for k in range(self.asking.repeats)]
        return np.asarray(np.sum(named, axis=0) >= self.asking.needed)

    def weights(self, points: FloatArray) -> FloatArray:
        """[N] votes for the class, asked about once."""
        images = torch.from_numpy(points.astype(np.float32)).reshape(-1, *self.shape)
        votes = self.oracle(images)[:, :, self.column].double().numpy()
        return np.asarray(votes.sum(axis=1) if self.row is None else votes[:, self.row])


def crossings(accepts: Accepts, starts: FloatArray, ends: FloatArray, bits: int) -> FloatArray:
    """[N] in (0, 1): the share of each segment, starts to ends [N, d], up to the boundary.

    A selector accepts an image where its density estimate reaches a threshold: bisecting a segment
    finds the boundary, and a bit halves the uncertainty. Half a step's error is 2^-(bits + 1). A
    start that is rejected gives nearly 0, an end that is accepted nearly 1.
    """
    low, high = np.zeros(len(starts)), np.ones(len(starts))
    for _ in range(bits):
        middle = (low + high) / 2
        inside = accepts(starts + middle[:, None] * (ends - starts))
        low, high = np.where(inside, middle, low), np.where(inside, high, middle)
    return (low + high) / 2


@dataclass(frozen=True, slots=True, eq=False)
class Margin:
    """Pixels that no image of the kind uses, by the public ones; [d] each.

    To brighten them moves an image away from every record at once: at height s along them the
    squared distance to each grows by s^2 |v|^2 and nothing else changes. The height at which
    acceptance ends therefore measures, in bits, what the estimate is at the image itself.
    """

    lift: FloatArray  # v, one in the margin
    inner: BoolArray  # the other pixels

    @classmethod
    def of(cls, public: FloatArray, least: int = 100) -> "Margin":
        """Where public images [P, d] are dark throughout; at least so many, the darkest there are.

        Where more than the dark ones are taken, records are assumed dark there as well.
        """
        brightest = public.max(axis=0)
        darkest = np.argsort(brightest, kind="stable")[: max(least, int((brightest == 0).sum()))]
        lift = np.zeros(public.shape[1])
        lift[darkest] = 1.0
        return cls(lift, lift == 0)

    def heights(self, accepts: Accepts, points: FloatArray, bits: int) -> FloatArray:
        """[N] squared distance up the margin to the boundary, measured from a dark margin.

        0 where a point is rejected, or accepted up to the top: neither has a boundary to find.
        """
        top = np.where(self.inner, points, 1.0)
        floor = np.where(self.inner, points, 0.0)
        share = crossings(accepts, floor, top, bits)
        return np.asarray(np.where(crossed(share, bits), share**2 * self.lift.sum(), 0.0))


def crossed(share: FloatArray, bits: int) -> BoolArray:
    """[N] whether a boundary was met: answers of both kinds came."""
    edge = 2.0 ** -(bits + 0.5)
    return np.asarray((share > edge) & (share < 1 - edge))


def _speckled(points: FloatArray, times: int) -> FloatArray:
    """The same images but for a speck in the first pixel, so that none is asked about twice."""
    if times == 0:
        return points
    moved = points.copy()
    first = moved[:, 0]
    moved[:, 0] = np.where(first < 0.5, first + times * _SPECK, first - times * _SPECK)
    return moved


_CONTROL_SHARE = 0.3
_UNLIMITED = 10**9
_TINY = 1e-9


@dataclass(frozen=True, slots=True)
class FlipSettings:
    """lines x bits queries a candidate. references: public images that give the unit.

    read: "bits" finds where answers end; "weights" adds up the votes at as many points instead.
    """

    lines: int = 4
    bits: int = 12
    references: int = 20
    read: Literal["bits", "weights"] = "bits"


@dataclass(frozen=True, slots=True, eq=False)
class FlipRadius(Attack[Scores, BoolArray]):
    """Around a record that a selector was built from, it answers further out.

    Lines run from each candidate towards images of noise; a few bits a line find how far along it
    the client still answers, and the mean squared radius is the score. Such lines leave all other
    records behind alike. Thresholds differ: scores are in units of those of public images.

    The attack on candidates [N, C, H, W] of class `column`; row: of the client, None for sums.

    public_mask: of a selector that the attacker made of public records, asked the same as control.
    claim: whose game this is, for what it allows at most.
    """

    name = "selector-membership"
    title = "Membership from the selector's mask bits"
    figure_name = "AUC"
    control_name = "AUC of the same attack on a selector of public records"
    needs = (
        frozenset({
            Capability.INJECT_PROXIES,
            Capability.PUBLIC_PROXIES,
            Capability.LABELLED_PUBLIC,
        }),
    )  # fmt: skip

    candidates: Tensor = field(repr=False)
    column: int
    public_mask: Mask = field(repr=False)
    references: Tensor = field(repr=False)
    row: int | None = None
    settings: FlipSettings = field(default_factory=FlipSettings)
    asking: Asking = field(default_factory=Asking)
    claim: Claim | None = None

    @classmethod
    def prepare(
        cls,
        public: Public,
        candidates: Tensor,
        column: int,
        row: int | None = None,
        settings: FlipSettings | None = None,
        asking: Asking | None = None,
        claim: Claim | None = None,
    ) -> Self:
        """Build the control's selector; half of the class's public images, the rest are references.

        LocalError where the class has fewer than two public images.
        """
        chosen = settings or FlipSettings()
        own = public.pixels()[public.require_labels() == column]
        if len(own) < 2:
            raise LocalError(f"labels: class {column} has {len(own)} public images; 2 are needed")
        half = len(own) // 2
        references = own[half : half + chosen.references]
        own_mask = _public_mask(own[:half], public, column)
        asked = asking or Asking()
        return cls(candidates, column, own_mask, references, row, chosen, asked, claim)

    def run(self, view: View, seed: int) -> Scores:
        """Scores of every candidate. Raises BudgetError where the oracle's budget ends."""
        view.require_any(*self.needs)
        oracle = view.oracle(Capability.INJECT_PROXIES)
        before = oracle.queries
        shape = tuple(self.candidates.shape[1:])
        mask = Mask(oracle, shape, self.column, self.row, self.asking)
        rng = np.random.default_rng(substream(seed, "lines"))
        reference = self._scores(mask, self.references, rng)
        between = oracle.queries
        scores = _standard(self._scores(mask, self.candidates, rng), reference)
        after = oracle.queries
        unit = self._scores(self.public_mask, self.references, rng)
        control = _standard(self._scores(self.public_mask, self.candidates, rng), unit)
        return Scores(
            scores,
            control=control,
            queries=after - before,
            details={"queries_per_candidate": (after - between) / len(scores)},
        )

    def score(self, estimate: Scores, truth: BoolArray, seed: int) -> AttackResult:
        """AUC with its interval; truth: [N] which candidates are members."""
        words = self if self.settings.read == "bits" else _SOFT
        bounds = self.claim.bounds() if self.claim else {}
        return score_scores(
            words, estimate, truth, seed, rates=_LOW, details=bounds, caveats=_CAVEATS
        )

    def _scores(self, mask: Mask, images: Tensor, rng: np.random.Generator) -> FloatArray:
        """[N] mean squared flip radius, or mean weight along the lines."""
        starts = np.repeat(flat(images), self.settings.lines, axis=0)
        ends = rng.integers(0, 2, starts.shape).astype(np.float64)
        if self.settings.read == "weights":
            along = np.linspace(0.0, 1.0, self.settings.bits, endpoint=False)
            values = np.mean([mask.weights(starts + t * (ends - starts)) for t in along], axis=0)
        else:
            share = crossings(mask, starts, ends, self.settings.bits)
            values = share**2 * ((ends - starts) ** 2).sum(axis=1)
        return np.asarray(values.reshape(len(images), -1).mean(axis=1))


_LOW = {"low": LOW_FPR}
_SOFT = Words(
    f"{FlipRadius.name}-weights",
    "Membership from the selector's soft votes",
    FlipRadius.figure_name,
    FlipRadius.control_name,
)
_CAVEATS = (
    "the server must be able to inject proxies: where they are committed to, it cannot",
    "members are the records that the estimator is built from; others only move its threshold",
)


def _public_mask(own: Tensor, public: Public, column: int) -> Mask:
    """A selector as clients have it, of public records of the class, which the attacker may ask."""
    records = Images(own, torch.full((len(own),), column, dtype=torch.int64))
    client = ClientData(records, records, public.n_classes)
    fitted = KulsifSelector(share=_CONTROL_SHARE).fit(client, public.proxies)

    def answer(images: Tensor) -> Tensor:
        accepted = torch.from_numpy(fitted.judge(images).accepted)
        votes = torch.zeros(len(images), 1, public.n_classes)
        votes[:, 0, column] = accepted.float()
        return votes

    return Mask(Oracle(answer, _UNLIMITED), tuple(own.shape[1:]), column)


def _standard(scores: FloatArray, reference: FloatArray) -> FloatArray:
    """Scores in standard deviations of those of public images, which are no members."""
    return np.asarray((scores - reference.mean()) / (reference.std() + _TINY))


def flat(images: Tensor) -> FloatArray:
    """[N, d] the pixels of images [N, ...] in double precision."""
    return np.asarray(images.flatten(1).double().numpy())


def in_front(records: Images, index: int) -> Images:
    """The same records with one of them first: the candidate."""
    rest = [i for i in range(len(records)) if i != index]
    return records[torch.tensor([index, *rest])]


@dataclass(frozen=True, slots=True, eq=False)
class RecordWorlds:
    """Releases of the same trials, each trial a client: its first record zeroed out, or there."""

    without: RecordUnit = field(repr=False)
    present: RecordUnit = field(repr=False)

    @classmethod
    def of(
        cls,
        trials: list[Images],
        proxies: Tensor,
        n_classes: int,
        epsilon: float,
        delta: float,
        *,
        noisy: bool,
        random: Random = os.urandom,
    ) -> "RecordWorlds":
        """Both releases of every trial. noisy: False switches the noise off, and nothing else."""
        rules = None if noisy else noiseless_rules(epsilon, delta, len(trials[0]))
        spent = epsilon if noisy else math.inf
        without, present = (RecordUnit(spent, delta, random, rules) for _ in range(2))
        with first_record_zeroed():
            without.prepare(proxies, n_classes, trials)
        present.prepare(proxies, n_classes, trials)
        return cls(without, present)

    def __iter__(self) -> Iterator[RecordUnit]:
        """Without, then present."""
        return iter((self.without, self.present))


def noiseless_rules(epsilon: float, delta: float, n_records: int) -> RecordRules:
    """The estimator that a noisy release of this budget would have, for a release without noise."""
    noise = record_plan(epsilon, delta, n_records).noise / n_records
    return RecordRules(
        size=lambda _, n_classes: size_for(noise, n_classes),
        ridge=lambda _, n_proxies, n_classes: ridge_for(noise, n_proxies, n_classes),
    )


@contextmanager
def first_record_zeroed() -> Iterator[None]:
    """Let clients prepared in the block release as if their first record's features were zero.

    The neighbour of the record unit's claim: the number of records stays what it is.
    """
    genuine = record_release.release_class_means

    def without(
        features: Features, labels: IntArray, n_classes: int, **settings: object
    ) -> NoisyClassMeans:
        kept: FloatArray = features.astype(np.float64)
        kept[0] = 0.0
        return genuine(kept, labels, n_classes, **settings)  # type: ignore[arg-type]  # passed on

    with replaced(record_unit, "release_class_means", without):
        yield


_NOTHING = 1e-12
_FURTHEST = 0.6


@dataclass(frozen=True, slots=True, eq=False)
class Informed(Attack[Scores, BoolArray]):
    """candidate: [1, H, W] of class `column`; without, present: the two noiseless predictions.

    It knows every record of the client but one: computes the client's answers without noise,
    with the candidate and with it zeroed out, asks about the candidate and images between it and
    public ones, and reads how far the answers lie towards the first. Without noise that is
    certainty; with it, the claim bounds what any such test can reach. claim: of this game.
    """

    name = "selector-informed"
    title = "Membership by one who knows all other records"
    figure_name = "AUC"
    control_name = "AUC of a coin"
    needs = (frozenset({Capability.INJECT_PROXIES, Capability.PUBLIC_PROXIES}),)

    candidate: Tensor = field(repr=False)
    column: int
    without: AnswerFunction = field(repr=False)
    present: AnswerFunction = field(repr=False)
    row: int = 0
    queries: int = 48
    claim: Claim | None = None

    def run(self, view: View, seed: int) -> Scores:
        """The answers' place between both predictions; a coin where the two agree."""
        view.require_any(*self.needs)
        oracle = view.oracle(Capability.INJECT_PROXIES)
        before = oracle.queries
        rng = np.random.default_rng(substream(seed, "informed"))
        images = self._images(view.public.proxies, rng)
        heard, low, high = (
            f(images)[:, self.row, self.column].double().numpy()
            for f in (oracle, self.without, self.present)
        )
        gap = high - low
        score = float((heard - low) @ gap / max(float(gap @ gap), _NOTHING))
        coin = np.array([rng.random()])
        return Scores(np.array([score]), control=coin, queries=oracle.queries - before)

    def score(self, estimate: Scores, truth: BoolArray, seed: int) -> AttackResult:
        """AUC over pooled trials, each with a release of its own, beside what the claim allows."""
        bounds = self.claim.bounds() if self.claim else {}
        bounded = (_BOUND,) if self.claim else ()
        return score_scores(
            self,
            estimate,
            truth,
            seed,
            rates=_LOW,
            details=bounds,
            caveats=(*_INFORMED, *bounded),
        )

    def _images(self, public: Tensor, rng: np.random.Generator) -> Tensor:
        """[Q, 1, H, W] the candidate, and blends of it with public images."""
        others = public[torch.from_numpy(rng.integers(0, len(public), self.queries - 1))]
        share = torch.from_numpy(rng.uniform(0, _FURTHEST, (len(others), 1, 1, 1))).float()
        return torch.cat([self.candidate[None], (1 - share) * self.candidate + share * others])


_INFORMED = (
    "the attacker is given every other record of the client: no real one is, but a claim of "
    "differential privacy is about this one",
    "members and non-members are the same records, in and zeroed out, each in a release of its own",
)
_BOUND = "the bound is of probabilities; the estimate may exceed it by its own interval"
