"""Selective-FD (Shao, Wu and Zhang, 2023): both sides filter.

In the paper a client abstains where its density ratio is below tau_client, and the server drops
ensembles whose l1 distance to their own one-hot label exceeds tau_server: `votes="counted"`. By
default votes weigh instead: a client's weight is the product of what its density ratio and its
network grant a class, so that hard samples are covered, ties go to the larger ratio, and the
selector grows sharper as the networks learn from each other.

`SelectiveFDAsPublished` is the method as its authors run it, the baseline of this one.
"""

from dataclasses import dataclass, field
from typing import ClassVar, Final, Literal

import numpy as np
from torch import Tensor

from secure_fd.data.federated import ClientData
from secure_fd.errors import ConfigurationError
from secure_fd.methods.base import Labels, levels
from secure_fd.methods.min_voters import check_min_voters
from secure_fd.methods.policies import (
    CountedVotes,
    VotePolicy,
    WeighedVotes,
    check_server_threshold,
    filtered,
)
from secure_fd.methods.votes import VotingMethod
from secure_fd.selection.selectors import (
    ClientSelector,
    KulsifSelector,
    ProxyRatioSelector,
    Selection,
)
from secure_fd.training.recipes import Recipe, ours
from secure_fd.votes.budget import check_budget
from secure_fd.votes.codec import Ensemble, IntArray, Sums

_MOST_BITS: Final = 12


@dataclass(frozen=True, slots=True)
class SelectiveFD(VotingMethod):
    """Selective-FD with this package's votes, or with the paper's.

    Args:
        labels: what clients share.
        selector: of the proxies that a client answers.
        votes: "weighed", or "counted" as in the paper, 0 or 1 by the selector's threshold. With
            counted votes a client names only classes whose own estimator accepts the proxy.
            Without that limit, one round of confused networks is trained on its own answers: hard
            labels fall from 99 % right to chance within ten rounds.
        server_threshold: tau_server, an l1 distance up to 2.
        bits: of a weighed hard vote's weight. Two separate guesses from knowledge; six gave no
            better accuracy, and revealed more of single records (measured: docs/results.md).
        budget: most that a client's votes of a round may weigh, in times its equal share of the
            proxies (see `votes.budget`); None: no limit.
        min_voters: fewest clients that answer a proxy whose predictions are asked for (see
            `methods.min_voters`); 1 asks for all of them, in one sum.

    Raises:
        ConfigurationError: one of these is out of its range.

    >>> SelectiveFD("hard", server_threshold=1.0).name
    'Selective-FD hard'
    """

    title: ClassVar[str] = "Selective-FD"
    class_balance: ClassVar[float] = 0.5

    labels: Labels = "soft"
    selector: ClientSelector = field(default_factory=ProxyRatioSelector)
    votes: Literal["weighed", "counted"] = "weighed"
    server_threshold: float = 2.0
    bits: int = 2
    budget: float | None = None
    min_voters: int = 1

    def __post_init__(self) -> None:
        VotingMethod.__post_init__(self)
        check_server_threshold(self.server_threshold)
        check_budget(self.budget)
        check_min_voters(self.min_voters)
        if self.votes not in ("weighed", "counted"):
            raise ConfigurationError("votes", self.votes, "use weighed or counted")
        if not 1 <= self.bits <= _MOST_BITS:
            raise ConfigurationError("bits", self.bits, f"use a number from 1 to {_MOST_BITS}")

    @property
    def levels(self) -> int:
        """Weighed hard votes need room for their weights."""
        if self.labels == "hard" and self.votes == "weighed":
            return (1 << self.bits) - 1
        return levels(self.labels)

    def recipe(self, n_classes: int, n_proxies: int, held: float, image_set: str = "") -> Recipe:
        """Return this package's recipe."""
        return ours(n_classes, n_proxies, held, image_set=image_set)

    @property
    def survey_first(self) -> bool:
        """Whether the selector finds what a client knows, and votes do not say so themselves."""
        return self.votes == "weighed" and self.selector.finds_known

    def policy(self, client: ClientData, proxies: Tensor) -> VotePolicy:
        """Return the votes that the client selector allows."""
        return self.policy_of(self.selector.select(client, proxies), client.n_classes)

    def policy_of(self, found: Selection, n_classes: int) -> VotePolicy:
        """Return the votes that a selection allows."""
        if self.votes == "counted":
            accepted = found.accepted.astype(np.float64)
            return CountedVotes(accepted, found.allowed(n_classes), scores=found.scores)
        held = np.isin(np.arange(n_classes), found.classes)
        evidence, familiar = found.evidence(n_classes), found.familiar
        return WeighedVotes(evidence, held, scores=found.scores, familiar=familiar)

    def ensemble(self, indices: IntArray, sums: Sums) -> Ensemble:
        """Return h(x), kept where it is precise; a tie, as without any answer, is not."""
        return filtered(indices, sums, self.labels, self.server_threshold)


_SHARE, _SHARE_OF_SEVERAL = 0.05, 0.1
"""Of the records that an estimator is built from, if a client holds one class, and several."""


@dataclass(frozen=True, slots=True)
class SelectiveFDAsPublished(VotingMethod):
    """Selective-FD as its authors run it, by their paper and code.

    KuLSIF in pixel space against uniform noise, one estimator for each class. A client answers
    where any of them accepts, and its network may then name any class. All answers count the same.
    Clients distil from the mean of the answers, also where labels are hard, for every proxy that
    any client answered. tau_server is in the paper's text and not in the code's runs. With
    `recipes.paper` the steps are theirs too.

    >>> SelectiveFDAsPublished("hard").name
    'Selective-FD as published, hard'
    """

    title: ClassVar[str] = "Selective-FD as published,"

    labels: Labels = "soft"

    def policy(self, client: ClientData, proxies: Tensor) -> CountedVotes:
        """Return an answer of weight one, and of any class, where an estimator accepts."""
        share = _SHARE if len(client.classes) == 1 else _SHARE_OF_SEVERAL
        found = KulsifSelector(share=share).select(client, proxies)
        return CountedVotes(found.accepted.astype(np.float64), scores=found.scores)
