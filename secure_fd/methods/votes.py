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
from abc import ABC, abstractmethod
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from secure_fd.data.federated import ClientData
from secure_fd.errors import ConfigurationError, LocalError, PeerError
from secure_fd.methods.base import Labels, Method, Own, Setting
from secure_fd.methods.min_voters import Voters, check_min_voters
from secure_fd.methods.registry import RECORD_UNIT_METHODS
from secure_fd.methods.survey import BOUND, Survey
from secure_fd.privacy.base import ClientMechanism
from secure_fd.privacy.guarantee import Guarantee
from secure_fd.protocol.messages import (
    ClientRole,
    ClientTurn,
    RoundAborted,
    ServerRole,
    ServerTurn,
    SumInput,
    SumRequest,
)
from secure_fd.protocol.transcript import (
    ObservedRound,
    Transcript,
)
from secure_fd.selection.familiarity import KnownProxies
from secure_fd.training.trainer import Learner, predict
from secure_fd.votes.codec import (
    Contribution,
    Ensemble,
    FloatArray,
    IntArray,
    KnowledgeCodec,
    Sums,
    among,
    hard_or_soft,
)
from secure_fd.votes.draws import Draws
from secure_fd.votes.packing import Limits
from secure_fd.wire import Sum

_LOG = logging.getLogger("secure_fd")
_ANNOUNCEMENT = struct.Struct(">Q?32s")
LEAST_COMPARED: Final = 32
"""A server could keep a single proxy to read what the network predicts there."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class VotePolicy(ABC):
    """Possible answers of a client about every proxy sample, once its network was asked.

    Attributes:
        scores: [P], higher where the proxy is more like the client's records; None without a
            selector. For evaluation; they never leave the client.
        familiar: which proxies are like the client's records; None without such a selector.
    """

    scores: FloatArray | None = field(default=None, repr=False)
    familiar: KnownProxies | None = field(default=None, repr=False)

    @abstractmethod
    def contribution(
        self, indices: IntArray, predictions: FloatArray, labels: Labels, trust: float = 0.0
    ) -> Contribution:
        """Return the answer about some proxies.

        Args:
            indices: [m] of the proxies.
            predictions: [m, C], the network's softmax predictions there.
            labels: soft or hard.
            trust: in [0, 1], how often the network agreed with the last ensemble before it was
                trained on it.
        """


@dataclass(frozen=True, slots=True, eq=False)
class CountedVotes(VotePolicy):
    """Vote policy of the paper: the network's prediction, weighed by w_k for each proxy.

    Attributes:
        weights: [P] in [0, 1], w_k; 0 abstains.
        allowed: [P, C] the classes that the client may name there, or None for all.
    """

    weights: FloatArray = field(repr=False)
    allowed: NDArray[np.bool_] | None = field(default=None, repr=False)

    def contribution(
        self,
        indices: IntArray,
        predictions: FloatArray,
        labels: Labels,
        trust: float = 0.0,  # noqa: ARG002 - the network alone names a class
    ) -> Contribution:
        """Return the network's prediction among the allowed classes."""
        if self.allowed is not None:
            predictions = among(predictions, self.allowed[indices])
        return Contribution(self.weights[indices], hard_or_soft(predictions, labels))


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
    """True if clients take a round's local steps after the distillation."""
    class_balance: ClassVar[float] = 0.0
    """Exponent by which distillation prefers rare classes, see `DistillationTargets`."""
    budget: float | None = None
    """Most that a client's votes of a round may weigh, in times its equal share; None: no limit."""

    @property
    def survey_first(self) -> bool:
        """True if a survey of known proxies comes before the first vote, see `methods.survey`.

        It is a release of every proxy, and leaves one for votes. Nothing but the sum protects it,
        so none is made under a privacy mechanism.
        """
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
        return Ensemble(indices, sums.mean, sums.count > 0)

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
        if self.survey_first and setting.protection.is_identity and setting.releases == 1:
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
    """Public state of a voting method, which each party computes: draws, codec and survey."""

    checkpointed = ("draws", "surveyed", "survey_round")

    def __init__(self, method: VotingMethod, setting: Setting) -> None:
        n_proxies, self.method, self.setting = len(setting.public_proxies()), method, setting
        surveys = method.survey_first and setting.protection.is_identity and setting.releases != 1
        self.survey = Survey(n_proxies, setting.n_classes) if surveys else None
        self.draws = Draws(
            setting.seed,
            n_proxies,
            setting.schedule.proxies_per_round,
            setting.releases,
            before=int(surveys),
        )
        # A privacy mechanism may need other levels than the method.
        self.codec = KnowledgeCodec(setting.n_classes, setting.protection.levels(method.levels))
        self.surveyed = False
        """True if a survey was made whose sum may have been opened."""
        self.survey_round = -1
        """The round of the survey, as long as its sum is open."""

    def limits(self, proxies: int) -> Limits:
        """Return the limits of one client's votes about this number of proxies."""
        budget, clients = self.method.budget, self.setting.n_clients
        return Limits(self.codec.n_classes, self.codec.budget(budget, proxies, clients))

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


