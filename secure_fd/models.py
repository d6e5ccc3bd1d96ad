"""The paper's architectures (supplementary Table 3) in one registry.

Every model maps images [N, 1, 28, 28] to logits [N, C].
"""

from collections.abc import Callable, Mapping
from itertools import pairwise

import torch
from torch import Tensor, nn

from secure_fd.errors import ConfigurationError, LocalError

SHARED = "cnn-5-5-50"
"""The one architecture of methods that average parameters."""


class Standardise(nn.Module):
    """Pixels in [0, 1] -> mean 0 and deviation 1 on MNIST, the convention for 28 x 28 sets.

    Part of every model, so that models, clients and attacks all speak of pixels in [0, 1].
    """

    def forward(self, pixels: Tensor) -> Tensor:
        """Shifted and scaled pixels."""
        return (pixels - 0.1307) / 0.3081


def _cnn(kernels: tuple[int, int], paddings: tuple[int, int], hidden: int) -> "_Factory":
    """Conv(10, k, p)-ReLU-MaxPool(2)-Conv(20, k, p)-ReLU-MaxPool(2)-Linear(hidden)-ReLU-Linear."""

    def make(n_classes: int) -> nn.Module:
        side = 28
        for kernel, padding in zip(kernels, paddings, strict=True):
            side = (side + 2 * padding - kernel + 1) // 2
        return nn.Sequential(
            Standardise(),
            nn.Conv2d(1, 10, kernels[0], padding=paddings[0]),
            nn.MaxPool2d(2),  # before ReLU: the same values, on a quarter of them
            nn.ReLU(),
            nn.Conv2d(10, 20, kernels[1], padding=paddings[1]),
            nn.MaxPool2d(2),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(20 * side * side, hidden),
            nn.ReLU(),
            nn.Linear(hidden, n_classes),
        )

    return make


def _mlp(*hidden: int) -> "_Factory":
    def make(n_classes: int) -> nn.Module:
        widths = (28 * 28, *hidden)
        layers: list[nn.Module] = [Standardise(), nn.Flatten()]
        for before, after in pairwise(widths):
            layers += [nn.Linear(before, after), nn.ReLU()]
        return nn.Sequential(*layers, nn.Linear(widths[-1], n_classes))

    return make


_Factory = Callable[[int], nn.Module]

_REGISTRY: Mapping[str, _Factory] = {
    "cnn-5-5-50": _cnn((5, 5), (0, 0), 50),
    "cnn-3-3-128": _cnn((3, 3), (1, 1), 128),
    "cnn-5-3-64": _cnn((5, 3), (0, 1), 64),
    "mlp-1024-512-256": _mlp(1024, 512, 256),
    "mlp-1024-1024": _mlp(1024, 1024),
}

HETEROGENEOUS: tuple[str, ...] = (
    *("cnn-5-5-50",) * 2,
    *("cnn-3-3-128",) * 2,
    *("cnn-5-3-64",) * 2,
    *("mlp-1024-512-256",) * 2,
    *("mlp-1024-1024",) * 2,
)
"""Table 3: the architectures of clients 1 to 10, in its order."""


def names() -> tuple[str, ...]:
    """Every architecture that `build` knows."""
    return tuple(_REGISTRY)


def build(name: str, n_classes: int, seed: int) -> nn.Module:
    """A freshly initialised model; the same seed gives the same weights."""
    if name not in _REGISTRY:
        raise ConfigurationError("model", name, f"use one of {', '.join(_REGISTRY)}")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return _REGISTRY[name](n_classes)


def heterogeneous(client: int) -> str:
    """The architecture of a client; beyond ten clients Table 3 repeats."""
    return HETEROGENEOUS[client % len(HETEROGENEOUS)]


def flatten(model: nn.Module) -> Tensor:
    """All parameters as one float32 vector."""
    return torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])


def load_flat(model: nn.Module, parameters: Tensor) -> None:
    """Overwrite all parameters from one vector, in the order of `flatten`; the vector is copied.

    Raises LocalError where the vector's length is not the model's.
    """
    sizes = [parameter.numel() for parameter in model.parameters()]
    if parameters.shape != (sum(sizes),):
        raise LocalError(f"the model has {sum(sizes)} parameters, not {tuple(parameters.shape)}")
    # Not torch's vector_to_parameters: its parameters share the vector's memory, so that one
    # client's training would change the global model that the next client starts from.
    pieces = torch.split(parameters, sizes)
    with torch.no_grad():
        for parameter, piece in zip(model.parameters(), pieces, strict=True):
            parameter.copy_(piece.view_as(parameter))
