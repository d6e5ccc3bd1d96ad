"""Measurements of `private_rivals`: pooled heads, and gradient descent as a server obtains it.

The rival is computed in one process, with the sensitivities, the rounding, the shares of noise and
the accounting that the clients would need.

Heads are linear on the public Fourier features of `selection.density_ratio`, less their mean over
the proxies: that direction is .6 of their second moment and holds no class, and what is left is
shorter than one and can be stretched. Public, so free of charge.
"""

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy.sparse.linalg import svds
from scipy.special import softmax

from experiments.core.grid import HOSPITALS
from experiments.core.measures import ACCURACY, NETWORK
from experiments.core.runs import federated_data
from experiments.core.study import Result
from experiments.privacy import private_rivals as rivals
from experiments.privacy.private_rivals import DELTA, Cell
from secure_fd.data.federated import FederatedData
from secure_fd.data.images import Images, concatenate
from secure_fd.data.partition import parse_split
from secure_fd.errors import LocalError
from secure_fd.methods.pooled_heads import HeadClient
from secure_fd.privacy.calibration import calibrate
from secure_fd.privacy.record import (
    FEATURE_UNITS,
    RESIDUAL_UNITS,
    UNITS,
    PooledPlan,
    feature_units,
    rank_for,
)
from secure_fd.privacy.samplers import Random, SeededRandom, discrete_gaussian
from secure_fd.secagg.graph import corrupt_of, threshold
from secure_fd.selection.density_ratio import FourierFeatures, ReferenceSettings, SingleArray
from secure_fd.simulation.build import (
    PublicFacts,
    architectures,
    fresh_networks,
    pooled_heads,
    pooled_unit,
    secure_sum,
)
from secure_fd.simulation.federation import Federation
from secure_fd.training.recipes import distil_once
from secure_fd.training.trainer import run_each
from secure_fd.votes.codec import FloatArray, IntArray, one_hot

ShortArray = NDArray[np.int16]
_AT_ONCE: Final = 2000
_MOST_STEPS: Final = 40
_PER_ROOT: Final = 0.1
"""Whole steps of DP-GD, times the root of the noise of a mean."""


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
        """Fit to the proxies' whitened inputs [P, r]."""
        fourier = FourierFeatures.draw(inputs, n_features)
        features = fourier.single(inputs.astype(np.float32))
        mean = features.mean(axis=0)
        longest = float(np.linalg.norm(features - mean, axis=1).max())
        largest = svds((features - mean) / longest, 1, return_singular_vectors=False)[0] ** 2
        return cls(fourier, mean, longest, 2 * len(features) / float(largest))

    def units(self, inputs: FloatArray) -> ShortArray:
        """Inputs [n, r] -> [n, D] integers, rows of norm `FEATURE_UNITS` at most, any image's."""
        found = np.empty((len(inputs), len(self.mean)), dtype=np.int16)
        for start in range(0, len(inputs), _AT_ONCE):
            part = inputs[start : start + _AT_ONCE].astype(np.float32)
            rows = (self.fourier.single(part) - self.mean).astype(np.float64) / self.longest
            lengths = np.linalg.norm(rows, axis=1, keepdims=True)
            found[start : start + _AT_ONCE] = feature_units(rows / np.maximum(lengths, 1.0))
        return found


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

    def parts(self) -> Iterator[tuple[FloatArray, FloatArray]]:
        """Features in units [m, D] and one-hot labels [m, C]."""
        for start in range(0, len(self), _AT_ONCE):
            part = slice(start, start + _AT_ONCE)
            yield (self.units[part].astype(np.float64), one_hot(self.labels[part], self.n_classes))

    def accuracy(self, head: FloatArray) -> float:
        """Share of records whose label has the head's [D, C] largest score."""
        right = [(f @ head).argmax(axis=1) == y.argmax(axis=1) for f, y in self.parts()]
        return float(np.concatenate(right).mean())


# DP-GD of a softmax on the features: no gradient is clipped.


def gradient_sums(records: Records, head: FloatArray) -> IntArray:
    """[D, C] exact sum of phi (y - softmax(phi^T v))^T / sqrt(2) over records, in units.

    |y - p|^2 <= (1 - p_y)^2 + (sum of the others)^2 = 2 (1 - p_y)^2 <= 2, so that a record moves
    the sum by `UNITS` at most, whatever the head, and nothing needs to be clipped.
    """
    total = np.zeros(records.shape, dtype=np.int64)
    for features, labels in records.parts():
        wrong = (labels - softmax(features @ (head / FEATURE_UNITS), axis=1)) / math.sqrt(2)
        # Products of integers below 2^53 in all: exact in floating point.
        total += (features.T @ rounded(wrong)).astype(np.int64)
    return total


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
    """Return the share of a row's norm that `rounded` keeps.

    >>> kept(16)
    0.9921875
    """
    return 1.0 - math.sqrt(n_classes) / (2 * RESIDUAL_UNITS)


Planned = Callable[[int], PooledPlan]
"""Number of sums -> their plan."""


def planned(epsilon: float, shape: tuple[int, int], clients: int, honest: int) -> Planned:
    """Return plans of sums [D, C] at an epsilon for one record, present or zeroed out, in all.

    clients: that share the noise. honest: shares that are noise enough.
    """

    def of(sums: int) -> PooledPlan:
        plan = PooledPlan(clients, honest, math.prod(shape), sums)
        return plan.with_noise(calibrate(epsilon, DELTA, plan))

    return of


