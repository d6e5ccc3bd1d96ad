"""What anyone can learn from a fleet's noisy sums: one network, taught by the released labels."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from secure_fd import models
from secure_fd.config import SGD
from secure_fd.data.images import Images
from secure_fd.knowledge import IntArray
from secure_fd.training import Trainer, default_device

_TICKS = 20


def learnt(
    pixels: Tensor,
    labels: IntArray,
    n_classes: int,
    *,
    steps: int,
    seed: int,
    progress: Callable[[int], None] = lambda _: None,
) -> nn.Module:
    """The paper's shared network after SGD on proxies [m, ...] and their released labels [m].

    Where no label stands out of the noise there is nothing to learn: the network as it begins.
    progress hears percent.
    """
    lesson = Images(pixels, torch.from_numpy(labels))
    model = models.build(models.SHARED, n_classes, seed)
    if len(lesson) == 0:
        return model
    trainer = Trainer(model, lesson, SGD(), seed, default_device())
    for tick in range(_TICKS):
        trainer.local_steps(steps * (tick + 1) // _TICKS - steps * tick // _TICKS)
        progress(100 * (tick + 1) // _TICKS)
    return model
