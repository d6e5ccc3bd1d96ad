"""Inversions of FedAvg's updates, and how close they come to the records behind them."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from attacks.core.base import AttackResult, Effort, Images, Labelled, substream
from attacks.core.images import class_means, match
from attacks.core.result import COLUMN_ERROR
from attacks.core.run import Attack, Run, public_of
from attacks.core.scoring import result_of
from attacks.core.statistics import Rate, mean
from attacks.core.view import Capability, Public, View
from attacks.inversion.one_update import MLP, OneUpdate, SetUp, one_update
from attacks.inversion.updates import (
    CLIENT_UPDATES,
    EVERYONE,
    GREYS,
    MEAN_UPDATE,
    FirstLayer,
    Updates,
    client_updates,
    first_layer,
    infer_labels,
    invert_first_layer,
    readable_updates,
    search,
)
from secure_fd.data.federated import FederatedData
from secure_fd.errors import MissingCapabilityError
from secure_fd.training import models

Inverse = Callable[[FirstLayer, Tensor, int], Tensor]
"""Reads images off one flat gradient [m] of a number of records, as `invert_first_layer`."""
_HALF_A_GREY = 0.5 / GREYS
_OF_A_COHORT = "finds records of the cohort; a match does not say whose they are"
_CAVEATS = (
    "one step on few records by a network of the attack's set-up, not the row's schedule",
    "120 dB stands for equality",
)


@dataclass(frozen=True, slots=True, eq=False)
class UpdateInversion(Attack[Images, Mapping[int, Labelled]]):
    """The closed form on updates of one local step on one record each.

    Under masks on the cohort's mean update. public: its architecture starts with a fully connected
    layer. batch: records of a client's step, which is public. read: which updates of a view are
    inverted. set_up: what trains in place of the run. found: the estimate, where it was made for
    all runs.
    """

    name = "update-inversion"
    title = "Inversion of one update: a fully connected network, one record a step"
    figure_name = "PSNR"
    control_name = "best image without an update: black, public mean, or mean of the true class"
    needs: ClassVar[tuple[frozenset[Capability], ...]] = (MEAN_UPDATE,)
    shown_in = "picture, dB: worst"
    set_up: ClassVar[SetUp] = SetUp()

    public: Public
    batch: int = 1
    read: Callable[[View, int], Updates] = field(default=readable_updates, kw_only=True)
    found: Images | None = field(default=None, repr=False, kw_only=True)

    @classmethod
    def of(cls, met: OneUpdate) -> Self:
        """Return the attack on one update, with the records behind it."""
        return cls(met.public, met.batch, view=met.view, truth=met.records, caveats=met.caveats)

    @classmethod
    def for_data(cls, data: FederatedData, seed: int, effort: Effort = "full") -> Self:  # noqa: ARG003 - one search
        """Return the attack on the set-up in clear: positive control, and all of a plain run.

        Raises:
            MissingCapabilityError: for records that are no images, where the network needs some.
        """
        if cls.set_up.model != MLP:
            public_of(data).pixels()
        met = one_update(cls.set_up, data, seed)
        made = cls.of(met)
        found = made.estimate(met.view, seed)
        figure = made.score(found, seed).figure
        return replace(made, view=None, found=found, positive=figure)

    @classmethod
    def for_run(cls, run: Run) -> Self:
        """Train the set-up with the run's protection; the run itself must show updates."""
        require_updates(run)
        private, masks = run.private, run.transcript.parameters[-1].uploads is None
        if private and cls.set_up.batch > 1:
            raise MissingCapabilityError(
                "noise hides more of many records than of one, which is shown"
            )
        clear: Self = run.shared(cls)
        if not (private or masks):
            return clear
        met = one_update(cls.set_up, run.data, run.seed, private=private, masks=masks)
        return replace(cls.of(met), positive=clear.positive)

    def estimate(self, view: View, seed: int) -> Images:
        """One image a record. MissingCapabilityError where the view has no update to read."""
        if self.found is not None:
            return self.found
        view.require_any(*self.needs)
        updates = self.read(view, self.batch)
        found = self.invert(updates, seed)
        if EVERYONE not in updates.owners:
            return found
        target = f"mean of {view.public.n_clients}"
        return replace(found, target=target, caveats=(_OF_A_COHORT,))

    def invert(self, updates: Updates, seed: int) -> Images:  # noqa: ARG002 - a closed form
        """Return one image a record of each update."""
        return closed_form(self.public, updates)

    def score(self, estimate: Images, seed: int) -> AttackResult:
        """Mean PSNR of the records behind the updates, each with a guess of its own.

        In the details: the share of records whose pixels are all right in 8 bits.
        """
        groups = torch.unique(estimate.groups).tolist()
        behind = [self.truth[group] for group in groups]
        pairs = zip(groups, behind, strict=True)
        matches = [match(estimate.of(group).images, own.images) for group, own in pairs]
        decibel = np.concatenate([m.decibel for m in matches])
        errors = np.concatenate([m.errors for m in matches])
        figure = float(np.mean([m.decibel.mean() for m in matches]))
        result = result_of(
            self,
            estimate,
            Rate(figure, mean(decibel, substream(seed, "records")).interval),
            without_access(self.public, behind, lambda made, own: match(made, own).decibel.mean()),
            unit="dB",
            n_members=sum(map(len, behind)),
            details={"share_exact": float((errors < _HALF_A_GREY).mean())},
            caveats=_CAVEATS,
        )
        return by_column(self.public, result)


