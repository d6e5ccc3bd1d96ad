"""Votes about public proxies: one exchange for Selective-FD, FedMD, DS-FL and FedED.

A proxy sample's way through a round: the client's selector and network answer (`VoteClient`), the
protection releases, the codec makes integers, the secure sum adds them, the server debiases the
sums and applies the method's rule (`VoteServer`), and every client learns from the ensemble.

What lasts from round to round is here too: counts of releases, draws, what was taught, trust. Two
sums about one proxy whose cohorts differ by one client differ by that client's vote. Masks do not
help against it; a limit on how often a client answers does.
"""

import hashlib
import logging
import struct
from abc import abstractmethod
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from secure_fd.crypto.public_draws import draw_indices
from secure_fd.data.federated import ClientData
from secure_fd.errors import BudgetError, ConfigurationError, LocalError, PeerError
from secure_fd.methods.base import (
    CountedVotes,
    Labels,
    Method,
    Own,
    Setting,
    VotePolicy,
    check_labels,
    levels,
)
from secure_fd.methods.min_voters import Voters, check_min_voters
from secure_fd.methods.registry import RECORD_UNIT_METHODS
from secure_fd.methods.survey import BOUND, Known, Survey
from secure_fd.privacy.base import FromAnswers, Guard
from secure_fd.privacy.guarantee import Guarantee
from secure_fd.protocol.messages import (
    Ask,
    ClientReport,
    ClientRole,
    ClientTurn,
    ServerReport,
    ServerRole,
    ServerTurn,
    Share,
    Void,
)
from secure_fd.protocol.transcript import DistillationRound, Transcript, VotersRound, uploads_of
from secure_fd.secure_sum.recorded import Seen
from secure_fd.training.trainer import Learner, predict
from secure_fd.votes.budget import units_of, within
from secure_fd.votes.codec import (
    Contribution,
    Ensemble,
    FloatArray,
    IntArray,
    KnowledgeCodec,
    Limits,
    Released,
    Sums,
    UnitArray,
    WordArray,
    answered,
    ensemble_message,
    read_ensemble,
    spread,
)
from secure_fd.wire import Sum

_LOG = logging.getLogger("secure_fd")
_DRAWN = struct.Struct("<qq")
_SUBJECT = struct.Struct(">Q?32s")


