"""All clients' networks in training: clients of equal architecture learn side by side."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from secure_fd.augmentation import augmentation
from secure_fd.cohort import Cohort, group
from secure_fd.config import Schedule
from secure_fd.data.images import Images

OnSteps = Callable[[int], None]
"""Hears how many more steps are done: one of each of three networks are three."""
_WARM_UP = 2**30
"""Seeds of the warm-up's batches, apart from those of the rounds; generators read 32 bits."""
_FEW_CLASSES = 2.5
"""With fewer, momentum drives a network that learns alone so far that its units die."""


class Learners:
    """Networks and records of the clients [n], under one schedule.

    seed: client k draws its batches from a generator of its own, so its path does not hang on who
    else is there. on_steps: hears of training as it goes on, within long rounds too.
    """

    def __init__(
        self,
        models: Sequence[nn.Module],
        train: Sequence[Images],
        schedule: Schedule,
        seed: int,
        device: torch.device,
        on_steps: OnSteps | None = None,
    ) -> None:
        self._schedule = schedule
        self._on_steps = on_steps or _unheard
        self._train, self._device = train, device
        self._seeds = [seed * 1000 + k for k in range(len(models))]
        self._cohorts: list[tuple[list[int], Cohort]] = []
        for members in group(models):
            cohort = Cohort(
                [models[k] for k in members],
                [train[k] for k in members],
                schedule.sgd,
                [self._seeds[k] for k in members],
                device,
                augmentation(schedule.augment),
            )
            self._cohorts.append((members, cohort))
        self.models: list[nn.Module] = list(models)
        self._round = 0

    def warm_up(self) -> None:
        """The schedule's steps on private records alone.

        Clients of few classes take them without momentum: nothing would hold a network back.
        """
        train, seeds, heard = self._train, self._seeds, self._on_steps
        warm_up(self.models, train, self._schedule, seeds, self._device, heard)

    def begin_round(self, index: int) -> None:
        """From now on steps are taken at this round's learning rates."""
        self._round = index

    def local_steps(
        self, steps: int, present: Sequence[int], lessons: Sequence[Tensor] | None = None
    ) -> None:
        """SGD steps of the present clients on their private records.

        lessons: by client, all of them, [C, C] what to learn at a record of each class.
        """
        for members, cohort in self._cohorts:
            places = _places(members, present)
            rows = None if lessons is None else [lessons[members[place]] for place in places]
            cohort.learning_rate = self._schedule.rate(self._round)
            cohort.local_steps(steps, places, rows)
            self._on_steps(steps * len(places))

    def distillation_steps(
        self, pixels: Tensor, targets: Tensor, steps: int, present: Sequence[int]
    ) -> None:
        """SGD steps of the present clients towards targets [m, C] at pixels [m, ...]."""
        for members, cohort in self._cohorts:
            places = _places(members, present)
            for part, rate in self._schedule.rates(self._round, steps):
                cohort.learning_rate = rate
                cohort.distillation_steps(pixels, targets, part, places)
                self._on_steps(part * len(places))


def warm_up(
    models: Sequence[nn.Module],
    train: Sequence[Images],
    schedule: Schedule,
    seeds: Sequence[int],
    device: torch.device,
    on_steps: OnSteps | None = None,
) -> None:
    """The clients' warm-up in place: see `Learners.warm_up`."""
    heard = on_steps or _unheard
    plain, views = replace(schedule.sgd, momentum=0.0), augmentation(schedule.augment)
    few = [_classes(images) < _FEW_CLASSES for images in train]
    for members in group(models):
        for sgd, alike in ((plain, True), (schedule.sgd, False)):
            chosen = [k for k in members if few[k] is alike]
            if not chosen:
                continue
            cohort = Cohort(
                [models[k] for k in chosen],
                [train[k] for k in chosen],
                sgd,
                [seeds[k] + _WARM_UP for k in chosen],
                device,
                views,
            )
            for steps, rate in schedule.warmup_rates:
                cohort.learning_rate = rate
                cohort.local_steps(steps, range(len(chosen)))
                heard(steps * len(chosen))


def _unheard(_: int) -> None:
    """Nobody asks how far training is."""


def _classes(images: Images) -> float:
    """How many classes of equal size would be as varied: a few strays do not make a class."""
    shares = torch.bincount(images.labels).double() / len(images)
    return float(1 / shares.square().sum())


def _places(members: Sequence[int], present: Sequence[int]) -> list[int]:
    """Where the present clients stand among the members of a cohort."""
    here = set(present)
    return [place for place, client in enumerate(members) if client in here]
