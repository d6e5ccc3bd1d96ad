"""Base class of methods without proxies: clients share one mean prediction for each class.

A class takes the place of a proxy: row c of what a client shares is its network's mean
prediction over its records of class c, with a weight, and 0 where it has none to share. The rows
travel through the same codec and the same secure sum. The server sends the sum back as it is, and
each client takes its own row out by itself, so no method asks the server for single contributions.

A round shares first and then takes local steps on CE(f(x), y) + gamma CE(f(x), g_y), where g_y is
the method's target for the class of x. If no other client shared a row of a class, a client has
plain CE there. Proxy steps are local steps here, so that clients take as many steps as those
that distil.
"""

import struct
from abc import abstractmethod
from contextlib import suppress
from typing import ClassVar, Final

import numpy as np
import torch
from torch import Tensor, nn

from secure_fd.data.images import Images
from secure_fd.errors import PeerError
from secure_fd.methods.base import Method, Own, Setting, read_index, write_index
from secure_fd.protocol.messages import (
    ClientRole,
    ClientTurn,
    RoundAborted,
    ServerRole,
    ServerTurn,
    SumInput,
    SumRequest,
)
from secure_fd.protocol.transcript import ObservedRound, Transcript
from secure_fd.training.trainer import Learner, predict
from secure_fd.votes.codec import (
    Contribution,
    Ensemble,
    FloatArray,
    KnowledgeCodec,
    Released,
    Sums,
    WordArray,
    wire_type,
)

_MOST_ASKED: Final = 100
"""Records of each class that a client takes the mean over: asking all costs more than training."""
_COUNT: Final = struct.Struct(">I")


class ClassMeansMethod(Method):
    """Base class of methods whose clients share one mean prediction for each class."""

    __slots__ = ()

    takes_labels: ClassVar[bool] = True
    gamma: ClassVar[float] = 1.0
    """Weight of the distillation loss beside the loss on the labels: both weigh the same."""

    @abstractmethod
    def contribution(self, predictions: FloatArray, of_class: FloatArray) -> Contribution:
        """Return weights [C] and rows [C, C] of one client.

        Args:
            predictions: [n, C] on its records.
            of_class: [n, C], their classes as one-hot rows.
        """

    @abstractmethod
    def teaching(self, everyone: Sums, others: Sums) -> FloatArray:
        """Return targets [C, C] for one client; zero rows are not learnt from.

        Args:
            everyone: sums of all clients.
            others: the same without this client.
        """

    def client(self, setting: Setting, own: Own) -> "ClassMeansClient":
        """Make the role of one client."""
        return ClassMeansClient(self, setting, own)

    def server(self, setting: Setting, initial: nn.Module) -> "ClassMeansServer":  # noqa: ARG002 - clients keep their networks
        """Make the server's role."""
        return ClassMeansServer(self, setting)


class ClassMeansClient(ClientRole):
    """Client role: shares mean predictions by class; trains on labels and the method's targets."""

    def __init__(self, method: ClassMeansMethod, setting: Setting, own: Own) -> None:
        self.learner: Learner = own.learner(setting.schedule)
        self._method = method
        self._codec = KnowledgeCodec(setting.n_classes, method.levels)
        self._asked = first_of_each_class(own.data.train, _MOST_ASKED).to(own.device)

    def round(self, announcement: bytes) -> ClientTurn:
        """Share class means, then take steps on private records, with targets from the others."""
        self.learner.round = read_index(announcement)
        predictions, labels = predict(self.learner.model, self._asked.pixels), self._asked.labels
        of_class = np.eye(self._codec.n_classes)[labels.cpu().numpy()]
        rows = self._codec.encode(Released.of(self._method.contribution(predictions, of_class)))
        self.has_target, targets = np.zeros(0, dtype=np.bool_), None
        with suppress(RoundAborted):
            targets = self._targets((yield SumInput(rows, self._codec.levels)), rows)
        schedule = self.learner.schedule
        yield from self.learner.local(schedule.local_steps + schedule.proxy_steps, targets)

    def _targets(self, message: bytes, own: WordArray) -> Tensor | None:
        """Return the targets [C, C] of each class; None if no class that it holds has one."""
        total, clients = read_sum(message, self._codec)
        everyone = self._codec.decode(total, clients)
        others = self._codec.decode(total - own, clients - 1)
        lessons = self._method.teaching(everyone, others)
        held = torch.unique(self._asked.labels).cpu().numpy()
        self.has_target = lessons[held].any(axis=1)
        if not self.has_target.any():
            return None
        return class_targets(lessons, self._method.gamma).to(self.learner.device)


