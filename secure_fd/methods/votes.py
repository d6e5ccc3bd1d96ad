"""Base class of methods that share predictions about public proxies, and their two roles.

A proxy sample's way through a round: the client's selector and network answer (`VoteClient`), the
privacy mechanism releases, the codec makes integers, the secure sum adds them, the server removes
the mechanism's bias and applies the method's rule (`VoteServer`), and every client distils.

Two sums about one proxy whose members differ by one client differ by that client's vote. Masks do
not help against it; a limit on how often a client answers does.
"""

import hashlib
import logging
import struct
from collections.abc import Generator, Sequence
from dataclasses import replace
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from secure_fd.data.federated import ClientData
from secure_fd.errors import ConfigurationError, LocalError, PeerError
from secure_fd.methods.base import Method, Own, Setting, levels
from secure_fd.methods.min_voters import Voters, check_min_voters
from secure_fd.methods.policies import CountedVotes, VotePolicy
from secure_fd.methods.registry import RECORD_UNIT_METHODS
from secure_fd.methods.survey import BOUND, Known, Survey
from secure_fd.methods.targets import AgreementTracker, DistillationTargets
from secure_fd.privacy.base import ClientMechanism
from secure_fd.privacy.guarantee import Guarantee
from secure_fd.protocol.messages import (
    ClientReport,
    ClientRole,
    ClientTurn,
    RoundAborted,
    ServerReport,
    ServerRole,
    ServerTurn,
    SumInput,
    SumRequest,
)
from secure_fd.protocol.transcript import (
    DistillationRound,
    ObservedSum,
    Transcript,
    VotersRound,
    uploads_of,
)
from secure_fd.training.trainer import Learner, predict
from secure_fd.votes.budget import units_of, within
from secure_fd.votes.codec import (
    Contribution,
    Ensemble,
    FloatArray,
    IntArray,
    KnowledgeCodec,
    Sums,
    UnitArray,
    answered,
    ensemble_message,
    ensemble_predictions,
    read_ensemble,
    spread,
)
from secure_fd.votes.draws import Draws
from secure_fd.votes.packing import Limits
from secure_fd.wire import Sum

_LOG = logging.getLogger("secure_fd")
_ANNOUNCEMENT = struct.Struct(">Q?32s")


class VotingMethod(Method):
    """Base class of methods whose clients share predictions about public proxy samples.

    By default every client answers every proxy, all answers weigh the same, and clients distil from
    their mean.

    >>> from secure_fd import FedMD
    >>> FedMD("hard").levels
    1
    """

    __slots__ = ()

    takes_labels: ClassVar[bool] = True
    needs_proxies: ClassVar[bool] = True
    local_steps_last: ClassVar[bool] = False
    """Whether clients take a round's local steps after the distillation."""
    class_balance: ClassVar[float] = 0.0
    """Exponent by which distillation prefers rare classes, see `DistillationTargets`."""
    budget: float | None = None
    """Most that a client's votes of a round may weigh, in times its equal share; None: no limit."""

    @property
    def levels(self) -> int:
        """Integer units in one whole vote."""
        return levels(self.labels)

    @property
    def survey_first(self) -> bool:
        """Whether a survey of known proxies comes before the first vote, see `methods.survey`."""
        return False

    def policy(self, client: ClientData, proxies: Tensor) -> VotePolicy:  # noqa: ARG002 - all answer
        """Return which proxies a client answers, and with what weight."""
        return CountedVotes(np.ones(len(proxies)))

    def ensemble(self, indices: IntArray, sums: Sums) -> Ensemble:
        """Return what the server sends back; by default the mean of the answers.

        Args:
            indices: [m] of the round's proxies.
            sums: count [m] and sum [m, C] of the votes.
        """
        return Ensemble(indices, ensemble_predictions(sums), sums.count > 0)

    def surveys(self, setting: Setting) -> bool:
        """Whether the survey is made: it is a release of every proxy, and leaves one for votes."""
        return self._wants_survey(setting) and setting.releases != 1

    def _wants_survey(self, setting: Setting) -> bool:
        """Nothing but the sum protects a survey, so no privacy mechanism may stand in its way."""
        return self.survey_first and setting.protection.is_identity

    def check(self, setting: Setting, models: Sequence[nn.Module]) -> None:  # noqa: ARG002 - any networks serve
        """Raise ConfigurationError where a round asks about more proxies than there are.

        Also where a privacy mechanism is for class sums: it covers no vote.
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
        if self._wants_survey(setting) and not self.surveys(setting):
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


class VoteTerms:
    """Values that client and server each compute locally, and never send to each other."""

    def __init__(self, method: VotingMethod, setting: Setting) -> None:
        n_proxies, wanted = len(setting.public_proxies()), setting.schedule.proxies_per_round
        self.method, self.setting = method, setting
        self.surveys = method.surveys(setting)
        before = int(self.surveys)
        self.draws = Draws(setting.seed, n_proxies, wanted, setting.releases, before)
        self.survey = Survey(n_proxies, setting.n_classes)
        self.codec = KnowledgeCodec(
            setting.n_classes, setting.protection.levels(method.levels)
        )  # a privacy mechanism may need other levels than the method
        self.surveyed = False
        """Whether a survey was made whose sum may have been opened."""
        self.survey_round = -1
        """The round of the survey, as long as its sum is open."""

    def limits(self, proxies: int) -> Limits:
        """Return the limits of one client's votes about so many proxies."""
        clients, classes = self.setting.n_clients, self.setting.n_classes
        most = units_of(self.method.budget, proxies, clients, self.codec.levels)
        return Limits(classes, most)

    def announcement(self, index: int, indices: IntArray, *, survey: bool) -> bytes:
        """Write the round, whether a survey comes first, and a digest of privacy and proxies."""
        terms = hashlib.sha256(self.setting.protection.terms).digest()
        about = hashlib.sha256(terms + indices.astype("<u4").tobytes()).digest()
        return _ANNOUNCEMENT.pack(index, survey, about)

    def begin_survey(self, index: int) -> None:
        """Note that the survey's sum begins."""
        self.surveyed, self.survey_round = True, index

    def refund(self, index: int) -> None:
        """Allow the round's proxies once more, and the survey if it was the round's open sum."""
        self.draws.refund(index)
        if index == self.survey_round:
            self.surveyed, self.survey_round = False, -1