def noise_of(plan: PooledPlan, random: Random) -> IntArray:
    """[D C] noise of one sum: the discrete shares of all clients."""
    deviation = math.sqrt(plan.share_variance)
    shares = [discrete_gaussian(deviation, plan.entries, random) for _ in range(plan.clients)]
    return np.asarray(np.sum(shares, axis=0))


def descend(records: Records, plan: PooledPlan, rate: float, random: Random) -> FloatArray:
    """[D, C] after accelerated steps (Nesterov, 1983) from zero, on sums of gradients under noise.

    records: of all clients that take part. plan: a sum a step.
    """
    newest = ahead = np.zeros(records.shape)
    scale = math.sqrt(2) * rate / (UNITS * kept(records.n_classes) * len(records))
    for step in range(plan.sums):
        noise = noise_of(plan, random).reshape(records.shape)
        before, newest = newest, ahead + scale * (gradient_sums(records, ahead) + noise)
        ahead = newest + step / (step + 3) * (newest - before)
    return newest


def of_mean(plan: PooledPlan, records: int) -> float:
    """Return the deviation of one coordinate of a mean, under the noise of all clients' shares."""
    return plan.noise * math.sqrt(plan.clients / plan.honest) / records


def steps_of(of: Planned, records: int, per_root: float = _PER_ROOT) -> PooledPlan:
    """Return the plan of DP-GD: its steps are `per_root` over the root of the noise of a mean."""
    noise = of_mean(of(1), records)
    steps = _MOST_STEPS if noise == 0 else round(per_root / math.sqrt(noise))
    return of(min(max(steps, 1), _MOST_STEPS))


# A cell of the study.


def measure(data_dir: Path | None, cell: Cell, *_: object) -> Result:
    """Run a row at its epsilon; accuracy on the test set."""
    clients, split = 4 if cell.split == HOSPITALS else 10, parse_split(cell.split)
    data = federated_data(cell.image_set, data_dir, split, clients, cell.seed)
    start = time.process_time()
    figures = descent(cell, data) if cell.row == "gd" else pooled(cell, data)
    return Result(cell, figures, time.process_time() - start)


def _spent(plan: PooledPlan) -> dict[str, float]:
    """Return what a plan releases and relies on."""
    return {rivals.RELEASES: float(plan.sums), rivals.HONEST: float(plan.honest)}


def pooled(cell: Cell, data: FederatedData) -> dict[str, float]:
    """Pooled heads through the federation and its sums; networks train if the row has them."""
    budget, local = float(cell.epsilon), cell.row == "local"
    noise = SeededRandom(cell.seed)
    unit = pooled_unit(PublicFacts.of(data), budget, DELTA, local=local, random=noise)
    schedule = distil_once(len(data.proxies), image_set=cell.image_set).schedule
    learns = cell.row == "networks"
    run = Federation(
        fresh_networks(data, cell.seed),
        data.clients,
        data.proxies.pixels,
        pooled_heads(budget, local=local),
        aggregation=secure_sum(None if local else "masks", data, cell.seed),
        protection=unit,
        schedule=schedule if learns else replace(schedule, proxy_steps=0),
        seed=cell.seed,
    )
    roles = [client.role for client in run.clients if isinstance(client.role, HeadClient)]
    names = architectures(data.name, len(roles))
    roles = [roles[names.index(name)] for name in dict.fromkeys(names)]
    trained = [role.learner.trainer for role in roles]
    run.trainer = lambda due: run_each([steps for steps in due if steps.trainer in trained])
    run.fit(unit.plan.sums)
    pixels, labels = data.test.pixels, data.test.labels.numpy()

    def right(answers: FloatArray) -> float:
        return float((answers.argmax(axis=1) == labels).mean())

    head = roles[0].answers(pixels, "head")
    figures = {rivals.HEAD: right(head)}
    if learns:
        own = [role.answers(pixels, "network") for role in roles]
        figures[NETWORK] = float(np.mean([right(answers) for answers in own]))
        figures[ACCURACY] = float(np.mean([right(answers + head) for answers in own]))
    sent = float(np.mean(run.transcript.up)) / 1000
    return figures | {rivals.KILOBYTES: sent} | _spent(unit.plan)


def descent(cell: Cell, data: FederatedData) -> dict[str, float]:
    """Train a head by DP-GD, on as many ranks of the public map as its noise allows."""
    settings, proxies, clients = ReferenceSettings(), data.proxies.pixels, len(data.clients)
    train = concatenate([client.train for client in data.clients])
    public, features = settings.fit(proxies), settings.size(len(proxies))
    honest = threshold(clients) - corrupt_of(clients)
    of = planned(float(cell.epsilon), (features, data.n_classes), clients, honest)
    rank = rank_for(of_mean(of(1), len(train)))
    centred = CentredFeatures.fit(public(proxies)[:, :rank], features)

    def seen(images: Images) -> Records:
        units = centred.units(public(images.pixels)[:, :rank])
        return Records(units, images.labels.numpy(), data.n_classes)

    plan = steps_of(of, len(train))
    head = descend(seen(train), plan, centred.rate, SeededRandom(cell.seed))
    return {rivals.HEAD: seen(data.test).accuracy(head)} | _spent(plan)
