"""Pooled heads: one linear head on public features, from masked sums of class sums alone.

Client k shares sum_x phi(x) (1[y = c] - phi(x)^T v_c) over its records, D x C numbers, phi the
public features of `selection.density_ratio` and v the head that it was sent last, zero at first.
The first sum gives the density-ratio head (H + beta I)^-1 mean(phi 1[y = c]), H the second moment
of the public proxies: Selective-FD's selectors, for all clients together. Each further sum is the
residual of least squares on the clients' records (see `least_squares`).

Every client then labels the proxies that at least one client knows (see `methods.survey`) by the
head, and trains its network on these labels. Clients answer with the mean of network and head. In
place of D^2 numbers of a Gram matrix (AFL, He et al., CVPR 2025) a residual round uploads D C.
"""

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import ClassVar, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from secure_fd.crypto.keys import fields
from secure_fd.data.images import Images
from secure_fd.errors import BudgetError, ConfigurationError, PeerError
from secure_fd.methods.base import Method, Own, Setting, read_index, write_index
from secure_fd.methods.fedavg import model_bytes, read_model
from secure_fd.methods.least_squares import (
    HIGHEST_ANSWER,
    LARGEST_RESIDUAL,
    LOWEST_ANSWER,
    LeastSquares,
)
from secure_fd.methods.survey import BOUND, Survey
from secure_fd.privacy.guarantee import Guarantee
from secure_fd.privacy.record import PooledRecordUnit, sums_codec
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
from secure_fd.selection.density_ratio import (
    FourierFeatures,
    Map,
    RatioSolver,
    ReferenceSettings,
    SingleArray,
    noisy_solver,
    residual_solver,
    shared_reference,
    whitened,
)
from secure_fd.selection.familiarity import KnownProxies, OwnRatios, in_distribution
from secure_fd.training.recipes import Recipe, distil_once
from secure_fd.training.trainer import accuracy, predict
from secure_fd.votes.codec import FloatArray, UnitArray, rescaled
from secure_fd.votes.fixed_point import FixedPoint, record_shares

PREDICTORS: Final = ("network", "head", "mean")
"""Answers that a client may choose."""
HEAD, KNOWN = b"h", b"k"
"""Kinds of a server's message: a head, the known proxies."""
LEVELS: Final = 1 << 17
"""Steps from one end of a mean to the other: three lanes of ten clients fit into a word."""
_AT_ONCE: Final = 2000
"""Images whose features are computed together."""


@dataclass(frozen=True, slots=True)
class PooledHeads(Method):
    """Pooled heads.

    Attributes:
        residual_rounds: sums after the first. Under the record unit it was planned for them.
        features: sizes of the public feature map; those of the record unit if there is one.

    >>> PooledHeads(residual_rounds=1).rounds
    2
    """

    residual_rounds: int = 3
    features: ReferenceSettings = field(default_factory=ReferenceSettings)

    title: ClassVar[str] = "Pooled heads"
    needs_proxies: ClassVar[bool] = True
    predictor: ClassVar[str] = "mean"
    """Model that clients answer with once their networks learnt from a head."""

    def __post_init__(self) -> None:
        if self.residual_rounds < 0:
            raise ConfigurationError("residual_rounds", self.residual_rounds, "use 0 or more")

    @property
    def caveat(self) -> str:
        """Sentence on what its sums reveal without noise; "" for one sum.

        >>> PooledHeads(residual_rounds=0).caveat
        ''
        """
        if not self.residual_rounds:
            return ""
        return (
            f"Its {self.rounds} sums are of the same records, so together they reveal more of "
            f"each than one sum does, and most where one client alone holds a class."
        )

    @property
    def rounds(self) -> int:
        """Sums of a whole run; the networks learn after the last of them."""
        return 1 + self.residual_rounds

    def recipe(self, n_classes: int, n_proxies: int, held: float, image_set: str = "") -> Recipe:  # noqa: ARG002
        """Return the sums, and the steps on the labels of the last head."""
        return distil_once(n_proxies, image_set=image_set, sums=self.rounds)

    def check(self, setting: Setting, models: Sequence[nn.Module]) -> None:  # noqa: ARG002 - any networks serve
        """Raise ConfigurationError without proxies, or under a privacy unit for votes.

        The record unit must have been planned for as many sums.
        """
        setting.public_proxies()
        unit = setting.protection
        if not isinstance(unit, PooledRecordUnit):
            setting.check_no_protection()
        elif unit.plan.sums != self.rounds:
            raise ConfigurationError("residual_rounds", self.residual_rounds, "the unit has others")

    def surveys(self, setting: Setting) -> bool:
        """Return whether clients report known proxies; the report reads records beside the sums."""
        learns = setting.schedule.proxy_steps > 0
        return learns and not isinstance(setting.protection, PooledRecordUnit)

    def client(self, setting: Setting, own: Own) -> "HeadClient":
        """Make the role of one client."""
        return HeadClient(self, setting, own)

    def server(self, setting: Setting, initial: nn.Module) -> "HeadServer":  # noqa: ARG002 - clients keep their networks
        """Make the server's role."""
        return HeadServer(self, setting)


