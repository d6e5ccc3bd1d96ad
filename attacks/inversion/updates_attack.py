"""Inversions of FedAvg's updates, and how close they come to the records behind them."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Protocol, Self

import numpy as np
import torch
from torch import Tensor

from attacks.core.base import (
    AttackResult,
    Effort,
    Images,
    substream,
)
from attacks.core.images import Match, Originals
from attacks.core.run import Attack, Run, public_of
from attacks.core.scoring import score_images
from attacks.core.view import Capability, Public, View
from attacks.inversion.one_update import Lie, SetUp, one_update
from attacks.inversion.update_truth import EVERYONE, Behind, UpdateTruth
from attacks.inversion.updates import (
    CLIENT_UPDATES,
    GREYS,
    MEAN_UPDATE,
    FirstLayer,
    Found,
    Recipe,
    Search,
    Updates,
    class_means,
    client_updates,
    first_layer,
    infer_labels,
    invert_first_layer,
    mean_update,
    on_grid,
    readable_updates,
    search,
)
from secure_fd.data.federated import FederatedData
from secure_fd.errors import LocalError, MissingCapabilityError
from secure_fd.privacy.dp_sgd import PrivateSGD
from secure_fd.training import models


class Inverse(Protocol):
    """What reads images off one flat gradient [m] of so many records."""

    def __call__(self, layer: FirstLayer, gradient: Tensor, records: int, *, grid: bool) -> Found:
        """Images, the certain ones first."""


class Read(Protocol):
    """What takes updates out of a view."""

    def __call__(self, view: View, recipe: Recipe, /) -> Updates:
        """Those of the newest round."""


GOOD = 20.0
"""dB from which a digit is recognised as the same handwriting."""
_SHOWN = 10


def _exactness(found: Sequence[Match]) -> dict[str, float]:
    decibel = np.concatenate([m.decibel for m in found])
    errors = np.concatenate([m.errors for m in found])
    return {
        "median_psnr": float(np.median(decibel)),
        "share_above_20_dB": float((decibel >= GOOD).mean()),
        "share_exact": float((errors == 0).mean()),
        "max_abs_error": float(errors.max()),
        "median_abs_error": float(np.median(errors)),
    }


def _certainty(estimate: Images, truth: Originals) -> dict[str, float]:
    """How many records the attacker was sure of without the truth, and how often rightly."""
    sure = torch.zeros(len(estimate.groups)).bool() if estimate.sure is None else estimate.sure
    real = {
        group: {image.numpy().tobytes() for image in images}
        for group, images in truth.private.items()
    }
    claims = zip(estimate.images[sure], estimate.groups[sure].tolist(), strict=True)
    right = sum(image.numpy().tobytes() in real[group] for image, group in claims)
    return {"certain": float(sure.sum()), "certain_and_right": float(right)}


def _without_access(estimate: Images, truth: Behind, public: Public) -> dict[str, Images]:
    """Guesses that consult no update; class means are given the true classes."""
    average, by_class = public.proxies.mean(dim=0), class_means(public)
    labels = {g: truth.records(g).labels for g in torch.unique(estimate.groups).tolist()}
    groups = torch.cat([torch.full((len(own),), g) for g, own in labels.items()])
    every = torch.cat(list(labels.values()))
    return {
        "black": Images(torch.zeros_like(average).expand(len(every), *average.shape), groups),
        "public mean": Images(average.expand(len(every), *average.shape), groups),
        "public class mean": Images(by_class[every], groups),
    }


def _pictures(found: Sequence[Match], control: Sequence[Match]) -> dict[str, Tensor]:
    """The first matched record of every update, or the first few of a single one."""
    each = _SHOWN if len(found) == 1 else 1

    def first(parts: list[Tensor]) -> Tensor:
        return torch.cat([part[:each] for part in parts])[:_SHOWN]

    return {
        "record": first([m.records for m in found]),
        "attack": first([m.guesses for m in found]),
        "on updates of held-out records": first([m.guesses for m in control]),
    }


_ON_RECORDS = "Δ compares with held-out records of the same classes; 120 dB stands for equality"
_STEPS = "several local steps are read as one gradient: the closed form then is approximate"
_PADDED = "records that nothing was read of are guessed to be the public mean"
_RECIPE = Recipe(batch=1)
_HALF_A_GREY = 0.5 / GREYS
_SHORT = Search(iterations=300, restarts=1)
_OF_A_COHORT = "finds records of the cohort; a match does not say whose they are"
_NOT_ITS_OWN = "one step on few records by a network of the attack's set-up, not the row's schedule"


@dataclass(frozen=True, slots=True, eq=False)
class UpdateInversion(Attack[Images, Behind]):
    """The closed form on updates of one local step on one record each.

    Under masks on the cohort's mean update. public: its architecture starts with a fully connected
    layer, where nothing is searched. recipe: how clients train, which is public. settings: of a
    search by gradient matching, for any architecture, with labels inferred from the update itself.
    read: which updates of a view are inverted. set_up: what trains in place of the run. found: the
    estimate, where it was made for all runs.
    """

    name = "update-inversion"
    title = "Inversion of one update: a fully connected network, one record a step"
    figure_name = "PSNR"
    control_name = "best image without an update: black, public mean, or mean of the true class"
    needs: ClassVar[tuple[frozenset[Capability], ...]] = (MEAN_UPDATE,)
    default = True
    read: ClassVar[Read] = staticmethod(readable_updates)
    set_up: ClassVar[SetUp] = SetUp()

    public: Public
    recipe: Recipe = _RECIPE
    settings: Search | None = None
    found: Images | None = field(default=None, repr=False, kw_only=True)

    @classmethod
    def for_data(
        cls,
        data: FederatedData,
        seed: int,
        effort: Effort = "full",  # noqa: ARG003 - one search for all
    ) -> Self:
        """Return the attack on the set-up in clear: positive control, and all of a plain run.

        Raises:
            MissingCapabilityError: for records that are no images.
        """
        public_of(data).pixels()
        made = cls.of_set_up(data, seed)
        found = made.estimate(_view_of(made), seed)
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
        made = cls.of_set_up(run.data, run.seed, private=private, masks=masks)
        return replace(made, positive=clear.positive)

    @classmethod
    def of_set_up(
        cls,
        data: FederatedData,
        seed: int,
        *,
        private: PrivateSGD | None = None,
        masks: bool = False,
        lie: Lie | None = None,
    ) -> Self:
        """Return the attack on one update of its own set-up, with the records behind it."""
        made = one_update(cls.set_up, data, seed, private=private, masks=masks, lie=lie)
        recipe = cls.set_up.recipe
        return cls(made.public, recipe, view=made.view, truth=made.records, caveats=made.caveats)

    def estimate(self, view: View, seed: int) -> Images:
        """One image a record. MissingCapabilityError where the view has no update to read."""
        if self.found is not None:
            return self.found
        view.require_any(*self.needs)
        updates = self.read(view, self.recipe)
        if self.settings is not None:
            labels = infer_labels(self.public, updates, self.recipe.steps)
            chance = substream(seed, "gradient matching")
            images = search(self.public, updates, labels, self.recipe, self.settings, chance)
            return Images(images.flatten(0, 1), guess_owners(updates))
        found = closed_form(self.public, updates)
        clients = len(updates.clients[0])
        if clients == 1:
            return found
        return replace(found, target=f"mean of {clients}", caveats=(_OF_A_COHORT,))

    def score(self, estimate: Images, seed: int) -> AttackResult:
        """Mean PSNR of the records behind the updates, each with a guess of its own.

        In the details: Δ, the share of exact ones, all pixels right in 8 bits, and A_H.
        """
        return self.score_images_of(estimate, seed)

    def score_images_of(self, estimate: Images, seed: int) -> AttackResult:
        """The same, for a subclass that scores otherwise too."""
        originals = self.truth.originals(estimate.groups)
        errors = np.concatenate([m.errors for m in originals.matches(estimate)])
        made = score_images(
            self,
            estimate,
            originals,
            substream(seed, "records"),
            controls=_without_access(estimate, self.truth, self.public),
            literal=True,
            details={"share_exact": float((errors < _HALF_A_GREY).mean())},
            caveats=(_NOT_ITS_OWN, "120 dB stands for equality"),
        )
        kept = {name: value for name, value in made.details.items() if ":" not in name}
        return replace(made, details=kept, images=None)


def require_updates(run: Run) -> None:
    """Raise MissingCapabilityError where no parameters cross the boundary of a run."""
    if not run.transcript.parameters:
        raise MissingCapabilityError("missing an update: no parameters cross the boundary (server)")


def _view_of(made: UpdateInversion) -> View:
    if made.view is None:
        raise LocalError(f"{made.name}: it has no set-up")
    return made.view


class UpdateInversionOfEight(UpdateInversion):
    """The closed form on updates of one local step on eight records each."""

    name = "update-inversion-8"
    title = "Inversion of one update: a fully connected network, eight records a step"
    default = True
    set_up = SetUp(batch=8)


@dataclass(frozen=True, slots=True, eq=False)
class UpdateMatching(UpdateInversion):
    """Gradient matching on updates of one local step of any network on one record each."""

    name = "update-inversion-cnn"
    title = "Inversion of one update: a convolutional network, one record a step"
    needs = CLIENT_UPDATES
    default = True
    read = staticmethod(client_updates)
    set_up = SetUp(models.SHARED)

    settings: Search | None = _SHORT


class AnalyticInversion(UpdateInversion):
    """The closed form on every readable client's update, scored beside held-out records."""

    name = "gradient-analytic"
    title = "Closed-form inversion of a client's update"
    figure_name = "Δ PSNR"
    control_name = "Δ of the same attack on updates made of held-out records"
    needs: ClassVar[tuple[frozenset[Capability], ...]] = CLIENT_UPDATES
    default = False
    read = staticmethod(client_updates)

    @classmethod
    def for_run(cls, run: Run) -> Self:
        """Refuse: the control needs updates made of other records."""
        run.view.require_any(*cls.needs)
        raise MissingCapabilityError("missing updates made of held-out records, the control")

    def notes(self) -> tuple[str, ...]:
        """What a reader must know of the attack."""
        return (_ON_RECORDS, _PADDED, *([_STEPS] if self.recipe.steps > 1 else []))

    def score(self, estimate: Images, seed: int) -> AttackResult:
        """Δ with its interval; exactness, and the same figures for every control."""
        truth = self.truth
        if not isinstance(truth, UpdateTruth):
            raise LocalError("truth: it lacks the attack on updates made of other records")
        originals = truth.originals(estimate.groups)
        found, others = originals.matches(estimate), originals.matches(truth.control)
        alone = ("the interval is over records of one update",) if len(found) == 1 else ()
        without = _without_access(estimate, truth, self.public)
        return score_images(
            self,
            replace(estimate, target="", caveats=()),
            originals,
            substream(seed, "delta"),
            controls={"control": truth.control, **without},
            against="control",
            details=_exactness(found) | _certainty(estimate, originals),
            caveats=(*self.notes(), *estimate.caveats, *alone),
            shown=_pictures(found, others),
        )


