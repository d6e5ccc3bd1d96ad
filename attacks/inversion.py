"""Generative model inversion: the image of a public prior that a network likes best for a class.

    min_z  -D(G(z)) + weight * CE(T(G(z)), y)

by gradient descent with Nesterov momentum .9, z clamped to [-1, 1], several restarts, the best
kept by the target network's own score (Zhang et al., "The Secret Revealer", CVPR 2020). The score
is the paper's, the lowest cross-entropy; the code published with it keeps the largest logit.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Final, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from attacks.base import (
    Attack,
    AttackResult,
    ImageArray,
    Labelled,
    match_classes,
    require_disjoint,
    substream,
)
from attacks.fit import Chooser, Fit, HiddenFeatures, distil_student, fit, label_function
from attacks.images import (
    Features,
    Leakage,
    class_coverage,
    closeness,
    coverage,
    feature_distance,
    knn_distance,
    leakage,
    pixels,
    psnr,
    ssim,
)
from attacks.prior import Prior
from attacks.scoring import Rate, proportion
from attacks.view import Capability, LabelFunction, Public, View
from secure_fd.errors import ConfigurationError, LocalError


@dataclass(frozen=True, slots=True)
class InversionSettings:
    """How hard to search. per_class: reconstructions; restarts: codes tried for each of them.

    averaged: the loss is the mean over the codes of a restart, as GMI has it, so that a code's
    step is `rate` over their number; otherwise it is the sum, and a code's step is `rate` however
    many are searched together.
    """

    steps: int = 200
    restarts: int = 3
    per_class: int = 2
    rate: float = 2e-3
    momentum: float = 0.9
    weight: float = 100.0
    averaged: bool = False

    def __post_init__(self) -> None:
        for name in ("steps", "restarts", "per_class"):
            if getattr(self, name) < 1:
                raise ConfigurationError(f"inversion.{name}", getattr(self, name), "use 1 or more")


QUICK = InversionSettings(steps=120, restarts=2, per_class=1)
PUBLISHED = InversionSettings(steps=1500, restarts=5, per_class=1, rate=1e-2, averaged=True)
"""GMI's own, for MNIST. Five classes a batch make 2e-3 a code, the default here."""


@dataclass(frozen=True, slots=True, eq=False)
class Reconstruction:
    """images: [n, 1, H, W] in [0, 1]. classes: [n] the class each is meant to show."""

    images: Tensor = field(repr=False)
    classes: Tensor = field(repr=False)

    def __post_init__(self) -> None:
        if self.classes.shape != self.images.shape[:1] or len(self.images) == 0:
            raise LocalError(f"{len(self.classes)} classes for {len(self.images)} reconstructions")


def invert(
    target: nn.Module, prior: Prior, classes: Tensor, settings: InversionSettings, seed: int
) -> Reconstruction:
    """`per_class` reconstructions of every class [c]; all classes and restarts in one batch.

    Networks in evaluation mode give every code a gradient of its own, so that searching restarts
    together changes nothing but time.
    """
    target.eval()
    wanted = classes.repeat_interleave(settings.per_class)
    labels = wanted.repeat_interleave(settings.restarts)
    random = torch.Generator().manual_seed(seed)
    start = torch.randn(len(labels), prior.settings.latent, generator=random).clamp(-1, 1)
    z = _descend(target, prior, start, labels, settings)
    with torch.no_grad():
        images = prior.generator(z)
        losses = cross_entropy(target(images), labels, reduction="none")
    best = losses.view(-1, settings.restarts).argmin(dim=1)
    picks = torch.arange(len(wanted)) * settings.restarts + best
    return Reconstruction(images[picks], wanted)


def _descend(
    target: nn.Module, prior: Prior, start: Tensor, labels: Tensor, settings: InversionSettings
) -> Tensor:
    z = start.requires_grad_()
    optimizer = torch.optim.SGD([z], settings.rate, momentum=settings.momentum, nesterov=True)
    share = settings.restarts / len(labels) if settings.averaged else 1.0
    for _ in range(settings.steps):
        images = prior.generator(z)
        fit = cross_entropy(target(images), labels, reduction="sum")
        loss = share * (settings.weight * fit - prior.critic(images).sum())
        # Only the codes are differentiated: the networks collect no gradients.
        (z.grad,) = torch.autograd.grad(loss, z)
        optimizer.step()
        with torch.no_grad():
            z.clamp_(-1, 1)
    return z.detach()


