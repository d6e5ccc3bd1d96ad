"""What a client's own records say of its heads: how familiar a sample is, how common its classes.

A head knows the records that it was fitted on too well to be judged by them. Held-back records, and
records that are left out of their own class mean, look to it as proxies of their class do:

    a proxy that scores below nine tenths of these is probably not of that class;
    how much higher they score than the proxies at large tells how rare the class is among proxies.

Both are found at the client alone, without any label of a proxy.
"""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls
from torch import Tensor

from secure_fd.data.federated import ClientData
from secure_fd.data.images import Images
from secure_fd.selection.density_ratio import ProxyReference, RatioHead, RatioSolver
from secure_fd.votes.codec import FloatArray

UNTYPICAL = 0.1
"""Share of a class's own records that score too low to be known; so do as many of its proxies."""
FEWEST = 10
"""Records of a class below which its shares say nothing."""
ENOUGH = 200
"""Records of a class that are looked at: one left out costs a product with the inverse moment."""


@dataclass(frozen=True, slots=True, eq=False)
class OwnRatios:
    """by_class: for each class that the client holds, its head's ratios [n, classes] at up to 200
    records of that class on which it was not fitted. shares: [classes] of the training records.
    """

    by_class: tuple[FloatArray, ...] = field(repr=False)
    shares: FloatArray = field(repr=False)

    @classmethod
    def of(
        cls,
        client: ClientData,
        reference: ProxyReference,
        solver: RatioSolver,
        head: RatioHead,
        pooled: int = 0,
    ) -> "OwnRatios":
        """From held-back records, and from training records left out where these are too few.

        pooled: records that the head was fitted on, where these are not the client's alone.
        """
        total, held_back = len(client.train), _by_class(client.validation)
        trained, found = _by_class(client.train), []
        for column, label in enumerate(head.classes):
            own, ratios = trained[label], [np.zeros((0, len(head.classes)))]
            if label in held_back:
                ratios.append(head.ratios(reference.features(held_back[label][:ENOUGH])))
            more = ENOUGH - sum(map(len, ratios))
            if more > 0 and len(own) > 1:
                features = reference.features(own[:more])
                fewer = 1.0 if pooled else len(own) / (len(own) - 1)  # a mean over one record less
                ratios.append(_left_out(features, head, solver, column, pooled or total, fewer))
            found.append(np.concatenate(ratios))
        shares = np.array([len(trained[label]) for label in head.classes]) / total
        return cls(tuple(found), shares)

    @property
    def telling(self) -> NDArray[np.bool_]:
        """[classes] of which there are records enough."""
        return np.array([len(ratios) >= FEWEST for ratios in self.by_class], dtype=np.bool_)

    def knows(self, ratios: FloatArray) -> NDArray[np.bool_]:
        """[N, classes] of ratios [N, classes] at any samples; False where nothing tells."""
        found = np.zeros(ratios.shape, dtype=np.bool_)
        for column in np.flatnonzero(self.telling):
            least = np.quantile(self.by_class[column][:, column], UNTYPICAL)
            found[:, column] = ratios[:, column] >= least
        return found

    def prior(self, ratios: FloatArray, n_classes: int) -> FloatArray:
        """[classes] the share of each class among proxies, from ratios [P, classes] there.

        A mean ratio at proxies is that at the records of each class, weighed by the shares that are
        sought; all classes that the client does not hold count as scoring nothing. 1 / C for a
        class of too few records.
        """
        even, telling = 1.0 / n_classes, self.telling
        prior = np.full(len(telling), even)
        if telling.any():
            own = [
                at.mean(axis=0) for at, tells in zip(self.by_class, telling, strict=True) if tells
            ]
            scale = 1.0 / self.shares
            at_records = (np.stack(own) * scale)[:, telling]
            at_proxies = (ratios.mean(axis=0) * scale)[telling]
            prior[telling] = nnls(at_records.T, at_proxies)[0]
        return np.asarray(np.clip(prior, 1.0 / len(ratios), 1.0))


def _by_class(records: Images) -> dict[int, Tensor]:
    """Pixels by label."""
    labels = records.labels
    return {c: records.pixels[labels == c] for c in sorted(set(labels.tolist()))}


def _left_out(
    features: FloatArray,
    head: RatioHead,
    solver: RatioSolver,
    column: int,
    total: int,
    fewer: float,
) -> FloatArray:
    """[m, classes] ratios at m records of a class, each left out of the sum over that class.

    A head is linear in its class sums: without record x, M being the inverse moment, the ratio of
    its class is w(x) - phi(x)^T M phi(x) / total.
    """
    ratios = head.ratios(features)
    itself = np.einsum("nd,dn->n", features, solver.solve(features.T)) / total
    ratios[:, column] = (ratios[:, column] - itself) * fewer
    return ratios
