"""How close an inverted update came to the records behind it, and to records behind none."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Self

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from attacks.base import (
    Attack,
    AttackResult,
    FloatArray,
    ImageArray,
    Labelled,
    require_disjoint,
    substream,
)
from attacks.images import psnr
from attacks.scoring import Rate, mean
from attacks.updates import (
    CLIENT_UPDATES,
    GREYS,
    MEAN_UPDATE,
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
    search,
)
from attacks.view import Capability, Public, View
from secure_fd.errors import LocalError

GOOD = 20.0
"""dB from which a digit is recognised as the same handwriting."""
_SHOWN = 10
_REFERENCES = 32
"""Held-out records, over all sets, that an update's guesses are compared with, or one set."""


@dataclass(frozen=True, slots=True, eq=False)
class UpdateEstimate:
    """images: of each update, one guess a record behind it. clients: whose update it was.

    certain: how many of each, its first ones, the attacker knows to be exact.
    """

    images: tuple[Tensor, ...] = field(repr=False)
    clients: tuple[tuple[int, ...], ...]
    certain: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class UpdateTruth:
    """private: by client, the distinct records that it trained on. held_out: by client, one or
    more sets of records that nobody trained on, each class by class as many. control: the attack
    on updates made of other records.
    """

    private: Mapping[int, Labelled] = field(repr=False)
    held_out: Mapping[int, Sequence[Labelled]] = field(repr=False)
    control: UpdateEstimate

    def __post_init__(self) -> None:
        for client, ours in self.private.items():
            if not self.held_out[client]:
                raise LocalError(f"client {client}: no held-out records")
            for theirs in self.held_out[client]:
                if not torch.equal(ours.labels.sort().values, theirs.labels.sort().values):
                    raise LocalError(f"client {client}: held-out records differ in labels")
                require_disjoint(ours, theirs)


@dataclass(frozen=True, slots=True, eq=False)
class Match:
    """Records [n, 1, H, W] and the guesses assigned to them. decibel: [n] PSNR of each pair."""

    records: Tensor = field(repr=False)
    guesses: Tensor = field(repr=False)
    decibel: FloatArray = field(repr=False)

    @property
    def errors(self) -> FloatArray:
        """[n] largest error of a pixel; zero where a record is recovered to the last bit."""
        gap = (self.records.double() - self.guesses.double()).abs()
        return np.asarray(gap.flatten(1).amax(dim=1).numpy())


@dataclass(frozen=True, slots=True, eq=False)
class _Closeness:
    """By update: the match with its records, and dB [n] with held-out ones, mean over the sets."""

    private: tuple[Match, ...]
    held_out: tuple[FloatArray, ...]

    @property
    def a(self) -> float:
        return float(np.mean([m.decibel.mean() for m in self.private]))

    @property
    def a_held_out(self) -> float:
        return float(np.mean([decibel.mean() for decibel in self.held_out]))

    def delta(self, seed: int) -> Rate:
        """Over updates, whose records share a gradient; over records where there is one update."""
        pairs = list(zip(self.private, self.held_out, strict=True))
        if len(pairs) == 1:
            return mean(pairs[0][0].decibel - pairs[0][1], seed)
        return mean([ours.decibel.mean() - theirs.mean() for ours, theirs in pairs], seed)


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


def match(guesses: Tensor, records: Tensor) -> Match:
    """Assign a guess of its own to every record, so that the sum of PSNR is largest."""
    if len(guesses) < len(records):
        raise LocalError(f"guesses: {len(guesses)} for {len(records)} records; one each is needed")
    decibel = psnr(records, guesses)
    rows, columns = linear_sum_assignment(decibel, maximize=True)
    return Match(records[rows], guesses[columns], decibel[rows, columns])


