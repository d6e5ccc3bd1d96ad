"""Selective-FD with a client selector that reads the client's own network (the paper's Fig. 5).

A network that was trained on one class alone gives that class everywhere, so neither score can know
what it has never seen. Both are higher where a sample is more in distribution. tau_client is, as
for the density ratio, a quantile of the score on held-back local records; both are taken anew in
every round, from the network as it is then.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, cast

import numpy as np
from scipy.special import logsumexp, softmax
from torch import Tensor, nn

from secure_fd.data.federated import ClientData
from secure_fd.errors import ConfigurationError, LocalError
from secure_fd.methods.base import (
    CountedVotes,
    Labels,
    Opinion,
    Own,
    Setting,
    check_labels,
    check_server_threshold,
    filtered,
    levels,
)
from secure_fd.methods.votes import ProxyVotes, VoteClient
from secure_fd.training.trainer import logits
from secure_fd.votes.codec import Ensemble, FloatArray, IntArray, Sums

Score = Callable[[FloatArray], FloatArray]
"""Logits [N, C] to scores [N]."""


def confidence(logits: FloatArray) -> FloatArray:
    """The largest probability (Hendrycks and Gimpel, 2017; DeVries and Taylor, 2018)."""
    return np.asarray(softmax(logits, axis=1).max(axis=1))


def negative_energy(logits: FloatArray) -> FloatArray:
    """log sum exp of the logits: minus the energy at temperature one (Liu et al., 2020)."""
    return np.asarray(logsumexp(logits, axis=1))


SCORES: Mapping[str, Score] = {"confidence": confidence, "energy": negative_energy}


class NetworkVotes(ProxyVotes):
    """A method of votes whose rule is `SelectiveByNetwork`, as two halves."""

    __slots__ = ()

    def client(self, setting: Setting, own: Own) -> "NetworkVoteClient":
        """The half of one client."""
        return NetworkVoteClient(self.rule, setting, own)


class NetworkVoteClient(VoteClient):
    """Asks the rule in every round anew, with the network as it is."""

    def scores(self) -> FloatArray:
        """[P] of the network as it is."""
        return cast("SelectiveByNetwork", self._rule).scores(self.learner.model, self._proxies)

    def opinion_now(self, indices: IntArray) -> Opinion:
        """What the network as it is lets the client say."""
        rule, own = cast("SelectiveByNetwork", self._rule), self._own
        return rule.opinion_of_network(own.data, self._proxies, indices, self.learner.model)


@dataclass(frozen=True, slots=True)
class SelectiveByNetwork:
    """selector: confidence or energy. quantile: tau_client. server_threshold: tau_server."""

    labels: Labels = "hard"
    selector: Literal["confidence", "energy"] = "confidence"
    quantile: float = 0.25
    server_threshold: float = 2.0

    revisits: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_labels(self.labels)
        check_server_threshold(self.server_threshold)
        if self.selector not in SCORES:
            raise ConfigurationError("score", self.selector, f"use one of {', '.join(SCORES)}")
        if not 0 <= self.quantile <= 1:
            raise ConfigurationError("quantile", self.quantile, "use a number from 0 to 1")

    @property
    def name(self) -> str:
        """The name in the literature, with the selector and the kind of label."""
        return f"Selective-FD {self.labels} by {self.selector}"

    @property
    def levels(self) -> int:
        """Integer units in one whole vote."""
        return levels(self.labels)

    def scores(self, network: nn.Module, pixels: Tensor) -> FloatArray:
        """[N] of any images."""
        return SCORES[self.selector](logits(network, pixels))

    def opinion(self, client: ClientData, proxies: Tensor) -> Opinion:  # noqa: ARG002 - no use without the network
        """LocalError: there is no opinion without the network."""
        raise LocalError("this method's selector needs the client's network")

    def opinion_of_network(
        self, client: ClientData, proxies: Tensor, indices: IntArray, network: nn.Module
    ) -> CountedVotes:
        """Votes at the asked proxies where the score reaches the quantile; none elsewhere."""
        held_back = client.validation if len(client.validation) else client.train
        device = proxies.device
        least = np.quantile(self.scores(network, held_back.pixels.to(device)), self.quantile)
        weights = np.zeros(len(proxies))
        weights[indices] = self.scores(network, proxies[indices]) >= least
        return CountedVotes(weights)

    def ensemble(self, indices: IntArray, sums: Sums) -> Ensemble:
        """As Selective-FD's."""
        return filtered(indices, sums, self.labels, self.server_threshold)
