"""Label-only membership (Choquette-Choo et al., ICML 2021): four probes, and the gap attack.

`attacks.membership.label_shadows` calibrates the probes for each candidate on shadow runs. The gap
attack asks one question and needs no calibration: it is the baseline. `FinalLabels` asks the final
networks of one run, without shadow runs.
"""

import math
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import affine_grid, grid_sample

from attacks.core.base import Attack, AttackResult, BoolArray, FloatArray, Labelled, Scores
from attacks.core.scoring import score_scores
from attacks.core.view import Capability, LabelFunction, Public, View
from secure_fd.errors import ConfigurationError
from secure_fd.votes.codec import IntArray

BitArray = NDArray[np.uint8]
_CONSTANT = "the target answered one class for everything: a constant predictor tells nothing"


def augmentations(rotation: int, shift: int) -> Tensor:
    """[n, 2, 3] affine maps: identity, every degree of -r..r, every shift |i| + |j| = d.

    n = (2 r + 1) + 4 d: identity counted once (Choquette-Choo et al., ICML 2021, section 4).
    Maps are from output to input, shifts in pixels.
    """
    if rotation < 0 or rotation > 45:
        raise ConfigurationError("rotation", rotation, "use 0 to 45 degrees")
    if shift < 0:
        raise ConfigurationError("shift", shift, "use 0 pixels or more")
    turns = [_turn(degrees) for degrees in range(-rotation, rotation + 1) if degrees]
    moves = [
        _move(i, j)
        for i in range(-shift, shift + 1)
        for j in {shift - abs(i), abs(i) - shift}
        if shift
    ]
    return torch.stack([_move(0, 0), *turns, *moves])


def transform(images: Tensor, theta: Tensor) -> Tensor:
    """Images [N, C, H, W] under one map [2, 3]: bilinear, black outside; identity is exact."""
    if torch.equal(theta, _move(0, 0)):
        return images
    height, width = images.shape[2:]
    scale = torch.tensor([2.0 / width, 2.0 / height])
    relative = torch.cat([theta[:, :2], (theta[:, 2] * scale)[:, None]], dim=1)
    grid = affine_grid(relative.expand(len(images), 2, 3), list(images.shape), align_corners=False)
    return grid_sample(images, grid, align_corners=False).clamp(0, 1)


def _turn(degrees: int) -> Tensor:
    angle = math.radians(degrees)
    c, s = math.cos(angle), math.sin(angle)
    return torch.tensor([[c, -s, 0.0], [s, c, 0.0]])


def _move(right: int, down: int) -> Tensor:
    """Output pixel (x, y) reads input (x - right, y - down)."""
    return torch.tensor([[1.0, 0.0, -float(right)], [0.0, 1.0, -float(down)]])


def noise_robustness(
    ask: LabelFunction, records: Labelled, sigma: float, samples: int, seed: int
) -> FloatArray:
    """[N] share of the image and its noisy copies, cut to [0, 1], that get its own label.

    sigma: of the noise, in units of the pixel range. samples: copies of each image.
    """
    random, images = torch.Generator().manual_seed(seed), records.pixels()
    right = (ask(images) == records.labels).double()
    for _ in range(samples):
        noise = torch.randn(images.shape, generator=random)
        right += ask((images + sigma * noise).clamp_(0, 1)) == records.labels
    return np.asarray((right / (1 + samples)).numpy(), dtype=np.float64)


def still_right(ask: LabelFunction, records: Labelled, rotation: int, shift: int) -> BitArray:
    """[N, n] ones where an augmented copy still gets the record's label; the first is the image."""
    images = records.pixels()
    answers = [ask(transform(images, theta)) for theta in augmentations(rotation, shift)]
    return (torch.stack(answers, dim=1) == records.labels[:, None]).numpy().astype(np.uint8)


@dataclass(frozen=True, slots=True, eq=False)
class LabelOnlyGap(Attack[Scores, BoolArray]):
    """Call a candidate a member if its label is right (Yeom et al. 2018): the baseline.

    >>> LabelOnlyGap.title
    'Label-only membership: gap'
    """

    name = "label-only-gap"
    title = "Label-only membership: gap"
    figure_name = "AUC"
    control_name = "AUC of a coin"
    needs = (frozenset({Capability.QUERY_FINAL_MODEL}),)

    candidates: Labelled

    @classmethod
    def prepare(cls, public: Public, candidates: Labelled) -> Self:  # noqa: ARG003 - nothing public is used
        """Return the attack on these candidates."""
        return cls(candidates)

    def run(self, view: View, seed: int) -> Scores:  # noqa: ARG002 - nothing is drawn
        """Ask one query a candidate. Raises BudgetError where the oracle's budget ends."""
        view.require_any(*self.needs)
        oracle = view.oracle(Capability.QUERY_FINAL_MODEL)
        before = oracle.queries
        answers = oracle(self.candidates.images)
        right = (answers == self.candidates.labels).numpy()
        return Scores(
            right.astype(np.float64),
            right=right,
            threshold=1.0,
            queries=oracle.queries - before,
            caveats=(_CONSTANT,) if len(np.unique(answers.numpy())) == 1 else (),
        )

    def score(self, estimate: Scores, truth: BoolArray, seed: int) -> AttackResult:
        """Return the AUC with its interval; truth: [N] of the challenge of the candidates."""
        return score_scores(self, estimate, truth, seed)


SIGMAS = (0.2, 0.4)
"""Deviations of the noise of `FinalLabels`, each on this many copies."""
_COPIES = 4
_ROTATION, _SHIFT = 3, 1


@dataclass(frozen=True, slots=True, eq=False)
class FinalLabels(LabelOnlyGap):
    """Score a candidate by how many of its copies get its label, less the mean of its class.

    Copies are noisy, turned or moved by a pixel; the unchanged image counts as much as all copies.
    A record that is no image has no copies.

    >>> FinalLabels.title
    'Label-only membership, without shadow runs'
    """

    name = "label-only"
    title = "Label-only membership, without shadow runs"

    def run(self, view: View, seed: int) -> Scores:
        """Ask for the labels of all copies. Raises BudgetError where the oracle's budget ends."""
        view.require_any(*self.needs)
        ask, own = view.oracle(Capability.QUERY_FINAL_MODEL), self.candidates
        before = ask.queries
        right = (ask(own.images) == own.labels).numpy()
        scores = right.astype(np.float64)
        if own.images.ndim == 4:
            copies = [still_right(ask, own, _ROTATION, _SHIFT)[:, 1:].mean(axis=1)]
            copies += [noise_robustness(ask, own, sigma, _COPIES, seed) for sigma in SIGMAS]
            scores += np.mean(copies, axis=0)
        values = less_class_mean(scores, own.labels.numpy())
        return Scores(values, right=right, queries=ask.queries - before)


def less_class_mean(scores: FloatArray, labels: IntArray) -> FloatArray:
    """[N] less the mean over the candidates of the same label.

    >>> less_class_mean(np.array([1.0, 3.0, 9.0]), np.array([0, 0, 1])).tolist()
    [-1.0, 1.0, 0.0]
    """
    sums, counts = np.bincount(labels, weights=scores), np.bincount(labels)
    return np.asarray(scores - (sums / np.maximum(counts, 1))[labels])
