"""Local steps, distillation steps and prediction: the only place where networks learn."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from secure_fd.config import SGD
from secure_fd.data.images import Images
from secure_fd.knowledge import FloatArray

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
