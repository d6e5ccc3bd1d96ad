"""Random views of training images that keep their labels."""

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torch.nn import functional

from secure_fd.errors import ConfigurationError

View = Callable[[Tensor, torch.Generator], Tensor]
"""Maps pixels [N, channels, H, W] and a generator to altered ones of the same shape."""

_REACH = 2
"""Largest shift, in pixels: what a digit or a garment moves without becoming another."""
_TURN, _ZOOM = math.radians(10), 0.1
"""Largest turn, and change of size: what handwriting varies by."""


def shifted(pixels: Tensor, generator: torch.Generator) -> Tensor:
    """Shift every image by up to two pixels each way; the edges become black."""
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
    """Flip every image from left to right with probability one half."""
    flip = torch.randint(2, (len(pixels),), generator=generator).to(pixels.device)
    return torch.where(flip[:, None, None, None] == 1, pixels.flip(3), pixels)


def turned(pixels: Tensor, generator: torch.Generator) -> Tensor:
    """Turn, resize and shift every image a little, not by whole pixels; edges become black."""
    moves = 2 * torch.rand(4, len(pixels), generator=generator) - 1
    return _placed(pixels, _affine(pixels, moves, _TURN, _ZOOM, _REACH))


def nudged(pixels: Tensor, generator: torch.Generator) -> Tensor:
    """Turn, resize and shift every image very little; flip it with probability one half."""
    moves = 2 * torch.rand(4, len(pixels), generator=generator) - 1
    moved = _placed(pixels, _affine(pixels, moves, _NUDGE, _NUDGE_ZOOM, 1))
    return mirrored(moved, generator)


def bent(pixels: Tensor, generator: torch.Generator) -> Tensor:
    """Turn, resize, slant, shift and bend every image a little, as handwriting varies.

    The field of shifts is smooth between random points.

    Reference: Simard, Steinkraus and Platt, ICDAR 2003.
    """
    *moves, slant = 2 * torch.rand(5, len(pixels), generator=generator) - 1
    rows = _affine(pixels, torch.stack(moves), _BENT_TURN, _ZOOM, _BEND)
    rows[:, 0, 1] += _SLANT * slant
    unit = 2 * _BEND / pixels.shape[3]
    knots = unit * torch.randn(len(pixels), 2, _KNOTS, _KNOTS, generator=generator)
    size = (pixels.shape[2], pixels.shape[3])
    field = functional.interpolate(knots, size=size, mode="bicubic", align_corners=True)
    return _placed(pixels, rows, field.permute(0, 2, 3, 1))


_NUDGE, _NUDGE_ZOOM = math.radians(5), 0.05
_BENT_TURN, _SLANT = math.radians(8), 0.15
_BEND, _KNOTS = 1.5, 5
"""Pixels by which a field and a shift move a stroke, about; the field's points a side."""


def _affine(pixels: Tensor, moves: Tensor, turn: float, zoom: float, reach: float) -> Tensor:
    """[N, 2, 3] from moves [4, N] in [-1, 1]: turn, change of size, shifts of `reach` pixels."""
    angle, larger, right, down = moves
    size = 1 + zoom * larger
    cosine, sine = torch.cos(turn * angle) * size, torch.sin(turn * angle) * size
    height, width = pixels.shape[2:]
    across, along = 2 * reach / width * right, 2 * reach / height * down
    return torch.stack([cosine, -sine, across, sine, cosine, along], dim=1).view(-1, 2, 3)


def _placed(pixels: Tensor, rows: Tensor, field: Tensor | None = None) -> Tensor:
    """Images under an affine map each, and a field [N, H, W, 2] of further shifts."""
    grid = functional.affine_grid(rows.to(pixels.device), list(pixels.shape), align_corners=False)
    if field is not None:
        grid = grid + field.to(pixels.device)
    return functional.grid_sample(pixels, grid, align_corners=False)


_VIEWS: Mapping[str, View | None] = {
    "none": None,
    "shift": shifted,
    "mirror": mirrored,
    "turn": turned,
    "bend": bent,
    "nudge": nudged,
}


def view_named(name: str) -> View | None:
    """Return the view of that name, or None for images as they are.

    Raises:
        ConfigurationError: the name is unknown.
    """
    if name not in _VIEWS:
        raise ConfigurationError("augment", name, f"use one of {', '.join(_VIEWS)}")
    return _VIEWS[name]
