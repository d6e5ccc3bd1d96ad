"""The round loop of methods without proxies: clients share one mean prediction a class.

A class stands where a proxy stands elsewhere: row c of what a client shares is its network's mean
prediction over its records of class c, with a weight, and 0 where it has none to share. The rows
travel through the same codec and the same secure sum. The server sends the sum back as it is, and
each client takes its own row out by itself, so no method asks the server for single contributions.

A round shares first and then takes local steps on CE(f(x), y) + gamma CE(f(x), g_y), where g_y is
what the method teaches for the class of x. Where nobody else said anything of a class, a client
has plain CE there.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn

from secure_fd.aggregation.base import SecureSum, SumResult, sum_for
from secure_fd.data.images import Images
from secure_fd.federation import Participant, classes_of
from secure_fd.knowledge import (
    Contribution,
    Ensemble,
    FloatArray,
    KnowledgeCodec,
    Released,
    Sums,
    UnitArray,
    WordArray,
)
from secure_fd.methods.base import Labels, ensemble_predictions, levels
from secure_fd.recipes import Schedule
from secure_fd.training import Learners, accuracy, default_device, predict
from secure_fd.transcript import DistillationRound, Stopwatch, Transcript


class ClasswiseMethod(Protocol):
    """What a client says of its classes, and what it is taught of them."""

    @property
    def name(self) -> str:
        """The name in the literature."""

    @property
    def labels(self) -> Labels:
        """Whether clients share mean predictions or one-hot labels."""

    @property
    def gamma(self) -> float:
        """Weight of the distillation loss beside the loss on the labels."""

    def contribution(self, predictions: FloatArray, of_class: FloatArray) -> Contribution:
        """[C] weights and [C, C] rows, from predictions [n, C] on records of a one-hot class."""

    def teaching(self, everyone: Sums, others: Sums) -> FloatArray:
        """g, [C, C], for one client, from the sums with and without it; zero rows teach nothing."""


@dataclass(frozen=True, slots=True)
class ClasswiseReport:
    """One round. bytes_up, bytes_down: mean over clients, from the start until now.

    taught: share of the classes that clients hold, client by client, of which another one spoke.
    """

    index: int
    taught: float
    bytes_up: float
    bytes_down: float


_MOST_ASKED = 100
"""Records of each class that a client takes the mean over: asking all costs more than training."""


class ClasswiseFederation:
    """Clients that learn from each other's class-wise predictions; every client is always there.

    aggregation: how the server sums (in clear by default). schedule: proxy steps are local steps
    here, so that clients take as many steps as those that distil.
    """

    def __init__(
        self,
        participants: Sequence[Participant],
        method: ClasswiseMethod,
        *,
        aggregation: SecureSum | None = None,
        schedule: Schedule | None = None,
        seed: int = 0,
        device: torch.device | None = None,
    ) -> None:
        n_classes = classes_of(participants)
        self._method = method
        self._schedule = schedule or Schedule()
        self._device = device or default_device()
        self._sum = sum_for(len(participants), aggregation)
        self._codec = KnowledgeCodec(n_classes, levels(method.labels))
        train = [p.data.train for p in participants]
        self._asked = [
            first_of_each_class(images, _MOST_ASKED).to(self._device) for images in train
        ]
        self._learners = Learners(
            [p.model for p in participants], train, self._schedule, seed, self._device
        )
        self._indices = itertools.count()
        self._warm = False
        self.aggregation_time = Stopwatch()
        self.transcript = Transcript(len(participants))

    @property
    def models(self) -> list[nn.Module]:
        """Every client's own network."""
        return self._learners.models

    def accuracies(self, test: Images) -> list[float]:
        """Every client's accuracy."""
        held = test.to(self._device)
        return [accuracy(model, held) for model in self.models]

    def rounds(self, count: int) -> Iterator[ClasswiseReport]:
        """Warm up once, then run rounds; a later call goes on."""
        if not self._warm:
            self._learners.warm_up()
        self._warm = True
        for _ in range(count):
            yield self._round(next(self._indices))

    def _round(self, index: int) -> ClasswiseReport:
        self._learners.begin_round(index)
        vectors = {k: self._answer(k) for k in range(len(self.models))}
        with self.aggregation_time:
            result = self._sum.sum(index, vectors, self._codec.levels)
        message = sum_message(result.total, len(vectors) * self._codec.levels)
        self.transcript.count(result)
        self.transcript.broadcast(len(message))
        self._record(index, result, vectors)
        total = read_message(message, len(vectors) * self._codec.levels)
        lessons = [self._lessons(total, vectors[k]) for k in range(len(vectors))]
        taught = self._taught(lessons)
        self._learn(lessons if taught else None)
        up, down = (float(moved.mean()) for moved in (self.transcript.up, self.transcript.down))
        return ClasswiseReport(index, taught, up, down)

    def _taught(self, lessons: Sequence[FloatArray]) -> float:
        """Share of the held classes, client by client, that somebody else taught."""
        held = [torch.unique(images.labels).cpu().numpy() for images in self._asked]
        taught = [rows[classes].any(axis=1) for rows, classes in zip(lessons, held, strict=True)]
        return float(np.concatenate(taught).mean())

    def _answer(self, client: int) -> WordArray:
        """A client's rows as integers [C * C]."""
        images = self._asked[client]
        predictions = predict(self.models[client], images.pixels)
        of_class = np.eye(self._codec.n_classes)[images.labels.cpu().numpy()]
        shared = self._method.contribution(predictions, of_class)
        return self._codec.encode(Released.of(shared))

    def _lessons(self, total: WordArray, own: WordArray) -> FloatArray:
        """What one client is taught [C, C]. Its own integers leave the sum without a rest."""
        clients = len(self.models)
        everyone = self._codec.decode(total, clients)
        others = self._codec.decode(total - own, clients - 1)
        return self._method.teaching(everyone, others)

    def _learn(self, lessons: Sequence[FloatArray] | None) -> None:
        """Local steps of every client, with plain labels where there are no lessons."""
        steps = self._schedule.local_steps + self._schedule.proxy_steps
        targets = None
        if lessons is not None:
            gamma = self._method.gamma
            targets = [class_targets(rows, gamma).to(self._device) for rows in lessons]
        self._learners.local_steps(steps, range(len(self.models)), targets)

    def _record(self, index: int, result: SumResult, vectors: dict[int, WordArray]) -> None:
        """The round as the server saw it; its rows are classes."""
        rows = np.arange(self._codec.n_classes)
        sums = self._codec.decode(result.total, len(vectors))
        ensemble = Ensemble(rows, ensemble_predictions(sums), sums.count > 0)
        self.transcript.distillation.append(
            DistillationRound.of(index, self._codec.levels, vectors, result, ensemble)
        )


