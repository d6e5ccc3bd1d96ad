"""Selective-FD with a client selector that reads the client's own network (the paper's Fig. 5).

tau_client is, as for the density ratio, a quantile of the score on held-back local records; both
are taken anew in every round, from the network as it is then.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from torch import Tensor, nn

from secure_fd.data.federated import ClientData
from secure_fd.errors import ConfigurationError
from secure_fd.knowledge import Ensemble, FloatArray, IntArray, Sums
from secure_fd.methods.base import ByNetwork, filtered, levels
from secure_fd.methods.votes import CountedVotes, Labels
from secure_fd.selection.network_scores import score
from secure_fd.selection.server import check_server_threshold
from secure_fd.training import logits


@dataclass(frozen=True, slots=True)
class SelectiveByNetwork(ByNetwork):
    """selector: confidence or energy. quantile: tau_client. server_threshold: tau_server."""

    labels: Labels = "hard"
    selector: Literal["confidence", "energy"] = "confidence"
    quantile: float = 0.25
    server_threshold: float = 2.0

    revisits: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_server_threshold(self.server_threshold)
        score(self.selector)
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
        return score(self.selector)(logits(network, pixels))

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
