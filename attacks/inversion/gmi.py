"""Generative model inversion: the image of a public prior that a network likes best for a class.

    min_z  -D(G(z)) + weight * CE(T(G(z)), y)

by gradient descent with Nesterov momentum .9, z clamped to [-1, 1], several restarts, the best
kept by the target network's own score (Zhang et al., "The Secret Revealer", CVPR 2020). The score
is the paper's, the lowest cross-entropy; the code published with it keeps the largest logit.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Self

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from attacks.core.base import (
    AttackResult,
    Effort,
    Images,
    Labelled,
    match_classes,
    require_disjoint,
    substream,
)
from attacks.core.fit import QUICK as QUICK_FIT
from attacks.core.fit import (
    Fit,
    distil_student,
    fit,
    label_function,
    network,
    on_device,
)
from attacks.core.images import Originals, compare, psnr
from attacks.core.run import REFERENCES, Attack, Run, labelled, public_of
from attacks.core.scoring import score_images
from attacks.core.statistics import Rate, proportion
from attacks.core.view import Capability, LabelFunction, Public, View
from attacks.inversion import prior as priors
from attacks.inversion.prior import Prior
from secure_fd.data.federated import FederatedData
from secure_fd.data.images import concatenate
from secure_fd.errors import ConfigurationError


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
SHORT = InversionSettings(steps=150, restarts=2)
"""Of the comparison. The suite searches longer, and finds as little."""
_SEARCHES: Mapping[Effort, Callable[[], InversionSettings]] = {
    "quick": lambda: QUICK,
    "short": lambda: SHORT,
    "full": InversionSettings,
}
PUBLISHED = InversionSettings(steps=1500, restarts=5, per_class=1, rate=1e-2, averaged=True)
"""GMI's own, for MNIST. Five classes a batch make 2e-3 a code, the default here."""


def invert(
    target: nn.Module, prior: Prior, classes: Tensor, settings: InversionSettings, seed: int
) -> Images:
    """`per_class` reconstructions of every class [c]; all classes and restarts in one batch.

    Networks in evaluation mode give every code a gradient of its own, so that searching restarts
    together changes nothing but time.
    """
    target.eval()
    wanted = classes.repeat_interleave(settings.per_class)
    labels = wanted.repeat_interleave(settings.restarts)
    random = torch.Generator().manual_seed(seed)
    start = torch.randn(len(labels), prior.settings.latent, generator=random).clamp(-1, 1)
    with on_device(target, prior.generator, prior.critic) as on:
        there = labels.to(on)
        z = _descend(target, prior, start.to(on), there, settings)
        with torch.no_grad():
            images = prior.generator(z)
            losses = cross_entropy(target(images), there, reduction="none").cpu()
        images = images.cpu()
    best = losses.view(-1, settings.restarts).argmin(dim=1)
    picks = torch.arange(len(wanted)) * settings.restarts + best
    return Images(images[picks], wanted)


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
) -> Mapping[str, Images]:
    """Reconstructions of all classes [c] made with no access to the run, by name.

    Each uses public proxies alone; those that need their labels are left out where there are none.
    """
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
) -> dict[str, Images]:
    """Controls that consult no network but the prior."""
    proxies = public.proxies
    samples = prior.sample(len(classes) * settings.per_class, substream(seed, "prior samples"))
    controls = {
        "black": _same_for_all(torch.zeros_like(proxies[:1]), classes),
        "public mean": _same_for_all(proxies.mean(dim=0, keepdim=True), classes),
        "prior without target": Images(samples, classes.repeat_interleave(settings.per_class)),
    }
    if public.labels is None:
        controls["public centroids"] = _same_for_all(_centroids(proxies, seed), classes)
        return controls
    controls["public class mean"] = _by_class(public, classes, _mean)
    controls["public class centroids"] = _by_class(
        public, classes, lambda images: _centroids(images, seed)
    )
    return controls


def _by_class(public: Public, classes: Tensor, summary: Callable[[Tensor], Tensor]) -> Images:
    """A summary of each class's public images; of all of them for a class that has none."""
    labels = public.require_labels()
    parts = []
    for c in classes.tolist():
        found = public.proxies[labels == c]
        parts.append(summary(found if len(found) else public.proxies))
    sizes = torch.tensor([len(part) for part in parts])
    return Images(torch.cat(parts), classes.repeat_interleave(sizes))


