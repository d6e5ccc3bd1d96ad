"""Clients that learn from their records and from proxies whose labels never change (Fig. 10)."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional

from secure_fd.data.images import Images
from secure_fd.errors import LocalError
from secure_fd.federation import Participant
from secure_fd.recipes import SGD, Schedule
from secure_fd.training import accuracy, default_device
from secure_fd.transcript import Transcript


@dataclass(frozen=True, slots=True, eq=False)
class Lesson:
    """The proxies that teach: pixels [m, ...], labels [m, C] in the simplex, true classes [m]."""

    pixels: Tensor = field(repr=False)
    targets: Tensor = field(repr=False)
    truth: Tensor = field(repr=False)

    def __post_init__(self) -> None:
        if not len(self.pixels) == len(self.targets) == len(self.truth) > 0:
            raise LocalError("a lesson needs proxies, and as many labels and classes")


class FixedLabels:
    """Every step takes one batch of each kind, on alpha L_local + (1 - alpha) L_proxy.

    That is the empirical risk of Theorem 2 (Shao, Wu and Zhang, 2023), in cross entropy. A round
    has as many steps as one of a distilling client, and nothing crosses the boundary in it.
    """

    def __init__(
        self,
        participants: Sequence[Participant],
        lesson: Lesson,
        alpha: float,
        schedule: Schedule,
        seed: int,
    ) -> None:
        if not 0 <= alpha <= 1:
            raise LocalError(f"alpha is a weight from 0 to 1, not {alpha}")
        self.lesson = lesson
        self.alpha = alpha
        self.participants = participants
        self._device = default_device()
        self._steps = schedule.fedavg_steps
        self._students = [
            _Student(p, lesson, alpha, schedule.sgd, 1000 * seed + k)
            for k, p in enumerate(participants)
        ]
        self.transcript = Transcript(len(participants))

    @property
    def models(self) -> list[nn.Module]:
        """Every client's own network."""
        return [p.model for p in self.participants]

    def accuracies(self, test: Images) -> list[float]:
        """Every client's accuracy."""
        held = test.to(self._device)
        return [accuracy(model, held) for model in self.models]

    def rounds(self, count: int) -> Iterator[int]:
        """Run rounds."""
        for index in range(count):
            for student in self._students:
                for _ in range(self._steps):
                    student.step()
            yield index


class _Student:
    def __init__(
        self, participant: Participant, lesson: Lesson, alpha: float, sgd: SGD, seed: int
    ) -> None:
        self._model = participant.model.to(default_device())
        self._train = participant.data.train
        self._lesson = lesson
        self._alpha = alpha
        self._sgd = sgd
        self._optimiser = torch.optim.SGD(self._model.parameters(), lr=sgd.learning_rate)
        self._generator = torch.Generator().manual_seed(seed)

    def step(self) -> None:
        """One step on a batch of each kind; a weight of zero asks for no batch."""
        self._optimiser.zero_grad(set_to_none=True)
        local = self._draw(len(self._train), self._sgd.local_batch)
        public = self._draw(len(self._lesson.pixels), self._sgd.distillation_batch)
        loss = torch.zeros((), device=default_device())
        if self._alpha > 0:
            own = self._train[local].to(default_device())
            loss = self._alpha * self._loss(own.pixels, own.labels)
        if self._alpha < 1:
            taught = self._loss(self._lesson.pixels[public], self._lesson.targets[public])
            loss = loss + (1 - self._alpha) * taught
        loss.backward()  # type: ignore[no-untyped-call]
        self._optimiser.step()

    def _loss(self, pixels: Tensor, targets: Tensor) -> Tensor:
        there = pixels.to(default_device()), targets.to(default_device())
        return functional.cross_entropy(self._model(there[0]), there[1])

    def _draw(self, population: int, size: int) -> Tensor:
        return torch.randint(population, (size,), generator=self._generator)
