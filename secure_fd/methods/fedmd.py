"""FedMD (Li and Wang, 2019): everybody answers every proxy and the server averages.

The scores that clients share are softmax outputs, as in the comparison of the Selective-FD paper,
or one-hot labels. Li and Wang pre-train on labelled public data; the proxies here have no labels,
so the warm-up on private records takes that place.
"""

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from secure_fd.data.federated import ClientData
from secure_fd.knowledge import Ensemble, IntArray, Sums
from secure_fd.methods.base import Labels, Opinion
from secure_fd.selection.server import ensemble_predictions


@dataclass(frozen=True, slots=True)
class FedMD:
    """labels: what clients share."""

    labels: Labels = "soft"

    @property
    def name(self) -> str:
        """The name in the literature, with the kind of label."""
        return f"FedMD {self.labels}"

    def opinion(self, client: ClientData, proxies: Tensor) -> Opinion:  # noqa: ARG002 - nobody abstains
        """Weight 1 and every class, everywhere."""
        return Opinion(np.ones(len(proxies)))

    def ensemble(self, indices: IntArray, sums: Sums) -> Ensemble:
        """The plain mean, for every proxy, ties and all."""
        predictions = ensemble_predictions(sums)
        return Ensemble(indices, predictions, sums.count > 0)