# Reconstructions made with no access to the run: what an attack must beat before it leaks.
#
# Each uses public proxies alone. Those that need their labels are left out where nobody labelled
# them.


RANDOM_TARGET = "randomly initialised target"
PUBLIC_TARGET = "public-only target"
CENTROIDS = 8


def inversion_controls(
    public: Public,
    prior: Prior,
    classes: Tensor,
    *,
    settings: InversionSettings,
    training: Fit,
    seed: int,
) -> Mapping[str, Reconstruction]:
    """Every control by name, each with reconstructions of all classes [c]."""
    controls = _images_alone(public, prior, classes, settings, seed)
    fresh = public.architecture(substream(seed, "random target"))
    controls[RANDOM_TARGET] = invert(
        fresh, prior, classes, settings, substream(seed, RANDOM_TARGET)
    )
    if public.labels is not None:
        taught = fit(
            public.architecture,
            public.proxies,
            public.labels,
            training,
            substream(seed, "public target"),
        )
        controls[PUBLIC_TARGET] = invert(
            taught, prior, classes, settings, substream(seed, PUBLIC_TARGET)
        )
    return controls


def _images_alone(
    public: Public, prior: Prior, classes: Tensor, settings: InversionSettings, seed: int
) -> dict[str, Reconstruction]:
    """Controls that consult no network but the prior."""
    proxies = public.proxies
    samples = prior.sample(len(classes) * settings.per_class, substream(seed, "prior samples"))
    controls = {
        "black": _same_for_all(torch.zeros_like(proxies[:1]), classes),
        "public mean": _same_for_all(proxies.mean(dim=0, keepdim=True), classes),
        "prior without target": Reconstruction(
            samples, classes.repeat_interleave(settings.per_class)
        ),
    }
    if public.labels is None:
        controls["public centroids"] = _same_for_all(_centroids(proxies, seed), classes)
        return controls
    controls["public class mean"] = _by_class(public, classes, _mean)
    controls["public class centroids"] = _by_class(
        public, classes, lambda images: _centroids(images, seed)
    )
    return controls


def _by_class(
    public: Public, classes: Tensor, summary: Callable[[Tensor], Tensor]
) -> Reconstruction:
    """A summary of each class's public images; of all of them for a class that has none."""
    labels = public.require_labels()
    parts = []
    for c in classes.tolist():
        found = public.proxies[labels == c]
        parts.append(summary(found if len(found) else public.proxies))
    sizes = torch.tensor([len(part) for part in parts])
    return Reconstruction(torch.cat(parts), classes.repeat_interleave(sizes))


def _same_for_all(images: Tensor, classes: Tensor) -> Reconstruction:
    return Reconstruction(
        images.repeat(len(classes), 1, 1, 1), classes.repeat_interleave(len(images))
    )


def _mean(images: Tensor) -> Tensor:
    return images.mean(dim=0, keepdim=True)


def _centroids(images: Tensor, seed: int) -> Tensor:
    """[k, 1, H, W] centres of k-means, k at most CENTROIDS and at most the images."""
    k = min(CENTROIDS, len(torch.unique(images.flatten(1), dim=0)))
    from sklearn.cluster import KMeans  # slow to import, and only controls need it

    means = KMeans(k, n_init=1, random_state=substream(seed, "centroids"))
    centers = means.fit(images.flatten(1).numpy()).cluster_centers_
    return torch.from_numpy(centers).float().clamp(0, 1).view(k, *images.shape[1:])


# Model inversion: what do private images of a class look like?
#
# The same prior and the same search against whatever the view holds: the global parameters of
# FedAvg, or a student distilled from the ensembles of a distillation method; or against a network
# that the attacker stole by other means. The comparison is then one of access, not of attacks.


REFERENCES = 200
"""Most private, and held-out, images a class that a reconstruction is compared with."""