class VotingMethod(Method):
    """Base class of methods whose clients share predictions about public proxy samples.

    A method decides at least what the server makes of the sum. By default every client answers
    every proxy, and all answers weigh the same.
    """

    __slots__ = ()

    takes_labels: ClassVar[bool] = True
    needs_proxies: ClassVar[bool] = True
    revisits: ClassVar[bool] = False
    """Whether clients take a round's local steps after the distillation."""
    labels: Labels

    def __post_init__(self) -> None:
        check_labels(self.labels)

    @property
    def name(self) -> str:
        """The name in the literature, with the kind of label."""
        return f"{self.title} {self.labels}"

    @property
    def levels(self) -> int:
        """Integer units in one whole vote."""
        return levels(self.labels)

    @property
    def rare(self) -> float:
        """Exponent by which distillation prefers rare classes, see `Memory`."""
        return 0.0

    @property
    def asks_first(self) -> bool:
        """Whether a survey of known proxies comes before the first vote."""
        return False

    @property
    def budget(self) -> float | None:
        """Most that a client's votes of a round may weigh, in times its equal share; None: all."""
        return None

    def opinion(self, client: ClientData, proxies: Tensor) -> VotePolicy:  # noqa: ARG002 - nobody abstains
        """Return where the client answers, and with what weight."""
        return CountedVotes(np.ones(len(proxies)))

    @abstractmethod
    def ensemble(self, indices: IntArray, sums: Sums) -> Ensemble:
        """Return what the server sends back for a round's proxies.

        Args:
            indices: [m] of the proxies.
            sums: count [m] and sum [m, C] of the votes.
        """

    def surveys(self, setting: Setting) -> bool:
        """Whether the survey is made: it is a release of every proxy, and leaves one for votes."""
        return self.asks_first and setting.protection.lets_pass and setting.releases != 1

    def check(self, setting: Setting, models: Sequence[nn.Module]) -> None:  # noqa: ARG002 - any networks serve
        """Raise ConfigurationError where a round asks about more proxies than there are.

        Also where a protection is of class sums: no vote is covered by it.
        """
        if not setting.protection.asks_network:
            allowed = f"not with {self.name}: {RECORD_UNIT_METHODS}"
            raise ConfigurationError("protection", setting.protection.name, allowed)
        wanted, held = setting.schedule.proxies_per_round, len(setting.public_proxies())
        if not 1 <= wanted <= held:
            raise ConfigurationError("proxies_per_round", wanted, f"there are {held} proxies")
        check_min_voters(self.min_voters, setting.n_clients)
        if self.min_voters > 1 and setting.protection.noise_terms.room:
            allowed = f"use 1: the {setting.protection.name} adds no noise to counts of voters"
            raise ConfigurationError("min_voters", self.min_voters, allowed)
        if setting.releases == 1 and self.asks_first and setting.protection.lets_pass:
            _LOG.warning(
                "releases_per_pair 1 leaves no room for the survey of known proxies: "
                "it is not made, and every proxy may be used for distillation"
            )

    def client(self, setting: Setting, own: Own) -> "VoteClient":
        """Make the role of one client."""
        return VoteClient(self, setting, own)

    def server(self, setting: Setting, initial: nn.Module) -> "VoteServer":  # noqa: ARG002 - clients keep their networks
        """Make the server's role."""
        return VoteServer(self, setting)


@dataclass(slots=True)
class _Terms:
    """What both halves derive for themselves, and never tell each other."""

    rule: VotingMethod
    setting: Setting
    draws: "Draws" = field(init=False)

    def __post_init__(self) -> None:
        wanted = self.setting.schedule.proxies_per_round
        n_proxies = len(self.setting.public_proxies())
        limit, before = self.setting.releases, int(self.asks_first)
        self.draws = Draws(self.setting.seed, n_proxies, wanted, limit, before)

    @property
    def codec(self) -> KnowledgeCodec:
        """Integers of a vote; the protection may need others than the method."""
        levels = self.setting.protection.levels(self.rule.levels)
        return KnowledgeCodec(self.setting.n_classes, levels)

    def limits(self, proxies: int) -> Limits:
        """Of one client's votes about so many proxies."""
        most = units_of(self.rule.budget, proxies, self.setting.n_clients, self.codec.levels)
        return Limits(self.setting.n_classes, most)

    @property
    def asks_first(self) -> bool:
        """Whether clients are asked what they know, which nothing but the sum would protect."""
        return self.rule.surveys(self.setting)

    @property
    def survey(self) -> Survey:
        """The form of that sum."""
        return Survey(len(self.setting.public_proxies()), self.setting.n_classes)

    def subject(self, index: int, indices: IntArray, *, first: bool) -> bytes:
        """The round, whether a survey comes first, a digest of the privacy terms and proxies."""
        terms = hashlib.sha256(self.setting.protection.terms).digest()
        about = hashlib.sha256(terms + indices.astype("<u4").tobytes()).digest()
        return _SUBJECT.pack(index, first, about)


