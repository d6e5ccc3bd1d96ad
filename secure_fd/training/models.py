"""The paper's architectures (supplementary Tables 2 to 4) by name, and parameters as one vector.

Every network maps images [N, channels, H, W] in [0, 1], as its image set has them, to logits
[N, C]. `cnn-5-3-64` has kernels of 5 and 3 pixels and a hidden layer of 64 units, `mlp-1024-1024`
two hidden layers. Images are grey and of 28 x 28 pixels, or of the shape behind `@`; the mean and
deviation of a pixel may follow: `mlp-128@60x1x1:0.5:0.1`.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Final
from urllib.error import URLError

import torch
from torch import Tensor, nn

from secure_fd.data.image_sets import TABLE_3, TABLE_4
from secure_fd.data.vision import torchvision
from secure_fd.errors import ConfigurationError, LocalError

SHARED: Final = TABLE_3[0]
"""The one architecture of methods that average parameters, on 28 x 28 images."""
_SMALLEST: Final = 16
"""Pixels a side of which two convolutions of 5 x 5, each halved, leave some."""
# Of ImageNet, by channel, as the published weights expect.
_MEAN, _DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
_USUAL = (0.5, 0.25)
"""Mean and deviation of pixels for which a name has none."""


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


_LAYERS = (*TABLE_3, "mlp-128", "mlp-128-64", "mlp-256", "linear")
_PRETRAINED = "-pretrained"
_RESNETS = tuple(
    f"resnet{name}{ending}" for name in (*TABLE_4, "50-128-64") for ending in ("", _PRETRAINED)
)


def build(name: str, n_classes: int, seed: int) -> nn.Module:
    """Make a network with fresh weights; the same seed gives the same weights.

    Raises:
        ConfigurationError: the name is unknown, the shape behind `@` is none that the architecture
            takes, or pretrained weights could not be downloaded.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if name in _RESNETS:
            return _resnet(name, n_classes)
        layers, _, shape = name.partition("@")
        if layers in _LAYERS:
            if not shape:
                return _network(layers, n_classes, 1, 28, Standardise())
            return _network(layers, n_classes, *_planes(shape))
    known = ", ".join((*_LAYERS, *_RESNETS))
    raise ConfigurationError("model", name, f"use one of {known}")


def _planes(text: str) -> tuple[int, int, Standardise]:
    """Channels, side and standardisation of images from the part of a name behind `@`."""
    shape, *figures = text.split(":")
    channels, height, width = (int(size) for size in shape.split("x"))
    if height != width or 1 < height < _SMALLEST:
        allowed = f"use square images of {_SMALLEST} pixels a side or more, or features [D, 1, 1]"
        raise ConfigurationError("images", (channels, height, width), allowed)
    return channels, height, Standardise(*map(float, figures or _USUAL))


def _network(
    name: str, n_classes: int, channels: int, side: int, standardise: Standardise
) -> nn.Module:
    kind, *numbers = name.split("-")
    sizes = [int(number) for number in numbers]
    if kind in ("mlp", "linear"):
        widths = (channels * side**2, *sizes)
        return nn.Sequential(standardise, nn.Flatten(), *_dense(widths, n_classes))
    first, second, hidden = sizes
    paddings = [int(kernel == 3) for kernel in (first, second)]
    for kernel, padding in zip((first, second), paddings, strict=True):
        side = (side + 2 * padding - kernel + 1) // 2
    return nn.Sequential(
        standardise,
        nn.Conv2d(channels, 10, first, padding=paddings[0]),
        nn.MaxPool2d(2),  # before ReLU: the same values, on a quarter of them
        nn.ReLU(),
        nn.Conv2d(10, 20, second, padding=paddings[1]),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Flatten(),
        *_dense((20 * side * side, hidden), n_classes),
    )


def _dense(widths: Sequence[int], n_classes: int) -> list[nn.Module]:
    """Linear layers with ReLU between them."""
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return [*layers, nn.Linear(widths[-1], n_classes)]


def _resnet(name: str, n_classes: int) -> nn.Module:
    """A ResNet (He et al., 2016) with a head of Table 4 in place of its last layer.

    Batch norm keeps running statistics beside the parameters: they stay with the client. Training
    needs two images a batch or more.
    """
    library = torchvision()
    kind, *head = name.removesuffix(_PRETRAINED).split("-")
    weights = "IMAGENET1K_V1" if name.endswith(_PRETRAINED) else None
    try:
        network = library.models.get_model(kind, weights=weights)
    except (URLError, OSError, RuntimeError):
        allowed = "its ImageNet weights could not be downloaded: use the same name without "
        raise ConfigurationError("model", f"{kind}, pretrained", allowed + _PRETRAINED) from None
    widths = (network.fc.in_features, *map(int, head))
    network.fc = nn.Sequential(*_dense(widths, n_classes))
    return nn.Sequential(library.transforms.Normalize(_MEAN, _DEVIATION), network)


def flatten(model: nn.Module) -> Tensor:
    """All parameters as one float32 vector."""
    return torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])


def load_flat(model: nn.Module, parameters: Tensor) -> None:
    """Overwrite all parameters from one vector, in the order of `flatten`, from any device.

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
