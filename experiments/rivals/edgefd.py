"""EdgeFD (Mujtaba et al., "Federated Distillation on Edge Devices", FLTA 2025): k-means filters.

A client fits centroids to its own records and answers where a proxy lies as near to one of them
as its records do; the server averages and drops nothing. It is the successor of Selective-FD: a
distance in the place of a density ratio, and no server filter.

Where the abstract leaves a choice: distances are Euclidean between images as they are, or the
features that were given for them; a client has several centroids for each class that it holds; and
the distance that a proxy may have is a quantile of those of its held-back records. k-means is
scikit-learn's.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from torch import Tensor

from secure_fd.data.federated import ClientData
from secure_fd.errors import ConfigurationError
from secure_fd.methods.base import Labels
from secure_fd.methods.votes import CountedVotes, VotingMethod
from secure_fd.optional import extra
from secure_fd.selection.density_ratio import flat_pixels
from secure_fd.votes.codec import Ensemble, FloatArray, IntArray, Sums, hard_or_soft


@dataclass(frozen=True, slots=True)
class EdgeFD(VotingMethod):
    """labels: what clients share. centroids: of each class. quantile: of own records within reach.

    >>> EdgeFD("hard").name
    'EdgeFD hard'
    """

    title: ClassVar[str] = "EdgeFD"

    labels: Labels = "soft"
    centroids: int = 5
    quantile: float = 0.8
    seed: int = 0

    def __post_init__(self) -> None:
        VotingMethod.__post_init__(self)
        if self.centroids < 1:
            raise ConfigurationError("centroids", self.centroids, "use 1 or more")
        if not 0 < self.quantile <= 1:
            raise ConfigurationError("quantile", self.quantile, "use a number in (0, 1]")

    def policy(self, client: ClientData, proxies: Tensor) -> CountedVotes:
        """An answer of weight one where a centroid is near, and of any class."""
        held_back = client.validation if len(client.validation) else client.train
        own, kept, asked = map(flat_pixels, (client.train.pixels, held_back.pixels, proxies))
        centres = self._centres(own, client)
        scores = np.quantile(nearest(kept, centres), self.quantile) - nearest(asked, centres)
        return CountedVotes((scores >= 0).astype(np.float64), scores=scores)

    def _centres(self, own: FloatArray, client: ClientData) -> FloatArray:
        with extra():
            from sklearn.cluster import KMeans  # slow to import

        wanted = min(len(own), self.centroids * len(client.classes))
        return np.asarray(
            KMeans(wanted, n_init=1, random_state=self.seed).fit(own).cluster_centers_
        )

    def ensemble(self, indices: IntArray, sums: Sums) -> Ensemble:
        """The mean of those who answered, for every proxy that anybody did."""
        predictions = hard_or_soft(sums.mean, self.labels)
        return Ensemble(indices, predictions, sums.count > 0)


def nearest(points: FloatArray, centres: FloatArray) -> FloatArray:
    """[N] Euclidean distance of each point [N, r] to the nearest centre [k, r].

    >>> nearest(np.array([[0.0, 3.0], [1.0, 0.0]]), np.zeros((1, 2))).tolist()
    [3.0, 1.0]
    """
    squared = (points**2).sum(axis=1)[:, None] - 2 * points @ centres.T + (centres**2).sum(axis=1)
    return np.asarray(np.sqrt(np.maximum(squared.min(axis=1), 0.0)))
