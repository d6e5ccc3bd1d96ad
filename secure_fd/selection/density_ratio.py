"""Density ratio of a client's records to the public proxies, on features fitted on proxies alone.

With phi the random Fourier features of unit norm, H the mean of phi phi^T over the proxies and h_c
the mean over a client's records of phi times "is of class c", least-squares importance fitting
(Kanamori et al., 2009, in feature space) gives for each class that the client holds

    w_c(x) = phi(x)^T (H + beta I)^-1 h_c     ~  p_k(x, c) / p_proxy(x).

H is public and factorised once for all clients. A client's records enter through h_c alone, a mean
of vectors of norm one, which is the statistic that record privacy protects. Private records are
only ever mapped: they move neither the features nor H.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve
from torch import Tensor

from secure_fd.cache import freed_with_owner
from secure_fd.data.patches import PatchMap
from secure_fd.votes.codec import FloatArray, IntArray

SingleArray = NDArray[np.float32]

_LEAST_SHARE: Final = 0.1
"""Least share of a class, relative to equal shares: it is a divisor."""
_GIVEN_RANK: Final = 160
"""Rank of feature vectors that stand in the place of images."""
_FEWEST, _MOST = 1000, 4000
"""Fourier features by default: as many as proxies, within these."""
_RECORDS_RIDGE: Final = 2.0
"""Ridge for residuals, times the records (chosen on seed 0 of MNIST, clothes and chest X-rays)."""
_OF_DIGITS: Final = 60
"""Whitened features that explain MNIST-5k's proxies."""


def flat_pixels(pixels: Tensor) -> FloatArray:
    """Return images or feature vectors [N, ...] as rows [N, d]."""
    return np.asarray(pixels.flatten(1).double().cpu().numpy())


@dataclass(frozen=True, slots=True, eq=False)
class Whitening:
    """Principal components of public feature vectors, each scaled to unit variance on them."""

    mean: FloatArray  # [d]
    basis: FloatArray  # [d, r]

    @classmethod
    def fit(cls, features: FloatArray, rank: int) -> "Whitening":
        """Fit on [N, d]; rank is lowered where the rows span less."""
        mean, count = features.mean(axis=0), len(features)
        centred = features - mean
        values, vectors = np.linalg.eigh(centred.T @ centred / count)
        keep = np.argsort(values)[::-1][: min(rank, count - 1, len(values))]
        keep = keep[values[keep] > 1e-10 * values.max()]
        return cls(mean, vectors[:, keep] / np.sqrt(values[keep]))

    def __call__(self, features: Tensor) -> FloatArray:
        """Whiten feature vectors [N, d, 1, 1] to [N, r]."""
        return (flat_pixels(features) - self.mean) @ self.basis