def _same_for_all(images: Tensor, classes: Tensor) -> Images:
    return Images(images.repeat(len(classes), 1, 1, 1), classes.repeat_interleave(len(images)))


def _mean(images: Tensor) -> Tensor:
    return images.mean(dim=0, keepdim=True)


def _centroids(images: Tensor, seed: int) -> Tensor:
    """[k, 1, H, W] centres of k-means, k at most CENTROIDS and at most the images."""
    k = min(CENTROIDS, len(torch.unique(images.flatten(1), dim=0)))
    from sklearn.cluster import KMeans  # slow to import, and only controls need it

    means = KMeans(k, n_init=1, random_state=substream(seed, "centroids"))
    centers = means.fit(images.flatten(1).numpy()).cluster_centers_
    return torch.from_numpy(centers).float().clamp(0, 1).view(k, *images.shape[1:])


@dataclass(frozen=True, slots=True, eq=False)
class InversionTruth:
    """Private and held-out images, class by class equally many, and an independent evaluator."""

    private: Labelled
    held_out: Labelled
    evaluator: LabelFunction = field(repr=False)

    @property
    def originals(self) -> Originals:
        """Private and held-out images by class."""
        return originals_of(self.private, self.held_out)


def originals_of(private: Labelled, held_out: Labelled) -> Originals:
    """The truth about images by class, equally many of each on both sides."""
    classes = torch.unique(private.labels).tolist()
    ours, theirs = (
        {c: side.images[side.labels == c] for c in classes} for side in (private, held_out)
    )
    return Originals(ours, {c: [images] for c, images in theirs.items()})


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
    return InversionTruth(ours, theirs, label_function(evaluator))


@dataclass(frozen=True, slots=True, eq=False)
class ModelInversion(Attack[Images, InversionTruth]):
    """GMI with a public prior: what do private images of a class look like?

    The same prior and the same search against whatever the view holds: the global parameters of
    FedAvg, a student distilled from ensembles, or a network that was stolen by other means. The
    comparison is then one of access, not of attacks.
    """

    name = "inversion"
    title = "Model inversion with a public prior"
    figure_name = "Δ PSNR"
    control_name = "Δ of the public-only target"
    needs = (
        frozenset({Capability.GLOBAL_PARAMETERS, Capability.PUBLIC_PROXIES}),
        frozenset({Capability.READ_ENSEMBLES, Capability.PUBLIC_PROXIES}),
    )
    default = True

    prior: Prior
    settings: InversionSettings
    training: Fit
    classes: Tensor = field(repr=False)
    controls: Mapping[str, Images] = field(repr=False)

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

    @classmethod
    def for_data(
        cls,
        data: FederatedData,
        seed: int,
        effort: Effort = "full",
    ) -> Self:
        """Return the attack with its prior, its controls, and the truth about these data."""
        public, lesson = public_of(data), QUICK_FIT if effort == "quick" else Fit()
        prior = priors.train_prior(
            public.proxies,
            priors.QUICK_PRIOR,  # a finer one takes half a minute, and no row leaves its control
            seed,
        )
        made = cls.prepare(public, prior, seed, _SEARCHES[effort](), lesson)
        members = labelled(concatenate([client.train for client in data.clients]))
        truth = inversion_truth(members, labelled(data.held_out), public, lesson, seed)
        return made.with_truth(truth)

    @classmethod
    def for_run(cls, run: Run) -> Self:
        """Search with the prior that all runs on these data share."""
        run.view.require_any(*cls.needs)
        shared: Self = run.shared(cls)
        return shared

    def estimate(self, view: View, seed: int) -> Images:
        """Images of every class from the strongest target that the view holds."""
        view.require_any(*self.needs)
        if Capability.GLOBAL_PARAMETERS in view.capabilities:
            parameters = torch.from_numpy(view.global_parameters().copy())
            target, words = network(view.public, parameters), "global model"
        else:
            lesson = substream(seed, "student")
            target, words = distil_student(view, self.training, lesson), "student of ensembles"
        return self.against(target, words, seed)

    def against(self, target: nn.Module, words: str, seed: int) -> Images:
        """The same search against a network that the attacker has, however it came by it."""
        found = invert(target, self.prior, self.classes, self.settings, substream(seed, "codes"))
        return replace(found, target=words)

    def score(self, estimate: Images, seed: int) -> AttackResult:
        """Δ with its interval; A, A_H, D and attack accuracy for the attack and every control."""
        known = self.controls
        shown = {"attack": estimate, **known}
        return score_inversion(self, estimate, self.truth, seed, known, {}, shown, _CAVEATS)