class VoteClient(ClientRole):
    """w_k(x) s_k(x) for the round's proxies; learns from the ensemble."""

    def __init__(self, rule: VotingMethod, setting: Setting, own: Own) -> None:
        self.learner: Learner = own.learner(setting.schedule)
        self._units: UnitArray | None = None
        self._rule, self._own = rule, own
        self._proxies: Tensor = setting.public_proxies()
        self._terms = _Terms(rule, setting)
        remember = setting.schedule.remember
        self._memory = Memory(self._proxies, setting.n_classes, remember=remember, rare=rule.rare)
        self._trust = Trust()
        self._opinion: VotePolicy | None = None
        self._guard: Guard | None = None
        self._surveyed = False
        """Whether it answered a survey whose sum may have been opened."""
        self._survey_round = -1
        """The round of its survey, as long as the sum of the survey is open."""
        self._least = rule.min_voters
        self._last_counted = -1
        """The newest round whose votes, or voters, it may have shared: they are shared once."""

    def begin(self) -> ClientTurn:
        """Take its part of the protection, which may release at once; warm up in private."""
        self._guard = self._terms.setting.protection.client(self._own.number)
        yield from self.learner.warm_up()

    def round(self, subject: bytes) -> ClientTurn:
        """Answer, and learn from the ensemble; after a void sum, from private records alone."""
        indices, first = self._asked(subject)
        if first and self._surveyed:
            raise PeerError("the server asks for a second survey")
        index = _SUBJECT.unpack(subject)[0]
        if index <= self._last_counted:
            raise PeerError(f"the server asks again for votes in round {index}")
        try:
            if first:
                familiar = self.opinion.familiar
                self._surveyed, self._survey_round = True, index
                yield Share(self._terms.survey.encode(familiar), BOUND)
                self._survey_round = -1
            ensemble = yield from self._votes(index, indices)
        except Void:
            self._trust.forget()
            yield from self.learner.local()
            return
        if not self._rule.revisits:
            yield from self.learner.local()
        self._trust.compare(ensemble)
        yield from self.learner.distil(*self._memory.learn(ensemble))
        if self._rule.revisits:
            yield from self.learner.local()

    def missed(self, subject: bytes, message: bytes | None) -> None:
        """Remember an ensemble that came too late to learn from at once."""
        self._trust.forget()
        indices, first = self._asked(subject)
        if message is not None:  # the sum has its result: it is not made a second time
            self._survey_round = -1
            self._surveyed = self._surveyed or first
        if message:
            self._terms.draws.settle(_SUBJECT.unpack(subject)[0])
        ensemble = self._late(message, indices) if message else None  # a survey's answer is empty
        if ensemble is not None:
            self._memory.learn(ensemble)

    def unopened(self, subject: bytes) -> None:
        """Its proxies may be asked about once more, and a survey that was its sum made again."""
        index = _SUBJECT.unpack(subject)[0]
        self._terms.draws.give_back(index)
        if index == self._survey_round:
            self._surveyed, self._survey_round = False, -1

    def memory(self) -> bytes:
        """Whether the survey was answered, what proxies teach, which were drawn and how often."""
        return bytes([self._surveyed]) + self._memory.memory() + self._terms.draws.memory()

    def recall(self, memory: bytes) -> None:
        """Go on with these counts; LocalError for bytes that `memory` does not write."""
        rest = memory[1 + self._memory.recall(memory[1:]) :]
        self._terms.draws.recall(rest)
        self._last_counted = self._terms.draws.following - 1
        self._surveyed = bool(memory[0])

    @property
    def draws(self) -> "Draws":
        """The draws of its proxies."""
        return self._terms.draws

    @property
    def opinion(self) -> VotePolicy:
        """Where this client answers; its selector is fitted when it is first asked for."""
        if self._opinion is None:
            self._opinion = self._rule.opinion(self._own.data, self._proxies)
        return self._opinion

    def report(self) -> ClientReport:
        """Its last votes."""
        return ClientReport(units=self._units)

    def guarantee(self) -> Guarantee | None:
        """Of its part of the protection."""
        return None if self._guard is None else self._guard.guarantee()

    def scores(self) -> FloatArray | None:
        """[P] of the selector, where one was asked."""
        return None if self._opinion is None else self._opinion.scores

    def _asked(self, subject: bytes) -> tuple[IntArray, bool]:
        """[m] the round's proxies, which the client derives, and whether a survey comes first.

        PeerError where others are meant, and for a survey where none was agreed.
        """
        if len(subject) != _SUBJECT.size:
            raise PeerError(f"a round's subject has {len(subject)} bytes; use {_SUBJECT.size}")
        index, first, _ = _SUBJECT.unpack(subject)
        if first and not self._terms.asks_first:
            raise PeerError(f"round {index} asks for a survey that was not agreed")
        if index > self._terms.draws.following:
            raise PeerError(f"round {index} leaves out round {self._terms.draws.following}")
        self.learner.round = max(index, self.learner.round)
        indices = self._terms.draws.of(index)
        if self._terms.subject(index, indices, first=first) != subject:
            raise PeerError(f"round {index} is about other proxies or terms than were agreed")
        return indices, bool(first)

    def _votes(self, index: int, indices: IntArray) -> Generator[Share, bytes, Ensemble]:
        """Share the votes, after a sum of voters where that is agreed; return the ensemble."""
        codec, limits, members = self._terms.codec, self._terms.limits(len(indices)), 0
        guard, units = self._answers(indices, limits)
        self._last_counted, self._units = index, None
        if self._least > 1:
            voting = answered(units, codec.n_classes, codec.levels)
            message = yield Share(voting.astype(np.uint64), BOUND, counted=True)
            self._terms.draws.settle(index)
            voters = Voters.read(message, len(indices), self._terms.setting.n_clients)
            voters.check(self._own.number, self._least)
            if not voters.asked.any():
                return Ensemble.without_answers(indices, codec.n_classes)
            members = len(voters.members)
            rows = units.reshape(-1, codec.n_classes) * voting[:, None]
            units = rows[voters.asked].reshape(-1)
        self._units = units
        shared = guard.perturb(units)
        told = yield Share(shared, codec.levels, limits, counted=True, members=members)
        self._terms.draws.settle(index)
        return read_ensemble(told, indices, codec)

    def _late(self, message: bytes, indices: IntArray) -> Ensemble | None:
        """The ensemble of a message that is not empty; None where a sum of votes follows."""
        codec, clients = self._terms.codec, self._terms.setting.n_clients
        if self._least == 1 or not Voters.is_message(message):
            return read_ensemble(message, indices, codec)
        asked = Voters.read(message, len(indices), clients).asked.any()
        return None if asked else Ensemble.without_answers(indices, codec.n_classes)

    def _answers(self, indices: IntArray, limits: Limits) -> tuple[Guard, WordArray]:
        """The guard, and the integers [m * C] that it and the budget leave of the votes."""
        codec, guard = self._terms.codec, self._guard
        if guard is None:
            raise LocalError("this client has not begun")
        place = self._own.number / self._terms.setting.n_clients
        said = codec.encode(self._release(guard, indices))
        return guard, within(said, codec.n_classes, limits.budget, place)

    def _release(self, guard: Guard, indices: IntArray) -> Released:
        if isinstance(guard, FromAnswers):
            return guard.release(indices, self._answer)
        raise LocalError("this client's guard releases nothing")

    def _answer(self, indices: IntArray) -> Contribution:
        asked = self._proxies[torch.from_numpy(indices)]
        predictions = predict(self.learner.model, asked)
        self._trust.said(predictions)
        apart = self._terms.setting.protection.answers_apart
        trust = 0.0 if apart else self._trust.value
        opinion = self.opinion_now(indices)
        return opinion.contribution(indices, predictions, self._rule.labels, trust)

    def opinion_now(self, indices: IntArray) -> VotePolicy:  # noqa: ARG002 - it has one for all proxies
        """Where it may answer of the proxies at these indices; a child may decide in each round."""
        return self.opinion


