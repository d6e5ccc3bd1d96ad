"""Rivals of the pooled head, as a server would obtain them: gradients, networks.

All is computed in one process, with the sensitivities, the rounding, the shares of noise and the
accounting that the clients would need. Where a rival's noise is continuous here and its shares
would be discrete under masks, that is in the rival's favour and its docstring says so.

Heads are linear on the public Fourier features of `selection.density`, less their mean over the
proxies: that direction is .6 of their second moment and tells no class, and what is left is shorter
than one and can be stretched. Public, so free of charge.
"""

import math
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from secure_fd.data.images import Images
from secure_fd.errors import LocalError
from secure_fd.privacy.accountants import accountant_for
from secure_fd.privacy.calibration import calibrate, epsilon
from secure_fd.privacy.dp_sgd import PrivateBudget, PrivateSGD, TrainingPlan
from secure_fd.privacy.record import (
    FEATURE_UNITS,
    RESIDUAL_UNITS,
    UNITS,
    Bounded,
    PooledPlan,
    feature_units,
)
from secure_fd.privacy.samplers import FloatGaussian, Random, discrete_gaussian
from secure_fd.selection.density_ratio import FourierFeatures, SingleArray
from secure_fd.training.dp_sgd import PrivateTrainer
from secure_fd.votes.codec import FloatArray, IntArray, one_hot

ShortArray = NDArray[np.int16]
_AT_ONCE: Final = 2000
_POWERS: Final = 60
_MOST_STEPS: Final = 40


# Features, and records seen through them.


@dataclass(frozen=True, slots=True, eq=False)
class CentredFeatures:
    """Fourier features less their mean over the proxies, over the longest of these.

    rate: 2 over the largest eigenvalue of their second moment on the proxies, the step that never
    overshoots for a softmax. All from public inputs alone.
    """

    fourier: FourierFeatures
    mean: SingleArray  # [D]
    longest: float
    rate: float

    @classmethod
    def fit(cls, inputs: FloatArray, n_features: int) -> "CentredFeatures":
        """From the proxies' whitened inputs [P, r]."""
        fourier = FourierFeatures.draw(inputs, n_features)
        features = fourier.single(inputs.astype(np.float32))
        mean = features.mean(axis=0)
        longest = float(np.linalg.norm(features - mean, axis=1).max())
        return cls(fourier, mean, longest, 2 / _largest((features - mean) / longest))

    def units(self, inputs: FloatArray) -> ShortArray:
        """Inputs [n, r] -> [n, D] integers, rows of norm `FEATURE_UNITS` at most, any image's."""
        found = np.empty((len(inputs), len(self.mean)), dtype=np.int16)
        for start in range(0, len(inputs), _AT_ONCE):
            part = inputs[start : start + _AT_ONCE].astype(np.float32)
            rows = (self.fourier.single(part) - self.mean).astype(np.float64) / self.longest
            lengths = np.linalg.norm(rows, axis=1, keepdims=True)
            found[start : start + _AT_ONCE] = feature_units(rows / np.maximum(lengths, 1.0))
        return found


def _largest(features: SingleArray) -> float:
    """Largest eigenvalue of the mean of phi phi^T, by power iteration."""
    vector = np.ones(features.shape[1]) / math.sqrt(features.shape[1])
    vector += np.random.default_rng(0).standard_normal(len(vector)) / len(vector)
    value = 0.0
    for _ in range(_POWERS):
        image = features.T @ (features @ vector) / len(features)
        value = float(np.linalg.norm(image))
        vector = image / value
    return value


@dataclass(frozen=True, slots=True, eq=False)
class Records:
    """Features in units [n, D], and labels [n]."""

    units: ShortArray = field(repr=False)
    labels: IntArray = field(repr=False)
    n_classes: int

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def shape(self) -> tuple[int, int]:
        """(D, C)."""
        return self.units.shape[1], self.n_classes

    def parts(self, chosen: IntArray | None = None) -> Iterator[tuple[FloatArray, FloatArray]]:
        """Features in units [m, D] and one-hot labels [m, C]; of the chosen records alone."""
        index = np.arange(len(self)) if chosen is None else chosen
        for start in range(0, len(index), _AT_ONCE):
            part = index[start : start + _AT_ONCE]
            yield self.units[part].astype(np.float64), one_hot(self.labels[part], self.n_classes)

    def accuracy(self, head: FloatArray) -> float:
        """Share of records whose label has the head's [D, C] largest score."""
        right = [(f @ head).argmax(axis=1) == y.argmax(axis=1) for f, y in self.parts()]
        return float(np.concatenate(right).mean())


# Who spends a budget: one holder alone, or clients that share the noise of a masked sum.