class VoteClient(ClientRole):
    """Shares w_k(x) s_k(x) for the round's proxies, and distils from the ensemble."""

    def __init__(self, method: VotingMethod, setting: Setting, own: Own) -> None:
        self.learner: Learner = own.learner(setting.schedule)
        self._method, self._own = method, own
        self._proxies: Tensor = setting.public_proxies()
        self._terms = VoteTerms(method, setting)
        self.draws = self._terms.draws
        """The draws of its proxies."""
        remember = setting.schedule.remember
        self._targets = DistillationTargets(
            self._proxies, setting.n_classes, remember=remember, class_balance=method.class_balance
        )
        self._agreement = AgreementTracker()
        self._policy: VotePolicy | None = None
        self._guard: ClientMechanism | None = None
        self._units: UnitArray | None = None
        self._last_counted = -1
        """The newest round whose votes, or voters, it may have shared: they are shared once."""

    def begin(self) -> ClientTurn:
        """Take its part of the privacy mechanism, which may release at once; warm up alone."""
        self._guard = self._terms.setting.protection.client(self._own.number)
        yield from self.learner.warm_up()

    def round(self, subject: bytes) -> ClientTurn:
        """Answer, and distil from the ensemble; after a failed sum, take local steps only."""
        index, indices, survey = self._read(subject)
        if survey and self._terms.surveyed:
            raise PeerError("the server asks for a second survey")
        if index <= self._last_counted:
            raise PeerError(f"the server asks again for votes in round {index}")
        try:
            if survey:
                familiar = self.policy.familiar
                self._terms.begin_survey(index)
                yield SumInput(self._terms.survey.encode(familiar), BOUND)
                self._terms.survey_round = -1
            ensemble = yield from self._votes(index, indices)
        except RoundAborted:
            self._agreement.forget()
            yield from self.learner.local()
            return
        if not self._method.local_steps_last:
            yield from self.learner.local()
        self._agreement.compare(ensemble)
        yield from self.learner.distil(*self._targets.learn(ensemble))
        if self._method.local_steps_last:
            yield from self.learner.local()

    def missed(self, subject: bytes, message: bytes | None) -> None:
        """Keep an ensemble that came too late to learn from at once."""
        self._agreement.forget()
        index, indices, survey = self._read(subject)
        if message is not None:  # the sum has its result: it is not made a second time
            self._terms.survey_round = -1
            self._terms.surveyed = self._terms.surveyed or survey
        if message:  # the answer to a survey is empty
            self._terms.draws.settle(index)
            ensemble = self._late(message, indices)
            if ensemble is not None:
                self._targets.learn(ensemble)

    def unopened(self, subject: bytes) -> None:
        """Allow its proxies once more, and the survey if that was its sum."""
        self._terms.refund(_ANNOUNCEMENT.unpack(subject)[0])

    def memory(self) -> bytes:
        """Return whether the survey was answered, the targets, and the draws with their counts."""
        surveyed = bytes([self._terms.surveyed])
        return surveyed + self._targets.memory() + self._terms.draws.memory()

    def recall(self, memory: bytes) -> None:
        """Continue with these counts; LocalError for bytes that `memory` does not write."""
        rest = memory[1 + self._targets.recall(memory[1:]) :]
        self._terms.draws.recall(rest)
        self._last_counted = self._terms.draws.next_round - 1
        self._terms.surveyed = bool(memory[0])

    @property
    def policy(self) -> VotePolicy:
        """Which proxies this client answers; its selector is fitted at the first use."""
        if self._policy is None:
            self._policy = self._method.policy(self._own.data, self._proxies)
        return self._policy

    def policy_now(self, indices: IntArray) -> VotePolicy:  # noqa: ARG002 - it has one for all proxies
        """The policy for the proxies at these indices; a child class may decide in each round."""
        return self.policy

    def report(self) -> ClientReport:
        """Return its last votes."""
        return ClientReport(units=self._units)

    def guarantee(self) -> Guarantee | None:
        """Return the guarantee of its part of the privacy mechanism."""
        return None if self._guard is None else self._guard.guarantee()

    def scores(self) -> FloatArray | None:
        """Return the [P] scores of the selector, where one was fitted."""
        return None if self._policy is None else self._policy.scores

    def _read(self, announcement: bytes) -> tuple[int, IntArray, bool]:
        """Read a round, its proxies [m], which the client derives, and whether a survey is first.

        PeerError where the server names other ones, and for a survey that was not agreed.
        """
        if len(announcement) != _ANNOUNCEMENT.size:
            raise PeerError(f"an announcement has {len(announcement)} bytes")
        index, survey, _ = _ANNOUNCEMENT.unpack(announcement)
        if survey and not self._terms.surveys:
            raise PeerError(f"round {index} asks for a survey that was not agreed")
        if index > self._terms.draws.next_round:
            raise PeerError(f"round {index} leaves out round {self._terms.draws.next_round}")
        self.learner.round = max(index, self.learner.round)
        indices = self._terms.draws.of(index)
        if self._terms.announcement(index, indices, survey=survey) != announcement:
            raise PeerError(f"round {index} is about other proxies or terms than were agreed")
        return index, indices, survey

    def _votes(self, index: int, indices: IntArray) -> Generator[SumInput, bytes, Ensemble]:
        """Share the votes, after a sum of voters where that is agreed; return the ensemble."""
        codec, limits, members = self._terms.codec, self._terms.limits(len(indices)), 0
        guard, least = self._guard, self._method.min_voters
        if guard is None:
            raise LocalError("this client has not begun")
        place = self._own.number / self._terms.setting.n_clients
        encoded = codec.encode(guard.release(indices, self._answer))
        units = within(encoded, codec.n_classes, limits.budget, place)
        self._last_counted, self._units = index, None
        if least > 1:
            voting = answered(units, codec.n_classes, codec.levels)
            message = yield SumInput(voting.astype(np.uint64), BOUND, counted=True)
            self._terms.draws.settle(index)
            voters = Voters.read(message, len(indices), self._terms.setting.n_clients)
            voters.check(self._own.number, least)
            if not voters.asked.any():
                return Ensemble.without_answers(indices, codec.n_classes)
            members = len(voters.members)
            rows = units.reshape(-1, codec.n_classes) * voting[:, None]
            units = rows[voters.asked].reshape(-1)
        self._units = units
        shared = guard.perturb(units)
        message = yield SumInput(shared, codec.levels, limits, counted=True, members=members)
        self._terms.draws.settle(index)
        return read_ensemble(message, indices, codec)

    def _late(self, message: bytes, indices: IntArray) -> Ensemble | None:
        """Read the ensemble of a message; None where a sum of votes follows."""
        codec, clients = self._terms.codec, self._terms.setting.n_clients
        if self._method.min_voters == 1 or not Voters.is_message(message):
            return read_ensemble(message, indices, codec)
        if Voters.read(message, len(indices), clients).asked.any():
            return None
        return Ensemble.without_answers(indices, codec.n_classes)

    def _answer(self, indices: IntArray) -> Contribution:
        predictions = predict(self.learner.model, self._proxies[torch.from_numpy(indices)])
        self._agreement.predicted(predictions)
        # A guarantee for one answer does not hold if earlier answers steer it.
        trust = 0.0 if self._terms.setting.protection.accounts_per_answer else self._agreement.value
        policy = self.policy_now(indices)
        return policy.contribution(indices, predictions, self._method.labels, trust)


