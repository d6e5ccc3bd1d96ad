"""How close reconstructions come to private images, and to images that nobody trained on.

PSNR to the nearest private image rises with blur and with the number of private images; only its
excess over equally many held-out images of the same group, Δ = A - A_H, speaks of leakage: blur,
and a plausible class, are near to everything. Images are [n, H, W] or [n, C, H, W], or feature
vectors [n, D].
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from attacks.core.base import FloatArray, ImageArray, Images
from attacks.core.statistics import Rate, mean
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