def score_updates(
    name: str,
    title: str,
    estimate: UpdateEstimate,
    truth: UpdateTruth,
    public: Public,
    caveats: Sequence[str],
    seed: int,
) -> AttackResult:
    """Δ with its interval; exactness, and the same figures for every control."""
    found = _closeness(estimate, truth)
    control = _closeness(truth.control, truth)
    figure = found.delta(substream(seed, "delta"))
    details = _summary(found) | _certainty(estimate, truth) | _figures("control: ", control)
    for guess, made in _without_access(estimate, truth, public).items():
        details |= _figures(f"{guess}: ", _closeness(made, truth))
    n = sum(len(m.records) for m in found.private)
    alone = ("the interval is over records of one update",) if len(found.private) == 1 else ()
    return AttackResult(
        name=name,
        title=title,
        figure=figure.value,
        figure_name="Δ PSNR",
        unit="dB",
        interval=figure.interval,
        control=control.a - control.a_held_out,
        control_name="Δ of the same attack on updates made of held-out records",
        n_members=n,
        n_non_members=n,
        caveats=(*caveats, *alone),
        details=details,
        images=_pictures(found, control),
    )


def _closeness(estimate: UpdateEstimate, truth: UpdateTruth) -> _Closeness:
    each = list(zip(estimate.images, estimate.clients, strict=True))
    private = tuple(match(images, _joined(truth.private, clients)) for images, clients in each)
    held_out = tuple(_to_references(images, clients, truth) for images, clients in each)
    return _Closeness(private, held_out)