class ClassMeansServer(ServerRole):
    """Returns the sum as it is."""

    checkpointed = ("ensemble",)

    def __init__(self, method: ClassMeansMethod, setting: Setting) -> None:
        self.ensemble: Ensemble | None = None
        self._codec = KnowledgeCodec(setting.n_classes, method.levels)

    def round(self, index: int) -> ServerTurn:
        """Ask for class means; their sum is the message."""
        codec, self.ensemble = self._codec, None
        got = yield SumRequest(write_index(index), codec.n_classes**2, codec.levels)
        sums = codec.decode(got.total, len(got.survivors))
        rows = np.arange(codec.n_classes)
        self.ensemble = Ensemble(rows, sums.mean, sums.count > 0, of_classes=True)
        return sum_message(np.asarray(got.total, dtype=np.uint64), len(got.survivors), codec)

    def record(self, seen: ObservedRound[None], transcript: Transcript) -> None:
        """Add the round as the server saw it; its rows are classes."""
        if self.ensemble is not None:
            transcript.distillation.append(seen.giving(self.ensemble))


def first_of_each_class(images: Images, most: int) -> Images:
    """Return at most `most` records of each class, the same ones in every round."""
    held = torch.unique(images.labels)
    chosen = [torch.nonzero(images.labels == c).flatten()[:most] for c in held]
    return images[torch.cat(chosen)]


def class_targets(lessons: FloatArray, gamma: float) -> Tensor:
    """Return the rows y + gamma g_y [C, C] from a method's targets g [C, C].

    Cross entropy is linear in its target, so CE(f, y) + gamma CE(f, g) is CE(f, y + gamma g): one
    step serves both losses. A row totals 1 + gamma where g has a target and 1 where it is zero.
    """
    return torch.from_numpy(np.eye(len(lessons)) + gamma * lessons).float()


def class_means(predictions: FloatArray, of_class: FloatArray) -> FloatArray:
    """Return the mean of predictions [n, C] for each class, [C, C]; zero without records.

    of_class: [n, C], one-hot, or all zero where a record is left out.
    """
    count = of_class.sum(axis=0)[:, None]
    total = of_class.T @ predictions
    return np.asarray(np.divide(total, count, out=np.zeros_like(total), where=count > 0))


def sum_message(total: WordArray, clients: int, codec: KnowledgeCodec) -> bytes:
    """Write the exact sum [C * C] and the number of clients in it."""
    return _COUNT.pack(clients) + total.astype(wire_type(clients * codec.levels)).tobytes()


def read_sum(message: bytes, codec: KnowledgeCodec) -> tuple[WordArray, int]:
    """Read the summed integers [C * C] and the number of clients; PeerError for another length."""
    if len(message) < _COUNT.size:
        raise PeerError(f"a sum of {len(message)} bytes is too short")
    clients = int(_COUNT.unpack_from(message)[0])
    wire = wire_type(clients * codec.levels)
    if len(message) != _COUNT.size + codec.n_classes**2 * wire.itemsize:
        raise PeerError(f"a sum of {codec.n_classes} classes has {len(message)} bytes")
    return np.frombuffer(message, wire, offset=_COUNT.size).astype(np.uint64), clients
