"""Feature maps fitted on public proxies alone: private records are only ever mapped."""

import weakref
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve
from torch import Tensor

from secure_fd.data.patches import PatchMap, PatchSettings
from secure_fd.errors import ConfigurationError
from secure_fd.votes.codec import FloatArray, IntArray

SingleArray = NDArray[np.float32]


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


Map = Callable[[Tensor], FloatArray]
"""Images or features [N, ...] -> [N, r], whitened on the proxies."""


@dataclass(frozen=True, slots=True, eq=False)
class SideBySide:
    """Maps, each whitened on the proxies, side by side."""

    banks: tuple[tuple[Map, Whitening], ...]

    def __call__(self, pixels: Tensor) -> FloatArray:
        """[N, ...] -> [N, sum of ranks]."""
        parts = [whitening(bank(pixels)) for bank, whitening in self.banks]
        return np.concatenate(parts, axis=1)


@dataclass(frozen=True, slots=True, eq=False)
class PatchFeatures:
    """The leading features of a patch map; kept: how many, None for all."""

    patches: PatchMap
    kept: int | None

    def __call__(self, pixels: Tensor) -> FloatArray:
        """[N, channels, H, W] -> [N, r]."""
        return np.asarray(self.patches.whitened(pixels.cpu())[:, : self.kept].double().numpy())


def patches(proxies: Tensor, rank: int | None, seed: int, most: int | None = None) -> Map:
    """The map of `data.patches`; rank: None for as many features as explain the proxies.

    most: of them, the leading ones that are kept. Where the proxies decide, it is of images that
    60 features explain, as digits are, and in proportion of others.
    """
    plain = PatchSettings(rank=rank, seed=seed)
    side = min(plain.side, *proxies.shape[2:])  # no larger than the images
    found = PatchMap.fit(proxies.cpu(), replace(plain, side=side))
    explain = found.axes.shape[1]
    kept = most if most is None or rank is not None else round(most * explain / _OF_DIGITS)
    return PatchFeatures(found, kept)


_OF_DIGITS = 60
"""Whitened features that explain MNIST-5k's proxies."""


@dataclass(frozen=True, slots=True)
class AsTheyAre:
    """The map of `as_they_are`."""

    def __call__(self, pixels: Tensor) -> FloatArray:
        """[N, ...] -> [N, d]."""
        return as_they_are(pixels)


def given(proxies: Tensor, rank: int) -> Map:
    """Features [P, d, 1, 1] that have a map behind them already, whitened."""
    return SideBySide(((AsTheyAre(), Whitening.fit(as_they_are(proxies), rank)),))


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

    def single(self, inputs: SingleArray) -> SingleArray:
        """The same in 32 bits."""
        angles = inputs @ self.frequencies.astype(np.float32)
        both = np.concatenate([np.cos(angles), np.sin(angles)], axis=1)
        both *= np.float32(1.0 / np.sqrt(self.frequencies.shape[1]))
        return both


# The default client selector: the ratio of a client's density to that of the public proxies.
#
# With phi the random Fourier features of unit norm, H the mean of phi phi^T over the proxies and
# h_c the mean over a client's records of phi times "is of class c", least-squares importance
# fitting (Kanamori et al., 2009, in feature space) gives for each class that the client holds
#
#     w_c(x) = phi(x)^T (H + beta I)^-1 h_c     ~  p_k(x, c) / p_proxy(x)
#
# H is public and factorised once for every client; a client's private records enter only through
# h_c, a mean of vectors of norm one. That makes it the statistic that record privacy protects.


T = TypeVar("T")

_LEAST_SHARE = 0.1
"""Least share of a class, against equal shares: noise must not make a divisor of nothing."""


_GIVEN_RANK = 160
"""Rank of features that were given."""
_FEWEST, _MOST = 1000, 4000
"""Fourier features by default: as many as proxies, within these."""


