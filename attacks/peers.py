"""Membership without shadow runs: what one client says, beside what its peers say of the same.

A client's peers never trained on its records, so their answers are what a record looks like to
networks without it. A server that reads every client's uploads therefore needs no shadow run (Shi,
Ouyang and Wang, "Unveiling Client Privacy Leakage from Public Dataset Usage in Federated
Distillation", PoPETs 2025, arXiv 2502.08001). Three forms, by access:

    coop              reads uploads about public proxies, and asks nothing; this form is ours
    coop-lira         gets every client's answer about the candidates themselves, as published
    distillation-lira the same, beside students that the attacker distils from the client's uploads

The published forms run the clients' networks on the candidates. In a protocol of votes a server has
that where it can put images among the proxies, which `Capability.INJECT_PROXIES` stands for.
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self

import numpy as np
import torch

from attacks.base import (
    Attack,
    AttackResult,
    BoolArray,
    Challenge,
    FloatArray,
    Labelled,
    Scores,
    pooled,
    substream,
)
from attacks.fit import QUICK, Fit, fit
from attacks.membership import asked, confidence, mean_votes, neighbours
from attacks.scoring import score_scores
from attacks.view import Capability, Public, View
from secure_fd.errors import ConfigurationError, LocalError, MissingCapabilityError
from secure_fd.knowledge import IntArray
from secure_fd.training import predict

Signals = tuple[FloatArray, FloatArray]
"""[N] what was seen of the client, and [S, N] of its references."""
_LEAST = 1e-12
"""Variance that counts as none: of rounding alone."""


def one_tailed(own: FloatArray, others: FloatArray) -> FloatArray:
    """[N] deviations of a signal [N] above the mean of the same signal elsewhere [S, N].

    Published with each candidate's own deviation; of four peers that is too rough, and one for all
    candidates serves, as in LiRA with few shadows. LocalError where there are fewer than two.

    >>> one_tailed(np.array([3.0, 1.0]), np.array([[0.0, 0.0], [2.0, 2.0]])).round(2).tolist()
    [1.41, 0.0]
    """
    if len(others) < 2:
        raise LocalError(f"{len(others)} others have no spread; use two or more")
    spread = max(float(others.var(axis=0, ddof=1).mean()), _LEAST)
    return np.asarray((own - others.mean(axis=0)) / np.sqrt(spread))


@dataclass(frozen=True, slots=True, eq=False)
class PeerAttack(Attack[Scores, BoolArray]):
    """Candidates of one client, each scored by how the client stands out among references.

    candidates: [N]; about half of them the client's, the rest of nobody. client: whose they may be.
    """

    figure_name = "AUC"
    control_name = "AUC of a coin"

    candidates: Labelled
    client: int

    @abstractmethod
    def signals(self, view: View, seed: int) -> Sequence[Signals]:
        """[N] of the client, and [S, N] of its references; once, or once a round."""

    def run(self, view: View, seed: int) -> Scores:
        """A mean deviation for each candidate; MissingCapabilityError if the view has too little.

        LocalError where there are fewer than two references.
        """
        view.require_any(*self.needs)
        before = asked(view)
        seen = self.signals(view, seed)
        if not seen:
            raise MissingCapabilityError(f"missing a share of client {self.client}")
        scores = np.mean([one_tailed(own, others) for own, others in seen], axis=0)
        return Scores(scores, queries=asked(view) - before)

    def score(self, estimate: Scores, truth: BoolArray, seed: int) -> AttackResult:
        """AUC; truth: [N] who was a member, half of them, or [R, N] of a game."""
        return score_scores(self, estimate, truth, seed)

    def beside_peers(self, signals: FloatArray) -> Signals:
        """A signal [K, N] of every client, as the client's own and those of the others."""
        if not 0 <= self.client < len(signals):
            raise ConfigurationError("client", self.client, f"use 0 to {len(signals) - 1}")
        return signals[self.client], np.delete(signals, self.client, axis=0)


@dataclass(frozen=True, slots=True, eq=False)
class CoopVotes(PeerAttack):
    """What the client votes about proxies that look like a candidate, less what its peers vote.

    neighbours: [N, k] each candidate's nearest proxies. Where a survey asked what is known, its
    answers are not used.

    >>> CoopVotes.title
    "Membership: votes on nearby proxies, beside the peers'"
    """

    name = "coop"
    title = "Membership: votes on nearby proxies, beside the peers'"
    needs = (frozenset({Capability.READ_UPLOADS, Capability.PUBLIC_PROXIES}),)

    neighbours: IntArray = field(kw_only=True, repr=False)

    @classmethod
    def prepare(cls, public: Public, candidates: Labelled, client: int, k: int = 10) -> Self:
        """The attack by the k nearest proxies, in the features of the protocol's own selectors."""
        return cls(candidates, client, neighbours=neighbours(public, candidates, k))

    def signals(self, view: View, seed: int) -> Sequence[Signals]:  # noqa: ARG002 - nothing is drawn
        """Mean share of votes for the candidate's label at its nearest proxies, by client."""
        at = self.neighbours, self.candidates.labels.numpy()[:, None]
        clients = range(view.public.n_clients)
        said = [mean_votes(view, k)[at].mean(axis=1) for k in clients]
        return [self.beside_peers(np.stack(said))]