class HeadTerms:
    """Public terms of a run, which all parties derive from the proxies.

    The features are fitted once for all parties of a process.
    """

    def __init__(self, method: PooledHeads, setting: Setting) -> None:
        proxies, unit = setting.public_proxies(), setting.protection
        self.method, self.setting = method, setting
        self.unit = unit if isinstance(unit, PooledRecordUnit) else None
        """The record unit, if there is one."""
        features = method.features if self.unit is None else self.unit.features
        self.reference = shared_reference(proxies, features)
        """The public features."""
        self.solver = self.reference.solver
        """The inverse that makes heads of class sums; under noise, the one for noisy sums."""
        if self.unit is not None and self.unit.level:
            self.solver = noisy_solver(proxies, features, self.unit.level)
        self.shape = self.reference.n_features, setting.n_classes
        """(D, C) of a head."""
        self.codec = self._codec()
        """Codec of class sums; of integers with noise under the record unit."""
        self.survey = Survey(len(proxies), setting.n_classes) if method.surveys(setting) else None

    @property
    def residual_solver(self) -> RatioSolver:
        """The inverse for sums of residuals; under noise, that for noisy sums."""
        if self.unit is not None or not self.method.residual_rounds:
            return self.solver
        features, records = self.reference.settings, sum(self.setting.records)
        return residual_solver(self.setting.public_proxies(), features, records)

    @property
    def length(self) -> int:
        """Integers of a client's class sums."""
        return self.shape[0] * self.shape[1]

    def survey_of(self, number: int) -> Survey | None:
        """Return a survey's form, if there are surveys and a proxy has a release left for it.

        Args:
            number: of the survey; the one after the last planned sum is 0.
        """
        releases = self.setting.releases
        left = releases is None or number < releases
        return self.survey if number >= 0 and left else None

    def scores(self, head: FloatArray) -> FloatArray:
        """Return a head's ratios [P, C] at the proxies."""
        return np.asarray(self.reference.proxy_features @ head)

    def public_head(self, head: FloatArray) -> "PublicHead":
        """Return the head as a predictor that needs no proxies."""
        return PublicHead(self.reference.public, self.reference.fourier, head)

    def _codec(self) -> FixedPoint:
        records, n_features = self.setting.records, self.reference.n_features
        if self.unit is not None:
            return sums_codec(records, n_features, self.unit.own_room)
        entry = float(np.sqrt(2.0 / n_features))  # of a feature, at most
        return FixedPoint(record_shares(records), LARGEST_RESIDUAL * entry, LEVELS)


