"""Independent learning: every client alone; nothing crosses the boundary."""

import itertools
from collections.abc import Iterator, Sequence

import torch

from secure_fd.data.images import Images
from secure_fd.federation import Participant
from secure_fd.recipes import Schedule
from secure_fd.training import Learners, accuracy, default_device
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
        self._learners = Learners(
            [p.model for p in participants],
            [p.data.train for p in participants],
            self._schedule,
            seed,
            self._device,
        )
        self._indices = itertools.count()
        self._warm = False
        self.transcript = Transcript(len(participants))

    @property
    def models(self) -> list[torch.nn.Module]:
        """Every client's own network."""
        return self._learners.models

    def accuracies(self, test: Images) -> list[float]:
        """Every client's accuracy."""
        held = test.to(self._device)
        return [accuracy(model, held) for model in self.models]

    def rounds(self, count: int) -> Iterator[int]:
        """Warm up once, then train in rounds of local and proxy steps, all on private records."""
        steps = self._schedule.local_steps + self._schedule.proxy_steps
        if not self._warm:
            self._learners.warm_up()
        self._warm = True
        everyone = range(len(self.models))
        for index in itertools.islice(self._indices, count):
            self._learners.begin_round(index)
            self._learners.local_steps(steps, everyone)
            yield index
