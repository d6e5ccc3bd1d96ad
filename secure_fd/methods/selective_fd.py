"""Selective-FD (Shao, Wu and Zhang, 2023): both sides filter.

A client abstains where its density ratio is below tau_client; the server drops ensembles whose
l1 distance to their own one-hot label exceeds tau_server.
"""

from dataclasses import dataclass, field

import numpy as np
from torch import Tensor

from secure_fd.data.federated import ClientData
from secure_fd.knowledge import Ensemble, FloatArray, IntArray, Sums
from secure_fd.methods.base import Labels, teachable
from secure_fd.selection.client import ClientSelector, ProxyRatioSelector
from secure_fd.selection.server import check_server_threshold, ensemble_predictions, precise


@dataclass(frozen=True, slots=True)
class SelectiveFD:
    """labels: what clients share. server_threshold: tau_server, an l1 distance up to 2."""

    labels: Labels = "soft"
    selector: ClientSelector = field(default_factory=ProxyRatioSelector)
    server_threshold: float = 1.0

    def __post_init__(self) -> None:
        check_server_threshold(self.server_threshold)

    @property
    def name(self) -> str:
        """The name in the literature, with the kind of label."""
        return f"Selective-FD {self.labels}"

    def weights(self, client: ClientData, proxies: Tensor) -> FloatArray:
        """1 where the client selector accepts the proxy."""
        return self.selector.select(client, proxies).accepted.astype(np.float64)

    def ensemble(self, indices: IntArray, sums: Sums) -> Ensemble:
        """h(x) where somebody answered and the answer is precise."""
        predictions = ensemble_predictions(sums)
        kept = precise(predictions, self.server_threshold) & (sums.count > 0)
        return Ensemble(indices, teachable(predictions, self.labels), kept)
