"""Selective-FD (Shao, Wu and Zhang, 2023): both sides filter.

In the paper a client abstains where its density ratio is below tau_client, and the server drops
ensembles whose l1 distance to their own one-hot label exceeds tau_server: `votes="counted"`. By
default votes weigh instead: a client's weight is the product of what its density ratio and its
network grant a class, so that hard samples are covered, ties go to the larger ratio, and the
selector grows sharper as the networks learn from each other.
"""

from dataclasses import dataclass, field
from typing import ClassVar, Literal

import numpy as np
from torch import Tensor

from secure_fd.data.federated import ClientData
from secure_fd.errors import ConfigurationError
from secure_fd.methods.base import (
    CountedVotes,
    Labels,
    VotePolicy,
    WeighedVotes,
    check_server_threshold,
    filtered,
    levels,
)
from secure_fd.methods.min_voters import check_min_voters
from secure_fd.methods.votes import VotingMethod
from secure_fd.selection.selectors import ClientSelector, ProxyRatioSelector, Selection
from secure_fd.training.recipes import Recipe, ours
from secure_fd.votes.budget import check_budget
from secure_fd.votes.codec import Ensemble, IntArray, Sums

Votes = Literal["weighed", "counted"]
ClassBy = Literal["both", "network"]
_MOST_BITS = 12


@dataclass(frozen=True, slots=True)
class SelectiveFD(VotingMethod):
    """labels: what clients share. server_threshold: tau_server, an l1 distance up to 2.

    votes: "weighed", or "counted" as in the paper, 0 or 1 by the selector's threshold.
    class_by: in a weighed vote, evidence is by default the selector's for each class ("both" name
    the class), or its sum over the client's classes, at most 1, for all of them: then the "network"
    alone names the class. That is better where clients hold all classes and learnt alone first.
    bits: of a weighed hard vote's weight. Two keep what tells guesses from knowledge; six taught no
    better, and told more of single records (measured: docs/results.md).
    none_of_mine: with weighed votes, whether a survey comes first, so that proxies that no client
    knows teach nothing (see `survey`). rare: see `Memory`.
    budget: how much all of a client's votes of a round may weigh, in times its equal share of the
    proxies (see `methods.budget`); None: as much as it likes.
    min_voters: fewest clients that answer a proxy whose predictions are asked for, see
    `methods.voters`; 1 asks for all of them, in one sum.
    own_classes: with counted votes, a client names only classes whose own estimator accepts the
    proxy. Without it, one round of confused networks feeds on its own answers: hard labels fall
    from 99 % right to chance within ten rounds.

    >>> SelectiveFD("hard", server_threshold=1.0).name
    'Selective-FD hard'
    """

    title: ClassVar[str] = "Selective-FD"

    labels: Labels = "soft"
    selector: ClientSelector = field(default_factory=ProxyRatioSelector)
    server_threshold: float = 2.0
    votes: Votes = "weighed"
    class_by: ClassBy = "both"
    bits: int = 2
    none_of_mine: bool = True
    rare: float = 0.5
    own_classes: bool = True
    budget: float | None = None
    min_voters: int = 1

    def __post_init__(self) -> None:
        VotingMethod.__post_init__(self)
        check_server_threshold(self.server_threshold)
        check_budget(self.budget)
        if self.votes not in ("weighed", "counted"):
            raise ConfigurationError("votes", self.votes, "use weighed or counted")
        if self.class_by not in ("both", "network"):
            raise ConfigurationError("class_by", self.class_by, "use both or network")
        if self.votes == "counted" and self.class_by != "both":
            raise ConfigurationError("class_by", self.class_by, "it goes with weighed votes alone")
        if self.votes == "weighed" and not self.own_classes:
            raise ConfigurationError("own_classes", False, "weighed votes name own classes only")
        if not 1 <= self.bits <= _MOST_BITS:
            raise ConfigurationError("bits", self.bits, f"use a number from 1 to {_MOST_BITS}")
        check_min_voters(self.min_voters)
        if not 0 <= self.rare <= 1:
            raise ConfigurationError("rare", self.rare, "use a number from 0 to 1")

    @property
    def levels(self) -> int:
        """Weighed votes need room for their weights."""
        if self.labels == "hard" and self.votes == "weighed":
            return (1 << self.bits) - 1
        return levels(self.labels)

    def recipe(self, n_classes: int, n_proxies: int, held: float, image_set: str = "") -> Recipe:
        """Return this package's recipe."""
        return ours(n_classes, n_proxies, held, image_set=image_set)

    @property
    def asks_first(self) -> bool:
        """Whether the selector can tell what a client knows, and votes do not say so themselves."""
        looks = isinstance(self.selector, ProxyRatioSelector)
        return self.none_of_mine and looks and self.votes == "weighed"

    def opinion(self, client: ClientData, proxies: Tensor) -> VotePolicy:
        """The client selector's verdict."""
        return self.opinion_of(self.selector.select(client, proxies), client.n_classes)

    def opinion_of(self, verdict: Selection, n_classes: int) -> VotePolicy:
        """What a client may say where its selector judges so."""
        if self.votes == "weighed":
            held = np.isin(np.arange(n_classes), verdict.classes)
            evidence = verdict.evidence(n_classes)
            if self.class_by == "network":
                evidence = np.minimum(evidence.sum(axis=1, keepdims=True), 1.0) * held
            return WeighedVotes(
                evidence,
                held,
                scores=verdict.scores,
                familiar=verdict.familiar,
            )
        allowed = verdict.allowed(n_classes) if self.own_classes else None
        return CountedVotes(verdict.accepted.astype(np.float64), allowed, scores=verdict.scores)

    def ensemble(self, indices: IntArray, sums: Sums) -> Ensemble:
        """h(x) where the answer is precise; where nobody answered, zeros tie and teach nothing."""
        return filtered(indices, sums, self.labels, self.server_threshold)
