"""Local steps, distillation steps and prediction: the only place where networks learn.

Views of training images, of proxies and private records alike, are made on the spot and at random;
a client's answers are about the images as they are.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from secure_fd.data.images import Images
from secure_fd.errors import ConfigurationError, LocalError
from secure_fd.training.recipes import SGD, Schedule
from secure_fd.votes.codec import FloatArray

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
    moves = 2 * torch.rand(4, len(pixels), generator=generator) - 1
    return _placed(pixels, _affine(pixels, moves, _TURN, _ZOOM, _REACH))


def nudged(pixels: Tensor, generator: torch.Generator) -> Tensor:
    """Every image turned, resized and shifted very little, and flipped with chance one half."""
    moves = 2 * torch.rand(4, len(pixels), generator=generator) - 1
    moved = _placed(pixels, _affine(pixels, moves, _NUDGE, _NUDGE_ZOOM, 1))
    return mirrored(moved, generator)


def bent(pixels: Tensor, generator: torch.Generator) -> Tensor:
    """Every image turned, resized, slanted, shifted and bent a little, as handwriting is.

    The field that bends is smooth between random points (Simard, Steinkraus and Platt, 2003).
    """
    *moves, slant = 2 * torch.rand(5, len(pixels), generator=generator) - 1
    rows = _affine(pixels, torch.stack(moves), _BENT_TURN, _ZOOM, _BEND)
    rows[:, 0, 1] += _SLANT * slant
    unit = 2 * _BEND / pixels.shape[3]
    knots = unit * torch.randn(len(pixels), 2, _KNOTS, _KNOTS, generator=generator)
    size = (pixels.shape[2], pixels.shape[3])
    field = functional.interpolate(knots, size=size, mode="bicubic", align_corners=True)
    return _placed(pixels, rows, field.permute(0, 2, 3, 1))


_NUDGE, _NUDGE_ZOOM = math.radians(5), 0.05
_BENT_TURN, _SLANT = math.radians(8), 0.15
_BEND, _KNOTS = 1.5, 5
"""Pixels by which a field and a shift move a stroke, about; the field's points a side."""


def _affine(pixels: Tensor, moves: Tensor, turn: float, zoom: float, reach: float) -> Tensor:
    """[N, 2, 3] from moves [4, N] in [-1, 1]: turn, change of size, shifts of `reach` pixels."""
    angle, larger, right, down = moves
    size = 1 + zoom * larger
    cosine, sine = torch.cos(turn * angle) * size, torch.sin(turn * angle) * size
    height, width = pixels.shape[2:]
    across, along = 2 * reach / width * right, 2 * reach / height * down
    return torch.stack([cosine, -sine, across, sine, cosine, along], dim=1).view(-1, 2, 3)


def _placed(pixels: Tensor, rows: Tensor, field: Tensor | None = None) -> Tensor:
    """Images under an affine map each, and a field [N, H, W, 2] of further shifts."""
    grid = functional.affine_grid(rows.to(pixels.device), list(pixels.shape), align_corners=False)
    if field is not None:
        grid = grid + field.to(pixels.device)
    return functional.grid_sample(pixels, grid, align_corners=False)


_AUGMENTATIONS: Mapping[str, Augmentation | None] = {
    "none": None,
    "shift": shifted,
    "mirror": mirrored,
    "turn": turned,
    "bend": bent,
    "nudge": nudged,
}


def augmentation(name: str) -> Augmentation | None:
    """The views of that name, or None for images as they are.

    Raises ConfigurationError for an unknown name.
    """
    if name not in _AUGMENTATIONS:
        raise ConfigurationError("augment", name, f"use one of {', '.join(_AUGMENTATIONS)}")
    return _AUGMENTATIONS[name]


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

    def rest(self) -> None:
        """Lose all momentum, as parameters were replaced that it had been gathered on."""
        for state in self._sgd.state.values():
            if state.get("momentum_buffer") is not None:
                state["momentum_buffer"].zero_()

    @property
    def learning_rate(self) -> float:
        """Of the next step; a schedule may set it."""
        return float(self._sgd.param_groups[0]["lr"])

    @learning_rate.setter
    def learning_rate(self, rate: float) -> None:
        self._sgd.param_groups[0]["lr"] = rate

    def local_steps(self, steps: int, lessons: Tensor | None = None) -> None:
        """SGD steps on the private records; lessons: [C, C] what to learn at each class."""
        for _ in range(steps):
            self.step(*self.local_batch(lessons))

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
        """One step on the loss of a batch; targets: classes, or the simplex."""
        self._sgd.zero_grad(set_to_none=True)
        loss = functional.cross_entropy(self.model(pixels).float(), targets)
        loss.backward()  # type: ignore[no-untyped-call]
        self._sgd.step()

    def _augmented(self, pixels: Tensor) -> Tensor:
        return pixels if self._augment is None else self._augment(pixels, self._generator)

    def _draw(self, population: int, size: int) -> Tensor:
        drawn = torch.randint(population, (size,), generator=self._generator)
        return drawn.to(self._device)


