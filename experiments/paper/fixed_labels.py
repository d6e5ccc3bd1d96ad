"""Learning from fixed proxy labels (Fig. 10), and the terms of Theorem 2 that bound its error.

Of Shao, Wu and Zhang (2023). Losses are l1 distances of predictions, up to 2, so that the test loss
is twice the error rate. Exact are the empirical risk, the numerical constraint, and the losses of
misleading and of ambiguous knowledge over the proxies that teach, from their true labels. Estimated
from below are the G-distances. Assumed is that the network's family holds the true labelling, so
that both lambdas are 0, as the paper assumes in its study of alpha.
"""

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from experiments.core.measures import ACCURACY, TAUGHT
from experiments.core.rows import Cell, Group
from experiments.core.runs import Prepared, federation, group_data
from experiments.core.study import Result
from experiments.paper.alpha import BOUND, TERMS, TEST_LOSS
from secure_fd.cache import freed_with_owner
from secure_fd.data.federated import FederatedData
from secure_fd.data.images import Images
from secure_fd.simulation.build import architectures
from secure_fd.training import models
from secure_fd.training.recipes import SGD
from secure_fd.training.trainer import Trainer, accuracy, default_device, logits, predict
from secure_fd.votes.codec import FloatArray, IntArray, one_hot

DELTA = 0.05
_STEPS = 300
_MOST = 2000
"""Images of each side that a distance is estimated from."""
_SEED = 7
"""Of the networks that tell samples apart; no client has it."""


@dataclass(frozen=True, slots=True, eq=False)
class Lesson:
    """The proxies that teach: pixels [m, ...], labels [m, C] in the simplex, true classes [m]."""

    pixels: Tensor = field(repr=False)
    targets: Tensor = field(repr=False)
    truth: Tensor = field(repr=False)


class FixedLabels:
    """Every step takes one batch of each kind, on alpha L_local + (1 - alpha) L_proxy.

    That is the empirical risk of Theorem 2 (Shao, Wu and Zhang, 2023), in cross entropy. A round
    has as many steps as one of a distilling client, and nothing crosses the boundary in it.
    """

    def __init__(self, cell: Cell, made: Prepared) -> None:
        self.alpha, self.lesson, self._steps = (
            cell.alpha or 0.0,
            lesson_of(cell, made),
            cell.schedule,
        )
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


def lesson_of(cell: Cell, made: Prepared) -> Lesson:
    """Proxies with their true labels, or those that the selection mechanism keeps and labels.

    That is one round about all proxies in which nobody learns.
    """
    proxies = made.data.proxies
    if cell.method == "true-labels":
        targets = functional.one_hot(proxies.labels, made.data.n_classes).float()
        return Lesson(proxies.pixels, targets, proxies.labels)
    once = replace(cell.schedule, local_steps=0, proxy_steps=0, proxies_per_round=len(proxies))
    run = federation(
        replace(cell, method="selective-fd", labels="soft", alpha=None, schedule=once), made
    )
    run.fit(1)
    ensemble = run.transcript.distillation[-1].result
    kept = torch.from_numpy(ensemble.indices[ensemble.kept])
    targets = torch.from_numpy(ensemble.predictions[ensemble.kept]).float()
    return Lesson(proxies.pixels[kept], targets, proxies.labels[kept])


def measure(data_dir: Path | None, cell: Cell, parts: Mapping[Group, Any]) -> Result:
    """Train on fixed labels, test, and measure the terms of the bound."""
    start, made = time.process_time(), Prepared(group_data(data_dir, cell.group), parts[cell.group])
    run = FixedLabels(cell, made)
    run.train(cell.rounds)
    found = tuple(accuracy(model, made.data.test.to(default_device())) for model in run.models)
    mean = float(np.mean(found))
    figures = {ACCURACY: mean, TEST_LOSS: 2 * (1 - mean), **of_bound(run, made.data)}
    return Result(cell, figures, time.process_time() - start, found)


# The terms of Theorem 2.


def numerical(alpha: float, m_local: int, m_proxy: int, delta: float = DELTA) -> float:
    """sqrt((2 alpha^2 / m_k + 2 (1 - alpha)^2 / m_proxy) log(2 / delta))."""
    variance = 2 * alpha**2 / m_local + 2 * (1 - alpha) ** 2 / m_proxy
    return math.sqrt(variance * math.log(2 / delta))


