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
from numpy.typing import NDArray
from torch import Tensor

from secure_fd.data.federated import ClientData
from secure_fd.errors import ConfigurationError
from secure_fd.methods.base import Labels
from secure_fd.methods.min_voters import check_min_voters
from secure_fd.methods.votes import CountedVotes, VotePolicy, VotingMethod
from secure_fd.selection.selectors import (
    ClientSelector,
    KulsifSelector,
    ProxyRatioSelector,
    Selection,
)
from secure_fd.training.recipes import Recipe, ours
from secure_fd.votes.codec import (
    HARD_LEVELS,
    SOFT_LEVELS,
    Contribution,
    Ensemble,
    FloatArray,
    IntArray,
    Sums,
    among,
    check_budget,
    hard_or_soft,
    one_hot,
)

_MOST_BITS: Final = 12
_SHARPNESS: Final = 2.0
"""Exponent of a soft weighed vote, as least squares shrinks every ratio towards the mean."""


@dataclass(frozen=True, slots=True, eq=False)
class WeighedVotes(VotePolicy):
    """Votes whose weight is the product of the selector's evidence and the network's prediction.

    Attributes:
        evidence: [P, C] in [0, 1], the selector's for each class that the client holds, 0 for the
            others.
        held: [C], the classes that it holds.
    """

    evidence: FloatArray = field(repr=False)
    held: NDArray[np.bool_] = field(repr=False)

    def contribution(
        self, indices: IntArray, predictions: FloatArray, labels: Labels, trust: float = 0.0
    ) -> Contribution:
        """Return w_k s_k = evidence x prediction, in which both must support a class.

        A network that has not distilled yet has no other class than its own, so its probability of
        all other classes counts only as far as it is trusted.

        A hard label is the class of the largest product, and its weight is the root of it: the same
        order over fewer orders of magnitude, for few levels.
        """
        evidence = self.evidence[indices]
        own = among(predictions, self.held[None, :])
        joint = evidence * (trust * predictions + (1.0 - trust) * own)
        if labels == "hard":
            named = one_hot(joint.argmax(axis=1), joint.shape[1])
            return Contribution(np.sqrt(np.clip(joint.max(axis=1), 0.0, 1.0)), named)
        joint **= _SHARPNESS
        weights = joint.sum(axis=1)
        shares = np.divide(
            joint, weights[:, None], out=predictions.copy(), where=weights[:, None] > 0
        )
        return Contribution(np.clip(weights, 0.0, 1.0), shares)


def check_server_threshold(threshold: float) -> None:
    """Raise ConfigurationError unless the threshold is an l1 distance between 0 and 2."""
    if not 0 < threshold <= 2:
        raise ConfigurationError("server_threshold", threshold, "use a number above 0, at most 2")


def precise(predictions: FloatArray, threshold: float) -> NDArray[np.bool_]:
    """[m] True where 2 (1 - max h(x)) <= tau_server and the maximum is unique.

    The distance is the l1 distance of h(x) to its own one-hot label (section "Server-Side
    Selector"); a tie names no label, whatever the threshold.
    """
    top = np.sort(predictions, axis=1)[:, -2:]
    return np.asarray((2.0 * (1.0 - top[:, 1]) <= threshold) & (top[:, 1] > top[:, 0]))


def filtered(indices: IntArray, sums: Sums, labels: Labels, server_threshold: float) -> Ensemble:
    """Return h(x), kept where it is precise; a tie, as of zeros without any answer, is not."""
    predictions = sums.mean
    kept = precise(predictions, server_threshold)
    return Ensemble(indices, hard_or_soft(predictions, labels), kept)


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
        bits: of a weighed hard vote's weight. Two separate guesses from knowledge. Eight gave .2
            points more on validation records of CIFAR-10 features, and they reveal more of single
            records.
        budget: most that a client's votes of a round may weigh, in times its equal share of the
            proxies (see `KnowledgeCodec.budget`); None: no limit.
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
        if not isinstance(self.selector, ClientSelector):
            raise ConfigurationError("selector", self.selector, "use a ClientSelector")
        if self.votes not in ("weighed", "counted"):
            raise ConfigurationError("votes", self.votes, "use weighed or counted")
        if not 1 <= self.bits <= _MOST_BITS:
            raise ConfigurationError("bits", self.bits, f"use a number from 1 to {_MOST_BITS}")

    @property
    def levels(self) -> int:
        """Integer units in one whole vote: hard votes that are weighed need `bits` for a weight."""
        if self.labels == "soft":
            return SOFT_LEVELS
        return (1 << self.bits) - 1 if self.votes == "weighed" else HARD_LEVELS

    def recipe(self, n_classes: int, n_proxies: int, held: float, image_set: str = "") -> Recipe:
        """Return this package's recipe."""
        return ours(n_classes, n_proxies, held, image_set=image_set)

    @property
    def survey_first(self) -> bool:
        """True if the selector finds the known proxies, and votes do not show them already."""
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
        """Return h(x), kept where it is precise."""
        return filtered(indices, sums, self.labels, self.server_threshold)


_SHARE, _SHARE_OF_SEVERAL = 0.05, 0.1
"""Share of records that an estimator is built from: for a client of one class, and of several."""


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
