"""ResNets (He et al., 2016) with the heads of the paper's Table 4 in place of their last layer."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from urllib.error import URLError

import torch
from torch import Tensor, nn

from secure_fd.data.image_sets import own_shape
from secure_fd.data.vision import torchvision
from secure_fd.errors import ConfigurationError, LocalError

# Of ImageNet, by channel, as the published weights expect.
_MEAN, _DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def resnet(depth: int, hidden: tuple[int, ...], n_classes: int, *, pretrained: bool) -> nn.Module:
    """Images [N, 3, H, W] in [0, 1] -> logits [N, n_classes]; hidden: widths of the head.

    Batch norm keeps running statistics beside the parameters: they stay with the client. Training
    needs two images a batch or more. Raises ConfigurationError where ImageNet's weights, which
    `pretrained` downloads, cannot be had.
    """
    library = torchvision()
    weights = "IMAGENET1K_V1" if pretrained else None
    try:
        network = library.models.get_model(f"resnet{depth}", weights=weights)
    except (URLError, OSError, RuntimeError):
        raise ConfigurationError(
            "model",
            f"resnet{depth}, pretrained",
            "its ImageNet weights could not be downloaded: "
            "use the image set cifar10_features, or the same name without -pretrained",
        ) from None
    layers: list[nn.Module] = []
    for before, after in pairwise((network.fc.in_features, *hidden)):
        layers += [nn.Linear(before, after), nn.ReLU()]
    network.fc = nn.Sequential(*layers, nn.Linear(hidden[-1], n_classes))
    return nn.Sequential(library.transforms.Normalize(_MEAN, _DEVIATION), network)


# The paper's architectures (supplementary Tables 2 to 4) in one registry.
#
# Every model maps images [N, channels, H, W] in [0, 1], as its image set has them, to logits [N,
# C].


SHARED = "cnn-5-5-50"
"""The one architecture of methods that average parameters, on 28 x 28 images."""


class Standardise(nn.Module):
    """Pixels in [0, 1] -> mean 0 and deviation 1 on MNIST, the convention for 28 x 28 sets.

    Part of every model, so that models, clients and attacks all speak of pixels in [0, 1]. Other
    sets state their own figures.
    """

    def __init__(self, mean: float = 0.1307, deviation: float = 0.3081) -> None:
        super().__init__()
        self.mean, self.deviation = mean, deviation

    def forward(self, pixels: Tensor) -> Tensor:
        """Shifted and scaled pixels."""
        return (pixels - self.mean) / self.deviation


@dataclass(frozen=True, slots=True)
class _Given:
    """What a model is given: `channels` planes of side x side, and how they are standardised."""

    channels: int
    side: int
    mean: float
    deviation: float

    def standardise(self) -> Standardise:
        return Standardise(self.mean, self.deviation)


_DIGIT = _Given(1, 28, 0.1307, 0.3081)
_RADIOGRAPH = _Given(1, 64, 0.5, 0.25)  # rounded figures of all 5,100
_PATCHES = _Given(60, 1, 0.5, 0.1)  # of `data.patches`, by its own scale
_FEATURES = _Given(1280, 1, 0.036, 0.072)  # of CIFAR-10 through `backbone`


def _cnn(
    given: _Given, kernels: tuple[int, int], paddings: tuple[int, int], hidden: int
) -> "_Factory":
    """Conv(10, k, p)-ReLU-MaxPool(2)-Conv(20, k, p)-ReLU-MaxPool(2)-Linear(hidden)-ReLU-Linear."""

    def make(n_classes: int) -> nn.Module:
        side = given.side
        for kernel, padding in zip(kernels, paddings, strict=True):
            side = (side + 2 * padding - kernel + 1) // 2
        return nn.Sequential(
            given.standardise(),
            nn.Conv2d(given.channels, 10, kernels[0], padding=paddings[0]),
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


def _mlp(given: _Given, *hidden: int) -> "_Factory":
    def make(n_classes: int) -> nn.Module:
        widths = (given.channels * given.side**2, *hidden)
        layers: list[nn.Module] = [given.standardise(), nn.Flatten()]
        for before, after in pairwise(widths):
            layers += [nn.Linear(before, after), nn.ReLU()]
        return nn.Sequential(*layers, nn.Linear(widths[-1], n_classes))

    return make


_Factory = Callable[[int], nn.Module]

_HEADS: Mapping[str, tuple[int, ...]] = {"128-64": (128, 64), "256": (256,)}

_REGISTRY: Mapping[str, _Factory] = {
    "cnn-5-5-50": _cnn(_DIGIT, (5, 5), (0, 0), 50),
    "cnn-3-3-128": _cnn(_DIGIT, (3, 3), (1, 1), 128),
    "cnn-5-3-64": _cnn(_DIGIT, (5, 3), (0, 1), 64),
    "mlp-1024-512-256": _mlp(_DIGIT, 1024, 512, 256),
    "mlp-1024-1024": _mlp(_DIGIT, 1024, 1024),
    "chest-cnn-5-5-50": _cnn(_RADIOGRAPH, (5, 5), (0, 0), 50),
    "chest-cnn-3-3-128": _cnn(_RADIOGRAPH, (3, 3), (1, 1), 128),
    "chest-mlp-1024-512-256": _mlp(_RADIOGRAPH, 1024, 512, 256),
    "chest-mlp-1024-1024": _mlp(_RADIOGRAPH, 1024, 1024),
    "patches-128": _mlp(_PATCHES, 128),
    **{f"head-{head}": _mlp(_FEATURES, *widths) for head, widths in _HEADS.items()},
    **{
        f"resnet{depth}-{head}{ending}": partial(resnet, depth, widths, pretrained=bool(ending))
        for depth in (18, 34, 50)
        for head, widths in _HEADS.items()
        for ending in ("", "-pretrained")
    },
}

HETEROGENEOUS: tuple[str, ...] = (
    *("cnn-5-5-50",) * 2,
    *("cnn-3-3-128",) * 2,
    *("cnn-5-3-64",) * 2,
    *("mlp-1024-512-256",) * 2,
    *("mlp-1024-1024",) * 2,
)
"""Table 3: the architectures of clients 1 to 10, in its order."""
# Table 4; its ResNets are pretrained. Features come from one backbone, so only heads differ.
_RESNETS: tuple[str, ...] = (
    *("resnet18-128-64-pretrained",) * 2,
    *("resnet18-256-pretrained",) * 2,
    *("resnet34-128-64-pretrained",) * 2,
    *("resnet34-256-pretrained",) * 2,
    *("resnet50-256-pretrained",) * 2,
)
_ARCHITECTURES: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("mnist5k", "digits", "mnist", "fashion_mnist"), HETEROGENEOUS),
    **dict.fromkeys(
        ("mnist5k_patches", "mnist_patches", "fashion_mnist_patches"), ("patches-128",)
    ),
    "cifar10": _RESNETS,
    "cifar10_features": tuple(
        "head-128-64" if "-128-64" in name else "head-256" for name in _RESNETS
    ),
    "chest_xray": (  # Table 2
        "chest-cnn-5-5-50",
        "chest-cnn-3-3-128",
        "chest-mlp-1024-512-256",
        "chest-mlp-1024-1024",
    ),
}


def build(name: str, n_classes: int, seed: int) -> nn.Module:
    """A freshly initialised model; the same seed gives the same weights."""
    base, _, shape = name.partition("@")
    made = _for_own(base, shape) if shape else _REGISTRY.get(name)
    if made is None:
        raise ConfigurationError("model", name, f"use one of {', '.join(_REGISTRY)}")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return made(n_classes)


_SMALLEST = 16
"""Pixels a side that two convolutions of 5 x 5, each halved, leave something of."""


def _for_own(base: str, shape: str) -> "_Factory | None":
    """An architecture of Table 3 for images of another shape; a narrow one for features."""
    channels, height, width = (int(size) for size in shape.split("x"))
    given = _Given(channels, height, 0.5, 0.25)
    if height != width or 1 < height < _SMALLEST:
        allowed = f"use square images of {_SMALLEST} pixels a side or more, or features [D, 1, 1]"
        raise ConfigurationError("images", (channels, height, width), allowed)
    return {
        "cnn-5-5-50": _cnn(given, (5, 5), (0, 0), 50),
        "cnn-3-3-128": _cnn(given, (3, 3), (1, 1), 128),
        "cnn-5-3-64": _cnn(given, (5, 3), (0, 1), 64),
        "mlp-1024-512-256": _mlp(given, 1024, 512, 256),
        "mlp-1024-1024": _mlp(given, 1024, 1024),
        "mlp-128": _mlp(given, 128),
    }.get(base)


def architectures(image_set: str) -> tuple[str, ...]:
    """The architectures of an image set's clients, in the order of the paper's tables.

    Where there are more clients they repeat; methods that average parameters take the first.
    Raises ConfigurationError for an unknown image set.
    """
    if (shape := own_shape(image_set)) is not None:
        known = ("mlp-128",) if shape[1] == 1 else HETEROGENEOUS
        return tuple(fitted(name, image_set) for name in known)
    if image_set not in _ARCHITECTURES:
        raise ConfigurationError("dataset", image_set, f"use one of {', '.join(_ARCHITECTURES)}")
    return _ARCHITECTURES[image_set]


def fitted(name: str, image_set: str) -> str:
    """An architecture for an image set: that of 28 x 28 images at the shape of one's own.

    >>> fitted("cnn-5-5-50", "mnist"), fitted("cnn-5-5-50", "own-3x32x32-4-200")
    ('cnn-5-5-50', 'cnn-5-5-50@3x32x32')
    """
    shape = own_shape(image_set)
    return name if shape is None else f"{name}@{'x'.join(map(str, shape))}"


def heterogeneous(client: int) -> str:
    """The architecture of a client on 28 x 28 images; beyond ten clients Table 3 repeats."""
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
