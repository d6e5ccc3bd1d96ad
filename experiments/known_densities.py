"""Densities on the unit square that are known exactly, for theorems about densities.

A client's p_k is a mixture of normals cut off at the square's edges, so values, samples and the
mass of every tile are exact. The class of a point is known by the region that it lies in.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from scipy.special import ndtr, ndtri

from secure_fd.errors import LocalError
from secure_fd.knowledge import FloatArray, IntArray

N_CLASSES: Final = 4
_PARTS: Final = 3
_WIDTHS: Final = (0.08, 0.2)
_BEND: Final = 0.15
"""Of the borders between classes, in sides of the square."""


@dataclass(frozen=True, slots=True, eq=False)
class Mixture:
    """weights [J], which sum to one, of normals with centres [J, 2] and deviations widths [J, 2].

    Each is cut off at the edges of the unit square and scaled to the mass of one.

    >>> one = Mixture(np.ones(1), np.full((1, 2), 0.5), np.full((1, 2), 0.1))
    >>> int(density(one, np.array([[0.5, 0.5]])).round(2)[0])
    15
    """

    weights: FloatArray = field(repr=False)
    centres: FloatArray = field(repr=False)
    widths: FloatArray = field(repr=False)

    def __post_init__(self) -> None:
        shape = (len(self.weights), 2)
        if self.centres.shape != shape or self.widths.shape != shape or len(self.weights) == 0:
            raise LocalError(f"a mixture needs centres and widths {shape}")
        if (self.weights < 0).any() or abs(self.weights.sum() - 1) > 1e-9:
            raise LocalError("the weights of a mixture are 0 or more and sum to one")


def random_mixtures(clients: int, rng: np.random.Generator) -> tuple[Mixture, ...]:
    """One p_k a client, of three parts each; they overlap in some places and not in others.

    >>> len(random_mixtures(4, np.random.default_rng(0)))
    4
    """
    return tuple(
        Mixture(
            rng.dirichlet(np.full(_PARTS, 2.0)),
            rng.uniform(0.1, 0.9, (_PARTS, 2)),
            rng.uniform(*_WIDTHS, (_PARTS, 2)),
        )
        for _ in range(clients)
    )


def mean_of(mixtures: Sequence[Mixture]) -> Mixture:
    """p = (1/K) sum_k p_k, itself a mixture."""
    return Mixture(
        np.concatenate([each.weights for each in mixtures]) / len(mixtures),
        np.concatenate([each.centres for each in mixtures]),
        np.concatenate([each.widths for each in mixtures]),
    )


def density(mixture: Mixture, x: FloatArray) -> FloatArray:
    """[n] per unit of area, at x [n, 2] in the unit square.

    >>> float(density(random_mixtures(1, np.random.default_rng(0))[0], np.full((1, 2), 0.5))[0]) > 0
    True
    """
    away = (x[:, None, :] - mixture.centres) / mixture.widths
    inside = np.diff(_below(mixture, np.array([0.0, 1.0])), axis=0)[0]
    each = np.exp(-(away**2) / 2) / (np.sqrt(2 * np.pi) * mixture.widths * inside)
    return np.asarray(each.prod(axis=2) @ mixture.weights)


def tile_masses(mixture: Mixture, side: int) -> FloatArray:
    """[side, side] exact masses of equal tiles of the square; they sum to one.

    >>> float(tile_masses(random_mixtures(1, np.random.default_rng(0))[0], 5).sum().round(9))
    1.0
    """
    slices = np.diff(_below(mixture, np.linspace(0, 1, side + 1)), axis=0)
    slices = slices / slices.sum(axis=0)
    return np.asarray((slices[..., 0] * mixture.weights) @ slices[..., 1].T)


def draw(mixture: Mixture, count: int, rng: np.random.Generator) -> FloatArray:
    """[count, 2] independent points of the mixture, by the inverse of the distribution function.

    >>> draw(random_mixtures(1, np.random.default_rng(0))[0], 3, np.random.default_rng(1)).shape
    (3, 2)
    """
    part = rng.choice(len(mixture.weights), count, p=mixture.weights)
    low, high = _below(mixture, np.array([0.0, 1.0]))[:, part]
    level = low + (high - low) * rng.random((count, 2))
    drawn = mixture.centres[part] + mixture.widths[part] * ndtri(level)
    return np.asarray(np.clip(drawn, 0.0, 1.0))


def _below(mixture: Mixture, edges: FloatArray) -> FloatArray:
    """[E, J, 2] mass of each part, before it is cut off, below an edge along either axis."""
    return np.asarray(ndtr((edges[:, None, None] - mixture.centres) / mixture.widths))


def classes(x: FloatArray) -> IntArray:
    """[n] in 0..3: which side of two bent lines x [n, 2] lies on.

    >>> classes(np.array([[0.1, 0.1], [0.9, 0.1], [0.1, 0.9], [0.9, 0.9]])).tolist()
    [0, 1, 2, 3]
    """
    bent = 0.5 + _BEND * np.sin(2 * np.pi * x[:, ::-1])
    right, above = (x > bent).T
    return np.asarray(2 * above + right, dtype=np.int64)


def variation(masses: FloatArray, others: FloatArray) -> float:
    """Total variation in [0, 1] of two distributions over the same tiles.

    >>> variation(np.array([1.0, 0.0]), np.array([0.5, 0.5]))
    0.5
    """
    return float(np.abs(masses - others).sum() / 2)


def tile_shares(x: FloatArray, side: int) -> FloatArray:
    """[side, side] shares of the points x [n, 2] in equal tiles of the square.

    >>> tile_shares(np.array([[0.1, 0.1], [0.9, 1.0]]), 2).tolist()
    [[0.5, 0.0], [0.0, 0.5]]
    """
    counts, _, _ = np.histogram2d(x[:, 0], x[:, 1], bins=side, range=[[0, 1], [0, 1]])
    return np.asarray(counts / len(x))
