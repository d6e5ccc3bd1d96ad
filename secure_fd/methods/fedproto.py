"""FedProto (Tan et al., AAAI 2022): clients share the mean embedding of each class, a prototype.

A round: every client learns CE(f(x), y) + lambda |e(x) - P_y|^2 from the prototypes P that it was
sent last, and then shares, for each class that it holds, how many records it has and the mean of
their embeddings e; the server sends back the mean over all records. A record is of the class whose
prototype is nearest to its embedding (section "Prototype-based model inference"). Steps on proxies
are local steps here, so that clients take as many as those that distil.

Prototypes need one dimension, and Table 3's networks have five widths: the input of the last linear
layer is averaged over so many groups of neighbours, as in HtFLlib (PFLlib's authors, for networks
that differ; `BaseHeadSplit` has an `AdaptiveAvgPool1d`), but the network's own head goes on reading
all of it. 50 is the paper's dimension on MNIST and the smallest width in Table 3. Nothing orders
the units of a layer, so which of them are averaged is chance; and as networks start apart, other
clients' prototypes of classes that a client never saw need not lie where it would put them.

What crosses is bounded: entries of an embedding are cut off at `ParameterCodec.limit`, 16; those of
Table 3's networks stayed below 5.1 on MNIST-5k. Counts are exact integers.

Where the sources differ: lambda's distance is the mean of squared differences over entries and
records, as in the authors' code, for which they chose lambda = 1 on MNIST and FEMNIST and .1 on
CIFAR-10 (appendix A). A global prototype is the mean over records; equation 6 divides by the number
of holders once more, and the authors' code takes the plain mean of the holders. A client's mean is
taken once its steps are done, not summed up along the way, over some records of each class. A class
whose holders are all away keeps its prototype; one that nobody ever held has none.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from secure_fd.data.images import Images
from secure_fd.errors import ConfigurationError, PeerError
from secure_fd.exchange import Ask, ClientReport, ClientTurn, Seen, ServerTurn, Share, Void
from secure_fd.knowledge import FloatArray, IntArray, UnitArray, WordArray
from secure_fd.methods.base import LearningHalf, Own, RecordingHalf, Setting
from secure_fd.methods.class_means import first_of_each_class
from secure_fd.methods.fedavg import ParameterCodec, model_bytes, read_model
from secure_fd.methods.heads import index_subject, read_index
from secure_fd.training import Learner, Trainer, accuracy, augmentation, logits
from secure_fd.transcript import Float32Array, PrototypeRound, Transcript, uploads_of

_MOST_ASKED: Final = 100
"""Records of each class that a client takes the mean over: asking all costs more than training."""
BoolArray = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class FedProto:
    """weight: lambda, 0 or more. dimension: of a prototype, 1 or more.

    Raises ConfigurationError for another weight or dimension.

    >>> FedProto().dimension
    50
    """

    weight: float = 1.0
    dimension: int = 50

    name: ClassVar[str] = "FedProto"
    needs_proxies: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not 0 <= self.weight < float("inf"):
            raise ConfigurationError("weight", self.weight, "use a number that is 0 or more")
        if self.dimension < 1:
            raise ConfigurationError("dimension", self.dimension, "use 1 or more")

    def check(self, setting: Setting, models: Sequence[nn.Module]) -> None:
        """Raise ConfigurationError for a protection of votes, and networks without a linear end."""
        setting.check_no_protection()
        for model in models:
            if last_linear(model).out_features != setting.n_classes:
                raise _no_head(model)

    def client(self, setting: Setting, own: Own) -> "FedProtoClient":
        """The half of one client."""
        return FedProtoClient(self, setting, own)

    def server(self, setting: Setting, initial: nn.Module) -> "FedProtoServer":  # noqa: ARG002 - clients keep their networks
        """The server's half."""
        return FedProtoServer(PrototypeCodec(setting.records, setting.n_classes, self.dimension))


# Embeddings.


def last_linear(model: nn.Module) -> nn.Linear:
    """The layer that makes logits of embeddings; ConfigurationError where there is none.

    >>> last_linear(nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))).in_features
    3
    """
    found = [layer for layer in model.modules() if isinstance(layer, nn.Linear)]
    if not found:
        raise _no_head(model)
    return found[-1]


def _no_head(model: nn.Module) -> ConfigurationError:
    allowed = "every network must end in a linear layer of one output a class"
    return ConfigurationError("models", type(model).__name__, allowed)


