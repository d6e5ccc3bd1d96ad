"""A feature map learnt from public images alone: patches of Coates and Ng (2011).

Random patches of the public images lose their mean, are divided by sqrt(variance + .03^2) and
whitened (ZCA); spherical k-means finds `filters` unit vectors. An image's maps are
ReLU(+-z - threshold) of every patch against every filter, averaged over 4 x 4 fields; square roots
of these are whitened by principal components. Private images are only ever mapped.
"""

from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

_FILTERS: Final = 96
_PATCHES: Final = 60_000
"""Random patches that filters are learnt from."""
_SIDE: Final = 7
"""Pixels of a patch; fewer where images are smaller."""
_POOL: Final = 4
_RIDGE: Final = 0.1
_THRESHOLD: Final = 0.5
_ROUNDS: Final = 10
"""Rounds of k-means."""
_FLOOR: Final = 0.03**2
_BATCH: Final = 50
"""Images at a time: their maps stay in a core's cache."""
_EXPLAINED, _MOST_RANK = 0.92, 250
"""Share of the public images' variance kept by whitening, and most components. More components are
detail below the noise; with fewer, kinds of clothes look alike (chosen on seed 0)."""


@dataclass(frozen=True, slots=True, eq=False)
class PatchMap:
    """Images [N, channels, H, W] -> features [N, rank], mean 0 and deviation 1 on public images.

    >>> public = torch.rand(40, 1, 12, 12, generator=torch.Generator().manual_seed(0))
    >>> PatchMap.fit(public, rank=4)(public[:3]).shape
    (3, 4)
    """

    side: int
    mean: Tensor = field(repr=False)
    filters: Tensor = field(repr=False)
    centre: Tensor = field(repr=False)
    axes: Tensor = field(repr=False)

    @classmethod
    def fit(cls, public: Tensor, rank: int | None = 60) -> "PatchMap":
        """Learn filters and axes from public images.

        Args:
            public: [N, channels, H, W].
            rank: features of an image; None for as many principal components as explain 92 % of the
                variance, 250 at most.
        """
        random = torch.Generator().manual_seed(0)
        side = min(_SIDE, *public.shape[2:])
        patches = _normalised(_random_patches(public, side, random))
        mean = patches.mean(dim=0)
        values, vectors = torch.linalg.eigh(torch.cov((patches - mean).T))
        whiten = vectors @ torch.diag((values + _RIDGE).rsqrt()) @ vectors.T
        filters = whiten @ _directions((patches - mean) @ whiten, random).T
        nothing = torch.zeros(0)
        bare = cls(side, mean, filters, nothing, nothing)
        raw = bare._raw(public)
        centre = raw.mean(dim=0)
        kept = _components(raw - centre, rank)
        scale = ((raw - centre) @ kept).std(dim=0).clamp_min(1e-6)
        return replace(bare, centre=centre, axes=kept / scale)

    @property
    def rank(self) -> int:
        """Features of an image."""
        return self.axes.shape[1]

    def leading(self, rank: int) -> "PatchMap":
        """Keep the leading features alone, at most `rank` of them."""
        return replace(self, axes=self.axes[:, :rank])

    def __call__(self, pixels: Tensor) -> NDArray[np.float64]:
        """Map images to [N, rank]."""
        whitened = (self._raw(pixels.cpu()) - self.centre) @ self.axes
        return np.asarray(whitened.double().numpy())

    def whitened(self, pixels: Tensor) -> Tensor:
        """Map images to [N, rank] in one batch of tensors, as an exported program does."""
        return (self._of_batch(pixels) - self.centre) @ self.axes

    def _raw(self, pixels: Tensor) -> Tensor:
        """[N, 2 filters pool^2], before principal components."""
        return torch.cat([self._of_batch(part) for part in torch.split(pixels, _BATCH)])

    def _of_batch(self, pixels: Tensor) -> Tensor:
        """A patch without its mean and over its deviation, against a filter: one convolution.

        (patch - mean) / deviation . filter = patch . (filter - its mean) / deviation.
        """
        side, channels = self.side, pixels.shape[1]
        centred = (self.filters - self.filters.mean(dim=0)).T.reshape(-1, channels, side, side)
        first, second = (
            functional.avg_pool2d(power, side, stride=1).mean(dim=1, keepdim=True)
            for power in (pixels, pixels.square())
        )
        scale = ((second - first.square()).clamp_min(0) + _FLOOR).rsqrt()
        against = functional.conv2d(pixels, centred) * scale
        against -= (self.mean @ self.filters)[:, None, None]
        pooled = [
            functional.adaptive_avg_pool2d((sign * against - _THRESHOLD).relu_(), _POOL)
            for sign in (1, -1)
        ]
        return torch.cat(pooled, dim=1).flatten(1).sqrt()


def _components(centred: Tensor, rank: int | None) -> Tensor:
    """[d, rank] leading principal components of [N, d]."""
    most = min(rank or _MOST_RANK, *centred.shape)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        wanted = min(most + 10, *centred.shape)
        _, sizes, axes = torch.svd_lowrank(centred, q=wanted, niter=4)
    if rank is not None:
        return axes[:, :most]
    explained = sizes.square().cumsum(0) / centred.square().sum()
    return axes[:, : min(most, int((explained < _EXPLAINED).sum()) + 1)]


def _random_patches(public: Tensor, side: int, random: torch.Generator) -> Tensor:
    """[patches, channels side^2] from random places of random images."""
    image = torch.randint(len(public), (_PATCHES,), generator=random)
    rows, columns = (
        torch.randint(n - side + 1, (_PATCHES,), generator=random) for n in public.shape[2:]
    )
    windows = public.unfold(2, side, 1).unfold(3, side, 1)
    return windows[image, :, rows, columns].flatten(1)


def _normalised(patches: Tensor) -> Tensor:
    """Rows without their mean, over sqrt(variance + .03^2)."""
    centred = patches - patches.mean(dim=-1, keepdim=True)
    return centred / (centred.square().mean(dim=-1, keepdim=True) + _FLOOR).sqrt()


def _directions(whitened: Tensor, random: torch.Generator) -> Tensor:
    """[filters, d] unit centres of spherical k-means; an empty cluster keeps its centre."""
    points = functional.normalize(whitened, dim=1)
    centres = points[torch.randperm(len(points), generator=random)[:_FILTERS]]
    for _ in range(_ROUNDS):
        nearest = (points @ centres.T).argmax(dim=1)
        sums = torch.zeros_like(centres).index_add_(0, nearest, points)
        norms = sums.norm(dim=1, keepdim=True)
        centres = torch.where(norms > 0, sums / norms.clamp_min(1e-12), centres)
    return centres
