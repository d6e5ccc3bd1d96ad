"""Pooled heads: one linear head on public features, from masked sums of class sums alone.

Client k shares sum_x phi(x) (1[y = c] - phi(x)^T v_c) over its records, D x C numbers, phi the
public features of `selection.density` and v the head that it was sent last, zero at first. The
first sum gives the density-ratio head (H + beta I)^-1 mean(phi 1[y = c]), H the second moment of
the public proxies: what Selective-FD's selectors are, for all clients together. Each further sum
is the residual of least squares on the clients' records, and H is what it is preconditioned by:
the server takes the best step in the span of all directions so far, which the sums tell it, and
the newest direction whole (conjugate gradients with a last plain step).

Every client then labels the proxies that somebody knows (see `methods.survey`) by the head, and its
network learns them. In place of D^2 numbers of a Gram matrix (AFL, He et al., CVPR 2025) a
residual round uploads D C.
"""

import struct
from collections.abc import Generator, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import ClassVar, Final, Literal, get_args

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from secure_fd.crypto.keys import fields
from secure_fd.data.federated import ClientData
from secure_fd.data.images import Images
from secure_fd.errors import BudgetError, ConfigurationError, PeerError
from secure_fd.methods.base import Method, Own, Setting
from secure_fd.methods.fedavg import model_bytes, read_model
from secure_fd.methods.residuals import LEAST, MOST, Search
from secure_fd.methods.survey import BOUND, Known, Survey
from secure_fd.privacy.guarantee import Guarantee
from secure_fd.privacy.record import PooledRecordUnit, UnitCodec
from secure_fd.protocol.messages import (
    Ask,
    ClientRole,
    ClientTurn,
    ServerReport,
    ServerRole,
    ServerTurn,
    Share,
    Void,
)
from secure_fd.protocol.transcript import ParameterRound, Transcript, uploads_of
from secure_fd.secure_sum.recorded import Seen
from secure_fd.selection.density_ratio import (
    FourierFeatures,
    Map,
    ProxyReference,
    RatioSolver,
    ReferenceSettings,
    SingleArray,
    noisy_solver,
    shared_reference,
    whitened,
)
from secure_fd.selection.familiarity import KnownProxies, OwnRatios, in_distribution
from secure_fd.training.recipes import Recipe, distil_once
from secure_fd.training.trainer import Learner, accuracy, predict
from secure_fd.votes.codec import FloatArray, UnitArray, WordArray, rescaled
from secure_fd.wire import Sum

Leave = Literal["network", "head", "mean", "validated"]
CANDIDATES: Final = ("network", "head", "mean")
"""What a client may leave with."""
HEAD, KNOWN, CHOICE = b"h", b"k", b"c"
"""What a message of the server holds."""
LEVELS: Final = 1 << 17
"""Steps from one end of a mean to the other: three lanes of ten clients fit into a word."""
_INDEX: Final = struct.Struct(">Q")


