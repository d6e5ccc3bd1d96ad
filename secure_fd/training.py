"""Random views of training images: public proxies and private records alike, made on the spot.

A client changes nothing that it sends: its answers are about the images as they are.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from secure_fd.batched import architecture, batched_logits, pieces, stacked_parameters, tie
from secure_fd.data.images import Images
from secure_fd.errors import ConfigurationError, LocalError
from secure_fd.knowledge import FloatArray
from secure_fd.recipes import SGD, Schedule

Augmentation = Callable[[Tensor, torch.Generator], Tensor]
"""Pixels [N, channels, H, W] and a generator to views of the same shape."""

_REACH = 2
"""Largest shift, in pixels: what a digit or a garment moves without becoming another."""
_TURN, _ZOOM = math.radians(10), 0.1
"""Largest turn, and change of size: what handwriting varies by."""


def shifted(pixels: Tensor, generator: torch.Generator) -> Tensor:
    """Every image moved by up to two pixels each way; black comes in at the edges."""
    count, channels, height, width = pixels.shape
    if min(height, width) <= 2 * _REACH:
        raise ConfigurationError("augment", "shift", "images must be larger than 4 pixels a side")
    padded = functional.pad(pixels, (_REACH,) * 4)
    moves = torch.randint(2 * _REACH + 1, (2, count), generator=generator).to(pixels.device)
    rows = moves[0, :, None] + torch.arange(height, device=pixels.device)
    columns = moves[1, :, None] + torch.arange(width, device=pixels.device)
    image = torch.arange(count, device=pixels.device)[:, None, None, None]
    channel = torch.arange(channels, device=pixels.device)[None, :, None, None]
    return padded[image, channel, rows[:, None, :, None], columns[:, None, None, :]]


def mirrored(pixels: Tensor, generator: torch.Generator) -> Tensor:
    """Every image flipped from left to right with chance one half."""
    flip = torch.randint(2, (len(pixels),), generator=generator).to(pixels.device)
    return torch.where(flip[:, None, None, None] == 1, pixels.flip(3), pixels)


def turned(pixels: Tensor, generator: torch.Generator) -> Tensor:
    """Every image turned, resized and shifted a little, between pixels as well; black comes in."""
    turn, zoom, right, down = 2 * torch.rand(4, len(pixels), generator=generator) - 1
    size = 1 + _ZOOM * zoom
    cosine, sine = torch.cos(_TURN * turn) * size, torch.sin(_TURN * turn) * size
    height, width = pixels.shape[2:]
    across, along = 2 * _REACH / width * right, 2 * _REACH / height * down
    rows = torch.stack([cosine, -sine, across, sine, cosine, along], dim=1).view(-1, 2, 3)
    grid = functional.affine_grid(rows.to(pixels.device), list(pixels.shape), align_corners=False)
    return functional.grid_sample(pixels, grid, align_corners=False)


_AUGMENTATIONS: Mapping[str, Augmentation | None] = {
    "none": None,
    "shift": shifted,
    "mirror": mirrored,
    "turn": turned,
}


def augmentation(name: str) -> Augmentation | None:
    """The views of that name, or None for images as they are.

    Raises ConfigurationError for an unknown name.
    """
    if name not in _AUGMENTATIONS:
        raise ConfigurationError("augment", name, f"use one of {', '.join(_AUGMENTATIONS)}")
    return _AUGMENTATIONS[name]


# Local steps, distillation steps and prediction: the only place where networks learn.


_PREDICT_BATCH = 1024


def default_device() -> torch.device:
    """A GPU where there is one."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


Augment = Callable[[Tensor, torch.Generator], Tensor]
"""Pixels [B, C, H, W] of a training batch -> the same, altered by chance."""


