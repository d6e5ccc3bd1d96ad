"""Feature maps fitted on public proxies alone: private records are only ever mapped."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from secure_fd.knowledge import FloatArray

_BATCH = 1000
_SIDE = 28  # for which SCALES are stated


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
        """[N, channels, H, W] -> [N, features]; images far above 28 x 28 are shrunk to about it."""
        filters = self.filters.to(pixels.device)
        shrink = max(1, round(pixels.shape[2] / _SIDE))
        parts = []
        for batch in torch.split(pixels, _BATCH):
            small = functional.avg_pool2d(batch, shrink) if shrink > 1 else batch
            maps = functional.relu(
                functional.conv2d(small, filters, stride=self.stride) - self.bias
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
        """Fit on [N, d]; rank is lowered where the proxies span less.

        The covariance X^T X / N and the Gram matrix X X^T / N share their eigenvalues, and X^T maps
        eigenvectors of the second to those of the first: the smaller of the two is decomposed.
        """
        mean = features.mean(axis=0)
        centred = features - mean
        count, wide = len(features), len(features) < features.shape[1]
        gram = centred @ centred.T if wide else centred.T @ centred
        values, vectors = np.linalg.eigh(gram / count)
        keep = np.argsort(values)[::-1][: min(rank, count - 1, len(values))]
        keep = keep[values[keep] > 1e-10 * values.max()]
        basis = vectors[:, keep] / np.sqrt(values[keep])
        return cls(mean, centred.T @ basis / np.sqrt(count * values[keep]) if wide else basis)

    def __call__(self, features: FloatArray) -> FloatArray:
        """[N, d] -> [N, r]."""
        return (features - self.mean) @ self.basis


def as_they_are(pixels: Tensor) -> FloatArray:
    """[N, ...] -> [N, d]: the pixels themselves, or the features that were given for them."""
    return np.asarray(pixels.flatten(1).double().cpu().numpy())


@dataclass(frozen=True, slots=True, eq=False)
class PublicFeatures:
    """Both scales, each whitened on the proxies, side by side; or given features, whitened."""

    banks: tuple[tuple[Callable[[Tensor], FloatArray], Whitening], ...]

    @classmethod
    def fit(cls, proxies: Tensor, ranks: tuple[int, ...], seed: int) -> "PublicFeatures":
        """Fit on public pixels [P, channels, H, W]; ranks: whitened features of each scale.

        Features [P, d, 1, 1] have no scales: of them as many are whitened as of all scales.
        """
        if proxies.shape[2] == 1:
            return cls(((as_they_are, Whitening.fit(as_they_are(proxies), sum(ranks))),))
        banks = []
        for scale, rank in zip(SCALES, ranks, strict=True):
            convolution = RandomConvolution.draw(scale, proxies.shape[1], seed)
            banks.append((convolution, Whitening.fit(convolution(proxies), rank)))
        return cls(tuple(banks))

    def __call__(self, pixels: Tensor) -> FloatArray:
        """[N, channels, H, W] -> [N, sum of ranks]."""
        parts = [whitening(bank(pixels)) for bank, whitening in self.banks]
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
