"""ResNets (He et al., 2016) with the heads of the paper's Table 4 in place of their last layer."""

from itertools import pairwise
from urllib.error import URLError

from torch import nn

from secure_fd.errors import ConfigurationError
from secure_fd.vision import torchvision

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
