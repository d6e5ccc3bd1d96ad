"""What audits share: terms, code replaced for the length of a block, a unit as behind masks."""

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn

from attacks.audit.bounds import Proof, printed
from secure_fd.data.images import Images
from secure_fd.errors import ConfigurationError
from secure_fd.privacy.calibration import calibrate
from secure_fd.privacy.client import ClientPlan, ClientUnit
from secure_fd.privacy.dp_sgd import PrivateBudget, PrivateSGD, TrainingPlan
from secure_fd.privacy.label import NoisyLabels, RandomizedResponse
from secure_fd.privacy.record import PooledRecordUnit, sums_for
from secure_fd.privacy.samplers import Random, words
from secure_fd.secure_sum.base import SumPromise
from secure_fd.selection.density_ratio import ReferenceSettings
from secure_fd.training.dp_sgd import PrivateTrainer
from secure_fd.votes.codec import FloatArray


@contextmanager
def replaced(owner: object, name: str, value: object) -> Iterator[None]:
    """Let `owner`, a class or a module, have `value` under an existing name, then the old one."""
    before = vars(owner)[name]
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


@dataclass(frozen=True, slots=True)
class Setting:
    """Terms of one audit.

    epsilon, delta: what the audited mechanism is asked to keep. miss: the probability that the
    bound is wrong. size: share of the full number of trials. random: of the mechanism's noise and
    of the attacker's coins; a seeded one makes the audit repeatable, and voids printed claims,
    so claims are always read from a release with noise of the operating system.
    """

    epsilon: float
    delta: float = 1e-5
    miss: float = 1e-5
    size: float = 1.0
    random: Random = field(default=os.urandom, repr=False)

    def __post_init__(self) -> None:
        for name in ("epsilon", "delta", "miss", "size"):
            if not getattr(self, name) > 0:
                raise ConfigurationError(name, getattr(self, name), "use a number above 0")
        for name in ("delta", "miss"):
            if getattr(self, name) >= 1:
                raise ConfigurationError(name, getattr(self, name), "use a number below 1")

    def trials(self, full: int) -> int:
        """The number of trials where a full audit makes `full`."""
        return max(100, round(full * self.size))

    def generator(self) -> np.random.Generator:
        """For everything that is not the mechanism's own noise."""
        return np.random.default_rng([int(word) for word in words(self.random, 4)])

    def coins(self, count: int) -> FloatArray:
        """[count] fair coins, 0 or 1: which canaries are included."""
        return self.generator().integers(0, 2, count).astype(np.float64)


@dataclass(frozen=True, slots=True)
class Shown:
    """What an audit shows. claimed: epsilon at `delta` as printed. also: further figures.

    finds: the least loss that it finds, in words, where that is known beforehand.
    """

    title: str
    proof: Proof
    claimed: float
    delta: float
    also: tuple[tuple[str, float], ...] = ()
    finds: str = ""


# The label unit.


def label_claim(setting: Setting) -> float:
    """Epsilon printed after an answer of ten classes, with noise of the operating system."""
    answers = NoisyLabels(RandomizedResponse(setting.epsilon, 11), 1, setting.delta)
    answers.named(np.zeros(1, dtype=np.int64), np.zeros(1, dtype=np.int64))
    return printed(answers.guarantee()).epsilon


# Units that hide in a masked sum.


class StandInForMasks(SumPromise):
    """Says that it hides, as a masked sum does, and sums nothing: masks are not what is audited."""

    name = "stand-in"
    hides = True
    guarantee = "none: the auditor adds up what clients send"

    def __init__(self, n_clients: int) -> None:
        self.n_clients = n_clients


def masked_unit(setting: Setting, plan: ClientPlan, random: Random) -> ClientUnit:
    """A unit of any fleet that was told its votes are summed under masks."""
    unit = ClientUnit(setting.epsilon, setting.delta, plan, small_fleet=True, random=random)
    unit.check_sum(StandInForMasks(plan.clients))
    return unit


def pooled_unit(
    setting: Setting, n_features: int, n_classes: int, random: Random
) -> PooledRecordUnit:
    """A pooled record unit of ten clients, told the same; as many sums as the budget pays for."""
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
"""Of a pixel: its gradient is far above the clip, and the weights hardly move."""
_RATE = 1e-6


def training_plan(records: int, setting: Setting) -> TrainingPlan:
    """Of `STEPS` steps, with the noise that the budget asks for."""
    plan = TrainingPlan(records, records // SHARE, STEPS)
    return plan.with_noise(calibrate(setting.epsilon, setting.delta, plan))


def linear_trainer(
    pixels: Tensor, labels: Tensor, setting: Setting, random: Random
) -> PrivateTrainer:
    """Of a network of two weights a pixel, without bias: a record's gradient has one direction.

    (1, -1) / sqrt 2 at the record's own pixel, with the sign of its label, clipped to norm one. So
    the weights before and after a step show that pixel's noisy sum of gradients.
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


def moves(trainer: PrivateTrainer) -> FloatArray:
    """[T, 2, pixels] one run from zero weights: each step's noisy sum of gradients, in clips."""
    (weight,) = trainer.model.parameters()
    with torch.no_grad():
        weight.zero_()
    path = [np.zeros(tuple(weight.shape))]
    for _ in range(STEPS):
        trainer.take_steps(1)
        path.append(weight.detach().double().numpy().copy())
    batch = trainer.budget.settings.batch
    return np.asarray(np.diff(np.array(path), axis=0) * (-batch / _RATE))


def gradients_of_ones(trainer: PrivateTrainer) -> FloatArray:
    """[T, pixels] of one run, each step's sum in the direction of a record that is labelled 1."""
    moved = moves(trainer)
    return np.asarray((moved[:, 0] - moved[:, 1]) / math.sqrt(2))
