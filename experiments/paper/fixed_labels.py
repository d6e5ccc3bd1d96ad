"""Learning from fixed proxy labels (Fig. 10), and the terms of Theorem 2 that bound its error.

Of Shao, Wu and Zhang (2023). Losses are l1 distances of predictions, up to 2, so that the test loss
is twice the error rate. Exact are the empirical risk, the numerical constraint, and the losses of
misleading and of ambiguous knowledge over the proxies that teach, from their true labels. Estimated
from below are the G-distances. Assumed is that the network's family holds the true labelling, so
that both lambdas are 0, as the paper assumes in its study of alpha.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from experiments.core.measures import BOUND, TAUGHT, TERMS, TEST_LOSS
from secure_fd.cache import freed_with_owner
from secure_fd.data.federated import ClientData, FederatedData
from secure_fd.data.images import Images
from secure_fd.errors import LocalError
from secure_fd.protocol.transcript import Transcript
from secure_fd.simulation.build import architectures
from secure_fd.training import models
from secure_fd.training.recipes import SGD, Schedule
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
        networks: Sequence[nn.Module],
        clients: Sequence[ClientData],
        lesson: Lesson,
        alpha: float,
        schedule: Schedule,
        seed: int,
    ) -> None:
        if not 0 <= alpha <= 1:
            raise LocalError(f"alpha is a weight from 0 to 1, not {alpha}")
        self.lesson = lesson
        self.alpha = alpha
        self.models = list(networks)
        """Every client's own network."""
        self._device = default_device()
        self._steps = schedule.fedavg_steps
        self._students = [
            _Student(network, own.train, lesson, alpha, schedule.sgd, 1000 * seed + k)
            for k, (network, own) in enumerate(zip(networks, clients, strict=True))
        ]
        self.transcript = Transcript(len(clients))

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
        self, network: nn.Module, train: Images, lesson: Lesson, alpha: float, sgd: SGD, seed: int
    ) -> None:
        self._model = network.to(default_device())
        self._train = train
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


@dataclass(frozen=True, slots=True)
class Terms:
    """The bound is their sum, with alpha and 1 - alpha already multiplied in."""

    empirical: float
    numerical: float
    local_distance: float
    proxy_distance: float
    misleading: float
    ambiguous: float

    @property
    def bound(self) -> float:
        """The right-hand side; above 2 it says nothing, as no l1 distance is larger."""
        return float(sum(getattr(self, term) for term in TERMS))


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
    """Every term, their sum and the loss that the sum bounds, all as l1 distances up to 2."""
    every = [_terms(run, data, k) for k in range(len(data.clients))]
    found = {
        name: float(np.mean([getattr(terms, term) for terms in every]))
        for term, name in TERMS.items()
    }
    found[BOUND] = float(np.mean([terms.bound for terms in every]))
    found[TEST_LOSS] = 2 * (1 - float(np.mean(run.accuracies(data.test))))
    found[TAUGHT] = len(run.lesson.truth) / len(data.proxies)
    return found


def _terms(run: FixedLabels, data: FederatedData, client: int) -> Terms:
    alpha, lesson, train = run.alpha, run.lesson, data.clients[client].train
    taught = lesson.targets.double().numpy()
    misleading, ambiguous = knowledge_losses(taught, lesson.truth.numpy())
    name = architectures(data.name, client + 1)[client]
    apart = partial(_distance, data, architecture=name)
    return Terms(
        empirical=empirical_risk(run.models[client], train, lesson.pixels, taught, alpha),
        numerical=numerical(alpha, len(train), len(lesson.truth)),
        local_distance=alpha * apart(train.pixels),
        proxy_distance=(1 - alpha) * apart(lesson.pixels),
        misleading=(1 - alpha) * misleading,
        ambiguous=(1 - alpha) * ambiguous,
    )


@freed_with_owner
def _distance(data: FederatedData, sample: Tensor, architecture: str) -> float:
    """Of a sample to the test images."""
    test, classes = data.test.pixels, data.n_classes
    return distance(sample, test, architecture, classes, _SEED)