class VoteServer(ServerRole):
    """Sums of votes, and the method's rule."""

    def __init__(self, rule: VotingMethod, setting: Setting) -> None:
        self.ensemble: Ensemble | None = None
        """The newest one; None before any, and after a void round."""
        self._rule, self._setting = rule, setting
        self._terms = _Terms(rule, setting)
        self.known: Known | None = None
        """What the survey said; None before it, and where none is made."""
        self._surveyed, self._survey_round = False, -1  # as a client's
        self._least = rule.min_voters
        self._counts: Sum | None = None
        """The sum of voters of the newest round."""

    def report(self) -> ServerReport:
        """How much of the round teaches, and how often any proxy was asked about."""
        kept = 0.0 if self.ensemble is None else float(self.ensemble.kept.mean())
        return ServerReport(kept, most_released=self._terms.draws.most_released)

    def round(self, index: int) -> ServerTurn:
        """Ask for votes, and send what the rule makes of their sum."""
        self.ensemble = self._counts = None
        indices, codec = self._terms.draws.of(index), self._terms.codec
        first = self._terms.asks_first and not self._surveyed
        body = self._terms.subject(index, indices, first=first)
        if first:
            survey = self._terms.survey
            self._surveyed, self._survey_round = True, index
            said = yield Ask(body, survey.length, BOUND)
            self._survey_round = -1
            self.known = survey.known(said.total, len(said.survivors), self._setting.records)
            body = b""
        if self._least > 1:
            return (yield from self._where_enough_vote(indices, body))
        length = len(indices) * codec.n_classes
        got = yield Ask(body, length, codec.levels, self._terms.limits(len(indices)))
        ensemble = self._rule.ensemble(indices, self._votes(codec, got.total, got.survivors))
        self.ensemble = self._of_known(ensemble)
        return ensemble_message(self.ensemble, codec, got.total, len(got.survivors))

    def _where_enough_vote(self, indices: IntArray, body: bytes) -> ServerTurn:
        """Count voters, then ask for votes at the proxies that have enough of them."""
        codec, limits = self._terms.codec, self._terms.limits(len(indices))
        self._counts = yield Ask(body, len(indices), BOUND, counted=True)
        voters = Voters.of(self._counts, self._least)
        body, asked = voters.message(self._setting.n_clients), voters.asked
        length, members = int(asked.sum()) * codec.n_classes, len(voters.members)
        if not length:
            self.ensemble = Ensemble.without_answers(indices, codec.n_classes)
            return body
        got = yield Ask(body, length, codec.levels, limits, members, counted=True)
        votes = self._votes(codec, got.total, got.survivors)
        found = self._of_known(self._rule.ensemble(indices[asked], votes))
        self.ensemble = found.among(indices, asked)
        total = spread(got.total.reshape(-1, codec.n_classes), asked)
        return ensemble_message(self.ensemble, codec, total.reshape(-1), members)

    def unopened(self, index: int) -> None:
        """Its proxies may be asked about once more, and a survey that was its sum made again."""
        self._terms.draws.give_back(index)
        if index == self._survey_round:
            self._surveyed, self._survey_round = False, -1

    def _of_known(self, ensemble: Ensemble) -> Ensemble:
        """The same, without the proxies that nobody knows."""
        if self.known is None:
            return ensemble
        return replace(ensemble, kept=ensemble.kept & self.known.proxies[ensemble.indices])

    def _votes(self, codec: KnowledgeCodec, total: UnitArray, survivors: Sequence[int]) -> Sums:
        protection = self._setting.protection
        votes = codec.decode(total, len(survivors), protection.noise_terms.room)
        return protection.debias(votes, survivors)

    def record(self, index: int, seen: Seen, transcript: Transcript) -> None:
        """Add the round as the server saw it."""
        if self._terms.survey.record(index, seen, transcript):
            return
        clients, counts = self._setting.n_clients, self._counts
        if counts is not None and seen.result.total is counts.total:
            uploads = uploads_of(seen, clients, BOUND, 0, len(counts.total))
            about = self._terms.draws.of(index), uploads, counts.total, counts.survivors
            transcript.voters.append(VotersRound(index, *about))
        elif self.ensemble is not None:
            asked = None if counts is None else Voters.of(counts, self._least).asked
            ensemble = self.ensemble if asked is None else self.ensemble.at(asked)
            codec, room = self._terms.codec, self._setting.protection.noise_terms.room
            transcript.distillation.append(
                DistillationRound.of(index, seen, ensemble, codec.levels, clients, room)
            )


