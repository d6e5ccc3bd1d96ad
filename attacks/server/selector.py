"""A server that injects proxies asks a client's selector about its raw records: membership."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Self

import numpy as np
import torch
from torch import Tensor

from attacks.core.base import (
    AttackResult,
    BoolArray,
    FloatArray,
    Labelled,
    Scores,
    substream,
)
from attacks.core.run import Attack, Run
from attacks.core.scoring import score_scores
from attacks.core.view import AnswerFunction, Capability, Oracle, Public, View
from secure_fd.data.federated import ClientData
from secure_fd.data.images import Images
from secure_fd.errors import LocalError, MissingCapabilityError
from secure_fd.selection.selectors import FittedKulsif, FittedSelector, KulsifSelector
from secure_fd.votes.codec import HARD_LEVELS, KnowledgeCodec, Released

Answers = Callable[[Tensor], Released]
"""What one client releases about images [N, 1, H, W]."""


@dataclass(frozen=True, slots=True, eq=False)
class Victim:
    """One class, the clients whose votes show it, and the records at stake."""

    column: int
    cohort: tuple[Answers, ...] = field(repr=False)
    records: Images = field(repr=False)

    def votes(self, n_classes: int) -> AnswerFunction:
        """Images [N, 1, H, W] -> [N, 1, C], the cohort's sum as the codec would send it."""
        codec = KnowledgeCodec(n_classes, HARD_LEVELS)

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
    points = torch.from_numpy(fitted.points(own.pixels))
    local = torch.from_numpy(fitted.estimators[fitted.classes.index(column)][0].local)
    return own[torch.cdist(local, points).argmin(dim=1)]


Accepts = Callable[[FloatArray], BoolArray]
"""Images [N, d] -> [N] whether any client answered with the class."""


@dataclass(frozen=True, slots=True, eq=False)
class Mask:
    """The bit: did any vote that the oracle shows name class `column`?

    oracle: of injected proxies, votes [N, R, C]. shape: (C, H, W) of an image.
    """

    oracle: Oracle = field(repr=False)
    shape: tuple[int, ...]
    column: int

    def __call__(self, points: FloatArray) -> BoolArray:
        """[N] bits about images [N, H * W] in [0, 1]."""
        images = torch.from_numpy(points.astype(np.float32)).reshape(-1, *self.shape)
        votes = self.oracle(images)[:, :, self.column].double().numpy()
        return np.asarray(votes.sum(axis=1) > 0)


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


_CONTROL_SHARE = 0.3
_UNLIMITED = 10**9
_TINY = 1e-9
_LINES, _BITS = 4, 12
"""Lines from a candidate, and queries a line."""
_REFERENCES = 20
"""Public images that give the unit of a score, at most."""


@dataclass(frozen=True, slots=True, eq=False)
class FlipRadius(Attack[Scores, BoolArray]):
    """Around a record that a selector was built from, it answers further out.

    Lines run from each candidate towards images of noise; a few bits a line find how far along it
    the client still answers, and the mean squared radius is the score. Such lines leave all other
    records behind alike. Thresholds differ: scores are in units of those of public images.

    The attack on candidates [N, C, H, W] of class `column`.

    public_mask: of a selector that the attacker made of public records, asked the same as control.
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

    @classmethod
    def prepare(cls, public: Public, candidates: Tensor, column: int) -> Self:
        """Build the control's selector; half of the class's public images, the rest are references.

        LocalError where the class has fewer than two public images.
        """
        own = public.pixels()[public.require_labels() == column]
        if len(own) < 2:
            raise LocalError(f"labels: class {column} has {len(own)} public images; 2 are needed")
        half = len(own) // 2
        references = own[half : half + _REFERENCES]
        own_mask = _public_mask(own[:half], public, column)
        return cls(candidates, column, own_mask, references)

    @classmethod
    def for_run(cls, run: Run) -> Self:
        """Refuse: no client of a finished run answers injected images."""
        run.view.require_any(*cls.needs)
        raise MissingCapabilityError("missing a client that answers injected images")

    def estimate(self, view: View, seed: int) -> Scores:
        """Scores of every candidate. Raises BudgetError where the oracle's budget ends."""
        view.require_any(*self.needs)
        oracle = view.oracle(Capability.INJECT_PROXIES)
        before = oracle.queries
        shape = tuple(self.candidates.shape[1:])
        mask = Mask(oracle, shape, self.column)
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

    def score(self, estimate: Scores, seed: int) -> AttackResult:
        """AUC with its interval; truth: [N] which candidates are members."""
        return score_scores(self, estimate, self.truth, seed, caveats=_CAVEATS)

    def _scores(self, mask: Mask, images: Tensor, rng: np.random.Generator) -> FloatArray:
        """[N] mean squared flip radius."""
        starts = np.repeat(flat(images), _LINES, axis=0)
        ends = rng.integers(0, 2, starts.shape).astype(np.float64)
        share = crossings(mask, starts, ends, _BITS)
        values = share**2 * ((ends - starts) ** 2).sum(axis=1)
        return np.asarray(values.reshape(len(images), -1).mean(axis=1))


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
        accepted = torch.from_numpy(fitted.predict(images).accepted)
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