def _to_references(images: Tensor, clients: tuple[int, ...], truth: UpdateTruth) -> FloatArray:
    """[n] dB, mean over the sets that every one of the clients has, and no more than are needed."""
    wanted = max(1, _REFERENCES // sum(len(truth.private[k]) for k in clients))
    sets = list(zip(*(truth.held_out[k] for k in clients), strict=False))[:wanted]
    found = [
        match(images, _joined(dict(zip(clients, parts, strict=True)), clients)).decibel
        for parts in sets
    ]
    return np.asarray(np.mean(found, axis=0))


def _joined(records: Mapping[int, Labelled], clients: tuple[int, ...]) -> Tensor:
    return torch.cat([records[client].images for client in clients])


def _figures(prefix: str, close: _Closeness) -> dict[str, float]:
    return {
        f"{prefix}A": close.a,
        f"{prefix}A_H": close.a_held_out,
        f"{prefix}delta": close.a - close.a_held_out,
    }


def _summary(close: _Closeness) -> dict[str, float]:
    decibel = np.concatenate([m.decibel for m in close.private])
    errors = np.concatenate([m.errors for m in close.private])
    return _figures("", close) | {
        "median_psnr": float(np.median(decibel)),
        "share_above_20_dB": float((decibel >= GOOD).mean()),
        "share_exact": float((errors == 0).mean()),
        "max_abs_error": float(errors.max()),
        "median_abs_error": float(np.median(errors)),
    }


def _certainty(estimate: UpdateEstimate, truth: UpdateTruth) -> dict[str, float]:
    """How many records the attacker was sure of without the truth, and how often rightly."""
    claimed, right = 0, 0
    for images, clients, sure in zip(
        estimate.images, estimate.clients, estimate.certain, strict=True
    ):
        real = {i.numpy().tobytes() for k in clients for i in truth.private[k].images}
        claimed += sure
        right += sum(image.numpy().tobytes() in real for image in images[:sure])
    return {"certain": float(claimed), "certain_and_right": float(right)}


def _without_access(
    estimate: UpdateEstimate, truth: UpdateTruth, public: Public
) -> dict[str, UpdateEstimate]:
    """Guesses that consult no update; class means are given the true classes."""
    average, by_class = public.proxies.mean(dim=0), class_means(public)
    labels = [torch.cat([truth.private[k].labels for k in ks]) for ks in estimate.clients]
    made = {
        "black": [torch.zeros_like(average).repeat(len(own), 1, 1, 1) for own in labels],
        "public mean": [average.repeat(len(own), 1, 1, 1) for own in labels],
        "public class mean": [by_class[own] for own in labels],
    }
    none = (0,) * len(labels)
    return {name: UpdateEstimate(tuple(g), estimate.clients, none) for name, g in made.items()}


def _pictures(found: _Closeness, control: _Closeness) -> dict[str, ImageArray]:
    """The first matched record of every update, or the first few of a single one."""
    each = _SHOWN if len(found.private) == 1 else 1

    def first(parts: list[Tensor]) -> ImageArray:
        return torch.cat([part[:each, 0] for part in parts])[:_SHOWN].numpy()

    return {
        "record": first([m.records for m in found.private]),
        "attack": first([m.guesses for m in found.private]),
        "on updates of held-out records": first([m.guesses for m in control.private]),
    }


# The attacks on what FedAvg sends: an update in, the records behind it out.


_ON_RECORDS = "Δ compares with held-out records of the same classes; 120 dB stands for equality"
_STEPS = "several local steps are read as one gradient: the closed form then is approximate"
_PADDED = "records that nothing was read of are guessed to be the public mean"
_RECIPE = Recipe(batch=1)
_HALF_A_GREY = 0.5 / GREYS


@dataclass(frozen=True, slots=True, eq=False)
class AnalyticInversion(Attack[UpdateEstimate]):
    """The closed form on every readable client's update."""

    name: ClassVar[str] = "gradient-analytic"
    title: ClassVar[str] = "Closed-form inversion of a client's update"
    figure_name: ClassVar[str] = "Δ PSNR"
    control_name: ClassVar[str] = "Δ of the same attack on updates made of held-out records"
    needs: ClassVar[tuple[frozenset[Capability], ...]] = CLIENT_UPDATES

    public: Public
    recipe: Recipe

    @classmethod
    def prepare(cls, public: Public, recipe: Recipe) -> Self:
        """recipe: how clients train, which is public."""
        return cls(public, recipe)

    def run(self, view: View, seed: int) -> UpdateEstimate:  # noqa: ARG002 - a closed form
        """One image a record. MissingCapabilityError where the first layer is no linear one."""
        view.require_any(*self.needs)
        return _closed_form(self.public, client_updates(view, self.recipe))

    def score(self, estimate: UpdateEstimate, truth: UpdateTruth, seed: int) -> AttackResult:
        """See `score_updates`."""
        caveats = _closed_form_caveats(self.recipe)
        return score_updates(self.name, self.title, estimate, truth, self.public, caveats, seed)


@dataclass(frozen=True, slots=True, eq=False)
class MeanInversion(Attack[UpdateEstimate]):
    """The closed form on the cohort's mean update, which masks do not hide.

    Whoever holds the global model can run it, a curious client included.
    """

    name: ClassVar[str] = "gradient-mean"
    title: ClassVar[str] = "Closed-form inversion of the mean update"
    figure_name: ClassVar[str] = "Δ PSNR"
    control_name: ClassVar[str] = "Δ of the same attack on updates made of held-out records"
    needs: ClassVar[tuple[frozenset[Capability], ...]] = (MEAN_UPDATE,)

    public: Public
    recipe: Recipe

    @classmethod
    def prepare(cls, public: Public, recipe: Recipe) -> Self:
        """recipe: how clients train, which is public."""
        return cls(public, recipe)

    def run(self, view: View, seed: int) -> UpdateEstimate:  # noqa: ARG002 - a closed form
        """One image a record of the cohort; whose it is, stays unknown."""
        view.require_any(*self.needs)
        return _closed_form(self.public, mean_update(view, self.recipe))

    def score(self, estimate: UpdateEstimate, truth: UpdateTruth, seed: int) -> AttackResult:
        """See `score_updates`."""
        whose = "finds records of the cohort; a match does not say whose they are"
        caveats = (*_closed_form_caveats(self.recipe), whose)
        return score_updates(self.name, self.title, estimate, truth, self.public, caveats, seed)


@dataclass(frozen=True, slots=True, eq=False)
class OptimisedInversion(Attack[UpdateEstimate]):
    """Gradient matching on every readable client's update, for any architecture."""

    name: ClassVar[str] = "gradient-optimised"
    title: ClassVar[str] = "Gradient matching of a client's update"
    figure_name: ClassVar[str] = "Δ PSNR"
    control_name: ClassVar[str] = "Δ of the same attack on updates made of held-out records"
    needs: ClassVar[tuple[frozenset[Capability], ...]] = CLIENT_UPDATES

    public: Public
    recipe: Recipe
    settings: Search = field(default_factory=Search)

    @classmethod
    def prepare(cls, public: Public, recipe: Recipe, settings: Search | None = None) -> Self:
        """recipe: how clients train, which is public."""
        return cls(public, recipe, settings or Search())

    def run(self, view: View, seed: int) -> UpdateEstimate:
        """One image a record, with labels that the update itself gives away."""
        view.require_any(*self.needs)
        updates = client_updates(view, self.recipe)
        labels = infer_labels(self.public, updates, self.recipe.steps)
        chance = substream(seed, "gradient matching")
        images = search(self.public, updates, labels, self.recipe, self.settings, chance)
        return UpdateEstimate(tuple(images), updates.clients, (0,) * len(updates))

    def score(self, estimate: UpdateEstimate, truth: UpdateTruth, seed: int) -> AttackResult:
        """See `score_updates`."""
        caveats = (
            _ON_RECORDS,
            "a search that stops early, or has few restarts, understates the leak",
            "starts from the public class mean: raw PSNR is not its merit alone",
        )
        return score_updates(self.name, self.title, estimate, truth, self.public, caveats, seed)


@dataclass(frozen=True, slots=True, eq=False)
class UpdateInversion(Attack[UpdateEstimate]):
    """The closed form on updates of one local step on one record each.

    public: its architecture starts with a fully connected layer.
    """

    name: ClassVar[str] = "update-inversion"
    title: ClassVar[str] = "Inversion of one update: one step on one record"
    figure_name: ClassVar[str] = "PSNR of one step on one record"
    control_name: ClassVar[str] = "the public mean image, from no update"
    needs: ClassVar[tuple[frozenset[Capability], ...]] = CLIENT_UPDATES

    public: Public

    def run(self, view: View, seed: int) -> UpdateEstimate:  # noqa: ARG002 - a closed form
        """One image a client. MissingCapabilityError where the view has no client's update."""
        view.require_any(*self.needs)
        return _closed_form(self.public, client_updates(view, _RECIPE))

    def score(
        self, estimate: UpdateEstimate, records: Mapping[int, Tensor], seed: int
    ) -> AttackResult:
        """Mean PSNR to each client's record; records: by client, [1, 1, H, W].

        In the details: the share of exact ones, all pixels right in 8 bits, and a black image.
        """
        pairs = [
            match(images, records[client])
            for images, (client,) in zip(estimate.images, estimate.clients, strict=True)
        ]
        average = self.public.proxies.mean(dim=0, keepdim=True)
        truth = torch.cat([pair.records for pair in pairs])
        figure = mean(np.concatenate([pair.decibel for pair in pairs]), seed)
        exact = float(np.mean([pair.errors.max() < _HALF_A_GREY for pair in pairs]))
        return AttackResult(
            name=self.name,
            title=self.title,
            figure=figure.value,
            figure_name="PSNR of one step on one record",
            unit="dB",
            interval=figure.interval,
            control=_one_guess(average, truth),
            control_name="the public mean image, from no update",
            n_members=len(truth),
            caveats=(
                "one step on one record by a fully connected network, not the row's own schedule",
                "120 dB stands for equality",
            ),
            details={
                "share_exact": exact,
                "black": _one_guess(torch.zeros_like(average), truth),
            },
        )


def _one_guess(guess: Tensor, records: Tensor) -> float:
    """Mean PSNR of one image [1, 1, H, W] to all records [n, 1, H, W]."""
    return float(np.mean([match(guess, record[None]).decibel for record in records]))


def _closed_form(public: Public, updates: Updates) -> UpdateEstimate:
    layer, grid = first_layer(public), on_grid(public.proxies)
    found = [
        invert_first_layer(layer, gradient, updates.records, grid=grid)
        for gradient in updates.gradients
    ]
    average = public.proxies.mean(dim=0)
    return UpdateEstimate(
        tuple(_padded(each, average, updates.records) for each in found),
        updates.clients,
        tuple(each.certain for each in found),
    )


def _padded(found: Found, average: Tensor, records: int) -> Tensor:
    missing = records - len(found.images)
    return torch.cat([found.images, average.repeat(missing, 1, 1, 1)])


def _closed_form_caveats(recipe: Recipe) -> Sequence[str]:
    return (_ON_RECORDS, _PADDED, *([_STEPS] if recipe.steps > 1 else []))
