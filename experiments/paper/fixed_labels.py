"""Learning from fixed proxy labels (Fig. 10 of Shao, Wu and Zhang, 2023)."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from experiments.core.measures import ACCURACY, TAUGHT
from experiments.core.run_config import RunConfig
from experiments.core.runs import Prepared, federation, prepared
from experiments.core.study import Result
from secure_fd.training.trainer import accuracy, default_device


@dataclass(frozen=True, slots=True, eq=False)
class Lesson:
    """The proxies that teach: pixels [m, ...] and labels [m, C] in the simplex."""

    pixels: Tensor = field(repr=False)
    targets: Tensor = field(repr=False)


class FixedLabels:
    """Every step takes one batch of each kind, on alpha L_local + (1 - alpha) L_proxy.

    That is the empirical risk of Theorem 2 (Shao, Wu and Zhang, 2023), in cross entropy. A round
    has as many steps as one of a distilling client, and nothing crosses the boundary in it.
    """

    def __init__(self, cell: RunConfig, made: Prepared) -> None:
        self.alpha, self._steps = cell.alpha or 0.0, cell.schedule
        self.lesson = lesson_of(cell, made)
        self.models = [network.to(default_device()) for network in made.networks()]
        """Every client's own network."""
        self._train = [client.train for client in made.data.clients]
        rate, numbers = cell.schedule.sgd.learning_rate, range(len(self.models))
        self._optimisers = [torch.optim.SGD(model.parameters(), rate) for model in self.models]
        self._draws = [torch.Generator().manual_seed(1000 * cell.seed + k) for k in numbers]

    def train(self, rounds: int) -> None:
        """Take the steps of so many rounds."""
        for _ in range(rounds):
            for client in range(len(self.models)):
                for _ in range(self._steps.fedavg_steps):
                    self._step(client)

    def _step(self, client: int) -> None:
        """One step on a batch of each kind; a weight of zero asks for no batch."""
        self._optimisers[client].zero_grad(set_to_none=True)
        train, lesson, sgd = self._train[client], self.lesson, self._steps.sgd
        local = self._draw(client, len(train), sgd.local_batch)
        public = self._draw(client, len(lesson.pixels), sgd.distillation_batch)
        loss = torch.zeros((), device=default_device())
        if self.alpha > 0:
            own = train[local]
            loss = self.alpha * self._loss(client, own.pixels, own.labels)
        if self.alpha < 1:
            taught = self._loss(client, lesson.pixels[public], lesson.targets[public])
            loss = loss + (1 - self.alpha) * taught
        loss.backward()  # type: ignore[no-untyped-call]
        self._optimisers[client].step()

    def _loss(self, client: int, pixels: Tensor, targets: Tensor) -> Tensor:
        device = default_device()
        return functional.cross_entropy(self.models[client](pixels.to(device)), targets.to(device))

    def _draw(self, client: int, population: int, size: int) -> Tensor:
        return torch.randint(population, (size,), generator=self._draws[client])


def lesson_of(cell: RunConfig, made: Prepared) -> Lesson:
    """Proxies with their true labels, or those that the selection mechanism keeps and labels.

    That is one round about all proxies in which nobody learns.
    """
    proxies = made.data.proxies
    if cell.method == "true-labels":
        targets = functional.one_hot(proxies.labels, made.data.n_classes).float()
        return Lesson(proxies.pixels, targets)
    once = replace(cell.schedule, local_steps=0, proxy_steps=0, proxies_per_round=len(proxies))
    run = federation(
        replace(cell, method="selective-fd", labels="soft", alpha=None, schedule=once), made
    )
    run.fit(1)
    ensemble = run.transcript.distillation[-1].result
    kept = torch.from_numpy(ensemble.indices[ensemble.kept])
    targets = torch.from_numpy(ensemble.predictions[ensemble.kept]).float()
    return Lesson(proxies.pixels[kept], targets)


def measure(data_dir: Path | None, cell: RunConfig, ready: Mapping[Any, Any]) -> Result:
    """Train on fixed labels, and test."""
    start, made = time.process_time(), prepared(cell, data_dir, ready)
    run = FixedLabels(cell, made)
    run.train(cell.rounds)
    found = tuple(accuracy(model, made.data.test.to(default_device())) for model in run.models)
    taught = len(run.lesson.pixels) / len(made.data.proxies)
    figures = {ACCURACY: float(np.mean(found)), TAUGHT: taught}
    return Result(cell, figures, time.process_time() - start, found)