class MeanInversion(AnalyticInversion):
    """The closed form on the cohort's mean update, which masks do not hide.

    Whoever holds the global model can run it, a curious client included.
    """

    name = "gradient-mean"
    title = "Closed-form inversion of the mean update"
    needs = (MEAN_UPDATE,)
    read = staticmethod(mean_update)


@dataclass(frozen=True, slots=True, eq=False)
class OptimisedInversion(AnalyticInversion):
    """Gradient matching on every readable client's update, for any architecture."""

    name = "gradient-optimised"
    title = "Gradient matching of a client's update"

    settings: Search | None = field(default_factory=Search)

    def notes(self) -> tuple[str, ...]:
        """What the search and its start add to the figure."""
        return (
            _ON_RECORDS,
            "a search that stops early, or has few restarts, understates the leak",
            "starts from the public class mean: raw PSNR is not its merit alone",
        )


def guess_owners(updates: Updates) -> Tensor:
    """[T * records] the client of each guess; EVERYONE where an update is of several."""
    owners = [ks[0] if len(ks) == 1 else EVERYONE for ks in updates.clients]
    return torch.tensor(owners).repeat_interleave(updates.records)


def closed_form(public: Public, updates: Updates, invert: Inverse = invert_first_layer) -> Images:
    """An image for each record behind the updates; where none was read, the public mean."""
    layer, grid = first_layer(public), on_grid(public.proxies)
    found = [invert(layer, gradient, updates.records, grid=grid) for gradient in updates.gradients]
    average, places = public.proxies.mean(dim=0), torch.arange(updates.records)
    return Images(
        torch.cat([_padded(each, average, updates.records) for each in found]),
        guess_owners(updates),
        sure=torch.cat([places < each.certain for each in found]),
    )


def _padded(found: Found, average: Tensor, records: int) -> Tensor:
    missing = records - len(found.images)
    return torch.cat([found.images, average.expand(missing, *average.shape)])