def first_of_each_class(images: Images, most: int) -> Images:
    """At most so many records of each class, the same ones in every round."""
    held = torch.unique(images.labels)
    chosen = [torch.nonzero(images.labels == c).flatten()[:most] for c in held]
    return images[torch.cat(chosen)]


def class_targets(lessons: FloatArray, gamma: float) -> Tensor:
    """[C, C] rows y + gamma g_y, from lessons g [C, C].

    Cross entropy is linear in its target, so CE(f, y) + gamma CE(f, g) is CE(f, y + gamma g): one
    step serves both losses. A row totals 1 + gamma where g teaches and 1 where it is zero.
    """
    return torch.from_numpy(np.eye(len(lessons)) + gamma * lessons).float()


def class_means(predictions: FloatArray, of_class: FloatArray) -> FloatArray:
    """[C, C] mean of predictions [n, C] over the records of each class, zero where there are none.

    of_class: [n, C], one-hot, or all zero where a record is left out.
    """
    count = of_class.sum(axis=0)[:, None]
    total = of_class.T @ predictions
    return np.asarray(np.divide(total, count, out=np.zeros_like(total), where=count > 0))


def sum_message(total: UnitArray, largest: int) -> bytes:
    """What the server sends every client: the summed integers, in the fewest whole bytes each."""
    return bytes(total.astype(_wire_type(largest)).tobytes())


def read_message(message: bytes, largest: int) -> WordArray:
    """[C * C] the summed integers of a message."""
    return np.frombuffer(message, dtype=_wire_type(largest)).astype(np.uint64)


def _wire_type(largest: int) -> "np.dtype[np.unsignedinteger]":
    """Little-endian, and as wide as the largest sum needs."""
    return np.min_scalar_type(largest).newbyteorder("<")