_INJECTED = frozenset(
    {Capability.INJECT_PROXIES, Capability.READ_UPLOADS, Capability.PUBLIC_PROXIES}
)


def answers(view: View, candidates: Labelled) -> FloatArray:
    """[K, N] phi of every client's answer about the candidates: one query each.

    Votes come in steps, and a client may abstain: half a step is added to each class, so that an
    abstention counts as the uniform answer and a whole vote as less than certain.
    MissingCapabilityError where the oracle gives the sum alone.
    """
    said = view.oracle(Capability.INJECT_PROXIES)(candidates.images).double()
    if said.shape[1] != view.public.n_clients:
        raise MissingCapabilityError(f"missing each client's answers ({view.attacker})")
    half = 0.5 / max(seen.levels for seen in view.rounds)
    spread = (said + half) / (said + half).sum(dim=2, keepdim=True)
    return np.stack([confidence(own, candidates.labels) for own in spread.unbind(dim=1)])


@dataclass(frozen=True, slots=True, eq=False)
class CoopLiRA(PeerAttack):
    """Offline LiRA whose networks "without" are the client's peers.

    >>> CoopLiRA.title
    'Membership: co-op LiRA, the peers as shadows'
    """

    name = "coop-lira"
    title = "Membership: co-op LiRA, the peers as shadows"
    needs = (_INJECTED,)

    def signals(self, view: View, seed: int) -> Sequence[Signals]:  # noqa: ARG002 - nothing is drawn
        """Phi of every client's answer about each candidate."""
        return [self.beside_peers(answers(view, self.candidates))]


@dataclass(frozen=True, slots=True, eq=False)
class DistillationLiRA(PeerAttack):
    """Offline LiRA whose networks "without" are students of the client's own uploads.

    A student learns what the client says of public proxies, not what it says of its own records:
    so it needs no peer that holds similar data. Students differ by weights and by which `share` of
    the proxies they learn from. training: of a student.

    >>> DistillationLiRA.title
    "Membership: LiRA beside students of the client's uploads"
    """

    name = "distillation-lira"
    title = "Membership: LiRA beside students of the client's uploads"
    needs = (_INJECTED,)

    students: int = 4
    share: float = 0.8
    training: Fit = QUICK

    def __post_init__(self) -> None:
        if self.students < 2:
            raise ConfigurationError("students", self.students, "use 2 or more")
        if not 0 < self.share <= 1:
            raise ConfigurationError("share", self.share, "use a number above 0, at most 1")

    def signals(self, view: View, seed: int) -> Sequence[Signals]:
        """Phi of the client's answer, and of every student."""
        own, _ = self.beside_peers(answers(view, self.candidates))
        votes = mean_votes(view, self.client)
        spoken = np.flatnonzero(votes.sum(axis=1) > 0)
        if not len(spoken):
            raise MissingCapabilityError("missing a vote of the client to learn from")
        students = [self._student(view, votes, spoken, seed, i) for i in range(self.students)]
        return [(own, np.stack(students))]

    def _student(
        self, view: View, votes: FloatArray, spoken: IntArray, seed: int, number: int
    ) -> FloatArray:
        """[N] phi of one student."""
        chance = substream(seed, f"student {number}")
        count = max(1, round(self.share * len(spoken)))
        lessons = np.random.default_rng(chance).permutation(spoken)[:count]
        targets = votes[lessons] / votes[lessons].sum(axis=1, keepdims=True)
        student = fit(
            view.public.architecture,
            view.public.proxies[torch.from_numpy(lessons)],
            torch.tensor(targets, dtype=torch.float32),
            self.training,
            chance,
        )
        return confidence(predict(student, self.candidates.images), self.candidates.labels)


def on_challenges(
    attacks: Mapping[int, PeerAttack], view: View, challenges: Mapping[int, Challenge], seed: int
) -> AttackResult:
    """One attack on every client of a finished run, scored as one. Both are by client."""
    first = next(iter(attacks.values()))
    runs = [made.run(view, substream(seed, f"client {k}")) for k, made in attacks.items()]
    is_member = np.concatenate([challenges[k].is_member for k in attacks])
    return first.score(pooled(runs), is_member, seed)