@dataclass(frozen=True, slots=True)
class PooledHeads(Method):
    """residual_rounds: sums after the first.

    leave: what a client answers with in the end: its network, the head, or the mean of their
    probabilities. "validated": whichever is right most often about the records that all clients
    held back, by one more sum of three counts, as a client of one class cannot choose alone. Until
    its network was taught, and where the schedule has no proxy_steps, it is the head.
    none_of_mine: whether proxies that are like nobody's records are kept out before networks are
    taught: clients say what they know, in one more sum. Under noise the released ratios say it, and
    no record is asked (see `selection.familiarity`).

    >>> PooledHeads(residual_rounds=1).name
    'Pooled heads'
    """

    residual_rounds: int = 3
    leave: Leave = "validated"
    features: ReferenceSettings = field(default_factory=ReferenceSettings)
    none_of_mine: bool = True

    title: ClassVar[str] = "Pooled heads"
    needs_proxies: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.residual_rounds < 0:
            raise ConfigurationError("residual_rounds", self.residual_rounds, "use 0 or more")
        if self.leave not in get_args(Leave):
            allowed = f"use one of {', '.join(get_args(Leave))}"
            raise ConfigurationError("leave", self.leave, allowed)

    @property
    def caveat(self) -> str:
        """What its sums tell where no noise is in them, in a sentence; "" of one sum.

        >>> PooledHeads(residual_rounds=0).caveat
        ''
        """
        if not self.residual_rounds:
            return ""
        return (
            f"Its {self.rounds} sums are of the same records, so together they tell more of each "
            f"than one sum does, and most where one client alone holds a class."
        )

    @property
    def rounds(self) -> int:
        """Sums of a whole run; the networks learn after the last of them.

        >>> PooledHeads(residual_rounds=3).rounds
        4
        """
        return 1 + self.residual_rounds

    def recipe(
        self,
        n_classes: int,  # noqa: ARG002 - the head labels all proxies once
        n_proxies: int,
        held: float,  # noqa: ARG002
        image_set: str = "",
    ) -> Recipe:
        """Return the sums, and the steps on the labels of the last head."""
        return distil_once(n_proxies, image_set=image_set, sums=self.rounds)

    def check(self, setting: Setting, models: Sequence[nn.Module]) -> None:  # noqa: ARG002 - any networks serve
        """Raise ConfigurationError without proxies, and for a protection of votes.

        Under the pooled record unit all that clients share is its noisy sums, of which there must
        be as many as it was planned for.
        """
        setting.public_proxies()
        unit = setting.protection
        if not isinstance(unit, PooledRecordUnit):
            setting.check_no_protection()
            return
        if unit.plan.sums != self.rounds:
            raise ConfigurationError("residual_rounds", self.residual_rounds, "the unit has others")
        if self.leave == "validated":
            allowed = "it reads records beside the noisy sums: use another"
            raise ConfigurationError("leave", self.leave, allowed)

    def client(self, setting: Setting, own: Own) -> "HeadClient":
        """The half of one client."""
        return HeadClient(self, Public.of(self.features, setting), setting, own)

    def server(self, setting: Setting, initial: nn.Module) -> "HeadServer":  # noqa: ARG002 - clients keep their networks
        """The server's half."""
        return HeadServer(self, Public.of(self.features, setting), setting)


@dataclass(frozen=True, slots=True, eq=False)
class Public:
    """What all parties derive from the proxies: features, H factorised, the form of a sum."""

    reference: ProxyReference = field(repr=False)
    solver: RatioSolver = field(repr=False)
    n_classes: int
    codec: "MeanCodec"
    most: int
    """Records of the largest client, which holds back fewer."""
    units: UnitCodec | None = None
    """The form of a sum under noise, in the place of the codec's."""

    @classmethod
    def of(cls, features: ReferenceSettings, setting: Setting) -> "Public":
        """Fitted once for all parties of a process; under noise, with what it leaves room for."""
        proxies, unit = setting.public_proxies(), setting.protection
        units = None
        if isinstance(unit, PooledRecordUnit):
            features = unit.features
        reference = shared_reference(proxies, features)
        solver = reference.solver
        if isinstance(unit, PooledRecordUnit):
            solver = noisy_solver(proxies, features, unit.level) if unit.level else solver
            units = UnitCodec(setting.records, reference.proxy_features.shape[1], unit.own_room)
        entry = np.sqrt(2.0 / reference.proxy_features.shape[1])
        codec = MeanCodec.by_records(setting.records, (MOST - LEAST - 1) * float(entry))
        return cls(reference, solver, setting.n_classes, codec, max(setting.records), units)

    @property
    def form(self) -> "MeanCodec | UnitCodec":
        """How a sum is read."""
        return self.units or self.codec

    @property
    def shape(self) -> tuple[int, int]:
        """(D, C)."""
        return self.reference.proxy_features.shape[1], self.n_classes

    @property
    def survey(self) -> Survey:
        """The form of the sum in which clients say what they know."""
        return Survey(len(self.reference.proxy_features), self.n_classes)

    def familiar(self, head: FloatArray, client: ClientData, records: int) -> KnownProxies:
        """What a client's records say of each proxy, by a density-ratio head of so many records."""
        own = head[:, list(client.classes)]
        found = OwnRatios.of(client, self.reference, own, pooled=records)
        ratios = self.reference.proxy_features @ own
        left_out = ratios / (1.0 - self.reference.leverage)[:, None]
        return found.known(left_out, client.classes, self.n_classes)

    def scores(self, head: FloatArray) -> FloatArray:
        """[P, C] at the proxies, whatever shares of them are of which class."""
        return np.asarray(self.reference.proxy_features @ head)

    def answers(self, head: FloatArray, images: Images) -> FloatArray:
        """[N, C] probabilities about images that the map was not fitted on."""
        single = head.astype(np.float32)
        raw = np.concatenate([features @ single for features in self.mapped(images)])
        return simplex(raw)

    def mapped(self, images: Images) -> Iterator[SingleArray]:
        """Features of images in parts [n, D]; what they are mapped to before is kept."""
        inputs = whitened(images.pixels, self.reference).astype(np.float32)
        for start in range(0, len(inputs), _AT_ONCE):
            yield self.reference.fourier.single(inputs[start : start + _AT_ONCE])