@dataclass(frozen=True, slots=True, eq=False)
class FourierFeatures:
    """Random Fourier features of the Gaussian kernel exp(-|x-y|^2 / (2 width^2)).

    Rows have norm one exactly (a cosine and a sine of each frequency), which is what bounds a
    record's influence on a mean of them (Rahimi and Recht, 2007).
    """

    frequencies: FloatArray  # [r, D / 2]

    @classmethod
    def draw(cls, inputs: FloatArray, n_features: int) -> "FourierFeatures":
        """Draw frequencies; the width is the median distance between public inputs [N, r]."""
        rng = np.random.default_rng(0)
        pairs = rng.integers(len(inputs), size=(2, 4096))
        distances = np.linalg.norm(inputs[pairs[0]] - inputs[pairs[1]], axis=1)
        width = float(np.median(distances[distances > 0]))
        return cls(rng.standard_normal((inputs.shape[1], n_features // 2)) / width)

    def __call__(self, inputs: FloatArray) -> FloatArray:
        """Map [N, r] to [N, D], rows of norm one."""
        angles = inputs @ self.frequencies
        scale = 1.0 / np.sqrt(self.frequencies.shape[1])
        return np.asarray(np.concatenate([np.cos(angles), np.sin(angles)], axis=1) * scale)

    def single(self, inputs: FloatArray | SingleArray) -> SingleArray:
        """Map [N, r] to [N, D] in 32 bits."""
        angles = inputs.astype(np.float32) @ self.frequencies.astype(np.float32)
        both = np.concatenate([np.cos(angles), np.sin(angles)], axis=1)
        both *= np.float32(1.0 / np.sqrt(self.frequencies.shape[1]))
        return both


Map = PatchMap | Whitening
"""Public map: images [N, channels, H, W] or feature vectors [N, d, 1, 1] to [N, r], whitened."""


@dataclass(frozen=True, slots=True)
class ReferenceSettings:
    """Sizes of the public feature map on which density ratios are fitted.

    Attributes:
        rank: whitened features; by default as many as explain the proxies (see `data.patches`), and
            160 of feature vectors.
        n_features: Fourier features; by default as many as proxies, 1,000 to 4,000.
        most_rank: leading whitened features that are kept. Where the proxies decide on the rank, it
            is for images that 60 features explain, as digits are, and in proportion for others.

    >>> ReferenceSettings().size(2000)
    2000
    """

    rank: int | None = None
    n_features: int | None = None
    most_rank: int | None = None

    def fit(self, proxies: Tensor) -> Map:
        """Fit the map on public images [P, channels, H, W] or features [P, d, 1, 1] alone."""
        if proxies.shape[2] == 1:
            wanted = self.rank or _GIVEN_RANK
            return Whitening.fit(flat_pixels(proxies), min(wanted, self.most_rank or wanted))
        found = PatchMap.fit(proxies.cpu(), self.rank)
        if self.most_rank is None:
            return found
        scale = 1.0 if self.rank is not None else found.rank / _OF_DIGITS
        return found.leading(round(self.most_rank * scale))

    def size(self, n_proxies: int) -> int:
        """Return D, the number of Fourier features."""
        return self.n_features or min(_MOST, max(_FEWEST, n_proxies))


@dataclass(frozen=True, eq=False)
class ProxyReference:
    """Public part of the density ratios, the same for all parties."""

    public: Map
    fourier: FourierFeatures
    proxy_features: FloatArray  # [P, D], rows of norm one
    second_moment: FloatArray  # [D, D], H
    settings: ReferenceSettings

    @classmethod
    def fit(cls, proxies: Tensor, settings: ReferenceSettings | None = None) -> "ProxyReference":
        """Fit the feature map on public proxies [P, ...]."""
        chosen = settings or ReferenceSettings()
        public = chosen.fit(proxies)
        inputs = public(proxies)
        fourier = FourierFeatures.draw(inputs, chosen.size(len(proxies)))
        features = fourier(inputs)
        moment = features.T @ features / len(features)
        return cls(public, fourier, features, moment, chosen)

    @property
    def n_features(self) -> int:
        """D."""
        return len(self.second_moment)

    def features(self, pixels: Tensor) -> FloatArray:
        """Map images [N, ...] to [N, D], rows of norm one."""
        return self.fourier(self.public(pixels))

    @cached_property
    def solver(self) -> "RatioSolver":
        """The inverse of H + I / P; 1 / P is the variance of a mean over the P proxies."""
        return RatioSolver.with_ridge(self.second_moment, 1.0 / len(self.proxy_features))

    @cached_property
    def leverage(self) -> FloatArray:
        """`RatioSolver.leverage` of the proxies under that inverse."""
        return self.solver.leverage(self.proxy_features)


@dataclass(frozen=True, slots=True, eq=False)
class RatioSolver:
    """Regularised inverse of the second moment H, factorised, that solves for density ratios."""

    factors: Any  # (matrix, lower) as SciPy returns it
    moment: FloatArray | None = None

    @classmethod
    def with_ridge(cls, moment: FloatArray, beta: float) -> "RatioSolver":
        """Factorise H + beta I."""
        return cls(cho_factor(moment + beta * np.eye(len(moment))))

    @classmethod
    def under_noise(cls, moment: FloatArray, level: float) -> "RatioSolver":
        """H (H^2 + level^2 I)^-1, for means whose entries carry noise of about that deviation.

        Its cut-off of what the noise outweighs is sharper than that of (H + level I)^-1.
        """
        squared = moment @ moment
        return cls(cho_factor(squared + level**2 * np.eye(len(squared))), moment)

    def solve(self, right: FloatArray) -> FloatArray:
        """Multiply [D, k] by the inverse: the coefficients of k ratios from their means."""
        known = right if self.moment is None else self.moment @ right
        return np.asarray(cho_solve(self.factors, known))

    def leverage(self, proxy_features: FloatArray) -> FloatArray:
        """Return the share of each proxy's ratio that fitting H on that proxy takes away, [P].

        By Sherman and Morrison the ratio under an H without proxy i is w_c(x_i) / (1 - leverage_i),
        which compares with ratios at records that H was never fitted on. Public.
        """
        solved = self.solve(proxy_features.T)
        return np.asarray((proxy_features * solved.T).sum(axis=1) / len(proxy_features))


def class_means(features: FloatArray, labels: IntArray, classes: tuple[int, ...]) -> FloatArray:
    """Return h_c for each class: [len(classes), D], its sum over its records over all n records."""
    member = labels[None, :] == np.asarray(classes)[:, None]
    return np.asarray(member.astype(np.float64) @ features / len(features))


def class_shares(ratios: FloatArray) -> FloatArray:
    """Estimate P_k(c), a client's share of records of each class, [k].

    The mean of ratios [P, k] at the proxies, since w_c(x) p_proxy(x) = P_k(c) p(x | c).
    """
    return np.asarray(np.maximum(ratios.mean(axis=0), _LEAST_SHARE / ratios.shape[1]))


def posterior(
    ratios: FloatArray,
    n_classes: int,
    shares: FloatArray,
    common: FloatArray | float = 1.0,
    reach: FloatArray | float = 1.0,
) -> FloatArray:
    """Return the probability of each class that a client holds, by Bayes' rule.

    P(c | x) = w_c(x) / (C P_k(c)) if proxies of all C classes are equally common.

    Args:
        ratios: [N, k] at any samples.
        n_classes: C.
        shares: [k], see `class_shares`.
        common: [k] C P(c), the share of each class among the proxies over an equal share.
        reach: [k] below 1 for a class with fewer records than proxies.
    """
    return np.asarray(np.clip(ratios / (n_classes * shares) * common, 0.0, 1.0) * reach)


@freed_with_owner
def shared_reference(proxies: Tensor, settings: ReferenceSettings) -> ProxyReference:
    """Fit the public part once for all clients and methods of a process."""
    return ProxyReference.fit(proxies, settings)


@freed_with_owner
def noisy_solver(proxies: Tensor, settings: ReferenceSettings, level: float) -> RatioSolver:
    """Return the solver for noisy class means, made once for all parties of a process."""
    return RatioSolver.under_noise(shared_reference(proxies, settings).second_moment, level)


@freed_with_owner
def residual_solver(proxies: Tensor, settings: ReferenceSettings, records: int) -> RatioSolver:
    """Return the solver for residuals of this many records, made once for all parties of a process.

    A ridge of 1 / P allows for errors of H. Residuals correct these, and converge faster under the
    ridge that as many records need; where there are few, it stays.
    """
    reference = shared_reference(proxies, settings)
    return RatioSolver.with_ridge(
        reference.second_moment, min(1.0 / len(proxies), _RECORDS_RIDGE / records)
    )


@freed_with_owner
def whitened(pixels: Tensor, public: Map) -> FloatArray:
    """Map images to [N, r], before Fourier features, once for all rounds."""
    return public(pixels)
