"""Inversions of FedAvg's updates, and how close they come to the records behind them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Protocol, Self

import numpy as np
import torch
from torch import Tensor

from attacks.core.base import Attack, AttackResult, Images, Labelled, require_disjoint, substream
from attacks.core.images import Match, Originals
from attacks.core.scoring import score_images
from attacks.core.view import Capability, Public, View
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
from secure_fd.errors import LocalError


class Inverse(Protocol):
    """What reads images off one flat gradient [m] of so many records."""

    def __call__(self, layer: FirstLayer, gradient: Tensor, records: int, *, grid: bool) -> Found:
        """Images, the certain ones first."""


class Read(Protocol):
    """What takes updates out of a view."""

    def __call__(self, view: View, recipe: Recipe, /) -> Updates:
        """Those of the newest round."""


EVERYONE = -1
"""In place of a client: the update is the mean over all of them."""
GOOD = 20.0
"""dB from which a digit is recognised as the same handwriting."""
_SHOWN = 10
_REFERENCES = 32
"""Held-out records, over all sets, that an update's guesses are compared with, or one set."""


@dataclass(frozen=True, slots=True, eq=False)
class Behind:
    """What stands behind updates. private: by client, the distinct records that it trained on.
    held_out: by client, one or more sets of records outside all training sets, each class by class
    as many; or of no client at all, where Δ is not asked for.
    """

    private: Mapping[int, Labelled] = field(repr=False)
    held_out: Mapping[int, Sequence[Labelled]] = field(repr=False)

    def __post_init__(self) -> None:
        for client, ours in self.private.items() if self.held_out else ():
            if not self.held_out[client]:
                raise LocalError(f"client {client}: no held-out records")
            for theirs in self.held_out[client]:
                if not torch.equal(ours.labels.sort().values, theirs.labels.sort().values):
                    raise LocalError(f"client {client}: held-out records differ in labels")
                require_disjoint(ours, theirs)

    def originals(self, groups: Tensor) -> Originals:
        """The truth about updates of single clients, or of the mean over EVERYONE."""
        names = torch.unique(groups).tolist()
        behind = {g: sorted(self.private) if g == EVERYONE else [g] for g in names}
        known = {g: ks for g, ks in behind.items() if set(ks) <= self.private.keys()}
        return Originals(
            {g: _joined(self.private, ks) for g, ks in known.items()},
            {g: self._sets(ks) for g, ks in known.items()} if self.held_out else {},
            matched=True,
        )

    def records(self, group: int) -> Labelled:
        """The records behind an update."""
        clients = sorted(self.private) if group == EVERYONE else [group]
        labels = torch.cat([self.private[k].labels for k in clients])
        return Labelled(_joined(self.private, clients), labels)

    def _sets(self, clients: Sequence[int]) -> list[Tensor]:
        """The held-out sets that every one of the clients has, and no more than are needed."""
        wanted = max(1, _REFERENCES // sum(len(self.private[k]) for k in clients))
        sets = list(zip(*(self.held_out[k] for k in clients), strict=False))[:wanted]
        return [torch.cat([part.images for part in parts]) for parts in sets]


@dataclass(frozen=True, slots=True, eq=False)
class UpdateTruth(Behind):
    """control: the attack on updates made of other records."""

    control: Images


def distinct(records: Labelled) -> Labelled:
    """The records without repeats of one image, in the order of their first use."""
    first = {
        image.numpy().tobytes(): place for place, image in reversed([*enumerate(records.images)])
    }
    return records.take(torch.tensor(sorted(first.values())))


def references(private: Labelled, pool: Labelled, seed: int) -> tuple[Labelled, ...]:
    """Sets of the pool's records, each with as many of every class as the private ones have.

    A set of one record is a coarse reference, so small sets come in numbers; sets may share
    records. Raises LocalError where the pool has too few of a class.
    """
    random = torch.Generator().manual_seed(seed)
    sets = max(1, _REFERENCES // len(private))
    return tuple(_reference_set(private, pool, random) for _ in range(sets))


def _reference_set(private: Labelled, pool: Labelled, random: torch.Generator) -> Labelled:
    chosen = []
    for c, wanted in zip(*torch.unique(private.labels, return_counts=True), strict=True):
        found = (pool.labels == c).nonzero()[:, 0]
        if len(found) < wanted:
            raise LocalError(f"held-out: {len(found)} of class {int(c)}, but {int(wanted)} needed")
        chosen.append(found[torch.randperm(len(found), generator=random)[:wanted]])
    return pool.take(torch.cat(chosen))


def _joined(records: Mapping[int, Labelled], clients: Sequence[int]) -> Tensor:
    return torch.cat([records[client].images for client in clients])


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
_RECIPE, _EIGHT = Recipe(batch=1), Recipe(batch=8)
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
    read: which updates of a view are inverted.
    """

    name = "update-inversion"
    title = "Inversion of one update: a fully connected network, one record a step"
    figure_name = "PSNR"
    control_name = "best image without an update: black, public mean, or mean of the true class"
    needs: ClassVar[tuple[frozenset[Capability], ...]] = (MEAN_UPDATE,)
    read: ClassVar[Read] = staticmethod(readable_updates)

    public: Public
    recipe: Recipe = _RECIPE
    settings: Search | None = None

    @classmethod
    def prepare(cls, public: Public, *settings: Any, **named: Any) -> Self:  # noqa: ANN401 - as the base
        """The recipe, and the settings of a search."""
        return cls(public, *settings, **named)

    def run(self, view: View, seed: int) -> Images:
        """One image a record. MissingCapabilityError where the view has no update to read."""
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

    def score(self, estimate: Images, truth: Behind, seed: int) -> AttackResult:
        """Mean PSNR of the records behind the updates, each with a guess of its own.

        In the details: Δ, the share of exact ones, all pixels right in 8 bits, and A_H.
        """
        originals = truth.originals(estimate.groups)
        errors = np.concatenate([m.errors for m in originals.matches(estimate)])
        made = score_images(
            self,
            estimate,
            originals,
            substream(seed, "records"),
            controls=_without_access(estimate, truth, self.public),
            literal=True,
            details={"share_exact": float((errors < _HALF_A_GREY).mean())},
            caveats=(_NOT_ITS_OWN, "120 dB stands for equality"),
        )
        kept = {name: value for name, value in made.details.items() if ":" not in name}
        return replace(made, details=kept, images=None)


@dataclass(frozen=True, slots=True, eq=False)
class UpdateInversionOfEight(UpdateInversion):
    """The closed form on updates of one local step on eight records each."""

    name = "update-inversion-8"
    title = "Inversion of one update: a fully connected network, eight records a step"

    recipe: Recipe = _EIGHT


@dataclass(frozen=True, slots=True, eq=False)
class UpdateMatching(UpdateInversion):
    """Gradient matching on updates of one local step of any network on one record each."""

    name = "update-inversion-cnn"
    title = "Inversion of one update: a convolutional network, one record a step"
    needs = CLIENT_UPDATES
    read = staticmethod(client_updates)

    settings: Search | None = _SHORT


class AnalyticInversion(UpdateInversion):
    """The closed form on every readable client's update, scored beside held-out records."""

    name, title = "gradient-analytic", "Closed-form inversion of a client's update"
    figure_name = "Δ PSNR"
    control_name = "Δ of the same attack on updates made of held-out records"
    needs: ClassVar[tuple[frozenset[Capability], ...]] = CLIENT_UPDATES
    read = staticmethod(client_updates)

    @property
    def caveats(self) -> tuple[str, ...]:
        """What a reader must know of the attack."""
        return (_ON_RECORDS, _PADDED, *([_STEPS] if self.recipe.steps > 1 else []))

    def score(self, estimate: Images, truth: Behind, seed: int) -> AttackResult:
        """Δ with its interval; exactness, and the same figures for every control."""
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
            caveats=(*self.caveats, *estimate.caveats, *alone),
            shown=_pictures(found, others),
        )


class MeanInversion(AnalyticInversion):
    """The closed form on the cohort's mean update, which masks do not hide.

    Whoever holds the global model can run it, a curious client included.
    """

    name, title = "gradient-mean", "Closed-form inversion of the mean update"
    needs = (MEAN_UPDATE,)
    read = staticmethod(mean_update)


@dataclass(frozen=True, slots=True, eq=False)
class OptimisedInversion(AnalyticInversion):
    """Gradient matching on every readable client's update, for any architecture."""

    name, title = "gradient-optimised", "Gradient matching of a client's update"

    settings: Search | None = field(default_factory=Search)

    @property
    def caveats(self) -> tuple[str, ...]:
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