@contextmanager
def _listening(model: nn.Module, dimension: int) -> Iterator[list[Tensor]]:
    """Collect the embeddings [N, d] of every batch that the model is asked about."""
    heard: list[Tensor] = []

    def hear(_: nn.Module, given: tuple[Tensor, ...]) -> None:
        heard.append(functional.adaptive_avg_pool1d(given[0], dimension))

    hook = last_linear(model).register_forward_pre_hook(hear)
    try:
        yield heard
    finally:
        hook.remove()


def embeddings(model: nn.Module, pixels: Tensor, dimension: int, limit: float) -> Tensor:
    """[N, d] in [-limit, limit], of a network that is asked and not trained.

    >>> model = nn.Sequential(nn.Flatten(), nn.Linear(4, 2))
    >>> embeddings(model, torch.tensor([[1.0, 3.0, 5.0, 90.0]]), 2, limit=16.0).tolist()
    [[2.0, 16.0]]
    """
    with _listening(model, dimension) as heard:
        logits(model, pixels)
    return torch.cat(heard).clamp(-limit, limit)


class PrototypeTrainer:
    """A `LocalTrainer` whose loss reads embeddings; lessons are prototypes [C, d].

    batches: of the client's records, and how steps are taken. A class whose row of the lessons is
    not a number is learnt from its label alone.

    >>> from secure_fd import SGD
    >>> network = nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    >>> records = Images(torch.rand(8, 1, 2, 2), torch.arange(8) % 2)
    >>> plain = Trainer(network, records, SGD(), seed=0, device=torch.device("cpu"))
    >>> PrototypeTrainer(plain, weight=1.0).local_steps(2, torch.zeros(2, 3))
    """

    def __init__(self, batches: Trainer, weight: float) -> None:
        sgd = batches.settings
        self.model, self._batches, self._weight = batches.model, batches, weight
        self.learning_rate = sgd.learning_rate
        self._sgd = torch.optim.SGD(
            self.model.parameters(),
            lr=sgd.learning_rate,
            momentum=sgd.momentum,
            nesterov=sgd.momentum > 0,
        )

    def local_steps(self, steps: int, lessons: Tensor | None = None) -> None:
        """SGD steps on the private records."""
        self._sgd.param_groups[0]["lr"] = self.learning_rate
        for _ in range(steps):
            pixels, labels = self._batches.local_batch()
            self._sgd.zero_grad(set_to_none=True)
            self.loss(pixels, labels, lessons).backward()  # type: ignore[no-untyped-call]
            self._sgd.step()

    def loss(self, pixels: Tensor, labels: Tensor, lessons: Tensor | None) -> Tensor:
        """Mean cross-entropy, plus lambda times the mean squared distance to prototypes."""
        if lessons is None:
            return functional.cross_entropy(self.model(pixels), labels)
        with _listening(self.model, lessons.shape[1]) as heard:
            named = functional.cross_entropy(self.model(pixels), labels)
        [embedded], wanted = heard, lessons[labels]
        # Where there is no prototype the distance is 0, and counts in the mean.
        wanted = torch.where(wanted.isnan(), embedded.detach(), wanted)
        return named + self._weight * functional.mse_loss(embedded, wanted)


# What crosses.


