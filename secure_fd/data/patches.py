"""A feature map learnt from public images alone: patches of Coates and Ng (2011).

Random patches of the public images lose their mean, are divided by sqrt(variance + .03^2) and
whitened (ZCA); spherical k-means finds `filters` unit vectors. An image's maps are
ReLU(+-z - threshold) of every patch against every filter, averaged over 4 x 4 fields; square roots
of these are whitened by principal components. Private images are only ever mapped.
"""

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor
from torch.nn import functional

from secure_fd.errors import ConfigurationError

_FLOOR = 0.03**2
_BATCH = 50
"""Images at a time: their maps stay in a core's cache."""
_REACH = 5.0
"""Deviations that a feature may lie from its mean, where [0, 1] ends."""
SPREAD = 1 / (2 * _REACH)
"""Deviation of a feature on public images."""
EXPLAINED, MOST_RANK = 0.92, 250
"""Of the public images' variance before whitening, and components at most: more of them are detail
that noise drowns, fewer cannot tell clothes apart (looked at on seed 0)."""


@dataclass(frozen=True, slots=True)
class PatchSettings:
    """rank: features of an image, None: as many principal components as it takes (`EXPLAINED`).

    patches: that filters are learnt from. side: pixels of a patch.

    >>> PatchSettings(rank=30).filters
    96
    """

    rank: int | None = 60
    filters: int = 96
    patches: int = 60_000
    side: int = 7
    pool: int = 4
    ridge: float = 0.1
    threshold: float = 0.5
    rounds: int = 10
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("rank", "filters", "patches", "side", "pool", "rounds"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigurationError(name, value, "use 1 or more")
        most = 2 * self.filters * self.pool**2
        if self.rank is not None and self.rank > most:
            raise ConfigurationError("rank", self.rank, f"use at most {most}")


@dataclass(frozen=True, slots=True, eq=False)
class PatchMap:
    """Images [N, channels, H, W] -> features [N, rank, 1, 1] in [0, 1], mean .5 on public images.

    >>> public = torch.rand(40, 1, 12, 12, generator=torch.Generator().manual_seed(0))
    >>> found = PatchMap.fit(public, PatchSettings(rank=4, filters=8, patches=200, side=5))
    >>> found(public[:3]).shape
    torch.Size([3, 4, 1, 1])
    """

    settings: PatchSettings
    mean: Tensor = field(repr=False)
    filters: Tensor = field(repr=False)
    centre: Tensor = field(repr=False)
    axes: Tensor = field(repr=False)

    @classmethod
    def fit(cls, public: Tensor, settings: PatchSettings | None = None) -> "PatchMap":
        """Learn filters and axes. Raises ConfigurationError for images smaller than a patch."""
        chosen = settings or PatchSettings()
        if min(public.shape[2:]) < chosen.side:
            raise ConfigurationError("side", chosen.side, f"images are {tuple(public.shape[2:])}")
        random = torch.Generator().manual_seed(chosen.seed)
        patches = _normalised(_random_patches(public, chosen, random))
        mean = patches.mean(dim=0)
        values, vectors = torch.linalg.eigh(torch.cov((patches - mean).T))
        whiten = vectors @ torch.diag((values + chosen.ridge).rsqrt()) @ vectors.T
        filters = whiten @ _directions((patches - mean) @ whiten, chosen, random).T
        nothing = torch.zeros(0)
        bare = cls(chosen, mean, filters, nothing, nothing)
        raw = bare._raw(public)
        centre = raw.mean(dim=0)
        kept = _components(raw - centre, chosen)
        scale = ((raw - centre) @ kept).std(dim=0).clamp_min(1e-6)
        return replace(bare, centre=centre, axes=kept / scale)

    def __call__(self, pixels: Tensor) -> Tensor:
        """The features of images, between 0 and 1 as pixels are."""
        return (0.5 + self.whitened(pixels) / (2 * _REACH)).clamp(0, 1)[:, :, None, None]

    def whitened(self, pixels: Tensor) -> Tensor:
        """[N, rank], of mean zero and deviation one on the public images."""
        return (self._raw(pixels) - self.centre) @ self.axes

    def _raw(self, pixels: Tensor) -> Tensor:
        """[N, 2 filters pool^2], before principal components."""
        return torch.cat([self._of_batch(part) for part in torch.split(pixels, _BATCH)])

    def _of_batch(self, pixels: Tensor) -> Tensor:
        """A patch without its mean and over its deviation, against a filter: one convolution.

        (patch - mean) / deviation . filter = patch . (filter - its mean) / deviation.
        """
        chosen, channels = self.settings, pixels.shape[1]
        side, pool, threshold = chosen.side, chosen.pool, chosen.threshold
        centred = (self.filters - self.filters.mean(dim=0)).T.reshape(-1, channels, side, side)
        first, second = (
            functional.avg_pool2d(power, side, stride=1).mean(dim=1, keepdim=True)
            for power in (pixels, pixels.square())
        )
        scale = ((second - first.square()).clamp_min(0) + _FLOOR).rsqrt()
        against = functional.conv2d(pixels, centred) * scale
        against -= (self.mean @ self.filters)[:, None, None]
        pooled = [
            functional.adaptive_avg_pool2d((sign * against - threshold).relu_(), pool)
            for sign in (1, -1)
        ]
        return torch.cat(pooled, dim=1).flatten(1).sqrt()


def _components(centred: Tensor, settings: PatchSettings) -> Tensor:
    """[d, rank] leading principal components of [N, d]."""
    most = min(settings.rank or MOST_RANK, *centred.shape)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        wanted = min(most + 10, *centred.shape)
        _, sizes, axes = torch.svd_lowrank(centred, q=wanted, niter=4)
    if settings.rank is not None:
        return axes[:, :most]
    explained = sizes.square().cumsum(0) / centred.square().sum()
    return axes[:, : min(most, int((explained < EXPLAINED).sum()) + 1)]


def _random_patches(public: Tensor, settings: PatchSettings, random: torch.Generator) -> Tensor:
    """[patches, channels side^2] from random places of random images."""
    side, count = settings.side, settings.patches
    image = torch.randint(len(public), (count,), generator=random)
    corners = [torch.randint(n - side + 1, (count,), generator=random) for n in public.shape[2:]]
    rows, columns = (corner[:, None] + torch.arange(side) for corner in corners)
    channels = torch.arange(public.shape[1])
    found = public[
        image[:, None, None, None],
        channels[None, :, None, None],
        rows[:, None, :, None],
        columns[:, None, None, :],
    ]
    return found.flatten(1)


def _normalised(patches: Tensor) -> Tensor:
    """Rows without their mean, over sqrt(variance + .03^2)."""
    centred = patches - patches.mean(dim=-1, keepdim=True)
    return centred / (centred.square().mean(dim=-1, keepdim=True) + _FLOOR).sqrt()


def _directions(whitened: Tensor, settings: PatchSettings, random: torch.Generator) -> Tensor:
    """[filters, d] unit centres of spherical k-means; an empty cluster keeps its centre."""
    points = functional.normalize(whitened, dim=1)
    centres = points[torch.randperm(len(points), generator=random)[: settings.filters]]
    for _ in range(settings.rounds):
        nearest = (points @ centres.T).argmax(dim=1)
        sums = torch.zeros_like(centres).index_add_(0, nearest, points)
        norms = sums.norm(dim=1, keepdim=True)
        centres = torch.where(norms > 0, sums / norms.clamp_min(1e-12), centres)
    return centres