_SMALL_NETWORK = 10_000_000
_SMALL_RECORD = 3 * 64 * 64


@contextmanager
def threads_for(
    networks: Sequence[nn.Module], shape: Sequence[int], device: torch.device
) -> Iterator[None]:
    """Compute with one thread where the networks are small and on the CPU; then restore.

    Small is at most 10 million parameters in each network and 3 x 64 x 64 values in each record.
    The steps of such networks are short. Where other processes use the cores, two threads wait for
    each other in each operation: a step took 3 to 30 times the time of one thread. On two idle
    cores two threads are faster, 20 s against at most 36 s for ten networks of Table 3. Larger
    networks keep the threads of torch.

    Args:
        networks: of the parties that train in this process.
        shape: of one record, [channels, height, width].
        device: where the networks are.
    """
    before, values = torch.get_num_threads(), math.prod(shape)
    largest = max(sum(p.numel() for p in network.parameters()) for network in networks)
    small = device.type == "cpu" and largest <= _SMALL_NETWORK and values <= _SMALL_RECORD
    if before == 1 or not small:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class TrainingMode(AbstractContextManager[None]):
    """Networks train inside, every layer in the mode that it was given in; outside they are asked.

    A network that was given in evaluation mode as a whole trains in training mode.
    """

    def __init__(self, networks: Sequence[nn.Module]) -> None:
        self._networks = networks
        self._modes = [
            (layer, layer.training or not network.training)
            for network in networks
            for layer in network.modules()
        ]

    def __enter__(self) -> None:
        for layer, training in self._modes:
            layer.training = training

    def __exit__(self, *_: object) -> None:
        for network in self._networks:
            network.eval()


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
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
    with evaluating(model):
        parts = [functional.softmax(model(p), dim=1) for p in torch.split(pixels, _PREDICT_BATCH)]
    return np.asarray(torch.cat(parts).double().cpu().numpy())


@torch.inference_mode()
def logits(model: nn.Module, pixels: Tensor) -> FloatArray:
    """[N, C] as float64."""
    with evaluating(model):
        parts = [model(p) for p in torch.split(pixels, _PREDICT_BATCH)]
    return np.asarray(torch.cat(parts).double().cpu().numpy())


@torch.inference_mode()
def predicted_labels(model: nn.Module, pixels: Tensor) -> Tensor:
    """[N] class of the largest logit."""
    with evaluating(model):
        return torch.cat([model(p).argmax(dim=1) for p in torch.split(pixels, _PREDICT_BATCH)])


def accuracy(model: nn.Module, images: Images) -> float:
    """Share of images whose label the model predicts."""
    correct = predicted_labels(model, images.pixels) == images.labels
    return float(correct.double().mean())


class LocalTrainer(Protocol):
    """A network that can take steps on private records."""

    model: nn.Module
    learning_rate: float

    def local_steps(self, steps: int, lessons: Tensor | None = None) -> None:
        """Steps on private records."""


@dataclass(frozen=True, slots=True)
class Lesson:
    """What a client distils from: targets [m, C] at the proxies [P, ...] of these indices [m].

    >>> proxies = torch.zeros(3, 1, 2, 2)
    >>> Lesson(proxies, torch.tensor([0, 2]), torch.eye(2)).pixels().shape
    torch.Size([2, 1, 2, 2])
    """

    proxies: Tensor = field(repr=False)
    indices: Tensor = field(repr=False)
    targets: Tensor = field(repr=False)

    def pixels(self) -> Tensor:
        """[m, ...]"""
        return self.proxies[self.indices]


@dataclass(frozen=True, slots=True, eq=False)
class Steps:
    """Training that is due: `count` steps at one rate.

    lesson: what to distil from; None: steps on private records, towards rows of `targets` [C, C]
    by class where they are given, and towards labels where not.

    >>> import torch
    >>> from secure_fd import SGD, Images, models
    >>> network = models.build("cnn-5-5-50", 10, seed=0)
    >>> records = Images(torch.zeros(8, 1, 28, 28), torch.arange(8))
    >>> trainer = Trainer(network, records, SGD(), seed=0, device=torch.device("cpu"))
    >>> Steps(trainer, count=5, rate=0.1).count
    5
    """

    trainer: LocalTrainer
    count: int
    rate: float
    lesson: Lesson | None = field(default=None, repr=False)
    targets: Tensor | None = field(default=None, repr=False)

    def batch(self) -> tuple[Tensor, Tensor]:
        """Return the batch of the next step, for a user-supplied trainer.

        Returns:
            Pixels [B, channels, H, W], and targets: classes [B] or rows of the simplex [B, C].

        Raises:
            LocalError: the trainer takes steps of another kind, such as DP-SGD.
        """
        if not isinstance(self.trainer, Trainer):
            raise LocalError("this client's steps are not of batches: call run() for them")
        if self.lesson is None:
            return self.trainer.local_batch(self.targets)
        return self.trainer.distillation_batch(self.lesson.pixels(), self.lesson.targets)

    def run(self) -> None:
        """Take the steps."""
        if self.lesson is None:
            self.trainer.learning_rate = self.rate
            self.trainer.local_steps(self.count, self.targets)
            return
        if not isinstance(self.trainer, Trainer):
            raise LocalError("this trainer learns from private records alone")
        self.trainer.learning_rate = self.rate
        self.trainer.distillation_steps(self.lesson.pixels(), self.lesson.targets, self.count)