class DistillationTargets:
    """The newest ensemble of each proxy.

    Args:
        proxies: [P, ...], all of them.
        n_classes: of a prediction.
        remember: whether ensembles of earlier rounds are targets as well.
        class_balance: exponent b of a target's weight 1 / share^b, with the share of its class
            among all targets, so that rare classes are learnt too.
    """

    checkpointed = ("_targets", "_known")

    def __init__(
        self, proxies: Tensor, n_classes: int, *, remember: bool, class_balance: float = 0.0
    ) -> None:
        self._proxies, self._remember, self._balance = proxies, remember, class_balance
        self._targets = np.zeros((len(proxies), n_classes), dtype=np.float32)
        self._known = np.zeros(len(proxies), dtype=np.bool_)

    def learn(self, ensemble: Ensemble) -> tuple[Tensor, Tensor]:
        """Take an ensemble; return pixels [m, ...] and targets [m, C] to distil from."""
        if not self._remember:
            self._known[:] = False
        self._known[ensemble.indices] = ensemble.kept
        self._targets[ensemble.indices] = ensemble.predictions
        targets = torch.from_numpy(self._targets[self._known]).to(self._proxies.device)
        known = torch.from_numpy(self._known).to(targets.device)
        return self._proxies[known], self._weighed(targets)

    def memory(self) -> bytes:
        """Return the targets of all proxies, and which of them are in use."""
        return self._targets.tobytes() + self._known.tobytes()

    def recall(self, memory: bytes) -> int:
        """Continue from what `memory` returned; the bytes read. LocalError for too few."""
        cut, end = self._targets.nbytes, self._targets.nbytes + self._known.nbytes
        if len(memory) < end:
            raise LocalError(f"targets of {len(self._known)} proxies have {end} bytes")
        self._targets[:] = np.frombuffer(memory[:cut], "<f4").reshape(self._targets.shape)
        self._known[:] = np.frombuffer(memory[cut:end], np.bool_)
        return end

    def _weighed(self, targets: Tensor) -> Tensor:
        """Targets [m, C] times a weight of mean one: the loss is linear in them."""
        if not self._balance or not len(targets):
            return targets
        named = targets.argmax(dim=1)
        weights = torch.bincount(named, minlength=targets.shape[1]).float()[named] ** -self._balance
        return targets * (weights / weights.mean())[:, None]


def agreement(named: IntArray | None, ensemble: Ensemble) -> float | None:
    """Return how often a network named the class of an ensemble before it was trained on it.

    Args:
        named: [m] classes that the network named at the ensemble's proxies; None if it was not
            asked.
        ensemble: the one that the client received.

    Returns:
        A share in [0, 1]; None where fewer than `LEAST_COMPARED` proxies are kept.
    """
    if named is None or ensemble.kept.sum() < LEAST_COMPARED:
        return None
    return float((ensemble.predictions.argmax(axis=1) == named)[ensemble.kept].mean())


