"""Similarity of reconstructions to private images, and to held-out images.

PSNR to the nearest private image rises with blur and with the number of private images; only its
excess over equally many held-out images of the same group, Δ = A - A_H, measures leakage: blur,
and a plausible class, are near to everything. Images are [n, H, W] or [n, C, H, W], or feature
vectors [n, D].
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from attacks.core.base import FloatArray, ImageArray, Images, Labelled
from attacks.core.statistics import Rate, mean
from attacks.core.view import Public
from secure_fd.errors import LocalError

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


def _shuffled_total(private: FloatArray, held_out: FloatArray, seed: int) -> FloatArray:
    """[SHUFFLES] sums of A - A_H over the class, private and held-out images exchanged at random.

    private, held_out: [n, m] dB. One shuffle serves all reconstructions of the class: they share
    their references.
    """
    both = np.concatenate([private, held_out], axis=1)
    m = private.shape[1]
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
    """Similarity of each record's guess to the record.

    decibel: [n] PSNR. errors: [n] largest error of a pixel; 0 where it is right to the last bit.
    """

    decibel: FloatArray = field(repr=False)
    errors: FloatArray = field(repr=False)


def match(guesses: Tensor, records: Tensor) -> Match:
    """Assign a guess of its own to every record, so that the sum of PSNR is largest."""
    if len(guesses) < len(records):
        raise LocalError(f"guesses: {len(guesses)} for {len(records)} records; one each is needed")
    decibel = psnr(records, guesses)
    rows, columns = linear_sum_assignment(decibel, maximize=True)
    gaps = (records[rows].double() - guesses[columns].double()).abs().flatten(1)
    return Match(decibel[rows, columns], gaps.amax(dim=1).numpy())


@dataclass(frozen=True, slots=True, eq=False)
class Originals:
    """The truth about images: private and held-out ones, class by class equally many."""

    private: Labelled
    held_out: Labelled


@dataclass(frozen=True, slots=True)
class Comparison:
    """Reconstructions against the truth. a: dB; excess: Δ; both are means over count of them."""

    a: Rate
    excess: Rate
    count: int
    details: Mapping[str, float]

    def named(self, prefix: str) -> dict[str, float]:
        """The details under a prefix."""
        return {f"{prefix}{name}": value for name, value in self.details.items()}


def compare(found: Images, truth: Originals, seed: int) -> Comparison | None:
    """A, A_H and Δ; None where no class of the reconstructions is among the private ones.

    A reconstruction counts by its nearest image. delta_p_value: the chance of so large a Δ if
    private and held-out images were exchanged. It covers the choice of images; the intervals,
    bootstraps over reconstructions, do not.

    Raises:
        LocalError: for unequally many references: the best of more images is better for nothing.
    """
    known = torch.isin(found.groups, truth.private.labels)
    if not known.any():
        return None
    best, other, totals = [], [], np.zeros(SHUFFLES)
    for i, c in enumerate(torch.unique(found.groups[known]).tolist()):
        images, private, held_out = found.of(c).images, truth.private.of(c), truth.held_out.of(c)
        if len(private) != len(held_out):
            raise LocalError(
                f"references: {len(private)} private and {len(held_out)} held-out images are not "
                "allowed; use equally many"
            )
        ours, theirs = psnr(images, private), psnr(images, held_out)
        best.append(ours.max(axis=1))
        other.append(theirs.max(axis=1))
        totals += _shuffled_total(ours, theirs, seed + i)
    nearest, elsewhere = np.concatenate(best), np.concatenate(other)
    excess = mean(nearest - elsewhere, seed)
    as_large = int((totals / len(nearest) >= excess.value - 1e-12).sum())
    a, count = float(nearest.mean()), len(found.images)
    low, high = excess.interval
    details = {
        "reconstructions": float(count),
        "A": a,
        "A_H": float(elsewhere.mean()),
        "delta": excess.value,
        **({"delta_low": low, "delta_high": high} if count > 1 else {}),
        "delta_p_value": (1 + as_large) / (1 + SHUFFLES),
    }
    return Comparison(Rate(a, mean(nearest, seed).interval), excess, len(nearest), details)


def class_means(public: Public) -> Tensor:
    """[C, ...] public mean of each class; of all where labels are missing."""
    average = public.proxies.mean(dim=0)
    means = average.repeat(public.n_classes, *[1] * average.ndim)
    if public.labels is not None:
        for c in torch.unique(public.labels).tolist():
            means[c] = public.proxies[public.labels == c].mean(dim=0)
    return means


def pictures(named: Mapping[str, Tensor]) -> dict[str, ImageArray]:
    """[n, H, W] of images by name, colours as their mean; feature vectors have none."""
    return {name: made.mean(dim=1).numpy() for name, made in named.items() if made.ndim == 4}