class VoteServer(ServerRole):
    """Asks for sums of votes, and applies the method's rule."""

    def __init__(self, method: VotingMethod, setting: Setting) -> None:
        self.ensemble: Ensemble | None = None
        """The newest one; None before any, and after an aborted round."""
        self.known: Known | None = None
        """The survey's result; None before it, and where none is made."""
        self._method, self._setting = method, setting
        self._terms = VoteTerms(method, setting)
        self._voters: Voters | None = None
        """The voters of the newest round, where they were counted."""
        self._sums: list[str] = []
        """Names of the newest round's sums, in order."""

    def report(self) -> ServerReport:
        """Return the share of the round's proxies that are kept, and the most releases of one."""
        kept = 0.0 if self.ensemble is None else float(self.ensemble.kept.mean())
        return ServerReport(kept, most_released=self._terms.draws.most_released)

    def round(self, index: int) -> ServerTurn:
        """Ask for votes, and return what the rule makes of their sum."""
        self.ensemble, self._voters, self._sums = None, None, []
        terms, codec, least = self._terms, self._terms.codec, self._method.min_voters
        indices, survey = terms.draws.of(index), terms.surveys and not terms.surveyed
        body = terms.announcement(index, indices, survey=survey)
        if survey:
            terms.begin_survey(index)
            self._sums.append("survey")
            got = yield SumRequest(body, terms.survey.length, BOUND)
            terms.survey_round = -1
            records = self._setting.records
            self.known, body = terms.survey.known(got.total, len(got.survivors), records), b""
        asked, members = np.ones(len(indices), dtype=np.bool_), 0
        if least > 1:
            self._sums.append("voters")
            got = yield SumRequest(body, len(indices), BOUND, counted=True)
            self._voters = Voters.of(got, least)
            asked, members = self._voters.asked, len(got.survivors)
            body = self._voters.message(self._setting.n_clients)
            if not asked.any():
                self.ensemble = Ensemble.without_answers(indices, codec.n_classes)
                return body
        length, limits = int(asked.sum()) * codec.n_classes, terms.limits(len(indices))
        self._sums.append("votes")
        got = yield SumRequest(body, length, codec.levels, limits, members, counted=True)
        self.ensemble = self._aggregated(indices[asked], got).among(indices, asked)
        total = spread(got.total.reshape(-1, codec.n_classes), asked).reshape(-1)
        return ensemble_message(self.ensemble, codec, total, len(got.survivors))

    def unopened(self, index: int) -> None:
        """Allow its proxies once more, and the survey if that was its sum."""
        self._terms.refund(index)

    def _aggregated(self, indices: IntArray, got: Sum) -> Ensemble:
        """Remove the mechanism's bias, apply the rule, and drop proxies that no client knows."""
        protection = self._setting.protection
        room, members = protection.noise_terms.room, got.survivors
        votes = self._terms.codec.decode(got.total, len(members), room)
        found = self.apply(indices, protection.debias(votes, members))
        if self.known is None:
            return found
        return replace(found, kept=found.kept & self.known.proxies[indices])

    def apply(self, indices: IntArray, sums: Sums) -> Ensemble:
        """Apply the method's rule; a child class may keep state beside it."""
        return self._method.ensemble(indices, sums)

    def record(self, index: int, seen: ObservedSum, transcript: Transcript) -> None:
        """Add one of the round's sums as the server saw it."""
        clients, total = self._setting.n_clients, seen.result.total
        asked = None if self._voters is None else self._voters.asked
        match self._sums[seen.position]:
            case "survey":
                self._terms.survey.record(index, seen, transcript)
            case "voters":
                uploads = uploads_of(seen, clients, BOUND, 0, len(total))
                about = self._terms.draws.of(index), uploads, total, seen.result.survivors
                transcript.voters.append(VotersRound(index, *about))
            case _ if self.ensemble is not None:
                ensemble = self.ensemble if asked is None else self.ensemble.at(asked)
                levels, room = self._terms.codec.levels, self._setting.protection.noise_terms.room
                transcript.distillation.append(
                    DistillationRound.of(index, seen, ensemble, levels, clients, room)
                )
