"""Training as a value: a client says which steps are due, a courier beside whom they run."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Protocol

import torch
from torch import Tensor, nn

from secure_fd.data.images import Images
from secure_fd.errors import LocalError
from secure_fd.recipes import Schedule
from secure_fd.training import Trainer, augmentation


class LocalTrainer(Protocol):
    """A network that can take steps on private records."""

    model: nn.Module
    learning_rate: float

    def local_steps(self, steps: int, lessons: Tensor | None = None) -> None:
        """Steps on private records."""


@dataclass(frozen=True, slots=True)
class Lesson:
    """What a client distils from: targets [m, C] at the proxies [P, ...] of these indices [m]."""

    proxies: Tensor = field(repr=False)
    indices: Tensor = field(repr=False)
    targets: Tensor = field(repr=False)

    def same(self, other: "Lesson") -> bool:
        """Whether it says the same of the same proxies."""
        return (
            self.proxies is other.proxies
            and torch.equal(self.indices, other.indices)
            and torch.equal(self.targets, other.targets)
        )

    def pixels(self) -> Tensor:
        """[m, ...]"""
        return self.proxies[self.indices]


@dataclass(frozen=True, slots=True, eq=False)
class Steps:
    """Training that is due: `count` steps at one rate.

    lesson: what to distil from; None: steps on private records, towards rows of `targets` [C, C]
    by class where they are given, and towards labels where not.
    """

    trainer: LocalTrainer
    count: int
    rate: float
    lesson: Lesson | None = field(default=None, repr=False)
    targets: Tensor | None = field(default=None, repr=False)

    def run(self) -> None:
        """Take the steps, alone."""
        if self.lesson is None:
            self.trainer.learning_rate = self.rate
            self.trainer.local_steps(self.count, self.targets)
            return
        if not isinstance(self.trainer, Trainer):
            raise LocalError("this trainer learns from private records alone")
        self.trainer.learning_rate = self.rate
        self.trainer.distillation_steps(self.lesson.pixels(), self.lesson.targets, self.count)


_WARM_UP = 2**30
"""Offset of the seeds of warm-up batches from those of the rounds; generators read 32 bits."""
_FEW_CLASSES = 2.5
"""Below it, momentum drives a network that learns alone so far that its units die."""


class Learner:
    """One client's network and records under a schedule: everything that trains, as values.

    seed: of its batches, so that its path depends on its own seed and data alone. private: a
    trainer of its own making, such as DP-SGD, which knows steps on private records alone.
    """

    def __init__(
        self,
        model: nn.Module,
        train: Images,
        schedule: Schedule,
        seed: int,
        device: torch.device,
        private: LocalTrainer | None = None,
    ) -> None:
        self.model, self.schedule, self.round = model, schedule, -1
        self.device = device
        self._train, self._seed = train, seed
        views = augmentation(schedule.augment)
        self._trainer: LocalTrainer = private or Trainer(
            model, train, schedule.sgd, seed, device, views
        )

    @property
    def trainer(self) -> LocalTrainer:
        """What takes the steps of the rounds."""
        return self._trainer

    def warm_up(self) -> Iterator[Steps]:
        """Steps on private records before the first round.

        Clients of few classes take them without momentum: nothing would hold a network back.
        """
        sgd = self.schedule.sgd
        if effective_classes(self._train) < _FEW_CLASSES:
            sgd = replace(sgd, momentum=0.0)
        views = augmentation(self.schedule.augment)
        made: Trainer | None = None
        for count, rate in self.schedule.warmup_rates:
            if made is None:
                seed = self._seed + _WARM_UP
                made = Trainer(self.model, self._train, sgd, seed, self.device, views)
            yield Steps(made, count, rate)

    def local(self, count: int | None = None, targets: Tensor | None = None) -> Iterator[Steps]:
        """Steps on private records at this round's rate; by default those of the schedule."""
        steps = self.schedule.local_steps if count is None else count
        if steps:
            yield Steps(self._trainer, steps, self.schedule.rate(self.round), targets=targets)

    def distil(self, lesson: Lesson) -> Iterator[Steps]:
        """The round's steps towards a lesson; none where it teaches nothing."""
        for count, rate in self.schedule.rates(self.round, self.schedule.proxy_steps):
            if len(lesson.indices):
                yield Steps(self._trainer, count, rate, lesson)


def effective_classes(images: Images) -> float:
    """How many classes of equal size would be as varied: a few strays do not make a class."""
    shares = torch.bincount(images.labels).double() / len(images)
    return float(1 / shares.square().sum())