class VoteClient(ClientRole):
    """Shares w_k(x) s_k(x) for the round's proxies, and distils from the ensemble."""

    def __init__(self, method: VotingMethod, setting: Setting, own: Own) -> None:
        self.learner: Learner = own.learner(setting.schedule)
        self.terms = VoteTerms(method, setting)
        self._own, self._proxies = own, setting.public_proxies()
        remember, balance = setting.schedule.remember, method.class_balance
        self._targets = DistillationTargets(
            self._proxies, setting.n_classes, remember=remember, class_balance=balance
        )
        self._agreement = 0.0
        """The newest `agreement` of its network with an ensemble."""
        self._named: IntArray | None = None
        self._policy: VotePolicy | None = None
        self._mechanism: ClientMechanism | None = None
        self.answered: Contribution | None = None
        """Its last answer before any noise. For evaluation."""
        self._last_counted = -1
        """The newest round whose votes, or voters, it may have shared: they are shared once."""

    def begin(self) -> ClientTurn:
        """Take its part of the privacy mechanism, which may release at once; warm up alone."""
        self._mechanism = self.terms.setting.protection.client(self._own.number)
        yield from super().begin()

    def round(self, announcement: bytes) -> ClientTurn:
        """Answer, and distil from the ensemble; after a failed sum, take local steps only."""
        index, indices, survey = self._read(announcement)
        if survey is not None and self.terms.surveyed:
            raise PeerError("the server asks for a second survey")
        if index <= self._last_counted:
            raise PeerError(f"the server asks again for votes in round {index}")
        self._named = None
        try:
            if survey is not None:
                familiar = self.policy.familiar
                self.terms.begin_survey(index)
                yield SumInput(survey.encode(familiar), BOUND, title="survey")
                self.terms.survey_round = -1
            ensemble = yield from self._votes(index, indices)
        except RoundAborted:
            yield from self.learner.local()
            return
        found, local_last = agreement(self._named, ensemble), self.terms.method.local_steps_last
        self._agreement = self._agreement if found is None else found
        if not local_last:
            yield from self.learner.local()
        yield from self.learner.distil(*self._targets.learn(ensemble))
        if local_last:
            yield from self.learner.local()

    def missed(self, announcement: bytes, message: bytes | None) -> None:
        """Keep an ensemble that came too late to learn from at once."""
        index, indices, survey = self._read(announcement)
        if message is not None:  # the sum has its result: it is not made a second time
            self.terms.survey_round = -1
            self.terms.surveyed = self.terms.surveyed or survey is not None
        if message:  # the answer to a survey is empty
            self.terms.draws.settle(index)
            ensemble = self._late(message, indices)
            if ensemble is not None:
                self._targets.learn(ensemble)

    def unopened(self, announcement: bytes) -> None:
        """Allow its proxies once more, and the survey if that was its sum."""
        self.terms.refund(_ANNOUNCEMENT.unpack(announcement)[0])

    def memory(self) -> bytes:
        """Return whether the survey was answered, the targets, and the draws with their counts."""
        return bytes([self.terms.surveyed]) + self._targets.memory() + self.terms.draws.memory()

    def recall(self, memory: bytes) -> None:
        """Continue with these counts; LocalError for bytes that `memory` does not write."""
        rest = memory[1 + self._targets.recall(memory[1:]) :]
        self.terms.draws.recall(rest)
        self._last_counted = self.terms.draws.next_round - 1
        self.terms.surveyed = bool(memory[0])

    @property
    def policy(self) -> VotePolicy:
        """The client's answer for every proxy; its selector is fitted at the first use."""
        if self._policy is None:
            self._policy = self.terms.method.policy(self._own.data, self._proxies)
        return self._policy

    def guarantee(self) -> Guarantee | None:
        """Return the guarantee of its part of the privacy mechanism."""
        return None if self._mechanism is None else self._mechanism.guarantee()

    def scores(self) -> FloatArray | None:
        """Return the [P] scores of the selector, where one was fitted."""
        return None if self._policy is None else self._policy.scores

    def _read(self, announcement: bytes) -> tuple[int, IntArray, Survey | None]:
        """Read a round, its proxies [m], which the client derives, and the survey that is first.

        PeerError where the server names other ones, and for a survey that was not agreed.
        """
        if len(announcement) != _ANNOUNCEMENT.size:
            raise PeerError(f"an announcement has {len(announcement)} bytes")
        index, survey, _ = _ANNOUNCEMENT.unpack(announcement)
        if survey and self.terms.survey is None:
            raise PeerError(f"round {index} asks for a survey that was not agreed")
        if index > self.terms.draws.next_round:
            raise PeerError(f"round {index} leaves out round {self.terms.draws.next_round}")
        self.learner.round = max(index, self.learner.round)
        indices = self.terms.draws.of(index)
        if self.terms.announcement(index, indices, survey=survey) != announcement:
            raise PeerError(f"round {index} is about other proxies or terms than were agreed")
        return index, indices, self.terms.survey if survey else None

    def _votes(self, index: int, indices: IntArray) -> Generator[SumInput, bytes, Ensemble]:
        """Share the votes, after a sum of voters where that is agreed; return the ensemble."""
        codec, limits, members = self.terms.codec, self.terms.limits(len(indices)), 0
        least, clients = self.terms.method.min_voters, self.terms.setting.n_clients
        mechanism = self._mechanism
        if mechanism is None:
            raise LocalError("this client has not begun")
        encoded = codec.encode(mechanism.release(indices, self._answer))
        units = codec.within(encoded, limits.budget, self._own.number / clients)
        self._last_counted, self.units = index, None
        if least > 1:
            voting = codec.answered(units)
            message = yield SumInput(voting.astype(np.uint64), BOUND, counted=True, title="voters")
            self.terms.draws.settle(index)
            voters = Voters.read(message, len(indices), clients)
            voters.check(self._own.number, least)
            if not voters.asked.any():
                return Ensemble.without_answers(indices, codec.n_classes)
            members = len(voters.members)
            rows = units.reshape(-1, codec.n_classes) * voting[:, None]
            units = rows[voters.asked].reshape(-1)
        self.units = units
        shared = mechanism.perturb(units)
        message = yield SumInput(shared, codec.levels, limits, counted=True, members=members)
        self.terms.draws.settle(index)
        return codec.read(message, indices)

    def _late(self, message: bytes, indices: IntArray) -> Ensemble | None:
        """Read the ensemble of a message; None where a sum of votes follows."""
        codec, clients = self.terms.codec, self.terms.setting.n_clients
        if self.terms.method.min_voters == 1 or not Voters.is_message(message):
            return codec.read(message, indices)
        if Voters.read(message, len(indices), clients).asked.any():
            return None
        return Ensemble.without_answers(indices, codec.n_classes)

    def _answer(self, indices: IntArray) -> Contribution:
        predictions = predict(self.learner.model, self._proxies[torch.from_numpy(indices)])
        self._named = np.asarray(predictions.argmax(axis=1))
        # A guarantee for one answer does not hold if earlier answers steer it.
        trust = 0.0 if self.terms.setting.protection.accounts_per_answer else self._agreement
        labels = self.terms.method.labels
        self.answered = self.policy.contribution(indices, predictions, labels, trust)
        return self.answered


