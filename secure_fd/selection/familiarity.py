"""Familiarity of a sample to a client's records, and shares of its classes among the proxies.

A head fits the records that it was trained on too well to be judged by them. Held-back records, and
records that are left out of their own class mean, score like proxies of their class. So

    a proxy that scores below nine tenths of these is probably not of that class;
    how much higher they score than all proxies on average measures how rare the class is there.

Both are found at the client alone, without any label of a proxy. Released ratios alone show which
proxies are like any records at all: where w_c = p(x, c) / p_proxy(x), the mean of w_c over the
class's own images is E_proxy[w_c^2] / E_proxy[w_c], as w_c p_proxy is their density. A proxy whose
largest ratio is far below that mean is like no client's records.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls
from torch import Tensor

from secure_fd.data.federated import ClientData
from secure_fd.data.images import Images
from secure_fd.selection.density_ratio import ProxyReference
from secure_fd.votes.codec import FloatArray

BoolArray = NDArray[np.bool_]

UNTYPICAL: Final = 0.1
"""Share of a class's own records that score too low to be known; so do as many of its proxies."""
FEWEST_RECORDS: Final = 10
"""Records of a class below which nothing is estimated from them."""
MOST_CHECKED: Final = 200
"""Records of a class that are looked at: one left out costs a product with the inverse moment."""
_IN_DISTRIBUTION: Final = 0.5
"""Least ratio, over the mean of its class. Chosen on seeds 0 to 2 of MNIST-5k, where it keeps out
98 % of another set's images at epsilon 4, 87 % at 1, and 2 to 4 % of clean proxies, whose labels
were worse."""
_LEAST: Final = 1e-9


def over_classes(values: NDArray[Any], classes: Sequence[int], n_classes: int) -> NDArray[Any]:
    """Spread values [..., k] of these classes over all of them, [..., C], zeros elsewhere."""
    spread = np.zeros((*values.shape[:-1], n_classes), dtype=values.dtype)
    spread[..., list(classes)] = values
    return spread


@dataclass(frozen=True, slots=True, eq=False)
class KnownProxies:
    """The proxies that are like a client's own records, for each class.

    Attributes:
        known: [P, C] whether a proxy is like the records of a class.
        has_class: [C] the classes of which there are enough records to decide.
    """

    known: BoolArray = field(repr=False)
    has_class: BoolArray = field(repr=False)


@dataclass(frozen=True, slots=True, eq=False)
class OwnRatios:
    """Density ratios at a client's own records, none of which the head was fitted on.

    Attributes:
        by_class: for each class that the client holds, ratios [n, classes] at up to 200 records.
        shares: [classes] of the training records.
    """

    by_class: tuple[FloatArray, ...] = field(repr=False)
    shares: FloatArray = field(repr=False)

    @classmethod
    def of(
        cls, client: ClientData, reference: ProxyReference, head: FloatArray, pooled: int = 0
    ) -> "OwnRatios":
        """Use held-back records, and training records left out where these are too few.

        Args:
            client: its records.
            reference: the public features.
            head: [D, classes] coefficients of the ratios of its classes.
            pooled: records that the head was fitted on, where these are not the client's alone.
        """
        total, held_back = len(client.train), _by_class(client.validation)
        trained, found = _by_class(client.train), []
        for column, label in enumerate(client.classes):
            own, ratios = trained[label], [np.zeros((0, len(client.classes)))]
            if label in held_back:
                ratios.append(reference.features(held_back[label][:MOST_CHECKED]) @ head)
            more = MOST_CHECKED - sum(map(len, ratios))
            if more > 0 and len(own) > 1:
                features = reference.features(own[:more])
                # Without record x, M being the inverse moment, a head's ratio of its class is
                # w(x) - phi(x)^T M phi(x) / total, as the head is linear in its class sums.
                left_out = features @ head
                itself = np.einsum("nd,dn->n", features, reference.solver.solve(features.T))
                fewer = 1.0 if pooled else len(own) / (len(own) - 1)  # a mean over one record less
                left_out[:, column] = (left_out[:, column] - itself / (pooled or total)) * fewer
                ratios.append(left_out)
            found.append(np.concatenate(ratios))
        shares = np.array([len(trained[label]) for label in client.classes]) / total
        return cls(tuple(found), shares)

    @property
    def reliable(self) -> BoolArray:
        """[classes] of which there are records enough."""
        return np.array([len(ratios) >= FEWEST_RECORDS for ratios in self.by_class], dtype=np.bool_)

    def known(self, ratios: FloatArray, classes: Sequence[int], n_classes: int) -> KnownProxies:
        """Compare ratios [P, classes] at proxies, each left out of H, with those at own records."""
        found, reliable = np.zeros(ratios.shape, dtype=np.bool_), self.reliable
        for column in np.flatnonzero(reliable):
            least = np.quantile(self.by_class[column][:, column], UNTYPICAL)
            found[:, column] = ratios[:, column] >= least
        known, has_class = (over_classes(own, classes, n_classes) for own in (found, reliable))
        return KnownProxies(known, has_class)

    def prior(self, ratios: FloatArray, n_classes: int) -> FloatArray:
        """Estimate the share of each class among proxies, [classes].

        A mean ratio at proxies is that at the records of each class, weighed by the shares that are
        sought; all classes that the client does not hold count as scoring nothing.

        Args:
            ratios: [P, classes] at the proxies.
            n_classes: C; a class of too few records gets 1 / C.
        """
        even, reliable = 1.0 / n_classes, self.reliable
        prior = np.full(len(reliable), even)
        if reliable.any():
            own = [self.by_class[column].mean(axis=0) for column in np.flatnonzero(reliable)]
            scale = 1.0 / self.shares
            at_records = (np.stack(own) * scale)[:, reliable]
            at_proxies = (ratios.mean(axis=0) * scale)[reliable]
            prior[reliable] = nnls(at_records.T, at_proxies)[0]
        return np.asarray(np.clip(prior, 1.0 / len(ratios), 1.0))


def _by_class(records: Images) -> dict[int, Tensor]:
    """Pixels by label."""
    labels = records.labels
    return {c: records.pixels[labels == c] for c in sorted(set(labels.tolist()))}


def expected_in_class_ratio(ratios: FloatArray) -> FloatArray:
    """Estimate the mean ratio of each class's own images, [C], from ratios [P, C] at the proxies.

    0 for a class that no client holds.

    >>> expected_in_class_ratio(np.array([[2.0, 0.0], [2.0, 0.0], [0.0, 0.0]])).tolist()
    [2.0, 0.0]
    """
    total = ratios.sum(axis=0)
    held = total > _LEAST * len(ratios)
    return np.where(held, (ratios**2).sum(axis=0) / np.where(held, total, 1.0), 0.0)


def in_distribution(ratios: FloatArray) -> BoolArray:
    """Find the proxies whose largest ratio is at least half of the mean of its class, [P].

    All of them where that leaves none, as there must be something to learn from.

    >>> in_distribution(np.array([[2.0, 0.0], [2.0, 0.1], [0.3, 0.2]])).tolist()
    [True, True, False]
    """
    usual, best = expected_in_class_ratio(ratios), ratios.argmax(axis=1)
    largest = np.take_along_axis(ratios, best[:, None], axis=1)[:, 0]
    kept = (usual[best] > 0) & (largest >= _IN_DISTRIBUTION * usual[best])
    return kept if kept.any() else np.ones_like(kept)
