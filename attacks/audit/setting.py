"""Shared by audits and mutations: terms, code replaced for the length of a block, audited units."""

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn

from attacks.audit.bounds import printed
from secure_fd.data.images import Images
from secure_fd.errors import ConfigurationError
from secure_fd.privacy.client import ClientPlan, ClientUnit
from secure_fd.privacy.dp_sgd import PrivateBudget, PrivateSGD
from secure_fd.privacy.label import NoisyLabels, RandomizedResponse
from secure_fd.privacy.record import PooledRecordUnit, sums_for
from secure_fd.privacy.samplers import Random
from secure_fd.secure_sum.base import SumPromise
from secure_fd.selection.density_ratio import ReferenceSettings
from secure_fd.training.dp_sgd import PrivateTrainer
from secure_fd.votes.codec import FloatArray


@contextmanager
def replaced(owner: object, name: str, value: object) -> Iterator[None]:
    """Give `owner`, a class or a module, `value` under an existing name for a while."""
    before = vars(owner)[name]
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


@dataclass(frozen=True, slots=True)
class Setting:
    """Terms of one audit.

    Attributes:
        epsilon: requested from the audited mechanism, with `delta`.
        miss: probability that the bound is wrong.
        size: share of the full number of trials.
        random: source of the mechanism's noise. A seeded one makes the audit repeatable and
            invalidates printed claims, so claims are always read from a release with noise of the
            operating system.
    """

    epsilon: float
    delta: float = 1e-5
    miss: float = 1e-5
    size: float = 1.0
    random: Random = field(default=os.urandom, repr=False)

    def __post_init__(self) -> None:
        for name, allowed in (("epsilon", ""), ("delta", "1"), ("miss", "1"), ("size", "")):
            value = getattr(self, name)
            if not 0 < value < float(allowed or "inf"):
                below = f" and below {allowed}" if allowed else ""
                raise ConfigurationError(name, value, f"use a finite number above 0{below}")

    def trials(self, full: int) -> int:
        """Return the number of trials where a full audit makes `full`."""
        return max(100, round(full * self.size))


# The label unit.


def label_claim(setting: Setting) -> float:
    """Return the epsilon printed after an answer of ten classes."""
    answers = NoisyLabels(RandomizedResponse(setting.epsilon, 11), 1, setting.delta)
    answers.named(np.zeros(1, dtype=np.int64), np.zeros(1, dtype=np.int64))
    return printed(answers.guarantee())


# Units that hide in a masked sum.


class StandInForMasks(SumPromise):
    """States that it hides, as a masked sum does, and sums nothing: masks are not audited."""

    name = "stand-in"
    hides = True
    guarantee = "none: the auditor adds up what clients send"

    def __init__(self, n_clients: int) -> None:
        self.n_clients = n_clients


def masked_unit(setting: Setting, plan: ClientPlan, random: Random) -> ClientUnit:
    """Return a unit of any fleet whose votes are summed under masks."""
    unit = ClientUnit(setting.epsilon, setting.delta, plan, small_fleet=True, random=random)
    unit.check_sum(StandInForMasks(plan.clients))
    return unit


def pooled_unit(
    setting: Setting, n_features: int, n_classes: int, random: Random
) -> PooledRecordUnit:
    """Return a pooled record unit of ten clients; as many sums as the budget pays for."""
    unit = PooledRecordUnit(
        setting.epsilon,
        setting.delta,
        records=(300,) * 10,
        n_proxies=1000,
        n_classes=n_classes,
        sums=sums_for(setting.epsilon),
        features=ReferenceSettings(n_features=n_features),
        random=random,
    )
    unit.check_sum(StandInForMasks(unit.plan.clients))
    return unit


# DP-SGD of a network whose weights show the noisy sum of clipped gradients.


STEPS = 10
SHARE = 10
"""A batch expects one record in so many."""
BRIGHT = 1e3
"""Value of a pixel whose gradient is far above the clip; the weights hardly move."""
_RATE = 1e-6


def linear_trainer(
    pixels: Tensor, labels: Tensor, setting: Setting, random: Random
) -> PrivateTrainer:
    """Return the trainer of a network of two weights a pixel, without bias.

    A record's gradient has one direction: (1, -1) / sqrt 2 at the record's own pixel, with the sign
    of its label, clipped to norm one. So the weights before and after a step show that pixel's
    noisy sum of gradients.
    """
    linear = nn.Linear(pixels.shape[-1], 2, bias=False)
    nn.init.zeros_(linear.weight)
    terms = PrivateSGD(
        setting.epsilon, setting.delta, STEPS, learning_rate=_RATE, batch=len(pixels) // SHARE
    )
    records = Images(pixels, labels.long())
    network = nn.Sequential(nn.Flatten(), linear)
    budget = PrivateBudget(terms, len(records), random)
    return PrivateTrainer(network, records, budget, torch.device("cpu"))


def gradient_sums(trainer: PrivateTrainer) -> FloatArray:
    """Return [T, 2, pixels] each step's noisy sum of gradients of a run, in clips."""
    (weight,) = trainer.model.parameters()
    path = [weight.detach().double().numpy().copy()]
    for _ in range(STEPS):
        trainer.take_steps(1)
        path.append(weight.detach().double().numpy().copy())
    batch = trainer.budget.settings.batch
    return np.asarray(np.diff(np.array(path), axis=0) * (-batch / _RATE))


def sums_along_ones(sums: FloatArray) -> FloatArray:
    """Return [T, pixels] the part of each sum in the direction of a record with label 1."""
    return np.asarray((sums[:, 0] - sums[:, 1]) / math.sqrt(2))