@dataclass(frozen=True, slots=True)
class Budget:
    """epsilon, delta: of one record, present or zeroed out, over the whole run.

    clients: that share the noise, 1 for a holder alone. honest: shares that are noise enough.
    """

    epsilon: float
    delta: float
    clients: int = 1
    honest: int = 1

    @property
    def pooled(self) -> bool:
        """Whether the noise is shared."""
        return self.clients > 1

    @property
    def provision(self) -> float:
        """Deviation of all shares over that of the honest ones alone."""
        return math.sqrt(self.clients / self.honest)

    def sums(self, entries: int, count: int) -> PooledPlan:
        """So many sums of so many integers, with the noise that the budget needs."""
        plan = PooledPlan(self.clients, self.honest, entries, count)
        return plan.with_noise(calibrate(self.epsilon, self.delta, plan))

    def training(self, n_records: int, batch: int, steps: int) -> TrainingPlan:
        """So many steps of DP-SGD, with the noise that the budget needs."""
        plan = TrainingPlan(n_records, batch, steps)
        return plan.with_noise(calibrate(self.epsilon, self.delta, plan))

    def noise_of_mean(self, n_records: int, entries: int) -> float:
        """Deviation that is needed on a mean over so many records, were one sum all there is."""
        one = self.sums(entries, 1) if self.pooled else self.training(n_records, n_records, 1)
        return one.noise / n_records


@dataclass(frozen=True, slots=True, eq=False)
class Solved:
    """A head [D, C] for features in units, and the plan of all that was released for it.

    releases: noisy sums; numbers: integers in all of them.
    """

    head: FloatArray = field(repr=False)
    plan: PooledPlan | TrainingPlan
    releases: int
    numbers: int


Noise = Callable[[int], FloatArray | IntArray]
"""How many entries -> noise in units."""


def shares(plan: PooledPlan, random: Random = os.urandom) -> Noise:
    """All clients' shares of one sum."""
    return lambda entries: _summed(plan.share_variance, plan.clients, entries, random)


def _summed(variance: float, clients: int, entries: int, random: Random) -> IntArray:
    total = np.zeros(entries, dtype=np.int64)
    for _ in range(clients):
        total += discrete_gaussian(math.sqrt(variance), entries, random)
    return total


# DP-GD and DP-SGD of a softmax on the features: no gradient is clipped.


def gradient_sums(records: Records, head: FloatArray, chosen: IntArray | None = None) -> Bounded:
    """[D C] exact sum of phi (y - softmax(phi^T v))^T / sqrt(2) over records, in units.

    |y - p|^2 <= (1 - p_y)^2 + (sum of the others)^2 = 2 (1 - p_y)^2 <= 2, so that a record moves
    the sum by `UNITS` at most, whatever the head, and nothing needs to be clipped.
    """
    total = np.zeros(records.shape, dtype=np.int64)
    for features, labels in records.parts(chosen):
        wrong = (labels - softmax(features @ (head / FEATURE_UNITS))) / math.sqrt(2)
        # Products of integers below 2^53 in all: exact in floating point.
        total += (features.T @ rounded(wrong)).astype(np.int64)
    return Bounded(total.ravel(), l2=UNITS)


def rounded(wrong: FloatArray) -> FloatArray:
    """Rows [n, C] of norm 1 at most as whole numbers of norm `RESIDUAL_UNITS` at most, unbiased.

    Rounding moves a row by sqrt(C) / 2, so it is shortened by as much before. Cut off towards 0,
    as the few sums of pooled heads are, the small residuals of later steps would vanish.
    """
    units = np.rint(wrong * (RESIDUAL_UNITS * kept(wrong.shape[1])))
    if len(units) and (units**2).sum(axis=1).max() > RESIDUAL_UNITS**2:
        raise LocalError("a record would move the sum by more than its noise covers")
    return np.asarray(units)


def kept(n_classes: int) -> float:
    """What `rounded` leaves of a row's norm.

    >>> kept(16)
    0.9921875
    """
    return 1.0 - math.sqrt(n_classes) / (2 * RESIDUAL_UNITS)


def softmax(scores: FloatArray) -> FloatArray:
    """Scores [N, C] as probabilities."""
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))


@dataclass(frozen=True, slots=True)
class Descent:
    """steps of a length rate. share: chance of a record to be in a step's batch; 1: all are.

    accelerated: Nesterov's (1983), whose weights need no setting.
    """

    steps: int
    rate: float
    share: float = 1.0
    accelerated: bool = False

    def head(self, records: Records, noise: Noise, chance: FloatGaussian) -> FloatArray:
        """[D, C] after all steps from zero, each on a sum of gradients under noise."""
        newest = ahead = np.zeros(records.shape)
        unit = UNITS * kept(records.n_classes)
        scale = math.sqrt(2) * self.rate / (unit * self.share * len(records))
        for step in range(self.steps):
            sums = gradient_sums(records, ahead, self._drawn(len(records), chance))
            noisy = (sums.values + noise(sums.values.size)).reshape(records.shape)
            before, newest = newest, ahead + scale * noisy
            weight = step / (step + 3) if self.accelerated else 0.0
            ahead = newest + weight * (newest - before)
        return newest

    def _drawn(self, count: int, chance: FloatGaussian) -> IntArray | None:
        return None if self.share == 1 else np.flatnonzero(chance.uniform(count) < self.share)