def without_access(
    public: Public, behind: Iterable[Labelled], decibel: Callable[[Tensor, Tensor], float]
) -> float:
    """Figure of the best guess without an update: black, public mean, or mean of the true class.

    decibel: of one guess a record, to the records of one update; the figure is its mean.
    """
    average, means = public.proxies.mean(dim=0), class_means(public)
    found = []
    for own in behind:
        guesses = torch.zeros_like(own.images), average.expand_as(own.images), means[own.labels]
        found.append([decibel(made, own.images) for made in guesses])
    return float(np.max(np.mean(found, axis=0)))


def by_column(public: Public, result: AttackResult) -> AttackResult:
    """Return the error of a column in the place of dB, where records are rows of a table.

    It is in public deviations of the columns: the root of the mean square over columns, and the
    geometric mean over records.
    """
    if public.proxies.ndim == 4:
        return result
    deviation = float(public.proxies.var(dim=0).mean().sqrt())
    ends = (result.figure, result.control, *result.interval)
    figure, control, high, low = (10 ** (-end / 20) / deviation for end in ends)
    return replace(
        result,
        figure=figure,
        figure_name=COLUMN_ERROR,
        unit="deviations",
        interval=(low, high),
        control=control,
        control_name=result.control_name.replace("image", "row").replace("black", "zeros"),
    )


def require_updates(run: Run) -> None:
    """Raise MissingCapabilityError where no parameters cross the boundary of a run."""
    if not run.transcript.parameters:
        raise MissingCapabilityError("missing an update: no parameters cross the boundary (server)")


class UpdateInversionOfEight(UpdateInversion):
    """The closed form on updates of one local step on eight records each."""

    name = "update-inversion-8"
    title = "Inversion of one update: a fully connected network, eight records a step"
    shown_in = "picture, dB: worst"
    set_up = SetUp(batch=8)


@dataclass(frozen=True, slots=True, eq=False)
class UpdateMatching(UpdateInversion):
    """Gradient matching on updates of one local step of any network on one record each.

    iterations: of the search.
    """

    name = "update-inversion-cnn"
    title = "Inversion of one update: a convolutional network, one record a step"
    needs = CLIENT_UPDATES
    shown_in = "picture, dB: worst"
    set_up = SetUp(models.SHARED)

    read: Callable[[View, int], Updates] = field(default=client_updates, kw_only=True)
    iterations: int = field(default=300, kw_only=True)

    def invert(self, updates: Updates, seed: int) -> Images:
        """Return one image a record, with labels inferred from the update itself."""
        return matched(self.public, updates, self.iterations, seed)


def matched(public: Public, updates: Updates, iterations: int, seed: int) -> Images:
    """An image for each record behind the updates, by gradient matching."""
    labels, chance = infer_labels(public, updates), substream(seed, "gradient matching")
    images = search(public, updates, labels, iterations, chance)
    return Images(images.flatten(0, 1), _owners(updates))


def closed_form(public: Public, updates: Updates, invert: Inverse = invert_first_layer) -> Images:
    """An image for each record behind the updates; where none was read, the public mean."""
    layer = first_layer(public)
    average, images = public.proxies.mean(dim=0), []
    for gradient in updates.gradients:
        found = invert(layer, gradient, updates.records)
        missing = updates.records - len(found)
        images.append(torch.cat([found, average.expand(missing, *average.shape)]))
    return Images(torch.cat(images), _owners(updates))


def _owners(updates: Updates) -> Tensor:
    """[T * records] the client of each guess, or EVERYONE."""
    return torch.tensor(updates.owners).repeat_interleave(updates.records)