_AT_ONCE = 2000


def simplex(scores: FloatArray) -> FloatArray:
    """Scores [N, C] as probabilities: negative ones are nothing, a row without any is even.

    >>> simplex(np.array([[3.0, 1.0], [-1.0, 0.0]])).tolist()
    [[0.75, 0.25], [0.5, 0.5]]
    """
    return rescaled(np.maximum(scores, 0.0).astype(np.float64))


@dataclass(frozen=True, slots=True, eq=False)
class PublicHead:
    """A head with its public feature map, which needs no proxies any more.

    map: images [N, ...] -> [N, r]. coefficients: [D, C].
    """

    map: Map
    fourier: FourierFeatures
    coefficients: FloatArray

    def answers(self, pixels: Tensor) -> FloatArray:
        """[N, C] probabilities, as of `Public.answers`."""
        single = self.coefficients.astype(np.float32)
        parts = [
            self.fourier.single(self.map(part).astype(np.float32)) @ single
            for part in torch.split(pixels, _AT_ONCE)
        ]
        return simplex(np.concatenate(parts))


@dataclass(frozen=True, slots=True)
class MeanCodec:
    """A client's mean over its records, weighted by their number, as integers in [0, levels].

    shares: by client, its records over the largest client's, public. limit: of an entry.

    >>> codec = MeanCodec((1.0, 0.5), limit=1.0)
    >>> sent = codec.encode(0, np.array([0.25])) + codec.encode(1, np.array([1.0]))
    >>> codec.decode(sent, (0, 1)).round(4).tolist()
    [0.5]
    """

    shares: tuple[float, ...]
    limit: float

    levels: ClassVar[int] = LEVELS

    @classmethod
    def by_records(cls, records: Sequence[int], limit: float) -> "MeanCodec":
        """Shares of clients that hold so many training records."""
        return cls(tuple(count / max(records) for count in records), limit)

    def encode(self, client: int, mean: FloatArray) -> WordArray:
        """[m] integers of share * mean; entries beyond the limit are cut off there."""
        within = np.clip(mean * (self.shares[client] / self.limit), -1.0, 1.0)
        return np.rint((within + 1.0) * (self.levels / 2)).astype(np.uint64)

    def decode(self, total: UnitArray, survivors: Sequence[int]) -> FloatArray:
        """[m] mean over the records of all clients in the sum."""
        summed = total.astype(np.float64) * (2 / self.levels) - len(survivors)
        weight = sum(self.shares[client] for client in survivors)
        return np.asarray(summed * self.limit / weight)


