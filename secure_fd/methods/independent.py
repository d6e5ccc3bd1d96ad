"""Independent learning: every client alone; nothing crosses the boundary."""

import itertools
from collections.abc import Iterator, Sequence

import torch

from secure_fd.config import Schedule
from secure_fd.data.images import Images
from secure_fd.federation import Participant
from secure_fd.training import Trainer, accuracy, default_device
from secure_fd.transcript import Transcript


class Independent:
    """The floor of every comparison. Clients take as many steps as those that distil."""

    def __init__(
        self,
        participants: Sequence[Participant],
        schedule: Schedule | None = None,
        seed: int = 0,
        device: torch.device | None = None,
    ) -> None:
        self._schedule = schedule or Schedule()
        self._device = device or default_device()
        self._trainers = [
            Trainer(p.model, p.data.train, self._schedule.sgd, seed * 1000 + k, self._device)
            for k, p in enumerate(participants)
        ]
        self._indices = itertools.count()
        self._warm = False
        self.transcript = Transcript(len(participants))

    @property
    def models(self) -> list[torch.nn.Module]:
        """Every client's own network."""
        return [trainer.model for trainer in self._trainers]

    def accuracies(self, test: Images) -> list[float]:
        """Every client's accuracy."""
        held = test.to(self._device)
        return [accuracy(trainer.model, held) for trainer in self._trainers]

    def rounds(self, count: int) -> Iterator[int]:
        """Warm up once, then train in rounds of local and proxy steps, all on private records."""
        steps = self._schedule.local_steps + self._schedule.proxy_steps
        for trainer in self._trainers:
            trainer.local_steps(0 if self._warm else self._schedule.warmup_steps)
        self._warm = True
        for _ in range(count):
            for trainer in self._trainers:
                trainer.local_steps(steps)
            yield next(self._indices)