class VoteServer(ServerRole):
    """Asks for sums of votes, and applies the method's rule."""

    checkpointed: ClassVar[tuple[str, ...]] = ("ensemble", "known", "terms")

    def __init__(self, method: VotingMethod, setting: Setting) -> None:
        self.ensemble: Ensemble | None = None
        """The newest one, of the proxies that were asked about; None after an aborted round."""
        self.known: NDArray[np.bool_] | None = None
        """[P] proxies that at least one client knows; None before the survey and without one."""
        self.terms = VoteTerms(method, setting)
        self._sums: list[str] = []
        """Names of the newest round's sums, in order."""

    def round(self, index: int) -> ServerTurn:
        """Ask for votes, and return what the rule makes of their sum."""
        self.ensemble, self.kept, self._sums = None, 0.0, []
        terms, codec, least = self.terms, self.terms.codec, self.terms.method.min_voters
        indices = terms.draws.of(index)
        survey = None if terms.surveyed else terms.survey
        body = terms.announcement(index, indices, survey=survey is not None)
        if survey is not None:
            terms.begin_survey(index)
            self._sums.append("survey")
            got = yield SumRequest(body, survey.length, BOUND)
            terms.survey_round = -1
            records = terms.setting.records
            self.known, body = survey.known(got.total, len(got.survivors), records), b""
        asked, members, limits = indices, 0, terms.limits(len(indices))
        if least > 1:
            self._sums.append("voters")
            got = yield SumRequest(body, len(indices), BOUND, counted=True)
            voters = Voters.of(got, least)
            asked, members = indices[voters.asked], len(got.survivors)
            body = voters.message(terms.setting.n_clients)
            if not len(asked):
                return body
        self._sums.append("votes")
        length = len(asked) * codec.n_classes
        got = yield SumRequest(body, length, codec.levels, limits, members, counted=True)
        self.ensemble = found = self._aggregated(asked, got)
        self.kept = float(found.kept.sum() / len(indices))
        return codec.write(found, indices, got.total, len(got.survivors))

    def unopened(self, index: int) -> None:
        """Allow its proxies once more, and the survey if that was its sum."""
        self.terms.refund(index)

    def most_released(self) -> int:
        """Return the most often that clients were asked about any proxy."""
        return self.terms.draws.most_released

    def _aggregated(self, indices: IntArray, got: Sum) -> Ensemble:
        """Remove the mechanism's bias, apply the rule, and drop proxies that no client knows."""
        protection, members = self.terms.setting.protection, got.survivors
        votes = self.terms.codec.decode(got.total, len(members), protection.noise_terms.room)
        found = self.apply(indices, protection.debias(votes, members))
        if self.known is None:
            return found
        return replace(found, kept=found.kept & self.known[indices])

    def apply(self, indices: IntArray, sums: Sums) -> Ensemble:
        """Apply the method's rule; a child class may keep state beside it."""
        return self.terms.method.ensemble(indices, sums)

    def record(self, seen: ObservedRound[None], transcript: Transcript) -> None:
        """Add one of the round's sums as the server saw it."""
        match self._sums[seen.position]:
            case "survey":
                transcript.survey = seen
            case "voters":
                transcript.voters.append(seen.giving(self.terms.draws.of(seen.index)))
            case _ if self.ensemble is not None:
                transcript.distillation.append(seen.giving(self.ensemble))