class HeadLearner(ClientRole):
    """A client that is taught by a head: labels the proxies, and answers with what it leaves with.

    What it shares is for its children to say.
    """

    def __init__(self, public: Public, setting: Setting, own: Own, leave: Leave) -> None:
        self.learner: Learner = own.learner(setting.schedule)
        self.public, self._own = public, own
        self.head: FloatArray = np.zeros(public.shape)
        self._proxies, self._leave = setting.public_proxies(), leave
        self.chosen: str = "head"
        """What it leaves with, as far as it knows."""
        self.known = np.ones(len(self._proxies), dtype=np.bool_)
        """[P] the proxies that may teach."""

    def begin(self) -> ClientTurn:
        """Warm up in private, where the schedule says so."""
        yield from self.learner.warm_up()

    def missed(self, subject: bytes, message: bytes | None) -> None:
        """Take over the newest head, and the choice of what to leave with."""
        read_index(subject)
        if message is not None:
            self.take(message)

    def memory(self) -> bytes:
        """The newest head, the proxies that may teach, and the choice of what to leave with."""
        chosen = bytes([CANDIDATES.index(self.chosen)])
        return chosen + np.packbits(self.known).tobytes() + head_message(self.head)

    def recall(self, memory: bytes) -> None:
        """Take them over; PeerError for another form."""
        cut = 1 + -(-len(self.known) // 8)
        for message in (CHOICE + memory[:1], KNOWN + memory[1:cut], memory[cut:]):
            self.take(message)

    def take(self, message: bytes) -> None:
        """The server's newest head, what is known, or its choice. PeerError for another form."""
        kind, body = message[:1], message[1:]
        features, classes = self.public.shape
        if kind == HEAD:
            sent = read_model(body, features * classes)
            self.head = sent.astype(np.float64).reshape(features, classes)
        elif kind == KNOWN and len(body) == -(-len(self.known) // 8):
            bits = np.frombuffer(body, dtype=np.uint8)
            self.known = np.unpackbits(bits, count=len(self.known)).astype(np.bool_)
        elif kind == CHOICE and len(body) == 1 and body[0] < len(CANDIDATES):
            self.chosen = CANDIDATES[body[0]]
        else:
            raise PeerError("a message holds no head, no proxies that are known and no choice")

    def taught(self) -> ClientTurn:
        """Learn the newest head's labels; where it is to be validated, share what was right."""
        if not self.learner.schedule.proxy_steps:
            return
        yield from self.learner.distil(*self.lesson())
        if self._leave != "validated":
            self.chosen = self._leave
            return
        held_back = self._own.data.validation
        right = [self._right(held_back, chosen) for chosen in CANDIDATES] if len(held_back) else 0
        most = np.uint64(self.public.most)
        counts = np.minimum(np.broadcast_to(np.asarray(right, np.uint64), 3), most)
        self.take((yield Share(counts, self.public.most)))

    def accuracy(self, test: Images) -> float:
        """Of what this client leaves with."""
        return self._right(test, self.chosen) / len(test)

    def exported(self) -> tuple[str, PublicHead | None]:
        """What it leaves with as far as it knows, one of CANDIDATES, and the head that it needs."""
        if self.chosen == "network":
            return self.chosen, None
        reference = self.public.reference
        return self.chosen, PublicHead(reference.public, reference.fourier, self.head)

    def accuracies(self, test: Images) -> dict[str, float]:
        """Of all that it could leave with, by name."""
        return {name: self._right(test, name) / len(test) for name in CANDIDATES}

    def _right(self, images: Images, candidate: str) -> int:
        """How many labels it gets right."""
        if candidate == "network":
            return round(accuracy(self.learner.model, images) * len(images))
        answers = self.public.answers(self.head, images)
        if candidate == "mean":
            answers = answers + predict(self.learner.model, images.pixels)
        return int((answers.argmax(axis=1) == images.labels.cpu().numpy()).sum())

    def lesson(self) -> tuple[Tensor, Tensor]:
        """Known proxies, and by the head the class of their largest score."""
        scores = torch.from_numpy(self.public.scores(self.head)[self.known])
        targets = functional.one_hot(scores.argmax(dim=1), scores.shape[1]).float()
        device = self._proxies.device
        indices = torch.from_numpy(np.flatnonzero(self.known)).to(device)
        return self._proxies[indices], targets.to(device)

    def own_records(self) -> Iterator[tuple[SingleArray, SingleArray]]:
        """Features [n, D] and one-hot labels [n, C] of the training records, in parts."""
        train, start = self._own.data.train, 0
        labels = functional.one_hot(train.labels.cpu(), self.public.n_classes).float().numpy()
        for features in self.public.mapped(train):
            yield features, labels[start : start + len(features)]
            start += len(features)


class HeadClient(HeadLearner):
    """Shares residual class sums; its network learns once the last of them is in."""

    def __init__(self, method: PooledHeads, public: Public, setting: Setting, own: Own) -> None:
        super().__init__(public, setting, own, method.leave)
        unit = setting.protection
        self._guard = unit.client(own.number) if isinstance(unit, PooledRecordUnit) else None
        self._residual_rounds, self._records = method.residual_rounds, sum(setting.records)
        self._surveys, self._most = surveys(method, setting), setting.releases
        self._answered = 0
        """Surveys, each a release of every proxy."""
        self._by_ratios = method.none_of_mine and public.units is not None
        self._ratios: FloatArray | None = None
        self._announced = b""

    def announced(self, index: int, digest: bytes) -> None:
        """Keep which sum the next share is for: a share of noise enters no other."""
        self._announced = fields(index.to_bytes(8, "big"), digest)

    def round(self, subject: bytes) -> ClientTurn:
        """Share the residual of the newest head, take the next one; after the last, learn."""
        if not subject:  # the planned sums were made: nothing is asked any more
            return
        index = read_index(subject)
        try:
            self.take((yield Share(self._shared(), self.public.form.levels)))
        except Void:
            return
        self._took_ratios()
        if index >= self._residual_rounds:
            self.learner.round = index - self._residual_rounds
            with suppress(Void):  # nothing was chosen: it keeps what it had
                if self._surveys and leaves_one(index - self._residual_rounds, self._most):
                    self.take((yield Share(self._known_bits(), BOUND)))
                yield from self.taught()

    def missed(self, subject: bytes, message: bytes | None) -> None:
        """Take over the newest head, and the choice of what to leave with."""
        super().missed(subject, message)
        if message is not None and message[:1] == HEAD:
            self._took_ratios()

    def memory(self) -> bytes:
        """The first head, which is of density ratios, beside what every learner keeps."""
        ratios = b"" if self._ratios is None else head_message(self._ratios)
        return len(ratios).to_bytes(4, "big") + ratios + super().memory()

    def recall(self, memory: bytes) -> None:
        """Take all of it over; PeerError for another form."""
        cut = 4 + int.from_bytes(memory[:4], "big")
        if ratios := memory[4:cut]:
            self.take(ratios)
            self._ratios = self.head
        super().recall(memory[cut:])

    def _took_ratios(self) -> None:
        """The first head is one of density ratios; under noise they say which proxies may teach.

        It is the first that arrives, of whichever round: earlier rounds may have been aborted.
        """
        if self._ratios is None:
            self._ratios = self.head
            if self._by_ratios:
                self.known = in_distribution(self.public.scores(self.head))

    def guarantee(self) -> Guarantee | None:
        """What this client was promised for its noisy sums."""
        return None if self._guard is None else self._guard.guarantee()

    def _shared(self) -> UnitArray:
        """Residual class sums, under noise where there is a unit that guards them."""
        if self._guard is None or self.public.units is None:
            return self.public.codec.encode(self._own.number, self._residual())
        guard, proxies = self._guard, self.public.reference.proxy_features
        asked, place = head_message(self.head), self._announced
        released = guard.release(self._wrong(), self.public.shape, asked, place)
        if not self.head.any():  # a residual counts nothing
            released = guard.heard(released, proxies, self.public.n_classes)
        return self.public.units.encode(released, noisy=guard.shares)

    def _known_bits(self) -> UnitArray:
        """Count and encode what this client knows. BudgetError beyond the agreed releases."""
        if not leaves_one(self._answered, self._most):
            raise BudgetError(f"{self._most} surveys were answered, each a release of all proxies")
        self._answered += 1
        return self.public.survey.encode(self._familiar())

    def _familiar(self) -> KnownProxies | None:
        """None of a client that never had the first head."""
        if self._ratios is None:
            return None
        return self.public.familiar(self._ratios, self._own.data, self._records)

    def _residual(self) -> FloatArray:
        """[D C], mean of phi(x) (1[y = c] - phi(x)^T v_c) over its records."""
        total, count = np.zeros(self.public.shape), 0
        for features, residuals in self._wrong():
            total += features.T @ residuals
            count += len(residuals)
        return np.asarray(total / count).ravel()

    def _wrong(self) -> Iterator[tuple[SingleArray, SingleArray]]:
        """Features [n, D] of its records in parts, and what the head is wrong by there [n, C]."""
        head = self.head.astype(np.float32)
        for features, labels in self.own_records():
            yield features, labels - np.clip(features @ head, LEAST, MOST)


class HeadTeacher(ServerRole):
    """A server that sends heads. before: integers of a share that come before its D x C sums."""

    def __init__(
        self,
        public: Public,
        setting: Setting,
        leave: Leave,
        *,
        before: int = 0,
        surveys: bool = False,
    ) -> None:
        self.public, self._setting, self._before = public, setting, before
        self._surveys = surveys
        self.known: Known | None = None
        """What the survey said; None before it, and where none is made."""
        self.head: FloatArray = np.zeros(public.shape)
        self._validates, self._recorded = validates(leave, setting), 0

    @property
    def length(self) -> int:
        """Integers of a share."""
        return self._before + int(np.prod(self.public.shape))

    def teach(self, head: FloatArray, *, last: bool) -> Generator[Ask, Sum, bytes]:
        """Send the head; after the last one, find what to leave with where that is asked."""
        self.head, self._recorded = head, 0
        message = head_message(head)
        if last and self._surveys:
            message = yield from self._survey(message)
        if last and self._validates:
            return (yield from most_right(message, self.public))
        return message

    def _survey(self, head: bytes) -> Generator[Ask, Sum, bytes]:
        """Send the head, and ask what clients know."""
        form = self.public.survey
        got = yield Ask(head, form.length, BOUND)
        self.known = form.known(got.total, len(got.survivors), self._setting.records)
        return KNOWN + np.packbits(self.known.proxies).tobytes()

    def report(self) -> ServerReport:
        """How many proxies teach."""
        return ServerReport(1.0 if self.known is None else float(self.known.proxies.mean()))

    def record(self, index: int, seen: Seen, transcript: Transcript) -> None:
        """Add a sum as the server saw it: D x C sums by client, their mean, the head."""
        self._recorded += 1
        transcript.features = self.public.reference.settings
        if self._recorded > 1:  # counts of what was right tell of no record that was in a sum
            self.public.survey.record(index, seen, transcript)
            return
        codec, uploads = self.public.form, None
        read = uploads_of(seen, self._setting.n_clients, codec.levels, 0, self.length)
        if read is not None:
            uploads = {
                k: codec.decode(values[self._before :], (k,)).astype(np.float32)
                for k, values in read.items()
            }
        sent, got = self.head.ravel().astype(np.float32), seen.result
        total = codec.decode(got.total[self._before :], got.survivors).astype(np.float32)
        transcript.heads.append(ParameterRound(index, uploads, {}, sent, total))


def surveys(method: PooledHeads, setting: Setting) -> bool:
    """Whether the last round asks what clients know: where networks are taught, without noise."""
    if isinstance(setting.protection, PooledRecordUnit):
        return False
    return method.none_of_mine and setting.schedule.proxy_steps > 0


def leaves_one(surveys_before: int, releases_per_pair: int | None) -> bool:
    """Whether another survey is within the releases that clients agreed to."""
    return releases_per_pair is None or surveys_before < releases_per_pair


class HeadServer(HeadTeacher):
    """Solves for the next head; what it knows of the records is in the sums."""

    def __init__(self, method: PooledHeads, public: Public, setting: Setting) -> None:
        super().__init__(public, setting, method.leave, surveys=surveys(method, setting))
        self._last, self._most = method.residual_rounds, setting.releases
        self._search = Search(
            public.solver, public.reference.proxy_features, public.shape, plain=bool(public.units)
        )

    def round(self, index: int) -> ServerTurn:
        """Ask for residuals; sends the next head, and in the end what to leave with.

        Asks nothing after the sums that noise was planned for.
        """
        if self.public.units is not None and index > self._last:
            return None
        codec = self.public.form
        got = yield Ask(index_subject(index), self.length, codec.levels)
        mean = codec.decode(got.total, got.survivors).reshape(self.public.shape)
        head = self._search.step(mean, got.survivors)
        self._surveys = self._surveys and leaves_one(index - self._last, self._most)
        return (yield from self.teach(head, last=index >= self._last))


def validates(leave: Leave, setting: Setting) -> bool:
    """Whether a round ends with the sum of what was right."""
    return leave == "validated" and setting.schedule.proxy_steps > 0


def head_message(head: FloatArray) -> bytes:
    """A head [D, C] as it travels, in 32 bits."""
    return HEAD + model_bytes(head.ravel().astype(np.float32))


def most_right(head: bytes, public: Public) -> Generator[Ask, Sum, bytes]:
    """Send the head, ask how often each candidate is right; the first of the best is chosen."""
    got = yield Ask(head, len(CANDIDATES), public.most)
    return CHOICE + bytes([int(np.asarray(got.total).argmax())])


def index_subject(index: int) -> bytes:
    """A round's subject: its number.

    >>> read_index(index_subject(3))
    3
    """
    return _INDEX.pack(index)


def read_index(subject: bytes) -> int:
    """The round of a subject; PeerError for another length."""
    if len(subject) != _INDEX.size:
        raise PeerError(f"a round's subject has {len(subject)} bytes; use {_INDEX.size}")
    return int(_INDEX.unpack(subject)[0])
