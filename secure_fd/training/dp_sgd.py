"""DP-SGD's steps through Opacus (Abadi et al., 2016): FedAvg's way to the record unit.

Opacus computes gradients and clips them. Noise, batches and the guarantee come from
`privacy.dp_sgd`.
"""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from secure_fd.data.images import Images
from secure_fd.errors import ConfigurationError, LocalError
from secure_fd.optional import extra
from secure_fd.privacy.dp_sgd import PrivateBudget
from secure_fd.training.trainer import LocalTrainer


def _check_records_stay_apart(model: nn.Module) -> None:
    """Refuse layers through which one record changes another's gradient: no clip bounds those.

    Opacus refuses such layers where they are trained, but statistics of a batch need no training,
    and a buffer may keep them. Layers of a caller's own are its word, which the guarantee states.
    """
    for name, layer in model.named_modules():
        batch_norm = isinstance(layer, nn.modules.batchnorm._BatchNorm)
        if batch_norm or next(layer.buffers(recurse=False), None) is not None:
            raise ConfigurationError(
                "model", f"{type(layer).__name__} {name}", "use layers that treat records apart"
            )


Loss = Callable[[nn.Module, Images], Tensor]
"""Loss of a network on a batch, summed over its records; each record has its own."""


class PrivateGradient:
    """Clipped, summed and noised gradients of one network, on Poisson batches of the records."""

    def __init__(self, model: nn.Module, train: Images, budget: PrivateBudget) -> None:
        with extra():
            from opacus import GradSampleModule
            from opacus.optimizers import DPOptimizer

        _check_records_stay_apart(model)
        self._model, self._train, self._budget = model, train, budget
        self._wrapped = GradSampleModule(model, loss_reduction="sum")
        self._wrapped.remove_hooks()  # but in `fill`: other passes touch no record
        self._clipper = DPOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.0),  # never steps
            noise_multiplier=0.0,  # `_add_noise` adds it
            max_grad_norm=budget.settings.clip,
            expected_batch_size=budget.expected_batch,
        )

    def fill(self, loss: Loss) -> None:
        """Leave one step's gradient of the mean loss in the parameters, to be stepped along."""
        drawn = np.flatnonzero(self._budget.batch())
        batch = self._train[torch.from_numpy(drawn).to(self._train.labels.device)]
        self._clipper.zero_grad()
        self._model.train()  # Opacus keeps no gradients of a network that is only asked
        with self._hooked():
            loss(self._wrapped, batch).backward()  # type: ignore[no-untyped-call]
        self._drop_what_is_not_finite()
        if not self._clipper.pre_step():  # clips every record's gradient, sums and scales
            raise LocalError("Opacus held a step back: DP-SGD would leave it without noise")
        self._add_noise()

    @contextmanager
    def _hooked(self) -> Iterator[None]:
        """With Opacus's hooks on every layer, which keep each record's gradient."""
        self._wrapped.add_hooks(loss_reduction="sum")
        self._wrapped.enable_hooks()
        try:
            with warnings.catch_warnings():
                # That no gradient reaches the pixels is as it should be.
                warnings.filterwarnings("ignore", message="Full backward hook is firing")
                yield
        finally:
            self._wrapped.remove_hooks()

    def _drop_what_is_not_finite(self) -> None:
        """Zero the gradient of every record that has a NaN or an infinity in it.

        Clipping multiplies by clip / norm, which makes NaN of them: one record could then show in
        every parameter, whatever the noise. A server that chooses the weights could cause that.
        """
        gradients = self._clipper.grad_samples
        if not gradients or not len(gradients[0]):
            return  # an empty batch
        # One pass over memory: a sum with a NaN or an infinity in it is neither's to undo.
        sums = torch.stack([g.flatten(1).sum(dim=1) for g in gradients])
        finite = sums.isfinite().all(dim=0)
        if not finite.all():
            for gradient in gradients:
                gradient[~finite] = 0.0

    def _add_noise(self) -> None:
        """Add N(0, (z clip)^2) to the summed gradient, hence over the batch size to the mean."""
        for parameter in self._model.parameters():
            if parameter.grad is None:
                raise LocalError("a parameter has no gradient: DP-SGD would leave it without noise")
            noise = torch.from_numpy(self._budget.step_noise(parameter.numel()))
            parameter.grad += noise.to(parameter.grad).view_as(parameter.grad)


def _cross_entropy(network: nn.Module, batch: Images) -> Tensor:
    return functional.cross_entropy(network(batch.pixels), batch.labels, reduction="sum")


class PrivateTrainer(LocalTrainer):
    """One client's network under DP-SGD."""

    def __init__(
        self, model: nn.Module, train: Images, budget: PrivateBudget, device: torch.device
    ) -> None:
        self.model, self.budget = model.to(device), budget
        self._gradient = PrivateGradient(self.model, train.to(device), budget)
        self.learning_rate = budget.settings.learning_rate
        self._optimiser = torch.optim.SGD(model.parameters(), lr=self.learning_rate)  # no schedule

    def take_steps(
        self, count: int, pixels: Tensor | None = None, targets: Tensor | None = None
    ) -> None:
        """Take noisy, clipped SGD steps on Poisson samples of the private records.

        Raises LocalError for proxies or targets: it trains on labels alone.
        """
        if pixels is not None or targets is not None:
            raise LocalError("DP-SGD trains on the labels of private records alone")
        for _ in range(count):
            self._gradient.fill(_cross_entropy)
            self._optimiser.step()
