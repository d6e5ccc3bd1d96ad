"""Labelled images as two tensors."""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from secure_fd.errors import ConfigurationError
from secure_fd.votes.codec import IntArray


@dataclass(frozen=True, slots=True, eq=False)
class Images:
    """Images and their labels.

    Attributes:
        pixels: float32 [N, channels, H, W] in [0, 1]; `ClientData` checks the range.
        labels: int64 [N].

    Raises:
        ConfigurationError: a shape or type is another.

    >>> len(Images(torch.zeros(5, 1, 28, 28), torch.zeros(5, dtype=torch.int64)))
    5
    """

    pixels: Tensor = field(repr=False)
    labels: Tensor = field(repr=False)

    def __post_init__(self) -> None:
        checked_pixels("pixels", self.pixels)
        _check_labels(self.labels, len(self.pixels))

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, indices: Tensor | IntArray) -> "Images":
        """Return the images at these indices."""
        return Images(self.pixels[indices], self.labels[indices])

    def to(self, device: torch.device) -> "Images":
        """Return the images on another device."""
        return Images(self.pixels.to(device), self.labels.to(device))


def checked_pixels(field: str, pixels: object) -> Tensor:
    """Return pixels that are float32 [N, channels, H, W]; ConfigurationError for anything else.

    >>> checked_pixels("pixels", torch.zeros(2, 28, 28, 3))
    Traceback (most recent call last):
    secure_fd.errors.ConfigurationError: pixels: (2, 28, 28, 3) is not allowed; ...
    """
    if not isinstance(pixels, Tensor):
        allowed = "use a tensor: .pixels of Images, torch.from_numpy, or fd.images_in of a folder"
        raise ConfigurationError(field, type(pixels).__name__, allowed)
    if pixels.dtype != torch.float32:
        allowed = "use float32 in [0, 1]: .float(), and bytes divided by 255"
        raise ConfigurationError(field, str(pixels.dtype), allowed)
    shape = tuple(pixels.shape)
    if pixels.ndim != 4:
        raise ConfigurationError(field, shape, "use [N, channels, H, W]; vectors are [N, D, 1, 1]")
    if shape[1] == shape[2] > _MOST_CHANNELS >= shape[3]:
        raise ConfigurationError(field, shape, "channels come first: use .permute(0, 3, 1, 2)")
    return pixels


_MOST_CHANNELS = 4


def in_range(pixels: Tensor) -> bool:
    """Return whether all are in [0, 1], and none is NaN."""
    return not len(pixels) or bool(pixels.min() >= 0 and pixels.max() <= 1)


def _check_labels(labels: object, count: int) -> None:
    if not isinstance(labels, Tensor):
        raise ConfigurationError("labels", type(labels).__name__, "use a tensor of int64")
    if labels.dtype != torch.int64:
        raise ConfigurationError("labels", str(labels.dtype), "use int64: .long()")
    if tuple(labels.shape) != (count,):
        shape = tuple(labels.shape)
        raise ConfigurationError("labels", shape, f"use one a record: ({count},)")


def concatenate(parts: Sequence[Images]) -> Images:
    """Return all images of the parts, in order."""
    return Images(
        torch.cat([part.pixels for part in parts]), torch.cat([part.labels for part in parts])
    )


def proxy_pixels(proxies: Tensor) -> NDArray[np.uint8]:
    """Return the 8-bit pixels [P, ...] that are sent, from floats in [0, 1]."""
    return np.asarray((proxies * 255).round().byte().cpu().numpy())


def pixel_bytes(pixels: NDArray[np.uint8]) -> int:
    """Return the bytes of 8-bit pixels, losslessly compressed; every client receives them once."""
    return len(zlib.compress(pixels.tobytes(), level=6))