@dataclass(frozen=True, slots=True)
class ReferenceSettings:
    """The public feature map: what images pass through, how many features are kept of them.

    ranks: whitened features, one number; () for as many as explain the proxies (see
    `data.patches`), and 160 of features that were given. most_rank: the leading ones that are kept
    (see `patches`). n_features: Fourier features, None for as many as there are proxies, 1,000 to
    4,000.

    >>> ReferenceSettings().size(2000)
    2000
    """

    ranks: tuple[int, ...] = ()
    n_features: int | None = None
    seed: int = 0
    most_rank: int | None = None

    def __post_init__(self) -> None:
        if len(self.ranks) > 1:
            raise ConfigurationError("ranks", self.ranks, "use one, or none")

    def fit(self, proxies: Tensor) -> Map:
        """The map, from public images [P, channels, H, W] or features [P, d, 1, 1] alone."""
        rank = self.ranks[0] if self.ranks else None
        if proxies.shape[2] == 1:
            wanted = rank or _GIVEN_RANK
            return given(proxies, min(wanted, self.most_rank or wanted))
        return patches(proxies, rank, self.seed, self.most_rank)

    def size(self, n_proxies: int) -> int:
        """D."""
        return self.n_features or min(_MOST, max(_FEWEST, n_proxies))


@dataclass(frozen=True, slots=True, eq=False)
class ProxyReference:
    """Everything about the proxies that selectors share; public, so every party can hold it."""

    public: Map
    fourier: FourierFeatures
    proxy_features: FloatArray  # [P, D], rows of norm one
    second_moment: FloatArray  # [D, D], H
    settings: ReferenceSettings

    @classmethod
    def fit(cls, proxies: Tensor, settings: ReferenceSettings | None = None) -> "ProxyReference":
        """Fit the feature map on public pixels [P, channels, H, W]."""
        chosen = settings or ReferenceSettings()
        public = chosen.fit(proxies)
        inputs = public(proxies)
        fourier = FourierFeatures.draw(inputs, chosen.size(len(proxies)), chosen.seed)
        features = fourier(inputs)
        moment = features.T @ features / len(features)
        return cls(public, fourier, features, moment, chosen)

    def features(self, pixels: Tensor) -> FloatArray:
        """[N, channels, H, W] -> [N, D], rows of norm one."""
        return self.fourier(self.public(pixels))

    def solver(self, beta: float | None = None) -> "RatioSolver":
        """The factorisation of H + beta I, shared by every client with the same beta.

        beta: ridge of the fit; by default 1 / P, the variance of a mean over the P proxies.
        """
        ridge = 1.0 / len(self.proxy_features) if beta is None else beta
        moment = self.second_moment + ridge * np.eye(len(self.second_moment))
        return RatioSolver(cho_factor(moment))

    def under_noise(self, level: float) -> "RatioSolver":
        """H (H^2 + level^2 I)^-1, for means whose entries carry noise of about that deviation.

        Beside (H + level I)^-1 it cuts off sharper what the noise outweighs.
        """
        squared = self.second_moment @ self.second_moment
        factors = cho_factor(squared + level**2 * np.eye(len(squared)))
        return RatioSolver(factors, self.second_moment)


@dataclass(frozen=True, slots=True, eq=False)
class RatioSolver:
    """(H + beta I)^-1, factorised.

    moment: H, where the factors are those of H^2 + level^2 I instead.
    """

    factors: Any  # (matrix, lower) as SciPy returns it
    moment: FloatArray | None = None

    def head(self, means: FloatArray, classes: tuple[int, ...]) -> "RatioHead":
        """A client's head from its class means h_c, [len(classes), D]."""
        return RatioHead(classes, self.solve(means.T))

    def solve(self, right: FloatArray) -> FloatArray:
        """(H + beta I)^-1 times [D, k]."""
        known = right if self.moment is None else self.moment @ right
        return np.asarray(cho_solve(self.factors, known))

    def leverage(self, proxy_features: FloatArray) -> FloatArray:
        """[P] in (0, 1): the share of each proxy's ratio that fitting H on that proxy takes away.

        By Sherman and Morrison the ratio under an H without proxy i is w_c(x_i) / (1 - leverage_i),
        which compares with ratios at records that H was never fitted on. Public.
        """
        solved = self.solve(proxy_features.T)
        return np.asarray((proxy_features * solved.T).sum(axis=1) / len(proxy_features))


