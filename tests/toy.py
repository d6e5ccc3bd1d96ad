"""A problem and a network so small that training takes milliseconds."""

import torch
from torch import nn

from secure_fd.data.images import Images


def toy(count: int = 100, seed: int = 0) -> Images:
    """Two classes on 4 x 4 pixels: the upper or the lower half is bright."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % 2
    pixels = torch.rand(count, 1, 4, 4, generator=generator) * 0.5
    pixels[labels == 0, :, :2] += 0.5
    pixels[labels == 1, :, 2:] += 0.5
    return Images(pixels, labels)


def network(seed: int = 0) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 2))
