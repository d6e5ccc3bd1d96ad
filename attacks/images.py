"""How close reconstructions come to private images, and to images that nobody trained on.

PSNR to the nearest private image rises with blur and with the number of private images; only its
excess over equally many held-out images of the same group, Δ = A - A_H, speaks of leakage. So do
structure, an evaluator's features and coverage: blur, and a plausible class, are near to
everything. Images are [n, H, W] or [n, C, H, W]; PSNR takes feature vectors [n, D] too.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor
from torch.nn.functional import avg_pool2d

from attacks.base import FloatArray, ImageArray, Images
from attacks.statistics import Rate, mean
from secure_fd.errors import LocalError

WINDOW = 7
"""Pixels a side of the uniform window of SSIM: scikit-image's default, and small enough for 28."""
_C1, _C2 = 0.01**2, 0.03**2
"""(K1 L)² and (K2 L)² of Wang et al. 2004, for pixels in [0, 1]."""
_BLOCK = 2**22
"""Floats of a block of windows."""

Features = Callable[[Tensor], Tensor]
"""Images [n, ...] -> features [n, d], such as the last hidden layer of an evaluator."""


def pixels(images: Tensor) -> Tensor:
    """Images as their own features [n, d]."""
    return images.flatten(1)


def ssim(images: Tensor, references: Tensor) -> FloatArray:
    """[n, m] mean structural similarity of images and references in [0, 1]; 1 for equal ones.

    Wang, Bovik, Sheikh and Simoncelli 2004, eq. 13, averaged over every uniform window of WINDOW
    pixels a side that lies inside the image, and over channels; covariances are unbiased. That is
    `structural_similarity(data_range=1)` of scikit-image; the paper's Gaussian window of 11
    pixels would leave 18 of 28 positions a side. Raises LocalError where shapes do not fit.
    """
    a, b = _planes(images), _planes(references)
    if a.shape[1:] != b.shape[1:] or min(a.shape[2:]) < WINDOW:
        raise LocalError(
            f"images: {tuple(a.shape[1:])} against references of {tuple(b.shape[1:])} is not "
            f"allowed; use one shape of {WINDOW} pixels a side or more"
        )
    mean_b, var_b = _moments(b)
    block = max(1, _BLOCK // b.numel())
    rows = [_ssim_rows(a[i : i + block], b, mean_b, var_b) for i in range(0, len(a), block)]
    return np.asarray(torch.cat(rows).numpy())


def knn_distance(
    images: Tensor, references: Tensor, k: int = 1, features: Features = pixels
) -> FloatArray:
    """[n] Euclidean distance of each image to its k-th nearest reference in feature space.

    k = 1 among the private images of the class is GMI's KNN distance (Zhang et al., CVPR 2020),
    whose features are an evaluator's. Raises LocalError with fewer than k references.
    """
    if not 1 <= k <= len(references):
        raise LocalError(f"k: {k} of {len(references)} references; use 1 to {len(references)}")
    gaps = _distances(features(images), features(references))
    return np.asarray(np.partition(gaps, k - 1, axis=1)[:, k - 1])


def feature_distance(images: Tensor, references: Tensor, features: Features) -> FloatArray:
    """[n] Euclidean distance of each image to the mean feature of a class's references.

    GMI's feature distance (Zhang et al., CVPR 2020): a class-level figure.
    """
    if not len(references):
        raise LocalError("references: 0 images have no mean; use one or more")
    centre = features(references).mean(dim=0, keepdim=True)
    return _distances(features(images), centre)[:, 0]


def coverage(images: Tensor, references: Tensor, k: int = 5, features: Features = pixels) -> float:
    """The share of references with an image inside their ball of k nearest neighbours, in [0, 1].

    A reference's ball has the distance to its k-th nearest other reference as its radius
    (Naeem et al., ICML 2020). Images drawn as the references are, and as many, are
    expected to cover about 1 - 2^-k; a single image repeated covers what is around it.
    """
    if not 1 <= k < len(references):
        raise LocalError(f"k: {k} neighbours of {len(references)} references; use fewer")
    real = features(references)
    among = _distances(real, real)
    np.fill_diagonal(among, np.inf)  # a reference is no neighbour of itself; an equal image is
    radius = np.partition(among, k - 1, axis=1)[:, k - 1]
    reached = _distances(real, features(images)) <= radius[:, None]
    return float(reached.any(axis=1).mean())


def class_coverage(meant: Tensor, recognised: Tensor) -> float:
    """The share of the classes meant that an evaluator recognises in an image meant as them.

    meant, recognised: [n] class ids of n reconstructions. It asks for one hit a class, so it
    rises with restarts: compare equal numbers.
    """
    if meant.shape != recognised.shape or not len(meant):
        raise LocalError(
            f"classes: {len(meant)} meant and {len(recognised)} recognised are not allowed; use "
            "equally many, at least one"
        )
    return len(torch.unique(meant[meant == recognised])) / len(torch.unique(meant))


def _planes(images: Tensor) -> Tensor:
    """[n, C, H, W] in double precision."""
    if not len(images):
        raise LocalError("images: 0 are not allowed; use one or more")
    return (images if images.ndim == 4 else images.unsqueeze(1)).double()


def _windows(planes: Tensor) -> Tensor:
    """Means over every window inside."""
    return avg_pool2d(planes, WINDOW, stride=1)


def _moments(planes: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and biased variance of every window."""
    mean = _windows(planes)
    return mean, _windows(planes**2) - mean**2


def _ssim_rows(a: Tensor, b: Tensor, mean_b: Tensor, var_b: Tensor) -> Tensor:
    """[n, m]: windows of every pair at once."""
    unbiased = WINDOW**2 / (WINDOW**2 - 1)
    mean_a, var_a = (moment[:, None] for moment in _moments(a))
    product = _windows((a[:, None] * b).flatten(0, 1)).view(len(a), *mean_b.shape)
    covariance = unbiased * (product - mean_a * mean_b)
    numerator = (2 * mean_a * mean_b + _C1) * (2 * covariance + _C2)
    denominator = (mean_a**2 + mean_b**2 + _C1) * (unbiased * (var_a + var_b) + _C2)
    return (numerator / denominator).mean(dim=(2, 3, 4))


def _distances(a: Tensor, b: Tensor) -> FloatArray:
    """[n, m] Euclidean distances by differences: equal rows are at exactly 0."""
    x, y = a.detach().flatten(1).double(), b.detach().flatten(1).double()
    exact = "donot_use_mm_for_euclid_dist"
    return np.asarray(torch.cdist(x, y, compute_mode=exact).numpy())


CEILING = 120.0
"""dB reported for equal images: a mean squared error of 1e-12, near float32's own rounding."""
SHUFFLES = 1999
"""The least p-value is 1 / 2000: below what the first of a hundred figures needs after Holm."""


def psnr(images: Tensor, references: Tensor) -> FloatArray:
    """[n, m] dB between images [n, ...] and references [m, ...], both in [0, 1]: -10 log10 MSE."""
    a = images.reshape(len(images), -1).double().numpy()
    b = references.reshape(len(references), -1).double().numpy()
    if a.shape[1] != b.shape[1]:
        raise LocalError(f"images: {a.shape[1]} pixels against references of {b.shape[1]}")
    # Differences, not |a|² + |b|² - 2ab: near-equal images would cancel to nothing.
    error = np.stack([((row - b) ** 2).mean(axis=1) for row in a])
    return np.asarray(-10.0 * np.log10(np.maximum(error, 10 ** (-CEILING / 10))))


@dataclass(frozen=True, slots=True, eq=False)
class Closeness:
    """Best-of PSNR, in dB, of n reconstructions of one class.

    private: [n, m] to the class's private images; held_out: [n, m] to as many held-out ones.
    to_mean: [n] to the private class mean, a class-level figure.
    """

    private: FloatArray
    held_out: FloatArray
    to_mean: FloatArray


def closeness(images: Tensor, private: Tensor, held_out: Tensor) -> Closeness:
    """Compare reconstructions [n, ...] with m private and m held-out images of their class.

    Raises LocalError where the numbers differ: the best of more images is better for nothing.
    """
    if len(private) != len(held_out) or len(private) == 0:
        raise LocalError(
            f"references: {len(private)} private and {len(held_out)} held-out images are not "
            "allowed; use equally many, at least one"
        )
    center = private.mean(dim=0, keepdim=True)
    return Closeness(psnr(images, private), psnr(images, held_out), psnr(images, center)[:, 0])


def _shuffled_total(close: Closeness, seed: int) -> FloatArray:
    """[SHUFFLES] sums of A - A_H over the class, private and held-out images exchanged at random.

    One shuffle serves all reconstructions of the class: they share their references.
    """
    both = np.concatenate([close.private, close.held_out], axis=1)
    m = close.private.shape[1]
    rng = np.random.default_rng(seed)
    swapped = rng.permuted(np.tile(np.arange(2 * m), (SHUFFLES, 1)), axis=1) < m
    totals = np.zeros(SHUFFLES)
    for row in both:
        # The best reference falls on one side; the best on the other side is a masked maximum.
        order = np.argsort(-row)
        side = swapped[:, order]
        first = side[:, 0]
        runner_up = np.argmax(side != first[:, None], axis=1)
        gap = row[order[0]] - row[order][runner_up]
        totals += np.where(first, gap, -gap)
    return totals


@dataclass(frozen=True, slots=True, eq=False)
class Match:
    """Records [n, ...] and the guesses assigned to them. decibel: [n] PSNR of each pair."""

    records: Tensor = field(repr=False)
    guesses: Tensor = field(repr=False)
    decibel: FloatArray = field(repr=False)

    @property
    def errors(self) -> FloatArray:
        """[n] largest error of a pixel; zero where a record is recovered to the last bit."""
        gap = (self.records.double() - self.guesses.double()).abs()
        return np.asarray(gap.flatten(1).amax(dim=1).numpy())


def match(guesses: Tensor, records: Tensor) -> Match:
    """Assign a guess of its own to every record, so that the sum of PSNR is largest."""
    if len(guesses) < len(records):
        raise LocalError(f"guesses: {len(guesses)} for {len(records)} records; one each is needed")
    decibel = psnr(records, guesses)
    rows, columns = linear_sum_assignment(decibel, maximize=True)
    return Match(records[rows], guesses[columns], decibel[rows, columns])


@dataclass(frozen=True, slots=True, eq=False)
class Originals:
    """The truth about images, by group. private: [m, ...] each; held_out: sets of as many.

    matched: every record has a guess of its own; else a guess counts by its nearest record, and
    held_out is one set a group.
    """

    private: Mapping[int, Tensor] = field(repr=False)
    held_out: Mapping[int, Sequence[Tensor]] = field(repr=False)
    matched: bool = False

    @property
    def count(self) -> int:
        """Private records of all groups."""
        return sum(map(len, self.private.values()))

    def _held(self, groups: Tensor) -> list[int]:
        held = [g for g in torch.unique(groups).tolist() if g in self.private]
        if not held:
            raise LocalError("no class of the reconstructions is among the private images")
        return held

    def matches(self, found: Images) -> tuple[Match, ...]:
        """Of every group, its records and the guesses assigned to them."""
        return tuple(match(found.of(g).images, self.private[g]) for g in self._held(found.groups))

    def closeness(self, found: Images) -> list[Closeness]:
        """Of every group, PSNR of each guess to private and held-out images."""
        return [
            closeness(found.of(g).images, self.private[g], self.held_out[g][0])
            for g in self._held(found.groups)
        ]

    def to_held_out(self, found: Images) -> list[FloatArray]:
        """Of every group, [n] dB of guesses assigned to held-out records, mean over the sets."""
        return [
            np.mean([match(found.of(g).images, s).decibel for s in self.held_out[g]], axis=0)
            for g in self._held(found.groups)
        ]


@dataclass(frozen=True, slots=True)
class Comparison:
    """Reconstructions against the truth. a: dB; excess: Δ, None without held-out records."""

    a: Rate
    excess: Rate | None
    details: Mapping[str, float]

    def named(self, prefix: str) -> dict[str, float]:
        """The details under a prefix."""
        return {f"{prefix}{name}": value for name, value in self.details.items()}


def compare(found: Images, truth: Originals, seed: int) -> Comparison | None:
    """A, A_H, Δ and their companions; None where no group is among the private ones."""
    if not any(group in truth.private for group in found.groups.tolist()):
        return None
    return _matched(found, truth, seed) if truth.matched else _nearest(found, truth, seed)


def _nearest(found: Images, truth: Originals, seed: int) -> Comparison:
    """delta_p_value: the chance of so large a Δ if private and held-out images were exchanged.

    It covers the choice of images; the intervals, bootstraps over reconstructions, do not.
    mean_psnr: to every private image of the group, averaged, a third reading of "the PSNR".
    """
    close = truth.closeness(found)
    best, other = (
        np.concatenate([side.max(axis=1) for side in sides])
        for sides in ([c.private for c in close], [c.held_out for c in close])
    )
    excess = mean(best - other, seed)
    totals = np.sum([_shuffled_total(c, seed + i) for i, c in enumerate(close)], axis=0)
    as_large = int((totals / len(best) >= excess.value - 1e-12).sum())
    a, count = float(best.mean()), len(found.images)
    low, high = excess.interval
    details = {
        "reconstructions": float(count),
        "A": a,
        "A_H": float(other.mean()),
        "D": float(np.concatenate([c.to_mean for c in close]).mean()),
        "mean_psnr": float(np.concatenate([c.private.mean(axis=1) for c in close]).mean()),
        "delta": excess.value,
        **({"delta_low": low, "delta_high": high} if count > 1 else {}),
        "delta_p_value": (1 + as_large) / (1 + SHUFFLES),
    }
    return Comparison(Rate(a, mean(best, seed).interval), excess, details)


def _matched(found: Images, truth: Originals, seed: int) -> Comparison:
    """Δ over groups, whose records share an update; over records where there is one group."""
    each = [m.decibel for m in truth.matches(found)]
    a = mean(np.concatenate(each), seed)
    a = Rate(float(np.mean([decibel.mean() for decibel in each])), a.interval)
    if not truth.held_out:
        return Comparison(a, None, {"A": a.value})
    others = truth.to_held_out(found)
    gaps = [ours - theirs for ours, theirs in zip(each, others, strict=True)]
    excess = mean(gaps[0] if len(gaps) == 1 else [gap.mean() for gap in gaps], seed)
    held_out, (low, high) = float(np.mean([d.mean() for d in others])), excess.interval
    ends = {"delta_low": low, "delta_high": high}
    gap = {"A": a.value, "A_H": held_out, "delta": a.value - held_out}
    return Comparison(a, excess, {**gap, **ends})


def pictures(named: Mapping[str, Tensor]) -> dict[str, ImageArray]:
    """[n, H, W] of images by name, colours as their mean; feature vectors have none."""
    return {name: made.mean(dim=1).numpy() for name, made in named.items() if made.ndim == 4}