@dataclass(frozen=True, slots=True, eq=False)
class RatioHead:
    """One client's density ratios, one for each class that it holds (the paper's supplement)."""

    classes: tuple[int, ...]
    coefficients: FloatArray  # [D, len(classes)]

    def ratios(self, features: FloatArray) -> FloatArray:
        """[N, D] -> [N, len(classes)]: how much more often the client has such a sample."""
        return features @ self.coefficients

    def labels(self, features: FloatArray) -> IntArray:
        """[N] the class of the largest ratio: the client's most likely label."""
        return np.asarray(np.asarray(self.classes)[self.ratios(features).argmax(axis=1)])


def class_means(features: FloatArray, labels: IntArray, classes: tuple[int, ...]) -> FloatArray:
    """h_c for each class: [len(classes), D], each the sum over its records over all n records."""
    member = labels[None, :] == np.asarray(classes)[:, None]
    return np.asarray(member.astype(np.float64) @ features / len(features))


def class_shares(ratios: FloatArray) -> FloatArray:
    """[k] P_k(c), a client's share of records of each class, from ratios [P, k] at the proxies.

    The mean of w_c over the proxies estimates it, since w_c(x) p_proxy(x) = P_k(c) p(x | c).
    """
    return np.asarray(np.maximum(ratios.mean(axis=0), _LEAST_SHARE / ratios.shape[1]))


def posterior(
    ratios: FloatArray,
    n_classes: int,
    shares: FloatArray | None = None,
    common: FloatArray | float = 1.0,
) -> FloatArray:
    """[N, k] probability of each class that the client holds, if proxies of all C are balanced.

    Bayes' rule gives P(c | x) = w_c(x) / (C P_k(c)) for ratios [N, k]. shares: [k] P_k(c); by
    default from the ratios, which must then be those at the proxies. common: [k] C P(c) where they
    are not balanced. It reads nothing but ratios, so it is post-processing.
    """
    known = class_shares(ratios) if shares is None else shares
    return np.asarray(np.clip(ratios / (n_classes * known) * common, 0.0, 1.0))


class Same(Generic[T]):
    """A cache key: equal only to a key of the very same object, whatever it holds."""

    __slots__ = ("one",)

    def __init__(self, one: T) -> None:
        self.one = one

    def __hash__(self) -> int:
        return id(self.one)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and other.one is self.one


@lru_cache(maxsize=4)
def shared_reference(
    proxies: Same[Tensor], settings: ReferenceSettings
) -> tuple[ProxyReference, RatioSolver]:
    """The public part, fitted and factorised once for every client and method of a run."""
    reference = ProxyReference.fit(proxies.one, settings)
    return reference, reference.solver()


@lru_cache(maxsize=4)
def noisy_solver(reference: Same[ProxyReference], level: float) -> RatioSolver:
    """`ProxyReference.under_noise`, once for all parties of a process."""
    return reference.one.under_noise(level)


@lru_cache(maxsize=4)
def proxy_leverage(reference: Same[ProxyReference], solver: Same[RatioSolver]) -> FloatArray:
    """[P] `RatioSolver.leverage` of all proxies: solved once for all clients of a process."""
    return solver.one.leverage(reference.one.proxy_features)


class FreedWithOwner:
    """Cache of values computed from private objects; an owner's values are freed with it.

    An `lru_cache` would keep clients' records in memory after their federation is gone. A value
    must not refer to its owner. most: values that are kept for one owner, the newest.
    """

    def __init__(self, most: int = 4) -> None:
        self._most = most
        self._kept: dict[int, dict[Hashable, Any]] = {}

    def value(self, owner: object, key: Hashable, make: Callable[[], T]) -> T:
        """Return the owner's value under this key, made if it is not kept."""
        kept = self._kept.get(id(owner))
        if kept is None:
            kept = self._kept[id(owner)] = {}
            weakref.finalize(owner, self._kept.pop, id(owner)).atexit = False
        if key not in kept:
            kept[key] = make()
            if len(kept) > self._most:
                del kept[next(iter(kept))]
        made: T = kept[key]
        return made


_WHITENED: Final = FreedWithOwner()


def whitened(reference: Same[ProxyReference], pixels: Tensor) -> FloatArray:
    """[N, r] of images before Fourier features: mapped once for all rounds."""
    return _WHITENED.value(pixels, reference, lambda: reference.one.public(pixels))