class Draws:
    """Draws each round's proxies; every party that knows the seed finds the same ones.

    seed: the joint seed of all clients, or a public one. limit: releases agreed for each
    (client, proxy) pair; None: one a round, without an end. before: releases of each pair that are
    no draws: a survey is one, counted from the start, whenever it is made. A drawn proxy counts for
    every client, also for one that is away or whose answer never arrives, so that all parties know
    all counts from the draws alone, and none is too low. Only a sum that ended unopened, as the
    server's broadcast says, counts for no client.
    """

    def __init__(
        self, seed: bytes, n_proxies: int, per_round: int, limit: int | None, before: int = 0
    ) -> None:
        if n_proxies < 1:
            raise ConfigurationError("n_proxies", n_proxies, "use 1 or more")
        if limit is not None and limit < 1:
            raise ConfigurationError("releases_per_pair", limit, "use 1 or more")
        self._seed, self._per_round, self._limit = seed, per_round, limit
        self._counts = np.full(n_proxies, before, dtype=np.int64)
        self._next, self._closed = 0, -1  # closed: the newest round that is not given back any more
        self._last: IntArray = np.zeros(0, dtype=np.int64)

    @property
    def most_released(self) -> int:
        """The most often that any proxy was asked about."""
        return int(self._counts.max())

    @property
    def following(self) -> int:
        """The round after the last one that was drawn."""
        return self._next

    def memory(self) -> bytes:
        """The next round, the newest closed one, all counts and the last draw."""
        drawn = _DRAWN.pack(self._next, self._closed)
        return self._counts.tobytes() + drawn + self._last.tobytes()

    def recall(self, memory: bytes) -> None:
        """Go on from what `memory` gave; LocalError for bytes of another size."""
        size = self._counts.nbytes
        counts, rest = memory[:size], memory[size:]
        if len(rest) < _DRAWN.size or (len(rest) - _DRAWN.size) % 8:
            raise LocalError(f"a memory of draws of {len(memory)} bytes is damaged")
        self._counts = np.frombuffer(counts, np.int64).copy()
        self._next, self._closed = _DRAWN.unpack_from(rest)
        self._last = np.frombuffer(rest[_DRAWN.size :], np.int64).copy()

    def settle(self, index: int) -> None:
        """Round `index`, the last one drawn, has a result: it is not given back any more."""
        if index == self._next - 1:
            self._closed = index

    def give_back(self, index: int) -> None:
        """Round `index`, the last one drawn, released nothing; once a round, and not after it."""
        if index == self._next - 1 and index != self._closed:
            self._counts[self._last] -= 1
            self._closed = index

    def of(self, index: int) -> IntArray:
        """[m] proxies of round `index`, ascending, counted before anything is sent.

        Rounds before it are counted, too.

        Where fewer are left than a round takes, the round takes those. Raises BudgetError where
        none is left, LocalError for a round before the last one that was asked for.
        """
        if index < self._next - 1:
            raise LocalError(f"round {index} was drawn before round {self._next - 1}")
        while self._next <= index:
            self._last = self._draw(self._next)
            self._next += 1
        return self._last

    def _draw(self, index: int) -> IntArray:
        most = np.inf if self._limit is None else self._limit
        allowed = np.flatnonzero(self._counts < most)
        if not len(allowed):
            raise BudgetError(
                f"round {index}: every proxy was released as often as agreed "
                f"({self._limit}); the run ends here"
            )
        count = min(self._per_round, len(allowed))
        chosen = np.asarray(allowed[draw_indices(self._seed, index, len(allowed), count)])
        self._counts[chosen] += 1
        return chosen