def control_of(controls: Mapping[str, Images]) -> str:
    """The control that a figure stands beside: the strongest that consults no client."""
    return PUBLIC_TARGET if PUBLIC_TARGET in controls else RANDOM_TARGET


def score_inversion(
    attack: Attack[Images, InversionTruth],
    estimate: Images,
    truth: InversionTruth,
    seed: int,
    controls: Mapping[str, Images],
    details: Mapping[str, float],
    shown: Mapping[str, Images],
    caveats: tuple[str, ...] = (),
) -> AttackResult:
    """Δ with its interval; attack accuracy of the estimate, of its other routes and of controls."""
    against, every = control_of(controls), {**estimate.others, **controls}
    right = accuracy_details("", estimate, truth.evaluator)
    for name, made in every.items():
        right |= accuracy_details(f"{name}: ", made, truth.evaluator)
    return score_images(
        attack,
        replace(estimate, control_name=f"Δ of the {against}"),
        truth.originals,
        substream(seed, "leakage"),
        controls=every,
        against=against,
        details={**right, **details},
        caveats=caveats,
        shown={name: made.images for name, made in shown.items()},
    )


_CAVEATS = (
    "raw PSNR (A) rewards blur: read it beside the controls made with no access",
    "attack accuracy and D speak of classes, not of records",
    "the interval covers the reconstructions drawn; the p-value covers the images compared",
)


def accuracy_details(prefix: str, found: Images, evaluator: LabelFunction) -> dict[str, float]:
    """How often an evaluator sees the class that was meant, with its interval."""
    right = _accuracy(found, evaluator)
    return {
        f"{prefix}attack_accuracy": right.value,
        f"{prefix}attack_accuracy_low": right.interval[0],
        f"{prefix}attack_accuracy_high": right.interval[1],
    }


def _accuracy(found: Images, evaluator: LabelFunction) -> Rate:
    hits = int((evaluator(found.images) == found.groups).sum())
    return proportion(hits, len(found.groups))


RAW_PSNR: Final = "raw-psnr"


def raw_psnr(
    attack: Attack[Images, InversionTruth],
    found: Images,
    words: str,
    controls: Mapping[str, Images],
    seed: int,
) -> AttackResult:
    """A, in dB, as Fig. 8 of the Selective-FD paper reports reconstructions.

    Best PSNR to a private image of the class, averaged: the figure that the literature prints and
    that a blurred image without any access beats, to be read beside its controls, the best of
    which is the control. words: the attack and its target.
    """
    truth = attack.truth
    originals, stream = truth.originals, substream(seed, "leakage")
    without = {n: c for n, made in controls.items() if (c := compare(made, originals, stream))}
    best = max(without, key=lambda name: without[name].a.value)
    result = score_images(
        attack,
        replace(found, target="", control_name=f"PSNR of the {best}"),
        originals,
        stream,
        controls=controls,
        against=best,
        literal=True,
        caveats=(f"PSNR to the nearest private image of the class; {best} had no access at all",),
        shown=_one_a_class_beside_originals(found, controls, truth),
    )
    return replace(result, name=RAW_PSNR, title=f"Raw PSNR ({words})", figure_name="PSNR")


def _one_a_class_beside_originals(
    found: Images, controls: Mapping[str, Images], truth: InversionTruth
) -> dict[str, Tensor]:
    """One reconstruction a class, the private image nearest to it, and the same of controls."""
    shown = _one_a_class(found)
    known = torch.isin(shown.groups, truth.private.labels)
    shown = Images(shown.images[known], shown.groups[known])
    near = psnr(shown.images, truth.private.images)
    near[(shown.groups[:, None] != truth.private.labels).numpy()] = -1.0  # below any PSNR
    originals = Images(truth.private.images[torch.from_numpy(near.argmax(axis=1))], shown.groups)
    others = {name: _one_a_class(made).images for name, made in controls.items()}
    return {"attack": shown.images, "originals": originals.images, **others}


def _one_a_class(made: Images) -> Images:
    first = torch.stack([(made.groups == c).nonzero()[0, 0] for c in torch.unique(made.groups)])
    return Images(made.images[first], made.groups[first])
