"""Class sums of public features, as a server or a client reads them.

Clients of pooled heads share, class by class, the sum of phi(x) over their records: a block. In
clear a server reads the blocks of every client, under masks those of all clients together; where
one client holds a class, the two are the same. Later sums are of phi(x) (1[y = c] - phi(x)^T v_c),
where v is the head that was sent before, which all parties know. `attacks.membership.tracing`
infers which records are in a block.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Self

import numpy as np

from attacks.core.base import FloatArray
from attacks.core.run import SumNoise
from attacks.core.view import Capability, View
from secure_fd.errors import MissingCapabilityError
from secure_fd.protocol.transcript import ObservedParameters
from secure_fd.selection.density_ratio import ProxyReference, ReferenceSettings, shared_reference
from secure_fd.votes.codec import IntArray

TOTAL: Final = -1
"""In place of a client: the sum over all of them."""
_LEAST_SHARE: Final = 5e-4
"""Share of a client's records: a smaller share of a class is rounding."""
NEEDS: Final = (
    frozenset({Capability.HOLD_HEAD, Capability.PUBLIC_PROXIES, Capability.LABELLED_PUBLIC}),
)


def of_block(noise: SumNoise | None, classes: int) -> float:
    """Variance of an entry for each record of a usual block: what a ridge has to cover.

    >>> from attacks.core.statistics import Claim
    >>> of_block(SumNoise(2.0, 4000, Claim(4.0, 1e-5, 1.1)), 10)
    0.01
    """
    return 0.0 if noise is None else noise.deviation**2 * classes / noise.records


@dataclass(frozen=True, slots=True, eq=False)
class PublicRecords:
    """The labelled proxies on the map of a view's sums. features: [K, D]. labels: [K]."""

    reference: ProxyReference = field(repr=False)
    labels: IntArray = field(repr=False)

    @classmethod
    def of(cls, view: View) -> Self:
        """Those of a view; MissingCapabilityError without labels."""
        return cls(public_map(view), view.public.require_labels().numpy())

    @property
    def features(self) -> FloatArray:
        """[K, D], rows of norm one."""
        return self.reference.proxy_features

    @property
    def classes(self) -> list[int]:
        """Those of two images or more, ascending: one alone has nothing beside it."""
        found, counts = np.unique(self.labels, return_counts=True)
        return [int(c) for c in found[counts > 1]]

    def shares(self, block: FloatArray) -> FloatArray:
        """[C] of each class among the records behind a first sum [D, C]; 0 of no public image.

        How far the sum of a class goes along the mean of its public images.
        """
        found = np.zeros(block.shape[1])
        for c in self.classes:
            mean = self.features[self.labels == c].mean(axis=0)
            found[c] = (mean @ block[:, c]) / (mean @ mean)
        return found

    def weight(self, moment: FloatArray, ridge: float, noise: float) -> FloatArray:
        """[D, D], (moment + (ridge / K + noise) I)^-1. noise: variance beside a record's own."""
        level = ridge / len(self.features) + noise
        return np.asarray(np.linalg.inv(moment + level * np.eye(len(moment))))


def public_map(view: View) -> ProxyReference:
    """Fit the map that the view's heads are on."""
    proxies = view.public.proxies
    form = proxies if proxies.ndim == 4 else proxies[:, :, None, None]
    return shared_reference(form, view.features or ReferenceSettings())


@dataclass(frozen=True, slots=True, eq=False)
class SumRead:
    """One sum. head: [D, C] whose residuals it is of. means: by client, or of all, [D, C]."""

    head: FloatArray = field(repr=False)
    means: Mapping[int, FloatArray] = field(repr=False)


def sums_read(view: View) -> list[SumRead]:
    """The sums of a view, first to last: of every client where they are in clear, else the total.

    A client receives heads alone. (H + beta I) times the first head is the first sum. No client can
    compute the later sums from the later heads.
    """
    reference = public_map(view)
    shape = (reference.second_moment.shape[0], view.public.n_classes)
    found: list[SumRead] = []
    head = np.zeros(shape)
    for seen in view.heads:
        means = _means(seen, shape)
        if not means and found:
            break
        if not means:
            moment, beta = reference.second_moment, 1 / len(reference.proxy_features)
            first = seen.result.astype(np.float64).reshape(shape)
            means = {TOTAL: moment @ first + beta * first}
        found.append(SumRead(head, means))
        head = seen.result.astype(np.float64).reshape(shape)
    return found


def check_readable(view: View, noise: SumNoise | None) -> None:
    """Heads of noisy sums went through a solver that cuts off what the noise outweighs."""
    if noise is not None and view.heads[0].total is None:
        raise MissingCapabilityError(f"missing noisy sums as they are read ({view.attacker})")


def _means(seen: ObservedParameters, shape: tuple[int, int]) -> dict[int, FloatArray]:
    if seen.uploads is not None:
        sent = seen.uploads.items()
        return {client: sums.astype(np.float64).reshape(shape) for client, sums in sent}
    return {} if seen.total is None else {TOTAL: seen.total.astype(np.float64).reshape(shape)}


def held_by(public: PublicRecords, first: SumRead, noise: SumNoise | None) -> dict[int, FloatArray]:
    """Return the share [C] of each class, by client or over all; 0 for a class that is not held.

    Under noise no class is known to be absent, so each counts at least one record.
    """
    made = {owner: public.shares(block) for owner, block in first.means.items()}
    if noise is not None:
        return {k: np.maximum(held, 1 / noise.records) for k, held in made.items()}
    return {k: np.where(held > _LEAST_SHARE, held, 0.0) for k, held in made.items()}
