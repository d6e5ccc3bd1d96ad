"""What class sums of public features give away: reading them, and the mean image of a class.

Clients of pooled heads share, class by class, the sum of phi(x) over their records: a block. In
clear a server reads the blocks of every client, under masks those of all clients together; where
one client holds a class, the two are the same. Later sums are of phi(x) (1[y = c] - phi(x)^T v_c),
v the head that was sent before, which everybody knows. Who is in a block: `attacks.tracing`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Self

import numpy as np
import torch
from torch import Tensor

from attacks.base import Attack, AttackResult, FloatArray, Images, Labelled
from attacks.images import Originals
from attacks.scoring import score_images
from attacks.statistics import Claim
from attacks.view import Capability, View
from secure_fd.errors import MissingCapabilityError
from secure_fd.knowledge import IntArray
from secure_fd.privacy.calibration import epsilon
from secure_fd.protection.pooled import PooledRecordUnit
from secure_fd.selection.density import (
    ProxyReference,
    RatioSolver,
    ReferenceSettings,
    Same,
    shared_reference,
)
from secure_fd.transcript import ParameterRound

TOTAL: Final = -1
"""In place of a client: the sum over all of them."""
_RIDGE: Final = 0.3
"""Of H, by public image. Chosen on seed 0 of MNIST-5k, blocks of 1, 30 and 300."""
_LEAST_SHARE: Final = 5e-4
"""Of a client's records: a smaller share of a class is rounding."""
PUBLIC_MEAN: Final = "public class mean"
NEEDS: Final = (
    frozenset({
        Capability.HOLD_HEAD,
        Capability.PUBLIC_PROXIES,
        Capability.LABELLED_PUBLIC,
    }),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class SumNoise:
    """What is public of the noise in pooled sums.

    deviation: of an entry of a sum over all records, where a record moves the sum by 1 in L2.
    records: of all clients. claim: of the unit, for all of its sums.

    >>> of_block(SumNoise(2.0, 4000, Claim(4.0, 1e-5, 1.1)), 10)
    0.01
    """

    deviation: float
    records: int
    claim: Claim

    @classmethod
    def of(cls, unit: PooledRecordUnit) -> Self | None:
        """Of all clients' shares, as the server reads them; None of a unit without noise.

        The claim counts on the honest clients' shares alone, and adds up the sums.
        """
        if unit.noiseless:
            return None
        plan = unit.plan
        everybody = float(plan.noise * np.sqrt(plan.clients / plan.honest))
        noise = float(plan.noise / np.sqrt(plan.sums))
        claim = Claim(epsilon(plan, unit.delta), unit.delta, noise)
        return cls(everybody, sum(unit.records), claim)


def of_block(noise: SumNoise | None, classes: int) -> float:
    """Variance of an entry for each record of a usual block: what a ridge has to cover."""
    return 0.0 if noise is None else noise.deviation**2 * classes / noise.records


@dataclass(frozen=True, slots=True, eq=False)
class PublicRecords:
    """The labelled proxies on the map of a view's sums. features: [K, D]. labels: [K]."""

    reference: ProxyReference = field(repr=False)
    labels: IntArray = field(repr=False)

    @classmethod
    def of(cls, view: View) -> Self:
        """Those of a view; MissingCapabilityError without labels."""
        return cls(public_map(view)[0], view.public.require_labels().numpy())

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


def public_map(view: View) -> tuple[ProxyReference, RatioSolver]:
    """The map that the view's heads are on, and the solver that makes heads of sums."""
    proxies = view.public.proxies
    form = proxies if proxies.ndim == 4 else proxies[:, :, None, None]
    return shared_reference(Same(form), view.features or ReferenceSettings())


@dataclass(frozen=True, slots=True, eq=False)
class SumRead:
    """One sum. head: [D, C] whose residuals it is of. means: by client, or of all, [D, C]."""

    head: FloatArray = field(repr=False)
    means: Mapping[int, FloatArray] = field(repr=False)


def sums_read(view: View) -> list[SumRead]:
    """The sums of a view, first to last: of every client where they are in clear, else the total.

    A client is sent heads alone: (H + beta I) times the first is the first sum, and what a later
    one was made of it cannot tell.
    """
    reference, _ = public_map(view)
    shape = (reference.second_moment.shape[0], view.public.n_classes)
    found: list[SumRead] = []
    head = np.zeros(shape)
    for seen in view.heads:
        means = _means(seen, shape)
        if not means and found:
            break
        if not means:
            moment, beta = reference.second_moment, 1 / len(reference.proxy_features)
            first = seen.parameters.astype(np.float64).reshape(shape)
            means = {TOTAL: moment @ first + beta * first}
        found.append(SumRead(head, means))
        head = seen.parameters.astype(np.float64).reshape(shape)
    return found


def check_readable(view: View, noise: SumNoise | None) -> None:
    """Heads of noisy sums went through a solver that cuts off what the noise outweighs."""
    if noise is not None and view.heads[0].total is None:
        raise MissingCapabilityError(f"missing noisy sums as they are read ({view.attacker})")


def _means(seen: ParameterRound, shape: tuple[int, int]) -> dict[int, FloatArray]:
    if seen.uploads is not None:
        sent = seen.uploads.items()
        return {client: sums.astype(np.float64).reshape(shape) for client, sums in sent}
    return {} if seen.total is None else {TOTAL: seen.total.astype(np.float64).reshape(shape)}


def held_by(public: PublicRecords, first: SumRead, noise: SumNoise | None) -> dict[int, FloatArray]:
    """By client, or of all, [C] of each class; 0 of one that is not held.

    Under noise no class is known to be held by nobody: one record of it is the least.
    """
    made = {owner: public.shares(block) for owner, block in first.means.items()}
    if noise is not None:
        return {k: np.maximum(held, 1 / noise.records) for k, held in made.items()}
    return {k: np.where(held > _LEAST_SHARE, held, 0.0) for k, held in made.items()}


@dataclass(frozen=True, slots=True, eq=False)
class MeanImage(Attack[Images, Originals]):
    """The mean image of every block of the first sum.

    Ridge regression of public pixels on their features, both less the means of their class, is a
    linear map from features to pixels, so that of a block's mean feature it gives the mean over its
    records: W(x) = phi(x)^T (H + ridge I)^-1 d weighs each public image by how much its density
    ratio is above what is usual of the class, and the weighed images are added to the class's mean
    public image; a class without two of these is left out. noise: of the pooled unit.
    """

    name = "mean-image"
    title = "Mean image of a class from its sum"
    figure_name = "PSNR of a block's mean image"
    control_name = "the mean public image of the class"
    needs = NEEDS

    noise: SumNoise | None = None

    def run(self, view: View, seed: int) -> Images:  # noqa: ARG002 - nothing is drawn
        """One image a block, as `group_of` counts them; the control is among `others`."""
        view.require_any(*self.needs)
        check_readable(view, self.noise)
        pixels, public = view.public.pixels(), PublicRecords.of(view)
        first = sums_read(view)[0]
        usual = {
            c: pixels[torch.from_numpy(public.labels == c)].mean(dim=0) for c in public.classes
        }
        means, centred, around = _by_class(public, pixels, usual)
        moment = centred.T @ centred / len(centred)
        weight = public.weight(moment, _RIDGE, of_block(self.noise, first.head.shape[1]))
        found: dict[int, Tensor] = {}
        controls: dict[int, Tensor] = {}
        for owner, held in held_by(public, first, self.noise).items():
            for c in (c for c in public.classes if held[c]):
                gap = first.means[owner][:, c] / held[c] - means[c]
                weights = torch.from_numpy(centred @ (weight @ gap) / len(centred)).float()
                group = group_of(c, owner, len(held))
                controls[group] = usual[c]
                found[group] = usual[c] + torch.tensordot(weights, around, dims=1)
        groups = torch.tensor(list(found))
        control = Images(torch.stack(list(controls.values())), groups)
        made = torch.stack(list(found.values())).clamp(0, 1)
        return Images(made, groups, others={PUBLIC_MEAN: control})

    def score(self, estimate: Images, truth: Originals, seed: int) -> AttackResult:
        """PSNR to the mean image of each block; in the details, to as many held-out records'."""
        known = {int(g) for g in estimate.groups} & truth.private.keys()
        compared = truth.held_out if known <= truth.held_out.keys() else {}
        told = Originals({g: truth.private[g] for g in known}, compared, matched=True)
        return score_images(
            self,
            estimate,
            told,
            seed,
            controls=estimate.others,
            against=PUBLIC_MEAN,
            literal=True,
            shown={"attack": estimate.images, PUBLIC_MEAN: estimate.others[PUBLIC_MEAN].images},
        )


def _by_class(
    public: PublicRecords, pixels: Tensor, usual: Mapping[int, Tensor]
) -> tuple[dict[int, FloatArray], FloatArray, Tensor]:
    """Mean features by class; features [K, D] and pixels [K, ...] less those of their class.

    Images of classes without a mean are nothing.
    """
    means = {c: public.features[public.labels == c].mean(axis=0) for c in usual}
    centred, around = np.zeros_like(public.features), torch.zeros_like(pixels)
    for c, mean in means.items():
        own = public.labels == c
        centred[own] = public.features[own] - mean
        around[torch.from_numpy(own)] = pixels[torch.from_numpy(own)] - usual[c]
    return means, centred, around


def block_means(clients: Sequence[Labelled], held_out: Labelled, n_classes: int) -> Originals:
    """The mean image of every block, of each client and of all, by `group_of`.

    Beside it, of groups of as many held-out records of the class, where there are as many.
    """
    every = Labelled(
        torch.cat([own.images for own in clients]), torch.cat([own.labels for own in clients])
    )
    private: dict[int, Tensor] = {}
    others: dict[int, list[Tensor]] = {}
    for owner, own in enumerate((every, *clients), start=TOTAL):
        for c in torch.unique(own.labels).tolist():
            images, group = own.images[own.labels == c], group_of(c, owner, n_classes)
            private[group] = images.mean(dim=0, keepdim=True)
            spare = torch.split(held_out.images[held_out.labels == c], len(images))
            means = [part.mean(dim=0, keepdim=True) for part in spare if len(part) == len(images)]
            if means:
                others[group] = means
    return Originals(private, others, matched=True)


def group_of(label: int, owner: int, n_classes: int) -> int:
    """A number for the block of a class and a client, or of all clients.

    >>> group_of(3, TOTAL, 10), group_of(3, 0, 10)
    (3, 13)
    """
    return label + n_classes * (owner + 1)