@dataclass(frozen=True, slots=True, eq=False)
class InversionEstimate:
    """reconstruction, and the words for what was inverted."""

    reconstruction: Reconstruction
    target: str


@dataclass(frozen=True, slots=True, eq=False)
class InversionTruth:
    """Private and held-out images, class by class equally many, and an independent evaluator.

    features: images -> the evaluator's, in which GMI measures distances. chooser: the evaluator
    choosing among the private classes alone, where there are others; lenient, as chance is larger.
    """

    private: Labelled
    held_out: Labelled
    evaluator: LabelFunction = field(repr=False)
    features: Features = field(default=pixels, repr=False)
    chooser: LabelFunction | None = field(default=None, repr=False)


def inversion_truth(
    private: Labelled,
    held_out: Labelled,
    public: Public,
    training: Fit,
    seed: int,
    lesson: Labelled | None = None,
) -> InversionTruth:
    """The scorer's side. lesson: what the evaluator learns from; the held-out records by default.

    Raises LocalError where a private image is held out or in the lesson.
    """
    require_disjoint(private, held_out)
    taught = held_out if lesson is None else lesson
    require_disjoint(private, taught)
    evaluator = fit(
        public.architecture,
        taught.images,
        taught.labels,
        training,
        substream(seed, "evaluator"),
    )
    ours, theirs = match_classes(private, held_out, substream(seed, "references"), REFERENCES)
    held = torch.unique(ours.labels)
    return InversionTruth(
        ours,
        theirs,
        label_function(evaluator),
        HiddenFeatures(evaluator),
        Chooser(evaluator, held) if len(held) < public.n_classes else None,
    )


@dataclass(frozen=True, slots=True, eq=False)
class ModelInversion(Attack[InversionEstimate]):
    """GMI with a public prior; build it with `prepare`, which needs no transcript."""

    name: ClassVar[str] = "inversion"
    title: ClassVar[str] = "Model inversion with a public prior"
    figure_name: ClassVar[str] = "Δ PSNR"
    control_name: ClassVar[str] = "Δ of the public-only target"
    needs: ClassVar[tuple[frozenset[Capability], ...]] = (
        frozenset({Capability.GLOBAL_PARAMETERS, Capability.PUBLIC_PROXIES}),
        frozenset({Capability.READ_ENSEMBLES, Capability.PUBLIC_PROXIES}),
    )

    prior: Prior
    settings: InversionSettings
    training: Fit
    classes: Tensor = field(repr=False)
    controls: Mapping[str, Reconstruction] = field(repr=False)

    @classmethod
    def prepare(
        cls,
        public: Public,
        prior: Prior,
        seed: int,
        settings: InversionSettings | None = None,
        training: Fit | None = None,
        classes: Tensor | None = None,
    ) -> Self:
        """Make the controls once; the attack then serves every method with this public set.

        classes: [c] whose images are sought; all by default.
        """
        search, lesson = settings or InversionSettings(), training or Fit()
        classes = torch.arange(public.n_classes) if classes is None else classes
        controls = inversion_controls(
            public, prior, classes, settings=search, training=lesson, seed=seed
        )
        return cls(prior, search, lesson, classes, controls)

    def run(self, view: View, seed: int) -> InversionEstimate:
        """Reconstructions of every class from the strongest target that the view holds."""
        view.require_any(*self.needs)
        if Capability.GLOBAL_PARAMETERS in view.capabilities:
            target, words = _global_model(view), "global model"
        else:
            lesson = substream(seed, "student")
            target, words = distil_student(view, self.training, lesson), "student of ensembles"
        return self.against(target, words, seed)

    def against(self, target: nn.Module, words: str, seed: int) -> InversionEstimate:
        """The same search against a network that the attacker has, however it came by it."""
        found = invert(target, self.prior, self.classes, self.settings, substream(seed, "codes"))
        return InversionEstimate(found, words)

    def score(self, estimate: InversionEstimate, truth: InversionTruth, seed: int) -> AttackResult:
        """Δ with its interval; A, A_H, D and attack accuracy for the attack and every control.

        `beyond_pixels` for the attack and the controls that invert a network alone.
        """
        close = compare(estimate.reconstruction, truth, seed)
        right = _accuracy(estimate.reconstruction, truth.evaluator)
        details = _details("", close, right)
        deltas: dict[str, float] = {}
        for name, control in self.controls.items():
            of_control = compare(control, truth, seed)
            deltas[name] = of_control.delta.value
            details |= _details(f"{name}: ", of_control, _accuracy(control, truth.evaluator))
        control_name = PUBLIC_TARGET if PUBLIC_TARGET in deltas else RANDOM_TARGET
        details |= beyond_pixels("", estimate.reconstruction, truth)
        for name in {control_name, RANDOM_TARGET}:
            details |= beyond_pixels(f"{name}: ", self.controls[name], truth)
        return AttackResult(
            name=self.name,
            title=f"{self.title} ({estimate.target})",
            figure=close.delta.value,
            figure_name="Δ PSNR",
            unit="dB",
            interval=close.delta.interval,
            control=deltas[control_name],
            control_name=f"Δ of the {control_name}",
            n_members=len(truth.private),
            n_non_members=len(truth.held_out),
            caveats=_CAVEATS,
            details=details,
            images=pictures(estimate.reconstruction, self.controls),
        )