@dataclass(frozen=True, slots=True, eq=False)
class PublicHead:
    """A head with its public feature map.

    Attributes:
        map: images [N, ...] -> [N, r].
        fourier: [N, r] -> [N, D].
        coefficients: [D, C].
    """

    map: Map
    fourier: FourierFeatures
    coefficients: FloatArray

    def features(self, pixels: Tensor) -> Iterator[SingleArray]:
        """Map images to features in parts [n, D]; whitened features are cached."""
        inputs = whitened(pixels, self.map)
        for start in range(0, len(inputs), _AT_ONCE):
            yield self.fourier.single(inputs[start : start + _AT_ONCE])

    def answers(self, pixels: Tensor) -> FloatArray:
        """Return probabilities [N, C] for images."""
        single = self.coefficients.astype(np.float32)
        return simplex(np.concatenate([part @ single for part in self.features(pixels)]))


def simplex(scores: SingleArray) -> FloatArray:
    """Rescale scores [N, C] to probabilities: negative ones count as 0, a row of zeros as even.

    >>> simplex(np.array([[3.0, 1.0], [-1.0, 0.0]])).tolist()
    [[0.75, 0.25], [0.5, 0.5]]
    """
    return rescaled(np.maximum(scores, 0.0).astype(np.float64))


class HeadClient(ClientRole):
    """Client role: shares residual class sums; its network is trained on proxies after the last."""

    def __init__(self, method: PooledHeads, setting: Setting, own: Own) -> None:
        self.learner = own.learner(setting.schedule)
        self.terms, self._own = HeadTerms(method, setting), own
        self.head: FloatArray = np.zeros(self.terms.shape)
        self.chosen: str = "head"
        """The predictor that it answers with; the head until its network has learnt from one."""
        self._proxies = setting.public_proxies()
        self.known = np.ones(len(self._proxies), dtype=np.bool_)
        """[P] proxies that the network may learn from."""
        unit = self.terms.unit
        self._mechanism = None if unit is None else unit.client(own.number)
        self._surveys_answered = 0
        self._ratios: FloatArray | None = None
        """The first head, which is of density ratios."""
        self._announced = b""

    def announced(self, index: int, digest: bytes) -> None:
        """Keep which sum the next share is for: a share of noise enters no other."""
        self._announced = fields(index.to_bytes(8, "big"), digest)

    def round(self, announcement: bytes) -> ClientTurn:
        """Share the residual of the newest head, take the next one; after the last, learn."""
        if not announcement:  # all planned sums were made
            return
        past_last = read_index(announcement) - self.terms.method.residual_rounds
        with suppress(RoundAborted):  # it keeps what it had
            self.take((yield SumInput(self._class_sums(), self.terms.codec.levels)))
            if past_last < 0:
                return
            self.learner.round = past_last
            if (survey := self.terms.survey_of(past_last)) is not None:
                self.take((yield SumInput(self._answer(survey), BOUND, title="survey")))
            yield from self.learn()

    def missed(self, announcement: bytes, message: bytes | None) -> None:
        """Take the newest head, or the known proxies."""
        read_index(announcement)
        if message is not None:
            self.take(message)

    def memory(self) -> bytes:
        """Return both heads, whether the network learnt, surveys answered, and known proxies."""
        ratios = b"" if self._ratios is None else head_message(self._ratios)
        counts = bytes([self.chosen != "head"]) + self._surveys_answered.to_bytes(4, "big")
        known = np.packbits(self.known).tobytes()
        return len(ratios).to_bytes(4, "big") + ratios + counts + known + head_message(self.head)

    def recall(self, memory: bytes) -> None:
        """Take them over; PeerError for another form."""
        ratios = 4 + int.from_bytes(memory[:4], "big")
        rest, known = memory[ratios:], 5 + -(-len(self.known) // 8)
        first: FloatArray | None = None
        if ratios > 4:
            self.take(memory[4:ratios])
            first = self.head
        for message in (rest[known:], KNOWN + rest[5:known]):
            self.take(message)
        self._ratios = first
        self.chosen = self.terms.method.predictor if rest[0] else "head"
        self._surveys_answered = int.from_bytes(rest[1:5], "big")

    def take(self, message: bytes) -> None:
        """Read a message of the server; PeerError for another form."""
        kind, body = message[:1], message[1:]
        if kind == HEAD:
            sent = read_model(body, self.terms.length)
            self.head = sent.astype(np.float64).reshape(self.terms.shape)
            if self._ratios is None:  # the first head that arrives: earlier rounds may have aborted
                self._ratios = self.head
                if self.terms.unit is not None:
                    self.known = in_distribution(self.terms.scores(self.head))
        elif kind == KNOWN and len(body) == -(-len(self.known) // 8):
            bits = np.frombuffer(body, dtype=np.uint8)
            self.known = np.unpackbits(bits, count=len(self.known)).astype(np.bool_)
        else:
            raise PeerError("a message holds no head and no proxies that are known")

    def learn(self) -> ClientTurn:
        """Learn the newest head's labels, and answer with the method's predictor from then on."""
        if self.learner.schedule.proxy_steps:
            yield from self.learner.distil(*self.lesson())
            self.chosen = self.terms.method.predictor

    def lesson(self) -> tuple[Tensor, Tensor]:
        """Return the known proxies, and by the head the class of their largest score."""
        scores = torch.from_numpy(self.terms.scores(self.head)[self.known])
        targets = functional.one_hot(scores.argmax(dim=1), scores.shape[1]).float()
        device = self._proxies.device
        indices = torch.from_numpy(np.flatnonzero(self.known)).to(device)
        return self._proxies[indices], targets.to(device)

    def accuracy(self, test: Images, predictor: str | None = None) -> float:
        """Return the accuracy of a predictor, by default the one that it answers with."""
        name = predictor or self.chosen
        if name == "network":
            return accuracy(self.learner.model, test)
        answers = self.answers(test.pixels, name)
        return float((answers.argmax(axis=1) == test.labels.cpu().numpy()).mean())

    def answers(self, pixels: Tensor, predictor: str | None = None) -> FloatArray:
        """Return the scores [N, C] of a predictor, by default the one that it answers with."""
        name = predictor or self.chosen
        if name == "network":
            return predict(self.learner.model, pixels)
        answers = self.terms.public_head(self.head).answers(pixels)
        return answers if name == "head" else answers + predict(self.learner.model, pixels)

    def accuracies(self, test: Images) -> dict[str, float]:
        """Return the accuracy of every predictor, by its name."""
        return {name: self.accuracy(test, name) for name in PREDICTORS}

    def exported(self) -> tuple[str, PublicHead | None]:
        """Return the name of its predictor, and the head that it needs."""
        needed = None if self.chosen == "network" else self.terms.public_head(self.head)
        return self.chosen, needed

    def guarantee(self) -> Guarantee | None:
        """Return the guarantee of its noisy sums."""
        return None if self._mechanism is None else self._mechanism.guarantee()

    def own_records(self) -> Iterator[tuple[SingleArray, SingleArray]]:
        """Yield features [n, D] and one-hot labels [n, C] of the training records, in parts."""
        train, start = self._own.data.train, 0
        labels = functional.one_hot(train.labels.cpu(), self.terms.shape[1]).float().numpy()
        for features in self.terms.public_head(self.head).features(train.pixels):
            yield features, labels[start : start + len(features)]
            start += len(features)

    def _residuals(self) -> Iterator[tuple[SingleArray, SingleArray]]:
        """Features [n, D] of its records in parts, and the head's errors about them [n, C]."""
        head = self.head.astype(np.float32)
        for features, labels in self.own_records():
            yield features, labels - np.clip(features @ head, LOWEST_ANSWER, HIGHEST_ANSWER)

    def _class_sums(self) -> UnitArray:
        """Residual class sums in the form of the codec, under noise where there is a unit."""
        terms, noise = self.terms, self._mechanism
        if noise is not None:
            proxies = hashlib.sha256(self._proxies.cpu().numpy().tobytes()).digest()
            asked = fields(proxies, head_message(self.head))
            released = noise.release_sums(self._residuals(), terms.shape, asked, self._announced)
            if not self.head.any():  # the first sum counts records, a residual does not
                released = noise.drop_insignificant(
                    released, terms.reference.proxy_features, terms.shape[1]
                )
            return terms.codec.shift(released, clip=not noise.shares)
        total = np.zeros(terms.shape)
        for features, residuals in self._residuals():
            total += features.T @ residuals
        mean = (total / len(self._own.data.train)).ravel()
        return terms.codec.encode(self._own.number, mean)

    def _answer(self, survey: Survey) -> UnitArray:
        """Count a release and encode the known proxies; BudgetError beyond the agreed releases."""
        if self.terms.survey_of(self._surveys_answered) is None:
            releases = self.terms.setting.releases
            raise BudgetError(f"{releases} surveys were answered, each a release of all proxies")
        self._surveys_answered += 1
        return survey.encode(self._known_proxies())

    def _known_proxies(self) -> KnownProxies | None:
        """Find the proxies that are like its records; None if it never received the first head."""
        if self._ratios is None:
            return None
        reference, data = self.terms.reference, self._own.data
        head, records = self._ratios[:, list(data.classes)], sum(self.terms.setting.records)
        own = OwnRatios.of(data, reference, head, pooled=records)
        left_out = (reference.proxy_features @ head) / (1.0 - reference.leverage)[:, None]
        return own.known(left_out, data.classes, self.terms.shape[1])


class HeadServer(ServerRole):
    """Server role: solves for the next head from the sums alone."""

    checkpointed = ("head", "known", "_search")

    def __init__(self, method: PooledHeads, setting: Setting) -> None:
        self.terms = terms = HeadTerms(method, setting)
        self.known: NDArray[np.bool_] | None = None
        """[P] proxies that at least one client knows; None before the survey."""
        self.head: FloatArray = np.zeros(terms.shape)
        self._search = LeastSquares(
            terms.solver,
            terms.residual_solver,
            terms.reference.proxy_features,
            terms.shape,
            noisy=terms.unit is not None,
        )

    def round(self, index: int) -> ServerTurn:
        """Ask for residuals and send the next head; after the last, make the survey.

        Under noise nothing is asked after the planned sums.
        """
        codec, past_last = self.terms.codec, index - self.terms.method.residual_rounds
        if self.terms.unit is not None and past_last > 0:
            return None
        got = yield SumRequest(write_index(index), self.terms.length, codec.levels)
        mean = codec.decode(got.total, got.survivors).reshape(self.terms.shape)
        return (yield from self.send(self._search.step(mean, got.survivors), past_last))

    def send(self, head: FloatArray, past_last: int) -> ServerTurn:
        """Send a head; from the last planned sum on, ask which proxies clients know."""
        self.head, survey = head, self.terms.survey_of(past_last)
        message = head_message(head)
        if survey is not None:
            got = yield SumRequest(message, survey.length, BOUND)
            records = self.terms.setting.records
            self.known = survey.known(got.total, len(got.survivors), records)
            message = KNOWN + np.packbits(self.known).tobytes()
        self.kept = 1.0 if self.known is None else float(self.known.mean())
        return message

    def record(self, seen: ObservedRound[None], transcript: Transcript) -> None:
        """Add a sum as the server saw it: D x C sums by client, their mean, the head."""
        transcript.features = self.terms.reference.settings
        if seen.position:
            transcript.survey = seen
            return
        codec, last = self.terms.codec, slice(-self.terms.length, None)
        uploads = codec.decode_each(seen.uploads, last)
        mean = codec.decode(np.asarray(seen.total)[last], seen.survivors).astype(np.float32)
        sent = self.head.ravel().astype(np.float32)
        transcript.heads.append(seen.giving(sent, uploads=uploads, total=mean, payloads=None))


def head_message(head: FloatArray) -> bytes:
    """Encode a head [D, C] as 32-bit numbers."""
    return HEAD + model_bytes(head.ravel().astype(np.float32))
