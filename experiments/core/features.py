"""Image sets of features: CIFAR-10 through a frozen backbone, MNIST through public patches."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from experiments.core.backbone import cached_features
from secure_fd.data.federated import ClientData, FederatedData, Source, content_of
from secure_fd.data.images import Images, pixel_bytes, proxy_pixels
from secure_fd.data.patches import PatchMap
from secure_fd.data.sources import cache_folder, load

_WIDTH = 10.0
"""Deviations of a patch feature that [0, 1] is wide."""
SPREAD = 1 / _WIDTH
"""Deviation of a patch feature on public images, between 0 and 1."""


def as_records(features_of: PatchMap, pixels: Tensor) -> Tensor:
    """Map images to records [N, rank, 1, 1] in [0, 1], of mean .5 on the public images."""
    whitened = torch.from_numpy(features_of(pixels)).float()
    return (0.5 + whitened / _WIDTH).clamp(0, 1)[:, :, None, None]


def seen_through(data: FederatedData, view: Callable[[Tensor], Tensor]) -> FederatedData:
    """Map all images [N, channels, H, W] of a federation to features [N, d, 1, 1].

    >>> from secure_fd import federate, load, parse_split
    >>> data = federate(load("digits"), parse_split("iid"), 3, seed=0)
    >>> brightness = seen_through(data, lambda pixels: pixels.mean(dim=(2, 3), keepdim=True))
    >>> brightness.test.pixels.shape[1:]
    torch.Size([1, 1, 1])
    """

    def of(images: Images) -> Images:
        return Images(view(images.pixels) if len(images) else images.pixels, images.labels)

    clients = tuple(
        ClientData(of(client.train), of(client.validation), client.n_classes)
        for client in data.clients
    )
    return replace(
        data,
        clients=clients,
        proxies=of(data.proxies),
        test=of(data.test),
        held_out=of(data.held_out),
        proxy_message_bytes=pixel_bytes(proxy_pixels(data.proxies.pixels)),
    )


def cifar10_features(data_dir: Path | None) -> Source:
    """CIFAR-10 as a frozen ImageNet backbone maps it: [N, 1280, 1, 1] in [0, 1].

    The paper's clients hold pretrained ResNets whole; with the backbone frozen and shared, they
    train the heads of its Table 4 alone. Images travel, and each client maps them itself.
    """
    images = load("cifar10", data_dir)
    pool, test = (_mapped(part) for part in (images.pool, images.test) if part is not None)

    def sent(data: FederatedData) -> FederatedData:
        image_of = dict(zip(map(content_of, pool.pixels), images.pool.pixels, strict=True))
        shown = torch.stack([image_of[content_of(features)] for features in data.proxies.pixels])
        return replace(data, proxy_message_bytes=pixel_bytes(proxy_pixels(shown)))

    return Source("cifar10_features", 10, pool, test, sent)


def _mapped(images: Images) -> Images:
    pixels = (images.pixels * 255).round().byte().numpy()
    features = cached_features(pixels, cache_folder() / "features")
    return Images(torch.from_numpy(features)[:, :, None, None] / 255, images.labels)


def _patches(name: str, data_dir: Path | None) -> Source:
    """A set of images that clients receive as patch features, [N, 60, 1, 1] in [0, 1]."""

    def seen(data: FederatedData) -> FederatedData:
        return seen_through(data, partial(as_records, PatchMap.fit(data.proxies.pixels)))

    return replace(load(name, data_dir), name=f"{name}_patches", seen=seen)


mnist5k_patches = partial(_patches, "mnist5k")
mnist_patches = partial(_patches, "mnist")
fashion_mnist_patches = partial(_patches, "fashion_mnist")