OnSteps = Callable[[int], None]
"""Progress callback: so many more steps are done; one step of each of three networks is three."""


class Alone:
    """Runs the training of one client after another, as on a machine of its own."""

    def __init__(self, on_steps: OnSteps | None = None) -> None:
        self._on_steps = on_steps

    def __call__(self, jobs: Sequence[Steps]) -> None:
        """Run all of them, in order."""
        for job in jobs:
            job.run()
            if self._on_steps is not None:
                self._on_steps(job.count)


_WARM_UP = 2**30
"""Offset of the seeds of warm-up batches from those of the rounds; generators read 32 bits."""
_FEW_CLASSES = 2.5
"""Below it, momentum drives a network that learns alone so far that its units die."""


class Learner:
    """One client's network and records under a schedule: everything that trains, as values.

    seed: of its batches, so that its path depends on its own seed and data alone. private: a
    trainer of its own making, such as DP-SGD, which knows steps on private records alone.

    >>> import torch
    >>> from secure_fd import Images, Schedule, models
    >>> network = models.build("cnn-5-5-50", 10, seed=0)
    >>> records = Images(torch.zeros(8, 1, 28, 28), torch.arange(8))
    >>> plan = Schedule(local_steps=2)
    >>> learner = Learner(network, records, plan, seed=0, device=torch.device("cpu"))
    >>> [steps.count for steps in learner.local()]
    [2]
    """

    def __init__(
        self,
        model: nn.Module,
        train: Images,
        schedule: Schedule,
        seed: int,
        device: torch.device,
        private: LocalTrainer | None = None,
    ) -> None:
        self.model, self.schedule, self.round = model, schedule, -1
        self.device = device
        self._train, self._seed = train, seed
        views = augmentation(schedule.augment)
        self._trainer: LocalTrainer = private or Trainer(
            model, train, schedule.sgd, seed, device, views
        )

    @property
    def trainer(self) -> LocalTrainer:
        """What takes the steps of the rounds."""
        return self._trainer

    def warm_up(self) -> Iterator[Steps]:
        """Steps on private records before the first round.

        Clients of few classes take them without momentum: nothing would hold a network back.
        """
        sgd = self.schedule.sgd
        if effective_classes(self._train) < _FEW_CLASSES:
            sgd = replace(sgd, momentum=0.0)
        views = augmentation(self.schedule.augment)
        made: Trainer | None = None
        for count, rate in self.schedule.warmup_rates:
            if made is None:
                seed = self._seed + _WARM_UP
                made = Trainer(self.model, self._train, sgd, seed, self.device, views)
            yield Steps(made, count, rate)

    def local(self, count: int | None = None, targets: Tensor | None = None) -> Iterator[Steps]:
        """Steps on private records at this round's rate; by default those of the schedule."""
        steps = self.schedule.local_steps if count is None else count
        if steps:
            yield Steps(self._trainer, steps, self.schedule.rate(self.round), targets=targets)

    def distil(self, lesson: Lesson) -> Iterator[Steps]:
        """The round's steps towards a lesson; none where it teaches nothing."""
        for count, rate in self.schedule.rates(self.round, self.schedule.proxy_steps):
            if len(lesson.indices):
                yield Steps(self._trainer, count, rate, lesson)


_USEFUL = 0.25
"""Share of a class at a client, against that among all records, from which on it is useful."""


def classes_held(parts: Sequence[Images], n_classes: int) -> float:
    """Return how many classes a client holds, mean over clients with these records.

    A client of which each class is at least a quarter as large a share as among all records holds
    n_classes, however uneven these shares are. Any other holds its `effective_classes`.
    """
    counts = np.stack([np.bincount(part.labels.cpu(), minlength=n_classes) for part in parts])
    shares, pooled = counts / counts.sum(axis=1, keepdims=True), counts.sum(axis=0) / counts.sum()
    useful = (counts > 0) & (shares >= _USEFUL * pooled)
    held = [
        float(n_classes) if every else effective_classes(part)
        for part, every in zip(parts, useful.all(axis=1), strict=True)
    ]
    return float(np.mean(held))


def effective_classes(images: Images) -> float:
    """How many classes of equal size would be as varied: a few strays do not make a class."""
    shares = torch.bincount(images.labels).double() / len(images)
    return float(1 / shares.square().sum())
