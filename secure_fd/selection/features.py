"""Feature maps fitted on public proxies alone: private records are only ever mapped."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from secure_fd.knowledge import FloatArray

_BATCH = 1000


@dataclass(frozen=True, slots=True)
class Scale:
    """One size of detail: filters of kernel x kernel pixels, then an average over pool x pool."""

    kernel: int
    stride: int
    pool: int
    bias: float
    n_filters: int = 64


SCALES = (Scale(3, 1, 4, 0.1), Scale(7, 2, 2, 0.2))
"""Edges and strokes. On MNIST both together separate better than either, or than pixels."""


@dataclass(frozen=True, slots=True, eq=False)
class RandomConvolution:
    """Fixed random filters -> ReLU(. - bias) -> average pool: features with no training at all."""

    filters: Tensor  # [F, channels, k, k], each of mean zero and norm one
    bias: float
    stride: int
    pool: int

    @classmethod
    def draw(cls, scale: "Scale", channels: int, seed: int) -> "RandomConvolution":
        """Filters from a public seed; a mean of zero makes them blind to brightness."""
        generator = torch.Generator().manual_seed(seed)
        side = scale.kernel
        filters = torch.randn(scale.n_filters, channels, side, side, generator=generator)
        filters -= filters.mean(dim=(2, 3), keepdim=True)
        filters /= torch.linalg.vector_norm(filters, dim=(1, 2, 3), keepdim=True)
        return cls(filters, scale.bias, scale.stride, scale.pool)

    def __call__(self, pixels: Tensor) -> FloatArray:
        """[N, channels, H, W] -> [N, features]."""
        filters = self.filters.to(pixels.device)
        parts = []
        for batch in torch.split(pixels, _BATCH):
            maps = functional.relu(
                functional.conv2d(batch, filters, stride=self.stride) - self.bias
            )
            parts.append(functional.avg_pool2d(maps, self.pool).flatten(1).cpu())
        return torch.cat(parts).double().numpy()


@dataclass(frozen=True, slots=True, eq=False)
class Whitening:
    """Principal components of the proxies, each scaled to unit variance on them."""

    mean: FloatArray  # [d]
    basis: FloatArray  # [d, r]

    @classmethod
    def fit(cls, features: FloatArray, rank: int) -> "Whitening":
        """Fit on [N, d]; rank is lowered where the proxies span less."""
        mean = features.mean(axis=0)
        centred = features - mean
        values, vectors = np.linalg.eigh(centred.T @ centred / len(features))
        keep = np.argsort(values)[::-1][: min(rank, len(features) - 1, len(values))]
        keep = keep[values[keep] > 1e-10 * values.max()]
        return cls(mean, vectors[:, keep] / np.sqrt(values[keep]))

    def __call__(self, features: FloatArray) -> FloatArray:
        """[N, d] -> [N, r]."""
        return (features - self.mean) @ self.basis


@dataclass(frozen=True, slots=True, eq=False)
class PublicFeatures:
    """Both scales, each whitened on the proxies, side by side."""

    banks: tuple[tuple[RandomConvolution, Whitening], ...]

    @classmethod
    def fit(cls, proxies: Tensor, ranks: tuple[int, ...], seed: int) -> "PublicFeatures":
        """Fit on public pixels [P, channels, H, W]; ranks: whitened features of each scale."""
        banks = []
        for scale, rank in zip(SCALES, ranks, strict=True):
            convolution = RandomConvolution.draw(scale, proxies.shape[1], seed)
            banks.append((convolution, Whitening.fit(convolution(proxies), rank)))
        return cls(tuple(banks))

    def __call__(self, pixels: Tensor) -> FloatArray:
        """[N, channels, H, W] -> [N, sum of ranks]."""
        parts = [whitening(convolution(pixels)) for convolution, whitening in self.banks]
        return np.concatenate(parts, axis=1)


@dataclass(frozen=True, slots=True, eq=False)
class FourierFeatures:
    """Random Fourier features of the Gaussian kernel exp(-|x-y|^2 / (2 width^2)).

    Rows have norm one exactly (a cosine and a sine of each frequency), which is what bounds a
    record's influence on a mean of them (Rahimi and Recht, 2007).
    """

    frequencies: FloatArray  # [r, D / 2]

    @classmethod
    def draw(cls, inputs: FloatArray, n_features: int, seed: int) -> "FourierFeatures":
        """Frequencies for a width of the median distance between the public inputs [N, r]."""
        rng = np.random.default_rng(seed)
        pairs = rng.integers(len(inputs), size=(2, 4096))
        distances = np.linalg.norm(inputs[pairs[0]] - inputs[pairs[1]], axis=1)
        width = float(np.median(distances[distances > 0]))
        return cls(rng.standard_normal((inputs.shape[1], n_features // 2)) / width)

    def __call__(self, inputs: FloatArray) -> FloatArray:
        """[N, r] -> [N, D], rows of norm one."""
        angles = inputs @ self.frequencies
        scale = 1.0 / np.sqrt(self.frequencies.shape[1])
        return np.asarray(np.concatenate([np.cos(angles), np.sin(angles)], axis=1) * scale)