@dataclass(frozen=True, slots=True)
class PrototypeCodec:
    """Counts [C] and class means [C, d] as C + C d integers that may be summed.

    records: training records by client, public. A mean travels times its count over n, the records
    of the largest client. So an entry of a global prototype, of K clients that hold N records of
    its class, is off by at most 2^-20 K n / N.

    >>> form = PrototypeCodec((4, 2), n_classes=2, dimension=1)
    >>> one = form.encode(0, np.array([3, 1]), np.array([[0.5], [2.0]]))
    >>> two = form.encode(1, np.array([1, 0]), np.array([[-1.5], [0.0]]))
    >>> counts, means = form.decode(one + two, (0, 1))
    >>> counts.tolist(), means.round(3).tolist()
    ([4, 1], [[0.0], [2.0]])
    """

    records: tuple[int, ...]
    n_classes: int
    dimension: int

    @property
    def length(self) -> int:
        """Integers of a share."""
        return self.n_classes * (1 + self.dimension)

    @property
    def entries(self) -> ParameterCodec:
        """Of weighted means: every client's weigh the same, as they are weighted already."""
        return ParameterCodec(tuple(1.0 for _ in self.records))

    @property
    def limit(self) -> int:
        """Of an entry of an embedding, in size."""
        return self.entries.limit

    @property
    def bound(self) -> int:
        """Largest encoded integer."""
        return max(self.entries.bound, *self.records)

    def encode(self, client: int, counts: IntArray, means: FloatArray) -> WordArray:
        """[C + C d] integers of one client; rows of classes with a count of 0 are not read."""
        shares = counts[:, None] / max(self.records)
        weighted = np.where(shares > 0, shares * means, 0.0)
        sent = self.entries.encode(client, weighted.ravel().astype(np.float32))
        return np.concatenate([counts.astype(np.uint64), sent])

    def decode(self, total: UnitArray, survivors: Sequence[int]) -> tuple[IntArray, FloatArray]:
        """Counts and means over the records of all clients in the sum; zeros where there are none.

        Means are cut off at the limit, which those of true counts keep to. PeerError for more
        records of a class than the clients have in all.
        """
        counts = total[: self.n_classes].astype(np.int64)
        if counts.max() > sum(self.records[client] for client in survivors):
            raise PeerError("a class has more records than its clients")
        shape = self.n_classes, self.dimension
        mean = self.entries.decode(total[self.n_classes :], survivors).reshape(shape)
        summed, held = mean * len(survivors) * max(self.records), counts[:, None]
        found = np.divide(summed, held, out=np.zeros(shape), where=held > 0)
        return counts, np.clip(found, -self.limit, self.limit)


def prototype_message(prototypes: FloatArray, known: BoolArray) -> bytes:
    """Which classes have a prototype, and those of them in 32 bits.

    >>> sent = prototype_message(np.array([[1.0], [0.0], [2.0]]), np.array([True, False, True]))
    >>> prototypes, known = read_prototypes(sent, (3, 1))
    >>> prototypes.tolist(), known.tolist()
    ([[1.0], [0.0], [2.0]], [True, False, True])
    """
    rows = prototypes[known].astype(np.float32)
    return np.packbits(known).tobytes() + model_bytes(rows.ravel())


