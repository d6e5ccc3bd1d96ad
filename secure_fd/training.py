"""Local steps, distillation steps and prediction: the only place where networks learn."""

from collections.abc import Iterator
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


class Trainer:
    """One client's network and the records that it learns from.

    Batches are drawn with replacement from a generator of the trainer's own, so that a client's
    path depends on its seed and its data alone.
    """

    def __init__(
        self, model: nn.Module, train: Images, optimiser: SGD, seed: int, device: torch.device
    ) -> None:
        # Convolutions of few channels take a third less time with the channels last in memory.
        self.model = model.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        self._train = train.to(device)
        self._settings = optimiser
        self._sgd = torch.optim.SGD(model.parameters(), lr=optimiser.learning_rate)
        self._generator = torch.Generator().manual_seed(seed)
        self._device = device

    def local_steps(self, steps: int) -> None:
        """SGD steps on the private records."""
        for _ in range(steps):
            batch = self._train[self._draw(len(self._train), self._settings.local_batch)]
            self._step(batch.pixels, batch.labels)

    def distillation_steps(self, pixels: Tensor, targets: Tensor, steps: int) -> None:
        """SGD steps towards targets [m, C] in the simplex at pixels [m, ...]; none where m = 0."""
        size = self._settings.distillation_batch
        for _ in range(steps if len(pixels) else 0):
            if len(pixels) <= size:
                self._step(pixels, targets)
            else:
                chosen = self._draw(len(pixels), size)
                self._step(pixels[chosen], targets[chosen])

    def _step(self, pixels: Tensor, targets: Tensor) -> None:
        self._sgd.zero_grad(set_to_none=True)
        loss = functional.cross_entropy(self.model(pixels), targets)
        loss.backward()  # type: ignore[no-untyped-call]
        self._sgd.step()

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
def predicted_labels(model: nn.Module, pixels: Tensor) -> Tensor:
    """[N] class of the largest logit."""
    with _evaluating(model):
        return torch.cat([model(p).argmax(dim=1) for p in torch.split(pixels, _PREDICT_BATCH)])


def accuracy(model: nn.Module, images: Images) -> float:
    """Share of images whose label the model predicts."""
    correct = predicted_labels(model, images.pixels) == images.labels
    return float(correct.double().mean())