class Memory:
    """What one client was taught so far: the newest ensemble of each proxy.

    remember: ensembles of earlier rounds teach as well. rare: a lesson weighs 1 / share^rare, with
    the share of its class among all that was taught, so that proxies of rare classes are learnt.
    """

    def __init__(
        self, proxies: Tensor, n_classes: int, *, remember: bool, rare: float = 0.0
    ) -> None:
        self._proxies = proxies
        self._targets = torch.zeros(len(proxies), n_classes, device=proxies.device)
        self._known = torch.zeros(len(proxies), dtype=torch.bool, device=proxies.device)
        self._remember, self._rare = remember, rare

    def learn(self, ensemble: Ensemble) -> tuple[Tensor, Tensor]:
        """Pixels and targets to distil from after this ensemble came in."""
        if not self._remember:
            self._known[:] = False
        indices = torch.from_numpy(ensemble.indices).to(self._known.device)
        kept = torch.from_numpy(ensemble.kept).to(self._known.device)
        taught = torch.from_numpy(ensemble.predictions).float().to(self._known.device)
        self._known[indices] = kept
        self._targets[indices] = taught
        known = self._known.nonzero()[:, 0]
        return self._proxies[known], self._weighed(self._targets[known])

    def memory(self) -> bytes:
        """The targets of all proxies, and which of them teach."""
        targets = self._targets.cpu().numpy().astype("<f4").tobytes()
        return targets + self._known.cpu().numpy().tobytes()

    def recall(self, memory: bytes) -> int:
        """Take both over; how many bytes they are. LocalError for too few."""
        proxies, classes = self._targets.shape
        cut = 4 * proxies * classes
        if len(memory) < cut + proxies:
            raise LocalError(f"targets of {proxies} proxies have {cut + proxies} bytes")
        targets = np.frombuffer(memory[:cut], "<f4").astype(np.float32)
        known = np.frombuffer(memory[cut : cut + proxies], np.bool_).copy()
        self._targets.copy_(torch.from_numpy(targets.reshape(proxies, classes)))
        self._known.copy_(torch.from_numpy(known))
        return cut + proxies

    def _weighed(self, targets: Tensor) -> Tensor:
        """Targets [m, C] times a weight of mean one: the loss is linear in them."""
        if not self._rare or not len(targets):
            return targets
        named = targets.argmax(dim=1)
        weights = torch.bincount(named, minlength=targets.shape[1]).float()[named] ** -self._rare
        return targets * (weights / weights.mean())[:, None]


class Trust:
    """How often one client's network agreed with an ensemble before it was taught that ensemble.

    A client sees that by itself: it compares what its network said with what came back last. Zero
    until then. A round of fewer than `LEAST` lessons changes nothing: a server could keep a single
    proxy to read what the network says about that one.
    """

    LEAST: ClassVar[int] = 32

    def __init__(self) -> None:
        self.value = 0.0
        """In [0, 1]."""
        self._said: IntArray | None = None

    def forget(self) -> None:
        """The round brought no ensemble to compare with."""
        self._said = None

    def said(self, predictions: FloatArray) -> None:
        """Keep what the network says about the round's proxies, [m, C]."""
        self._said = np.asarray(predictions.argmax(axis=1))

    def compare(self, ensemble: Ensemble) -> None:
        """Compare with the ensemble about the same proxies."""
        taught, said = ensemble.predictions.argmax(axis=1), self._said
        enough = ensemble.kept.sum() >= self.LEAST
        if said is not None and said.shape == taught.shape and enough:
            self.value = float((said == taught)[ensemble.kept].mean())
        self.forget()
