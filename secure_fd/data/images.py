"""Labelled images as two tensors."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from secure_fd.errors import LocalError


@dataclass(frozen=True, slots=True, eq=False)
class Images:
    """pixels: float32 [N, channels, H, W] in [0, 1]. labels: int64 [N].

    >>> len(Images(torch.zeros(5, 1, 28, 28), torch.zeros(5, dtype=torch.int64)))
    5
    """

    pixels: Tensor = field(repr=False)
    labels: Tensor = field(repr=False)

    def __post_init__(self) -> None:
        if self.pixels.ndim != 4 or self.labels.shape != self.pixels.shape[:1]:
            raise LocalError(
                f"images need pixels [N, channels, H, W] and labels [N], "
                f"not {tuple(self.pixels.shape)} and {tuple(self.labels.shape)}"
            )

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, indices: Tensor) -> "Images":
        """The images at these indices."""
        return Images(self.pixels[indices], self.labels[indices])

    def to(self, device: torch.device) -> "Images":
        """The same images on another device."""
        return Images(self.pixels.to(device), self.labels.to(device))


def concatenate(parts: "list[Images]") -> Images:
    """All images of the parts, in order."""
    return Images(
        torch.cat([part.pixels for part in parts]), torch.cat([part.labels for part in parts])
    )
