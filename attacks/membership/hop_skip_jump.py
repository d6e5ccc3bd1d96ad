"""HopSkipJump: how far an image is from a network's decision boundary, from labels alone.

Chen, Jordan and Wainwright, "HopSkipJumpAttack: A Query-Efficient Decision-Based Attack" (S&P
2020), untargeted, in L2. All images step together, so that every stage is one batch of queries.
Three changes for small budgets: a walk starts from the nearest public image with another label
instead of from noise, directions are drawn on a coarse grid (Li et al., "QEBA", CVPR 2020), and an
image keeps its nearest boundary point.
"""

import math
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import interpolate, normalize

from attacks.core.base import FloatArray, Labelled
from attacks.core.view import LabelFunction
from secure_fd.errors import ConfigurationError

NOISE_STARTS = 16
"""Uniform noise that joins the starts: a network may give all public images one label."""
BISECTIONS = 8
"""Bisections of a segment that crosses the boundary, to theta = 2^-8 of its length."""


@dataclass(frozen=True, slots=True)
class HopSkipJump:
    """budget: queries an image at most; the starts, which all images share, come on top.

    evaluations: B_0, directions of the first normal; the t-th takes floor(B_0 sqrt(t)). halvings:
    of a step, at most. coarseness: pixels a side of a cell of the directions' grid; 1 is the
    original. Raises ConfigurationError where the budget is too small for one step.
    """

    budget: int = 250
    evaluations: int = 25
    halvings: int = 6
    coarseness: int = 2

    def __post_init__(self) -> None:
        least = 1 + BISECTIONS + self._cost(1)
        if self.budget < least:
            raise ConfigurationError("budget", self.budget, f"use {least} queries an image or more")

    @property
    def schedule(self) -> tuple[int, ...]:
        """Directions of every step that surely fits into the budget."""
        left = self.budget - 1 - BISECTIONS
        taken: list[int] = []
        while (left := left - self._cost(len(taken) + 1)) >= 0:
            taken.append(self._evaluations(len(taken) + 1))
        return tuple(taken)

    def _evaluations(self, step: int) -> int:
        return math.floor(self.evaluations * math.sqrt(step))

    def _cost(self, step: int) -> int:
        return self._evaluations(step) + self.halvings + BISECTIONS


def boundary_distances(
    ask: LabelFunction, records: Labelled, starts: Tensor, settings: HopSkipJump, seed: int
) -> FloatArray:
    """[N] L2 distances to the nearest point found in [0, 1]^(C H W) that gets another label.

    Upper bounds of the true distances. 0 where a record [N, C, H, W] does not get its own label;
    sqrt(C H W), the diameter of the cube, where no start [S, C, H, W] gets another label.
    """
    random = torch.Generator().manual_seed(seed)
    right = ask(records.images) == records.labels
    outside, started = _nearest_outside(ask, records, starts, random)
    diameter = math.sqrt(records.images[0].numel())
    distances = torch.where(right, diameter, 0.0).double()
    walking = right & started
    if walking.any():
        game = _Game(ask, records.images[walking], records.labels[walking])
        distances[walking] = _walk(game, outside[walking], settings, random).double()
    return np.asarray(distances.numpy(), dtype=np.float64)


@dataclass(frozen=True, slots=True, eq=False)
class _Game:
    """images: [n, C, H, W], rightly labelled so far; labels: [n]."""

    ask: LabelFunction = field(repr=False)
    images: Tensor = field(repr=False)
    labels: Tensor = field(repr=False)

    @property
    def origins(self) -> Tensor:
        """The images as [n, d]."""
        return self.images.flatten(1)

    def crossed(self, points: Tensor, rows: Tensor | slice = slice(None)) -> Tensor:
        """Return [k, ...] whether points [k, ..., d] of the given rows [k] get another label."""
        labels = self.labels[rows].view(-1, *[1] * (points.ndim - 2))
        answers = self.ask(points.reshape(-1, *self.images.shape[1:]))
        return answers.view(points.shape[:-1]) != labels

    def distance(self, points: Tensor) -> Tensor:
        """[n] L2 distances of points [n, d] from their origins."""
        return (points - self.origins).square().sum(dim=1).sqrt()


