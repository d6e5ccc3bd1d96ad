"""Random views of training images: public proxies and private records alike, made on the spot.

A client changes nothing that it sends: its answers are about the images as they are.
"""

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torch.nn import functional

from secure_fd.errors import ConfigurationError

Augmentation = Callable[[Tensor, torch.Generator], Tensor]
"""Pixels [N, channels, H, W] and a generator to views of the same shape."""

_REACH = 2
"""Largest shift, in pixels: what a digit or a garment moves without becoming another."""
_TURN, _ZOOM = math.radians(10), 0.1
"""Largest turn, and change of size: what handwriting varies by."""


def shifted(pixels: Tensor, generator: torch.Generator) -> Tensor:
    """Every image moved by up to two pixels each way; black comes in at the edges."""
    count, channels, height, width = pixels.shape
    if min(height, width) <= 2 * _REACH:
        raise ConfigurationError("augment", "shift", "images must be larger than 4 pixels a side")
    padded = functional.pad(pixels, (_REACH,) * 4)
    moves = torch.randint(2 * _REACH + 1, (2, count), generator=generator).to(pixels.device)
    rows = moves[0, :, None] + torch.arange(height, device=pixels.device)
    columns = moves[1, :, None] + torch.arange(width, device=pixels.device)
    image = torch.arange(count, device=pixels.device)[:, None, None, None]
    channel = torch.arange(channels, device=pixels.device)[None, :, None, None]
    return padded[image, channel, rows[:, None, :, None], columns[:, None, None, :]]


def mirrored(pixels: Tensor, generator: torch.Generator) -> Tensor:
    """Every image flipped from left to right with chance one half."""
    flip = torch.randint(2, (len(pixels),), generator=generator).to(pixels.device)
    return torch.where(flip[:, None, None, None] == 1, pixels.flip(3), pixels)


def turned(pixels: Tensor, generator: torch.Generator) -> Tensor:
    """Every image turned, resized and shifted a little, between pixels as well; black comes in."""
    turn, zoom, right, down = 2 * torch.rand(4, len(pixels), generator=generator) - 1
    size = 1 + _ZOOM * zoom
    cosine, sine = torch.cos(_TURN * turn) * size, torch.sin(_TURN * turn) * size
    height, width = pixels.shape[2:]
    across, along = 2 * _REACH / width * right, 2 * _REACH / height * down
    rows = torch.stack([cosine, -sine, across, sine, cosine, along], dim=1).view(-1, 2, 3)
    grid = functional.affine_grid(rows.to(pixels.device), list(pixels.shape), align_corners=False)
    return functional.grid_sample(pixels, grid, align_corners=False)


_AUGMENTATIONS: Mapping[str, Augmentation | None] = {
    "none": None,
    "shift": shifted,
    "mirror": mirrored,
    "turn": turned,
}


def augmentation(name: str) -> Augmentation | None:
    """The views of that name, or None for images as they are.

    Raises ConfigurationError for an unknown name.
    """
    if name not in _AUGMENTATIONS:
        raise ConfigurationError("augment", name, f"use one of {', '.join(_AUGMENTATIONS)}")
    return _AUGMENTATIONS[name]