def full_batch(
    records: Records, budget: Budget, rate: float, per_root: float, random: Random = os.urandom
) -> Solved:
    """DP-GD, accelerated: `per_root` over the root of the noise of a mean, so many whole steps.

    Steps compose as Gaussians, exactly for a holder alone. Pooled, each step is one masked sum
    under shares of discrete noise, as the pooled heads' sums are.
    """
    entries = math.prod(records.shape)
    noise = budget.noise_of_mean(len(records), entries)
    steps = _MOST_STEPS if noise == 0 else round(per_root / math.sqrt(noise))
    chosen = Descent(min(max(steps, 1), _MOST_STEPS), rate, accelerated=True)
    chance = FloatGaussian(random)
    made: tuple[PooledPlan | TrainingPlan, Noise]
    if budget.pooled:
        sums = budget.sums(entries, chosen.steps)
        made = sums, shares(sums, random)
    else:
        alone = budget.training(len(records), len(records), chosen.steps)
        made = alone, _floating(alone.noise, chance)
    plan, noise_of = made
    head = chosen.head(records, noise_of, chance)
    return Solved(head, plan, chosen.steps, chosen.steps * entries)


def sampled(
    records: Records,
    budget: Budget,
    rate: float,
    level: float,
    *,
    steps: int = 40,
    share: float = 0.25,
    random: Random = os.urandom,
) -> Solved:
    """DP-SGD on Poisson batches: steps so long that noise moves a score by about `level`.

    rate: the most that a step may be. Pooled, every client samples its own records at the common
    rate and adds its share; the shares count as continuous noise, in this rival's favour.
    """
    plan = budget.training(len(records), max(1, round(share * len(records))), steps)
    chance, length = FloatGaussian(random), _step(level, plan, 1.0, rate)
    chosen = Descent(steps, length, plan.sample_rate)
    noise = _floating(plan.noise * budget.provision, chance)
    head = chosen.head(records, noise, chance)
    return Solved(head, plan, steps, steps * math.prod(records.shape))


def _floating(multiplier: float, chance: FloatGaussian) -> Noise:
    return lambda entries: multiplier * UNITS * chance.normal(entries)


# DP-FedAvg of one network.


def shared_steps(
    model: nn.Module,
    train: Images,
    budget: Budget,
    steps: int,
    share: float,
    level: float,
    *,
    clip: float = 1.0,
    random: Random = os.urandom,
) -> TrainingPlan:
    """DP-FedAvg with one step a round, in place; returns the plan.

    Every client clips the gradients of a Poisson batch of its own records and adds its share of the
    noise; the masked sum is the noisy gradient of all records. train: of all clients. Steps are so
    long that noise moves a parameter by about `level` in all. The shares count as continuous noise
    and are not rounded, in this rival's favour.
    """
    plan = budget.training(len(train), max(1, round(share * len(train))), steps)
    rate = _step(level, plan, clip, _FASTEST)
    finite = budget.epsilon if math.isfinite(budget.epsilon) else 1.0
    settings = PrivateSGD(finite, budget.delta, steps, rate, plan.batch, clip)
    spent = PrivateBudget(settings, len(train), random)
    spent.noise = plan.noise * budget.provision  # in the place of one holder's
    PrivateTrainer(model, train, spent, torch.device("cpu")).take_steps(steps)
    return plan


_FASTEST: Final = 2.0
"""Learning rate of a network, at most."""


def _step(level: float, plan: TrainingPlan, clip: float, most: float) -> float:
    """The rate at which all steps' noise adds up to `level`, if that is not above the most."""
    if plan.noise == 0:
        return most
    expected = plan.sample_rate * plan.n_records
    return min(most, level * expected / (plan.noise * clip * math.sqrt(plan.steps)))


def claim_of(plan: PooledPlan | TrainingPlan, delta: float) -> dict[str, object]:
    """What a plan promises, for a cell's notes: unit, neighbours and the epsilon that it costs."""
    return {
        "unit": "record",
        "neighbours": "one record of one client, present or zeroed out",
        "epsilon": epsilon(plan, delta),
        "delta": delta,
        "noise": plan.noise,
        "accountant": accountant_for(plan.event()).name,
    }