_CAVEATS = (
    "raw PSNR (A) rewards blur: read it beside the controls made with no access",
    "attack accuracy and D speak of classes, not of records",
    "the interval covers the reconstructions drawn; the p-value covers the images compared",
)


def _global_model(view: View) -> nn.Module:
    """The shared architecture with the newest global parameters."""
    model = view.public.architecture(0)  # every weight is overwritten
    flat = torch.from_numpy(np.array(view.global_parameters(), dtype=np.float32))
    expected = parameters_to_vector(model.parameters()).numel()
    if flat.numel() != expected:
        raise LocalError(
            f"global parameters: {flat.numel()} values, but the architecture has {expected}"
        )
    vector_to_parameters(flat, model.parameters())
    return model.eval()


def _by_class_inversion(
    found: Reconstruction, truth: InversionTruth
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Reconstructions, private and held-out images of each class; nobody's class cannot leak."""
    for c in torch.unique(found.classes).tolist():
        private = truth.private.images[truth.private.labels == c]
        held_out = truth.held_out.images[truth.held_out.labels == c]
        if len(private) or len(held_out):
            yield found.images[found.classes == c], private, held_out


def compare(found: Reconstruction, truth: InversionTruth, seed: int) -> Leakage:
    """A, A_H, D and Δ of reconstructions, over the classes that somebody holds.

    Raises LocalError where they show no such class.
    """
    parts = [closeness(*images) for images in _by_class_inversion(found, truth)]
    if not parts:
        raise LocalError("no class of the reconstructions is among the private images")
    return leakage(parts, substream(seed, "leakage"))


def _accuracy(found: Reconstruction, evaluator: LabelFunction) -> Rate:
    hits = int((evaluator(found.images) == found.classes).sum())
    return proportion(hits, len(found.classes))


def _details(prefix: str, close: Leakage, right: Rate) -> dict[str, float]:
    return {
        f"{prefix}A": close.a,
        f"{prefix}A_H": close.a_held_out,
        f"{prefix}D": close.d,
        f"{prefix}mean_psnr": close.pairs,
        f"{prefix}delta": close.delta.value,
        f"{prefix}delta_p_value": close.p_value,
        f"{prefix}attack_accuracy": right.value,
        f"{prefix}attack_accuracy_low": right.interval[0],
        f"{prefix}attack_accuracy_high": right.interval[1],
    }


def beyond_pixels(prefix: str, found: Reconstruction, truth: InversionTruth) -> dict[str, float]:
    """Best SSIM and feature distances to private and held-out (_H) images; what is covered.

    feature_distance and KNN are GMI's. coverage: of the private images. All are class-level but
    for a difference between a figure and its _H.
    """
    rows: list[dict[str, float]] = []
    for images, private, held_out in _by_class_inversion(found, truth):
        row = {"feature_distance": float(feature_distance(images, private, truth.features).mean())}
        for suffix, references in (("", private), ("_H", held_out)):
            nearest = knn_distance(images, references, features=truth.features)
            row[f"SSIM{suffix}"] = float(ssim(images, references).max(axis=1).mean())
            row[f"KNN{suffix}"] = float(nearest.mean())
            k = min(5, len(references) - 1)
            if k:
                row[f"coverage{suffix}"] = coverage(images, references, k, truth.features)
        rows.append(row)
    names = {name: None for row in rows for name in row}  # in order
    means = {name: float(np.mean([row[name] for row in rows if name in row])) for name in names}
    means["class_coverage"] = class_coverage(found.classes, truth.evaluator(found.images))
    if truth.chooser is not None:
        means["attack_accuracy_among_private"] = _accuracy(found, truth.chooser).value
    return {f"{prefix}{name}": value for name, value in means.items()}


def pictures(
    found: Reconstruction, controls: Mapping[str, Reconstruction]
) -> dict[str, ImageArray]:
    """[n, H, W] of the reconstructions and of every control, by name."""
    named = {"attack": found, **controls}
    return {name: made.images[:, 0].numpy() for name, made in named.items()}


# Reconstructions by raw PSNR, as Fig. 8 of the Selective-FD paper reports them.
#
# The figure that the literature prints and that a blurred image without any access beats: it
# stands
# here to be read beside its controls. `attacks.images` says why, and what to report instead.


NAME: Final = "raw-psnr"


def raw_psnr(
    found: Reconstruction,
    words: str,
    controls: Mapping[str, Reconstruction],
    truth: InversionTruth,
    seed: int,
) -> AttackResult:
    """A, in dB: best PSNR to a private image of the class, averaged over reconstructions.

    words: the attack and its target. controls: made without access, by name; the best of them by
    the same figure is the control. Δ, D and the mean over all private images are details.
    """
    close = compare(found, truth, seed)
    without = {name: compare(made, truth, seed) for name, made in controls.items()}
    best = max(without, key=lambda name: without[name].a)
    details = _readings("", close)
    for name, control in without.items():
        details |= _readings(f"{name}: ", control)
    return AttackResult(
        name=NAME,
        title=f"Raw PSNR ({words})",
        figure=close.a,
        figure_name="PSNR",
        unit="dB",
        interval=close.a_interval,
        control=without[best].a,
        control_name=f"PSNR of the {best}",
        n_members=len(truth.private),
        n_non_members=len(truth.held_out),
        caveats=(f"PSNR to the nearest private image of the class; {best} had no access at all",),
        details=details,
        images=_gallery(found, controls, truth),
    )


def _gallery(
    found: Reconstruction, controls: Mapping[str, Reconstruction], truth: InversionTruth
) -> dict[str, ImageArray]:
    """One reconstruction a class, the private image nearest to it, and the same of controls."""
    shown = _one_a_class(found)
    known = torch.isin(shown.classes, truth.private.labels)
    shown = Reconstruction(shown.images[known], shown.classes[known])
    near = psnr(shown.images, truth.private.images)
    near[(shown.classes[:, None] != truth.private.labels).numpy()] = -1.0  # below any PSNR
    originals = truth.private.images[torch.from_numpy(near.argmax(axis=1))]
    named = {"originals": Reconstruction(originals, shown.classes)}
    return pictures(shown, named | {name: _one_a_class(made) for name, made in controls.items()})


def _one_a_class(made: Reconstruction) -> Reconstruction:
    first = torch.stack([(made.classes == c).nonzero()[0, 0] for c in torch.unique(made.classes)])
    return Reconstruction(made.images[first], made.classes[first])


def _readings(prefix: str, close: Leakage) -> dict[str, float]:
    """The PSNRs that a paper may mean, and Δ with what chance makes of it."""
    return {
        f"{prefix}A": close.a,
        f"{prefix}A_H": close.a_held_out,
        f"{prefix}D": close.d,
        f"{prefix}mean_psnr": close.pairs,
        f"{prefix}delta": close.delta.value,
        f"{prefix}delta_p_value": close.p_value,
    }