def _walk(game: _Game, outside: Tensor, settings: HopSkipJump, random: torch.Generator) -> Tensor:
    """[n] distances of the nearest boundary points found from points [n, d] beyond it."""
    edge = _bisect(game, outside)
    for step, directions in enumerate(settings.schedule, start=1):
        reach = game.distance(edge)
        normal = _normal(game, edge, _steps(game, edge, directions, settings, random))
        moved = _advance(game, edge, normal, reach / math.sqrt(step), settings.halvings)
        moved = _bisect(game, moved)
        edge = torch.where((game.distance(moved) < reach)[:, None], moved, edge)
    return game.distance(edge)


def _bisect(game: _Game, outside: Tensor) -> Tensor:
    """Just beyond where the segments from the origins to points [n, d] cross the boundary."""
    span = outside - game.origins
    low, high = torch.zeros(len(span), 1), torch.ones(len(span), 1)
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        crossed = game.crossed(game.origins + middle * span)[:, None]
        low, high = torch.where(crossed, low, middle), torch.where(crossed, middle, high)
    return game.origins + high * span


def _steps(
    game: _Game, edge: Tensor, directions: int, settings: HopSkipJump, random: torch.Generator
) -> Tensor:
    """[n, directions, d] steps in random directions of length delta_t = sqrt(d) theta distance.

    They are cut where they leave [0, 1].
    """
    colours, height, width = game.images.shape[1:]
    cells = [-(-side // settings.coarseness) for side in (height, width)]
    grid = torch.randn(len(edge) * directions, colours, *cells, generator=random)
    if settings.coarseness > 1:
        grid = interpolate(grid, size=(height, width), mode="bilinear", align_corners=False)
    steps = normalize(grid.reshape(len(edge), directions, -1), dim=2)
    steps *= (math.sqrt(colours * height * width) * 2.0**-BISECTIONS * game.distance(edge))[
        :, None, None
    ]
    return (edge[:, None] + steps).clamp_(0, 1) - edge[:, None]


def _normal(game: _Game, edge: Tensor, steps: Tensor) -> Tensor:
    """[n, d] unit normals of the boundary at points [n, d]: their equations 9 and 16."""
    signs = game.crossed(edge[:, None] + steps).float() * 2 - 1
    baseline = signs.mean(dim=1, keepdim=True)
    baseline = torch.where(baseline.abs() == 1, 0.0, baseline)  # all answers are the same: use them
    return normalize(torch.einsum("nb,nbd->nd", signs - baseline, steps), dim=1)


def _advance(game: _Game, edge: Tensor, normal: Tensor, length: Tensor, halvings: int) -> Tensor:
    """[n, d] a step along the normal, halved until it ends beyond the boundary; or no step."""
    moved = edge.clone()
    rows = torch.arange(len(edge))
    for halving in range(halvings):
        stride = length[rows] * 0.5**halving
        points = (edge[rows] + stride[:, None] * normal[rows]).clamp_(0, 1)
        crossed = game.crossed(points, rows)
        moved[rows[crossed]] = points[crossed]
        rows = rows[~crossed]
        if len(rows) == 0:
            break
    return moved


def _nearest_outside(
    ask: LabelFunction, records: Labelled, starts: Tensor, random: torch.Generator
) -> tuple[Tensor, Tensor]:
    """[N, d] the nearest start with another label than the record's; [N] whether there is one."""
    noise = torch.rand(NOISE_STARTS, *starts.shape[1:], generator=random)
    pool = torch.cat([starts, noise])
    gaps = torch.cdist(records.images.flatten(1), pool.flatten(1))
    gaps = gaps.masked_fill(ask(pool)[None] == records.labels[:, None], math.inf)
    nearest = gaps.min(dim=1)
    return pool.flatten(1)[nearest.indices], nearest.values.isfinite()
