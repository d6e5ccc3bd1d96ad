"""Generative model inversion: the image of a public prior that a network likes best for a class.

    min_z  -D(G(z)) + weight * CE(T(G(z)), y)

by gradient descent with Nesterov momentum .9, z clamped to [-1, 1], several restarts, the best
kept by the target network's own score (Zhang et al., "The Secret Revealer", CVPR 2020). The score
is the paper's, the lowest cross-entropy; the code published with it keeps the largest logit.
"""

from collections.abc import Mapping
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
from attacks.core.fit import Fit, distil_student, fit, label_function, network, on_device
from attacks.core.images import Originals, class_means, compare, psnr
from attacks.core.run import REFERENCES, Attack, Run, labelled, public_of
from attacks.core.scoring import score_images
from attacks.core.view import Capability, LabelFunction, Public, View
from attacks.inversion import prior as priors
from attacks.inversion.prior import Prior
from secure_fd.data.federated import FederatedData
from secure_fd.data.images import concatenate

_RATE, _MOMENTUM, _WEIGHT = 2e-3, 0.9, 100.0
"""GMI's own, for the classes of MNIST in batches of five. The published loss is the mean over the
codes that are searched together; here it is their sum, so that a code's step does not depend on
their number."""


@dataclass(frozen=True, slots=True)
class InversionSettings:
    """Length of the search. per_class: reconstructions; restarts: codes tried for each of them."""

    steps: int = 200
    restarts: int = 3
    per_class: int = 2


QUICK = InversionSettings(steps=120, restarts=2, per_class=1)
SHORT = InversionSettings(steps=150, restarts=2)
"""Settings of the comparison. The suite searches longer, and finds as little."""
PUBLISHED = InversionSettings(steps=1500, restarts=5, per_class=1)


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
        z = _descend(target, prior, start.to(on), there, settings.steps)
        with torch.no_grad():
            images = prior.generator(z)
            losses = cross_entropy(target(images), there, reduction="none").cpu()
        images = images.cpu()
    best = losses.view(-1, settings.restarts).argmin(dim=1)
    picks = torch.arange(len(wanted)) * settings.restarts + best
    return Images(images[picks], wanted)


def _descend(target: nn.Module, prior: Prior, start: Tensor, labels: Tensor, steps: int) -> Tensor:
    z = start.requires_grad_()
    optimizer = torch.optim.SGD([z], _RATE, momentum=_MOMENTUM, nesterov=True)
    for _ in range(steps):
        images = prior.generator(z)
        fit = cross_entropy(target(images), labels, reduction="sum")
        # Only the codes are differentiated: the networks collect no gradients.
        (z.grad,) = torch.autograd.grad(_WEIGHT * fit - prior.critic(images).sum(), z)
        optimizer.step()
        with torch.no_grad():
            z.clamp_(-1, 1)
    return z.detach()


RANDOM_TARGET = "randomly initialised target"
PUBLIC_TARGET = "public-only target"


@dataclass(frozen=True, slots=True, eq=False)
class InversionTruth(Originals):
    """Private and held-out images, and an independent evaluator."""

    evaluator: LabelFunction = field(repr=False)