class Trainer:
    """One client's network and the records that it learns from.

    Batches are drawn with replacement from a generator of the trainer's own, so that a client's
    path depends on its seed and its data alone. augment: applied to the pixels of every batch, by
    the same generator.
    """

    def __init__(
        self,
        model: nn.Module,
        train: Images,
        optimiser: SGD,
        seed: int,
        device: torch.device,
        augment: Augment | None = None,
    ) -> None:
        # Convolutions of few channels take a third less time with the channels last in memory.
        self.model = model.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        self._train = train.to(device)
        self._settings = optimiser
        self._sgd = torch.optim.SGD(
            model.parameters(),
            lr=optimiser.learning_rate,
            momentum=optimiser.momentum,
            nesterov=optimiser.momentum > 0,
        )
        self._generator = torch.Generator().manual_seed(seed)
        self._device = device
        self._augment = augment

    @property
    def learning_rate(self) -> float:
        """Of the next step; a schedule may set it."""
        return float(self._sgd.param_groups[0]["lr"])

    @learning_rate.setter
    def learning_rate(self, rate: float) -> None:
        self._sgd.param_groups[0]["lr"] = rate

    def local_steps(self, steps: int) -> None:
        """SGD steps on the private records."""
        for _ in range(steps):
            self.step(*self.local_batch())

    def distillation_steps(self, pixels: Tensor, targets: Tensor, steps: int) -> None:
        """SGD steps towards targets [m, C] in the simplex at pixels [m, ...]; none where m = 0."""
        for _ in range(steps if len(pixels) else 0):
            self.step(*self.distillation_batch(pixels, targets))

    def local_batch(self, lessons: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The next batch of private records: pixels and labels, or the label's row of lessons."""
        batch = self._train[self._draw(len(self._train), self._settings.local_batch)]
        targets = batch.labels if lessons is None else lessons[batch.labels]
        return self._augmented(batch.pixels), targets

    def distillation_batch(self, pixels: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """The next batch of what is taught: all of it, undrawn, where it fits into one batch."""
        size = self._settings.distillation_batch
        if len(pixels) > size:
            chosen = self._draw(len(pixels), size)
            pixels, targets = pixels[chosen], targets[chosen]
        if self._settings.smoothing:
            even = torch.full_like(targets, 1 / targets.shape[1])
            targets = targets.lerp(even, self._settings.smoothing)
        if self._settings.own_batch:
            own = self._train[self._draw(len(self._train), self._settings.own_batch)]
            known = functional.one_hot(own.labels, targets.shape[1]).to(targets.dtype)
            pixels, targets = torch.cat([pixels, own.pixels]), torch.cat([targets, known])
        return self._augmented(pixels), targets

    def step(self, pixels: Tensor, targets: Tensor) -> None:
        """One SGD step on the mean cross-entropy of a batch; targets: classes, or the simplex."""
        self._sgd.zero_grad(set_to_none=True)
        loss = functional.cross_entropy(self.model(pixels), targets)
        loss.backward()  # type: ignore[no-untyped-call]
        self._sgd.step()

    def _augmented(self, pixels: Tensor) -> Tensor:
        return pixels if self._augment is None else self._augment(pixels, self._generator)

    def _draw(self, population: int, size: int) -> Tensor:
        drawn = torch.randint(population, (size,), generator=self._generator)
        return drawn.to(self._device)


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """Dropout off and running statistics fixed for a while; then every layer as it was."""
    before = [(layer, layer.training) for layer in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for layer, training in before:
            layer.training = training


@torch.inference_mode()
def predict(model: nn.Module, pixels: Tensor) -> FloatArray:
    """Softmax predictions [N, C] as float64."""
    with _evaluating(model):
        parts = [functional.softmax(model(p), dim=1) for p in torch.split(pixels, _PREDICT_BATCH)]
    return np.asarray(torch.cat(parts).double().cpu().numpy())


@torch.inference_mode()
def logits(model: nn.Module, pixels: Tensor) -> FloatArray:
    """[N, C] as float64."""
    with _evaluating(model):
        parts = [model(p) for p in torch.split(pixels, _PREDICT_BATCH)]
    return np.asarray(torch.cat(parts).double().cpu().numpy())


@torch.inference_mode()
def predicted_labels(model: nn.Module, pixels: Tensor) -> Tensor:
    """[N] class of the largest logit."""
    with _evaluating(model):
        return torch.cat([model(p).argmax(dim=1) for p in torch.split(pixels, _PREDICT_BATCH)])


def accuracy(model: nn.Module, images: Images) -> float:
    """Share of images whose label the model predicts."""
    correct = predicted_labels(model, images.pixels) == images.labels
    return float(correct.double().mean())


# Clients of equal architecture that train together, each on a path of its own.


_Batch = tuple[Tensor, Tensor]


def group(models: Sequence[nn.Module]) -> list[list[int]]:
    """Indices of the models that one `Cohort` can train together; one that it cannot is alone."""
    groups: dict[object, list[int]] = {}
    for index, model in enumerate(models):
        known = architecture(model)
        groups.setdefault(index if known is None else known, []).append(index)
    return list(groups.values())


class Cohort:
    """Clients of equal architecture; each goes the way that its `Trainer` would, within rounding.

    models: the clients' own, one for each set of images and each seed. Their parameters become
    views of the members' stacked ones; read or overwrite them at any time between calls. Models
    that cannot be batched, and all on a GPU, are trained one after another by their `Trainer`.
    Raises LocalError where models that can be batched differ in architecture.
    """

    def __init__(
        self,
        models: Sequence[nn.Module],
        train: Sequence[Images],
        optimiser: SGD,
        seeds: Sequence[int],
        device: torch.device,
        augment: Augment | None = None,
    ) -> None:
        known = {architecture(model) for model in models}
        if len(known) > 1:
            raise LocalError("the models of a cohort must be of one architecture")
        self.models = list(models)
        self.learning_rate = optimiser.learning_rate
        self._momentum = optimiser.momentum
        self._trainers = [
            Trainer(model, images, optimiser, seed, device, augment)
            for model, images, seed in zip(models, train, seeds, strict=True)
        ]
        together = device.type == "cpu" and None not in known
        self._stacked = stacked_parameters(self.models) if together else []
        self._velocity = [torch.zeros_like(parameter) for parameter in self._stacked]
        if together:
            _keep_freed_memory()

    def local_steps(
        self, steps: int, present: Sequence[int], lessons: Sequence[Tensor] | None = None
    ) -> None:
        """SGD steps of the present members on their private records.

        lessons: by present member, [classes, classes] targets in the place of labels.
        """
        self._tie()
        given = [None] * len(present) if lessons is None else lessons
        for _ in range(steps):
            pairs = zip(present, given, strict=True)
            self._step(present, [self._trainers[k].local_batch(rows) for k, rows in pairs])

    def distillation_steps(
        self, pixels: Tensor, targets: Tensor, steps: int, present: Sequence[int]
    ) -> None:
        """SGD steps of the present members towards targets [m, classes] at pixels [m, C, H, W]."""
        self._tie()
        for _ in range(steps if len(pixels) else 0):
            batches = [self._trainers[k].distillation_batch(pixels, targets) for k in present]
            self._step(present, batches)

    @torch.inference_mode()
    def predict(self, pixels: Tensor) -> list[FloatArray]:
        """Every member's softmax predictions [N, classes], as float64."""
        if not self._stacked:
            return [predict(model, pixels) for model in self.models]
        self._tie()
        parts = [
            batched_logits(self.models[0], self._stacked, part).softmax(dim=2)
            for part in pieces(pixels[None], len(self.models))
        ]
        return list(np.asarray(torch.cat(parts, dim=1).double().numpy()))

    def _tie(self) -> None:
        if not self._stacked:
            return
        if not all(p.requires_grad for model in self.models for p in model.parameters()):
            raise LocalError("a parameter was frozen after its cohort was made: freeze it before")
        tie(self.models, self._stacked)

    def _step(self, present: Sequence[int], batches: Sequence[_Batch]) -> None:
        if self._stacked and present:
            self._step_together(present, batches)
            return
        for k, batch in zip(present, batches, strict=True):
            self._trainers[k].learning_rate = self.learning_rate
            self._trainers[k].step(*batch)

    def _step_together(self, present: Sequence[int], batches: Sequence[_Batch]) -> None:
        everyone = list(present) == list(range(len(self.models)))
        chosen = torch.tensor(present)
        weights = self._stacked if everyone else [p[chosen] for p in self._stacked]
        for index, gradient in enumerate(self._gradients(weights, batches)):
            step = self._with_momentum(index, chosen, gradient) if self._momentum else gradient
            self._stacked[index].index_add_(0, chosen, step, alpha=-self.learning_rate)

    def _with_momentum(self, index: int, chosen: Tensor, gradient: Tensor) -> Tensor:
        """Nesterov's step, in the form of torch.optim.SGD."""
        velocity = self._momentum * self._velocity[index][chosen] + gradient
        self._velocity[index][chosen] = velocity
        return gradient.add(velocity, alpha=self._momentum)

    def _gradients(self, parameters: list[Tensor], batches: Sequence[_Batch]) -> list[Tensor]:
        """Of each member's mean cross-entropy, in the shapes of the parameters."""
        pixels, targets = (_together(part) for part in zip(*batches, strict=True))
        members, size = len(batches), targets.shape[1]
        leaves = [parameter.detach().requires_grad_() for parameter in parameters]
        rest = targets.expand(members, *targets.shape[1:])
        for part in pieces(pixels, members):
            wanted, rest = rest[:, : part.shape[1]], rest[:, part.shape[1] :]
            logits = batched_logits(self.models[0], leaves, part).flatten(0, 1)
            loss = functional.cross_entropy(logits, wanted.flatten(0, 1), reduction="sum")
            (loss / size).backward()  # type: ignore[no-untyped-call]
        return [leaf.grad for leaf in leaves if leaf.grad is not None]


def _together(parts: Sequence[Tensor]) -> Tensor:
    """[M, ...] of members, or [1, ...] where one tensor serves all of them."""
    shared = all(part is parts[0] for part in parts)
    return parts[0].unsqueeze(0) if shared else torch.stack(list(parts))


def _keep_freed_memory() -> None:
    """Free one block of 28 MiB, after which glibc's allocator gives back only what is beyond 56.

    It gives back what is free beyond twice the largest block freed so far. Each step would have its
    pages handed back and faulted in again, which costs as much as the arithmetic.
    """
    torch.empty(7 * 2**20)


# All clients' networks in training: clients of equal architecture learn side by side.


OnSteps = Callable[[int], None]
"""Hears how many more steps are done: one of each of three networks are three."""
_WARM_UP = 2**30
"""Seeds of the warm-up's batches, apart from those of the rounds; generators read 32 bits."""
_FEW_CLASSES = 2.5
"""With fewer, momentum drives a network that learns alone so far that its units die."""


class Learners:
    """Networks and records of the clients [n], under one schedule.

    seed: client k draws its batches from a generator of its own, so its path does not hang on who
    else is there. on_steps: hears of training as it goes on, within long rounds too.
    """

    def __init__(
        self,
        models: Sequence[nn.Module],
        train: Sequence[Images],
        schedule: Schedule,
        seed: int,
        device: torch.device,
        on_steps: OnSteps | None = None,
    ) -> None:
        self._schedule = schedule
        self._on_steps = on_steps or _unheard
        self._train, self._device = train, device
        self._seeds = [seed * 1000 + k for k in range(len(models))]
        self._cohorts: list[tuple[list[int], Cohort]] = []
        for members in group(models):
            cohort = Cohort(
                [models[k] for k in members],
                [train[k] for k in members],
                schedule.sgd,
                [self._seeds[k] for k in members],
                device,
                augmentation(schedule.augment),
            )
            self._cohorts.append((members, cohort))
        self.models: list[nn.Module] = list(models)
        self._round = 0

    def warm_up(self) -> None:
        """The schedule's steps on private records alone.

        Clients of few classes take them without momentum: nothing would hold a network back.
        """
        train, seeds, heard = self._train, self._seeds, self._on_steps
        warm_up(self.models, train, self._schedule, seeds, self._device, heard)

    def begin_round(self, index: int) -> None:
        """From now on steps are taken at this round's learning rates."""
        self._round = index

    def local_steps(
        self, steps: int, present: Sequence[int], lessons: Sequence[Tensor] | None = None
    ) -> None:
        """SGD steps of the present clients on their private records.

        lessons: by client, all of them, [C, C] what to learn at a record of each class.
        """
        for members, cohort in self._cohorts:
            places = _places(members, present)
            rows = None if lessons is None else [lessons[members[place]] for place in places]
            cohort.learning_rate = self._schedule.rate(self._round)
            cohort.local_steps(steps, places, rows)
            self._on_steps(steps * len(places))

    def distillation_steps(
        self, pixels: Tensor, targets: Tensor, steps: int, present: Sequence[int]
    ) -> None:
        """SGD steps of the present clients towards targets [m, C] at pixels [m, ...]."""
        for members, cohort in self._cohorts:
            places = _places(members, present)
            for part, rate in self._schedule.rates(self._round, steps):
                cohort.learning_rate = rate
                cohort.distillation_steps(pixels, targets, part, places)
                self._on_steps(part * len(places))


def warm_up(
    models: Sequence[nn.Module],
    train: Sequence[Images],
    schedule: Schedule,
    seeds: Sequence[int],
    device: torch.device,
    on_steps: OnSteps | None = None,
) -> None:
    """The clients' warm-up in place: see `Learners.warm_up`."""
    heard = on_steps or _unheard
    plain, views = replace(schedule.sgd, momentum=0.0), augmentation(schedule.augment)
    few = [_classes(images) < _FEW_CLASSES for images in train]
    for members in group(models):
        for sgd, alike in ((plain, True), (schedule.sgd, False)):
            chosen = [k for k in members if few[k] is alike]
            if not chosen:
                continue
            cohort = Cohort(
                [models[k] for k in chosen],
                [train[k] for k in chosen],
                sgd,
                [seeds[k] + _WARM_UP for k in chosen],
                device,
                views,
            )
            for steps, rate in schedule.warmup_rates:
                cohort.learning_rate = rate
                cohort.local_steps(steps, range(len(chosen)))
                heard(steps * len(chosen))


def _unheard(_: int) -> None:
    """Nobody asks how far training is."""


def _classes(images: Images) -> float:
    """How many classes of equal size would be as varied: a few strays do not make a class."""
    shares = torch.bincount(images.labels).double() / len(images)
    return float(1 / shares.square().sum())


def _places(members: Sequence[int], present: Sequence[int]) -> list[int]:
    """Where the present clients stand among the members of a cohort."""
    here = set(present)
    return [place for place, client in enumerate(members) if client in here]
