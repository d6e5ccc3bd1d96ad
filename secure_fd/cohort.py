"""Clients of equal architecture that train together, each on a path of its own."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from secure_fd.batched_layers import architecture, batched_logits, pieces, stacked_parameters, tie
from secure_fd.config import SGD
from secure_fd.data.images import Images
from secure_fd.errors import LocalError
from secure_fd.knowledge import FloatArray
from secure_fd.training import Augment, Trainer, predict

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