def inversion_truth(
    private: Labelled,
    held_out: Labelled,
    public: Public,
    training: Fit,
    seed: int,
    lesson: Labelled | None = None,
) -> InversionTruth:
    """Return the truth for the scorer. lesson: training set of its evaluator; default: `held_out`.

    Raises LocalError where a private image is held out or in the lesson.
    """
    require_disjoint(private, held_out)
    training_set = held_out if lesson is None else lesson
    require_disjoint(private, training_set)
    evaluator = fit(
        public.architecture,
        training_set.images,
        training_set.labels,
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
    shown_in = "picture, dB: this run"

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
        settings: InversionSettings,
        training: Fit,
        classes: Tensor | None = None,
    ) -> Self:
        """Make the controls once; the attack then serves every method with this public set.

        Black; the public mean of each class; and the same search against a network that was trained
        on labelled proxies, or where they have no labels against an untrained one.

        classes: [c] whose images are sought; all by default.
        """
        classes = torch.arange(public.n_classes) if classes is None else classes
        means = class_means(public)[classes]
        target, name = public.architecture(substream(seed, "random target")), RANDOM_TARGET
        if public.labels is not None:
            name, chance = PUBLIC_TARGET, substream(seed, "public target")
            target = fit(public.architecture, public.proxies, public.labels, training, chance)
        controls = {
            "black": Images(torch.zeros_like(means), classes),
            "public class mean": Images(means, classes),
            name: invert(target, prior, classes, settings, substream(seed, name)),
        }
        return cls(prior, settings, training, classes, controls)

    @classmethod
    def for_data(cls, data: FederatedData, seed: int, effort: Effort = "full") -> Self:
        """Return the attack with its prior, its controls, and the truth about these data."""
        public, lesson = public_of(data), QUICK_FIT if effort == "quick" else Fit()
        # A finer prior takes half a minute, and no row leaves its control.
        prior = priors.train_prior(public.proxies, priors.QUICK_PRIOR, seed)
        search = {"quick": QUICK, "short": SHORT, "full": InversionSettings()}[effort]
        made = cls.prepare(public, prior, seed, search, lesson)
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
        return replace(found, target=words, network=target)

    def score(self, estimate: Images, seed: int) -> AttackResult:
        """Δ with its interval; A, A_H and attack accuracy of the attack and of every control."""
        against = PUBLIC_TARGET if PUBLIC_TARGET in self.controls else RANDOM_TARGET
        every, truth = {**estimate.others, **self.controls}, self.truth
        right = {"attack_accuracy": _accuracy(estimate, truth.evaluator)}
        for name, made in every.items():
            right[f"{name}: attack_accuracy"] = _accuracy(made, truth.evaluator)
        shown = {"attack": estimate, **every}
        return score_images(
            self,
            replace(estimate, control_name=f"Δ of the {against}"),
            truth,
            substream(seed, "leakage"),
            controls=every,
            against=against,
            details=right,
            caveats=_CAVEATS,
            shown={name: made.images for name, made in shown.items()},
        )


_CAVEATS = (
    "raw PSNR (A) rewards blur: read it beside the controls made with no access",
    "attack accuracy is about classes, not about records",
    "the interval covers the reconstructions drawn; the p-value covers the images compared",
)


def _accuracy(found: Images, evaluator: LabelFunction) -> float:
    """Share of images that an evaluator gives the class that they were made for."""
    return float((evaluator(found.images) == found.groups).double().mean())


RAW_PSNR: Final = "raw-psnr"


def raw_psnr(attack: ModelInversion, found: Images, words: str, seed: int) -> AttackResult:
    """A, in dB, as Fig. 8 of the Selective-FD paper reports reconstructions.

    Best PSNR to a private image of the class, averaged: the figure that the literature prints and
    that a blurred image without any access beats, to be read beside its controls, the best of
    which is the control. words: the attack and its target.
    """
    truth, stream, controls = attack.truth, substream(seed, "leakage"), attack.controls
    without = {n: c for n, made in controls.items() if (c := compare(made, truth, stream))}
    best = max(without, key=lambda name: without[name].a.value)
    result = score_images(
        attack,
        replace(found, target="", control_name=f"PSNR of the {best}"),
        truth,
        stream,
        controls=controls,
        against=best,
        literal=True,
        caveats=(f"PSNR to the nearest private image of the class; {best} had no access at all",),
        shown=_beside_originals(found, controls, truth),
    )
    return replace(result, name=RAW_PSNR, title=f"Raw PSNR ({words})", figure_name="PSNR")


def _beside_originals(
    found: Images, controls: Mapping[str, Images], truth: Originals
) -> dict[str, Tensor]:
    """Reconstructions of private classes, the private image nearest to each, and the controls."""
    known = torch.isin(found.groups, truth.private.labels)
    images, groups = found.images[known], found.groups[known]
    near = psnr(images, truth.private.images)
    near[(groups[:, None] != truth.private.labels).numpy()] = -1.0  # below any PSNR
    originals = truth.private.images[torch.from_numpy(near.argmax(axis=1))]
    others = {name: made.images for name, made in controls.items()}
    return {"attack": images, "originals": originals, **others}