def knowledge_losses(taught: FloatArray, truth: IntArray) -> tuple[float, float]:
    """(p1 L1, p2 L2) of labels [m, C] in the simplex at proxies of true classes [m].

    Misleading where the largest label is wrong: distance to the truth. Ambiguous where it is
    right: distance to its own one-hot label, which is the truth. Both are means over all m.
    """
    named = taught.argmax(axis=1)
    distance = np.abs(taught - one_hot(truth, taught.shape[1])).sum(axis=1)
    wrong = named != truth
    return float((distance * wrong).mean()), float((distance * ~wrong).mean())


def empirical_risk(
    model: torch.nn.Module, train: Images, pixels: Tensor, taught: FloatArray, alpha: float
) -> float:
    """alpha times the l1 loss on records, plus 1 - alpha times that on the taught proxies."""
    wrong = logits(model, train.pixels).argmax(dim=1) != train.labels
    named = logits(model, pixels).argmax(dim=1).cpu().numpy()
    # The l1 distance of a one-hot label to a point of the simplex is 2 (1 - its own component).
    missed = 2 * (1 - taught[np.arange(len(named)), named])
    return alpha * 2 * float(wrong.double().mean()) + (1 - alpha) * float(missed.mean())


def distance(near: Tensor, far: Tensor, architecture: str, n_classes: int, seed: int) -> float:
    """An estimate of the G-distance of two samples [N, ...] and [M, ...], 0 to 2.

    From below, up to the sampling error of the held-out halves: 2 |Pr_near[g] - Pr_far[g]| for one
    g in G, where a network of the family, trained to tell half of one sample from half of the
    other by its first two classes, differs from the predictor that always names the first. Measured
    on the other halves; a better g could only be further apart.
    """
    generator = torch.Generator().manual_seed(seed)
    (a, a_held), (b, b_held) = (_halves(sample, generator) for sample in (near, far))
    sides = Images(torch.cat([a, b]), torch.cat([torch.zeros(len(a)), torch.ones(len(b))]).long())
    judge = Trainer(
        models.build(architecture, n_classes, seed), sides, SGD(), seed, default_device()
    )
    judge.take_steps(_STEPS)
    shares = [
        float((predict(judge.model, held).argmax(axis=1) != 0).mean()) for held in (a_held, b_held)
    ]
    return 2 * max(0.0, shares[1] - shares[0])


def _halves(sample: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    drawn = sample[torch.randperm(len(sample), generator=generator)[:_MOST]]
    return drawn[: len(drawn) // 2], drawn[len(drawn) // 2 :]


def of_bound(run: FixedLabels, data: FederatedData) -> dict[str, float]:
    """Every term and their sum, all as l1 distances up to 2.

    Above 2 the sum says nothing, as no l1 distance is larger.
    """
    every = [_terms(run, data, k) for k in range(len(data.clients))]
    found = {name: float(np.mean([terms[term] for terms in every])) for term, name in TERMS.items()}
    found[BOUND] = float(np.mean([sum(terms.values()) for terms in every]))
    found[TAUGHT] = len(run.lesson.truth) / len(data.proxies)
    return found


def _terms(run: FixedLabels, data: FederatedData, client: int) -> dict[str, float]:
    """By the names in `TERMS`, with alpha and 1 - alpha already multiplied in."""
    alpha, lesson, train = run.alpha, run.lesson, data.clients[client].train
    taught = lesson.targets.double().numpy()
    misleading, ambiguous = knowledge_losses(taught, lesson.truth.numpy())
    name = architectures(data.name, client + 1)[client]
    apart = partial(_distance, data, architecture=name)
    return {
        "empirical": empirical_risk(run.models[client], train, lesson.pixels, taught, alpha),
        "numerical": numerical(alpha, len(train), len(lesson.truth)),
        "local_distance": alpha * apart(train.pixels),
        "proxy_distance": (1 - alpha) * apart(lesson.pixels),
        "misleading": (1 - alpha) * misleading,
        "ambiguous": (1 - alpha) * ambiguous,
    }


@freed_with_owner
def _distance(data: FederatedData, sample: Tensor, architecture: str) -> float:
    """Of a sample to the test images."""
    test, classes = data.test.pixels, data.n_classes
    return distance(sample, test, architecture, classes, _SEED)