def read_prototypes(message: bytes, shape: tuple[int, int]) -> tuple[FloatArray, BoolArray]:
    """Prototypes [C, d], zero rows where there is none, and which there are [C].

    PeerError for another length, or a value that is not finite.
    """
    classes, dimension = shape
    flags = -(-classes // 8)
    if len(message) < flags:
        raise PeerError(f"prototypes of {len(message)} bytes are too short")
    bits = np.frombuffer(message, np.uint8, flags)
    known = np.unpackbits(bits, count=classes).astype(np.bool_)
    found, prototypes = int(known.sum()), np.zeros(shape)
    prototypes[known] = read_model(message[flags:], found * dimension).reshape(found, dimension)
    return prototypes, known


# The two halves.


class FedProtoClient(LearningHalf):
    """Learns labels and prototypes, then shares how many records of each class it has, and where.

    prototypes: [C, d], as it was sent them last. known: [C] the classes that have one.
    """

    def __init__(self, method: FedProto, setting: Setting, own: Own) -> None:
        schedule, train = setting.schedule, own.data.train
        views = augmentation(schedule.augment)
        batches = Trainer(own.model, train, schedule.sgd, own.seed, own.device, views)
        trainer = PrototypeTrainer(batches, method.weight)
        self.learner = Learner(own.model, train, schedule, own.seed, own.device, trainer)
        self.form = PrototypeCodec(setting.records, setting.n_classes, method.dimension)
        self.prototypes: FloatArray = np.zeros((setting.n_classes, method.dimension))
        self.known = np.zeros(setting.n_classes, dtype=np.bool_)
        self._number = own.number
        self._counts: IntArray = np.bincount(
            train.labels.cpu().numpy(), minlength=setting.n_classes
        )
        self._asked = first_of_each_class(train, _MOST_ASKED).to(own.device)
        self._taught = np.zeros(0, dtype=np.bool_)

    def begin(self) -> ClientTurn:
        """Warm up on private records."""
        yield from self.learner.warm_up()

    def round(self, subject: bytes) -> ClientTurn:
        """Learn from the newest prototypes, share its own, take the next ones."""
        self.learner.round = read_index(subject)
        self._taught = self.known[self._counts > 0]
        schedule = self.learner.schedule
        steps = schedule.local_steps + schedule.proxy_steps
        yield from self.learner.local(steps, self._lessons())
        counts, means = self._means()
        try:
            self._take(
                (yield Share(self.form.encode(self._number, counts, means), self.form.bound))
            )
        except Void:
            return

    def missed(self, subject: bytes, message: bytes | None) -> None:
        """Take over the newest prototypes, whether or not this client had a part in them."""
        read_index(subject)
        if message is not None:
            self._take(message)

    def memory(self) -> bytes:
        """The newest prototypes."""
        return prototype_message(self.prototypes, self.known)

    def recall(self, memory: bytes) -> None:
        """Take them over; PeerError for another form."""
        self._take(memory)

    def report(self) -> ClientReport:
        """By class that this client holds, whether it had a prototype in the last round."""
        return ClientReport(taught=self._taught)

    def accuracy(self, test: Images) -> float:
        """Of the nearest prototype; of the classifier before there is any."""
        if not self.known.any():
            return accuracy(self.learner.model, test)
        return float((self.nearest(test.pixels) == test.labels).double().mean())

    def accuracies(self, test: Images) -> dict[str, float]:
        """Of the nearest prototype, and of the network's own classifier."""
        own = accuracy(self.learner.model, test)
        return {"prototypes": self.accuracy(test), "classifier": own}

    def nearest(self, pixels: Tensor) -> Tensor:
        """[N] class of the nearest prototype, of those that there are."""
        found = self._embeddings(pixels).double()
        known = torch.from_numpy(np.flatnonzero(self.known)).to(found.device)
        prototypes = torch.from_numpy(self.prototypes).to(found.device)[known]
        return known[torch.cdist(found, prototypes).argmin(dim=1)]

    def _embeddings(self, pixels: Tensor) -> Tensor:
        return embeddings(self.learner.model, pixels, self.form.dimension, self.form.limit)

    def _lessons(self) -> Tensor | None:
        """[C, d] with no numbers where there is no prototype; None before there is any."""
        if not self.known.any():
            return None
        rows = np.where(self.known[:, None], self.prototypes, np.nan)
        return torch.from_numpy(rows).float().to(self.learner.device)

    def _means(self) -> tuple[IntArray, FloatArray]:
        """Its records of each class, and their mean embeddings.

        A class where training has diverged counts as none.
        """
        found = self._embeddings(self._asked.pixels).double().cpu().numpy()
        labels, means = self._asked.labels.cpu().numpy(), np.zeros(self.prototypes.shape)
        for c in np.unique(labels):
            means[c] = found[labels == c].mean(axis=0)
        finite = np.asarray(np.isfinite(means).all(axis=1))
        return self._counts * finite, np.where(finite[:, None], means, 0.0)

    def _take(self, message: bytes) -> None:
        self.prototypes, self.known = read_prototypes(message, self.prototypes.shape)


class FedProtoServer(RecordingHalf):
    """Means over all records of a class; a class that nobody held this time keeps what it has."""

    def __init__(self, form: PrototypeCodec) -> None:
        self.form = form
        self.prototypes: FloatArray = np.zeros((form.n_classes, form.dimension))
        self.known = np.zeros(form.n_classes, dtype=np.bool_)

    def round(self, index: int) -> ServerTurn:
        """Ask for counts and means; sends the prototypes."""
        got = yield Ask(index_subject(index), self.form.length, self.form.bound)
        counts, means = self.form.decode(got.total, got.survivors)
        held = counts > 0
        self.prototypes[held], self.known = means[held], self.known | held
        return prototype_message(self.prototypes, self.known)

    def record(self, index: int, seen: Seen, transcript: Transcript) -> None:
        """Add the round as the server saw it."""
        form, sent = self.form, self.prototypes.astype(np.float32).ravel()
        read = uploads_of(seen, len(form.records), form.bound, 0, form.length)
        uploads: dict[int, Float32Array] | None = None
        counts: dict[int, IntArray] | None = None
        if read is not None:
            own = {client: form.decode(values, (client,)) for client, values in read.items()}
            uploads = {k: means.ravel().astype(np.float32) for k, (_, means) in own.items()}
            counts = {k: held for k, (held, _) in own.items()}
        counted, _ = form.decode(seen.result.total, seen.result.survivors)
        transcript.heads.append(
            PrototypeRound(index, uploads, {}, sent, counts=counts, counted=counted)
        )
