"""Selective-FD with a client selector that reads the client's own network (the paper's Fig. 5).

A network that was trained on one class alone gives that class everywhere, so neither score can know
what it has never seen. Both are higher where a sample is more in distribution. tau_client is, as
for the density ratio, a quantile of the score on held-back local records; both are taken anew in
every round, from the network as it is then.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from scipy.special import logsumexp, softmax
from torch import Tensor, nn

from secure_fd.data.federated import ClientData
from secure_fd.errors import ConfigurationError, LocalError
from secure_fd.methods.base import Labels, Own, Setting
from secure_fd.methods.selective_fd import check_server_threshold, filtered
from secure_fd.methods.votes import CountedVotes, VoteClient, VotePolicy, VotingMethod
from secure_fd.training.trainer import logits
from secure_fd.votes.codec import Ensemble, FloatArray, IntArray, Sums

Score = Callable[[FloatArray], FloatArray]
"""Logits [N, C] to scores [N]."""


def confidence(logits: FloatArray) -> FloatArray:
    """The largest probability (Hendrycks and Gimpel, 2017; DeVries and Taylor, 2018)."""
    return np.asarray(softmax(logits, axis=1).max(axis=1))


def negative_energy(logits: FloatArray) -> FloatArray:
    """Log sum exp of the logits: minus the energy at temperature one (Liu et al., 2020)."""
    return np.asarray(logsumexp(logits, axis=1))


SCORES: Mapping[str, Score] = {"confidence": confidence, "energy": negative_energy}


@dataclass(frozen=True, slots=True)
class SelectiveByNetwork(VotingMethod):
    """selector: confidence or energy. quantile: tau_client. server_threshold: tau_server."""

    title: ClassVar[str] = "Selective-FD"

    labels: Labels = "hard"
    selector: Literal["confidence", "energy"] = "confidence"
    quantile: float = 0.25
    server_threshold: float = 2.0

    def __post_init__(self) -> None:
        VotingMethod.__post_init__(self)
        check_server_threshold(self.server_threshold)
        if self.selector not in SCORES:
            raise ConfigurationError("score", self.selector, f"use one of {', '.join(SCORES)}")
        if not 0 <= self.quantile <= 1:
            raise ConfigurationError("quantile", self.quantile, "use a number from 0 to 1")

    @property
    def name(self) -> str:
        """The name in the literature, with the selector and the kind of label."""
        return f"Selective-FD {self.labels} by {self.selector}"

    def client(self, setting: Setting, own: Own) -> "NetworkVoteClient":
        """Make the role of one client."""
        return NetworkVoteClient(self, setting, own)

    def scores(self, network: nn.Module, pixels: Tensor) -> FloatArray:
        """[N] of any images."""
        return SCORES[self.selector](logits(network, pixels).double().cpu().numpy())

    def policy(self, client: ClientData, proxies: Tensor) -> VotePolicy:  # noqa: ARG002 - no use without the network
        """LocalError: there is no policy without the network."""
        raise LocalError("this method's selector needs the client's network")

    def policy_of_network(
        self, client: ClientData, proxies: Tensor, network: nn.Module
    ) -> CountedVotes:
        """Votes where the score reaches the quantile; none elsewhere."""
        held_back = client.validation if len(client.validation) else client.train
        device = proxies.device
        least = np.quantile(self.scores(network, held_back.pixels.to(device)), self.quantile)
        return CountedVotes((self.scores(network, proxies) >= least).astype(np.float64))

    def ensemble(self, indices: IntArray, sums: Sums) -> Ensemble:
        """As Selective-FD's."""
        return filtered(indices, sums, self.labels, self.server_threshold)


class NetworkVoteClient(VoteClient):
    """Asks the method in every round anew, with the network as it is."""

    def __init__(self, method: SelectiveByNetwork, setting: Setting, own: Own) -> None:
        super().__init__(method, setting, own)
        self._by_network = method

    def scores(self) -> FloatArray:
        """[P] of the network as it is."""
        return self._by_network.scores(self.learner.model, self._proxies)

    @property
    def policy(self) -> VotePolicy:
        """Policy by which the current network lets the client answer."""
        return self._by_network.policy_of_network(self._own.data, self._proxies, self.learner.model)
