"""Training as an attacker does it: small networks, hard or soft targets, seeded throughout."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from attacks.oracle import LabelFunction
from attacks.seeds import substream
from secure_fd.errors import LocalError

Factory = Callable[[int], nn.Module]
"""Seed -> a fresh network."""


@dataclass(frozen=True, slots=True)
class Fit:
    """How to train: Adam over shuffled batches. learning_rate: per step."""

    epochs: int = 20
    batch: int = 32
    learning_rate: float = 2e-3


QUICK = Fit(epochs=8)


def fit(factory: Factory, images: Tensor, targets: Tensor, settings: Fit, seed: int) -> nn.Module:
    """A fresh network trained by cross-entropy, in evaluation mode.

    images: [N, 1, H, W]. targets: class ids [N], or distributions [N, C].
    """
    if len(images) != len(targets) or len(images) == 0:
        raise LocalError(f"training needs a target an image, not {len(targets)} for {len(images)}")
    model = factory(substream(seed, "initial weights"))
    optimizer = torch.optim.Adam(model.parameters(), settings.learning_rate)
    shuffle = torch.Generator().manual_seed(substream(seed, "batches"))
    # Dropout draws from the global generator: fork it, so that callers keep theirs.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(substream(seed, "dropout"))
        model.train()
        for _ in range(settings.epochs):
            order = torch.randperm(len(images), generator=shuffle)
            for batch in torch.split(order, settings.batch):
                optimizer.zero_grad()
                loss = cross_entropy(model(images[batch]), targets[batch])
                torch.autograd.backward(loss)
                optimizer.step()
    return model.eval()


@torch.no_grad()
def predict(model: nn.Module, images: Tensor) -> Tensor:
    """Logits [N, C] of images [N, 1, H, W], in evaluation mode."""
    model.eval()
    return torch.cat([model(batch) for batch in torch.split(images, 1024)])


@dataclass(frozen=True, slots=True, eq=False)
class Labeller:
    """What an oracle or an evaluator wraps: images -> the class ids of largest logit."""

    model: nn.Module

    def __call__(self, images: Tensor) -> Tensor:
        """[N] class ids of images [N, 1, H, W]."""
        return predict(self.model, images).argmax(dim=1)


def label_function(model: nn.Module) -> LabelFunction:
    """A network that answers with labels alone."""
    return Labeller(model)
