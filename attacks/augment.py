"""Small rotations and shifts of images: the neighbours a label-only attack asks about."""

import math

import torch
from torch import Tensor
from torch.nn.functional import affine_grid, grid_sample

from secure_fd.errors import ConfigurationError


def augmentations(rotation: int, shift: int) -> Tensor:
    """[n, 2, 3] affine maps: identity, every degree of -r..r, every shift |i| + |j| = d.

    n = (2 r + 1) + 4 d: identity counted once (Choquette-Choo et al., ICML 2021, section 4).
    Maps are from output to input, shifts in pixels.
    """
    if rotation < 0 or rotation > 45:
        raise ConfigurationError("rotation", rotation, "use 0 to 45 degrees")
    if shift < 0:
        raise ConfigurationError("shift", shift, "use 0 pixels or more")
    turns = [_turn(degrees) for degrees in range(-rotation, rotation + 1) if degrees]
    moves = [
        _move(i, j)
        for i in range(-shift, shift + 1)
        for j in {shift - abs(i), abs(i) - shift}
        if shift
    ]
    return torch.stack([_move(0, 0), *turns, *moves])


def transform(images: Tensor, theta: Tensor) -> Tensor:
    """Images [N, 1, H, W] under one map [2, 3]: bilinear, black outside; identity is exact."""
    if torch.equal(theta, _move(0, 0)):
        return images
    height, width = images.shape[2:]
    scale = torch.tensor([2.0 / width, 2.0 / height])
    relative = torch.cat([theta[:, :2], (theta[:, 2] * scale)[:, None]], dim=1)
    grid = affine_grid(relative.expand(len(images), 2, 3), list(images.shape), align_corners=False)
    return grid_sample(images, grid, align_corners=False).clamp(0, 1)


def _turn(degrees: int) -> Tensor:
    angle = math.radians(degrees)
    c, s = math.cos(angle), math.sin(angle)
    return torch.tensor([[c, -s, 0.0], [s, c, 0.0]])


def _move(right: int, down: int) -> Tensor:
    """Output pixel (x, y) reads input (x - right, y - down)."""
    return torch.tensor([[1.0, 0.0, -float(right)], [0.0, 1.0, -float(down)]])
