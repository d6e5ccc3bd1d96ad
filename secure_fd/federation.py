"""What one client brings to a federation."""

import hashlib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from secure_fd.aggregation.base import (
    Dropouts,
    SecureSum,
    Stage,
    SumResult,
    VoidRoundError,
    sum_for,
)
from secure_fd.data.federated import ClientData
from secure_fd.data.images import Images, concatenate
from secure_fd.errors import ConfigurationError, LocalError
from secure_fd.knowledge import (
    Contribution,
    Ensemble,
    FloatArray,
    IntArray,
    KnowledgeCodec,
    Released,
    UnitArray,
    contributors,
)
from secure_fd.messages import ensemble_bytes, proxy_bytes
from secure_fd.methods.base import ByNetwork, Method, Opinion
from secure_fd.protection.base import FromAnswers, NetworkFree, NoProtection, Protection
from secure_fd.recipes import Schedule
from secure_fd.rounds import Memory, ProxyChoice, Trust
from secure_fd.training import Learners, OnSteps, accuracy, default_device, predict
from secure_fd.transcript import DistillationRound, RoundReport, Stopwatch, Transcript


@dataclass(frozen=True, slots=True)
class Participant:
    """What one client brings: a network of its own and its private records."""

    model: nn.Module
    data: ClientData


def check_own_models(models: Sequence[nn.Module]) -> None:
    """Raise ConfigurationError where two clients were given one and the same network."""
    if len({id(model) for model in models}) != len(models):
        raise ConfigurationError("models", len(models), "give every client a network of its own")


def classes_of(participants: Sequence[Participant]) -> int:
    """The number of classes that all participants agree on.

    Raises ConfigurationError where they do not, are too few, or share a network.
    """
    if len(participants) < 2:
        raise ConfigurationError("participants", len(participants), "use 2 or more")
    check_own_models([participant.model for participant in participants])
    counts = {participant.data.n_classes for participant in participants}
    if len(counts) != 1:
        raise ConfigurationError("n_classes", sorted(counts), "all participants must agree")
    return counts.pop()


def check_proxies(n_proxies: int, schedule: Schedule) -> None:
    """Raise ConfigurationError where a round would ask about more proxies than there are."""
    if not 1 <= schedule.proxies_per_round <= n_proxies:
        raise ConfigurationError(
            "proxies_per_round", schedule.proxies_per_round, f"there are {n_proxies} proxies"
        )


# The round loop of federated distillation, in one process (Algorithm 1 of the paper).
#
# A proxy sample's way through a round: the client's selector and network answer (`_answer`), the
# protection releases (`Protection.release`), the codec makes integers, the secure sum adds them,
# the
# protection debiases, the method's server rule makes the ensemble, and every client learns from
# it.


class Federation:
    """Clients that learn from each other's filtered predictions.

    proxies: public pixels [P, ...]. aggregation: how the server sums (in clear by default).
    protection: what stands before the wire (nothing by default). dropouts: simulated faults; a
    client that drops out is away for the rest of the round. releases_per_pair: how often a client
    answers one proxy in all; None: once a round. proxies_bytes: of the images as they are sent,
    where clients see features of them. seed: of training, and of the proxies' draw where
    clients do not draw them together. on_steps: hears of training, within long rounds too.
    """

    def __init__(
        self,
        participants: Sequence[Participant],
        proxies: Tensor,
        method: Method,
        *,
        aggregation: SecureSum | None = None,
        protection: Protection | None = None,
        schedule: Schedule | None = None,
        dropouts: Dropouts | None = None,
        releases_per_pair: int | None = None,
        proxies_bytes: int | None = None,
        seed: int = 0,
        device: torch.device | None = None,
        on_steps: OnSteps | None = None,
    ) -> None:
        self._schedule = schedule or Schedule()
        self._n_classes = classes_of(participants)
        check_proxies(len(proxies), self._schedule)
        self._device = device or default_device()
        self._data = [p.data for p in participants]
        self._proxies = proxies.to(self._device)
        self._method = method
        self._sum = sum_for(len(participants), aggregation)
        self._protection = protection or NoProtection()
        self._protection.check_sum(self._sum)
        self._proxies_bytes = proxies_bytes
        self._dropouts = dropouts or Dropouts(0.0, seed=0)
        wanted = self._schedule.proxies_per_round
        self._choice = ProxyChoice(self._sum, len(proxies), wanted, seed, releases_per_pair)
        self._learners = Learners(
            [p.model for p in participants],
            [p.data.train for p in participants],
            self._schedule,
            seed,
            self._device,
            on_steps,
        )
        self._memory = Memory(
            self._proxies, self._n_classes, len(participants), remember=self._schedule.remember
        )
        self._opinions: dict[int, Opinion] = {}
        self._trust = Trust(len(participants))
        self._answered = np.zeros(2)
        self._indices = itertools.count()
        self._begun = False
        self.aggregation_time = Stopwatch()
        """Inside the secure sum, its set-up and its draws, of all its parties together."""
        self.transcript = Transcript(len(participants))

    @property
    def models(self) -> list[nn.Module]:
        """Every client's own network."""
        return self._learners.models

    @property
    def most_released(self) -> int:
        """The most often that any client was asked about any proxy."""
        return self._choice.most_released

    @property
    def protection(self) -> Protection:
        """What stands before the wire."""
        return self._protection

    def accuracies(self, test: Images) -> list[float]:
        """Every client's accuracy on images that no part of the run has seen."""
        held = test.to(self._device)
        return [accuracy(model, held) for model in self.models]

    def rounds(self, count: int) -> Iterator[RoundReport]:
        """Run rounds; each is reported when every client has learnt from it.

        The first call warms up and prepares the protection. A later one goes on where the last
        one ended: what was released stays released, and no round's number is used twice.
        """
        if not self._begun:
            self._begin()
        for _ in range(count):
            yield self._round(next(self._indices))

    def _begin(self) -> None:
        self._learners.warm_up()
        records = [concatenate([d.train, d.validation]) for d in self._data]
        self._protection.prepare(self._proxies, self._n_classes, records)
        units = self._protection.levels(self._method.levels)  # may hang on the classes held
        self._codec = KnowledgeCodec(self._n_classes, units)
        sent = self._proxies_bytes
        self.transcript.broadcast(proxy_bytes(self._proxies) if sent is None else sent)
        self._begun = True

    @property
    def single_contributors(self) -> float:
        """Share of the answered proxies of all rounds at which one client gives the count, nearly.

        No sum can hide such a client's answer, only whose it is. Known to nobody but the clients.
        """
        return float(self._answered[0] / max(1.0, self._answered[1]))

    def opinion(self, client: int) -> Opinion:
        """Where a client answers; its selector is fitted when it is first asked for."""
        if client not in self._opinions:
            data = self._data[client]
            made = self._method.opinion(data, self._proxies)
            self._opinions[client] = made
        return self._opinions[client]

    def selector_scores(self, client: int) -> FloatArray | None:
        """[P] the client selector's scores, for evaluation; None where no selector was asked."""
        if isinstance(self._method, ByNetwork):
            return self._method.scores(self.models[client], self._proxies)
        opinion = self._opinions.get(client)
        return None if opinion is None else opinion.scores

    def _opinion_now(self, client: int, indices: IntArray) -> Opinion:
        if isinstance(self._method, ByNetwork):
            data, network = self._data[client], self.models[client]
            return self._method.opinion_of_network(data, self._proxies, indices, network)
        return self.opinion(client)

    def _round(self, index: int) -> RoundReport:
        self._learners.begin_round(index)
        with self.aggregation_time:  # the clients of some sums agree on keys before they draw
            chosen = self._choice.draw(index)
        dropouts = self._dropouts.plan(index, len(self._data))
        try:
            sent = self._share(index, chosen, dropouts)
        except VoidRoundError as ended:
            self.transcript.count_void(ended)
            self._trust.forget()
            self._train_locally([k for k in range(len(self._data)) if k not in ended.missing])
            return self._report(index, ended.missing, None)
        present = [k for k in range(len(self._data)) if k not in sent.missing]
        if not self._method.revisits:
            self._train_locally(present)
        self._teach(sent.ensemble, present)
        if self._method.revisits:
            self._train_locally(present)
        return self._report(index, sent.missing, sent)

    def _share(self, index: int, chosen: IntArray, dropouts: Mapping[int, Stage]) -> "_Sent":
        """From answers to the ensemble: everything in a round that crosses the boundary."""
        released = {
            k: self._release(k, chosen)
            for k in range(len(self._data))
            if dropouts.get(k) is not Stage.PREPARE
        }
        units = {k: self._codec.encode(given) for k, given in released.items()}
        vectors = {k: self._protection.perturb(k, own) for k, own in units.items()}
        result = self._add_up(index, chosen, vectors, dropouts)
        room = self._protection.noise_terms.room
        votes = self._codec.decode(result.total, len(result.survivors), room)
        sums = self._protection.debias(votes, result.survivors)
        ensemble = self._method.ensemble(chosen, sums)
        self.transcript.count(result)
        self.transcript.distillation.append(
            DistillationRound.of(index, self._codec.levels, vectors, result, ensemble)
        )
        alone = contributors([units[k] for k in result.survivors], self._codec.n_classes)
        return _Sent(ensemble, alone, result.survivors, result.missing)

    def _release(self, client: int, chosen: IntArray) -> Released:
        """What a client lets go; a network-free protection gets no way to the network."""
        match self._protection:
            case NetworkFree() as heads:
                return heads.release(client, chosen)
            case FromAnswers() as answers:
                return answers.release(client, chosen, partial(self._answer, client))
            case unknown:
                raise LocalError(f"a {unknown.name} protection releases nothing")

    def _add_up(
        self,
        index: int,
        chosen: IntArray,
        vectors: Mapping[int, UnitArray],
        dropouts: Mapping[int, Stage],
    ) -> SumResult:
        terms = hashlib.sha256(self._protection.terms).digest()
        about = terms + chosen.astype("<u4").tobytes()
        subject = hashlib.sha256(about).digest()
        levels = self._codec.levels
        with self.aggregation_time:
            return self._sum.sum(
                index,
                vectors,
                levels,
                subject=subject,
                dropouts=dropouts,
                noise=self._protection.noise_terms,
            )

    def _train_locally(self, present: Sequence[int]) -> None:
        self._learners.local_steps(self._schedule.local_steps, present)

    def _teach(self, ensemble: Ensemble, present: Sequence[int]) -> None:
        """Send the ensemble, and older ones to those that missed them; then they learn."""
        size = ensemble_bytes(ensemble, self._method.labels)
        self.transcript.send(present, self._memory.owe(size, present))
        self._trust.heard(ensemble, present)
        pixels, targets = self._memory.learn(ensemble)
        self._learners.distillation_steps(pixels, targets, self._schedule.proxy_steps, present)

    def _answer(self, client: int, indices: IntArray) -> Contribution:
        predictions = predict(self.models[client], self._proxies[torch.from_numpy(indices)])
        self._trust.said(client, predictions)
        opinion, trust = self._opinion_now(client, indices), self._trust.of(client)
        if self._protection.answers_apart:
            trust = 0.0
        return opinion.contribution(indices, predictions, self._method.labels, trust)

    def _report(
        self, index: int, missing: Mapping[int, Stage], sent: "_Sent | None"
    ) -> RoundReport:
        single, some = (0, 0) if sent is None else sent.alone
        self._answered += (single, some)
        return RoundReport(
            index=index,
            kept=0.0 if sent is None else float(sent.ensemble.kept.mean()),
            single=single / max(1, some),
            bytes_up=float(self.transcript.up.mean()),
            bytes_down=float(self.transcript.down.mean()),
            survivors=() if sent is None else sent.survivors,
            missing=tuple(missing.items()),
        )


@dataclass(frozen=True, slots=True, eq=False)
class _Sent:
    """A round's ensemble, at how many proxies one survivor or more spoke, and who was missing."""

    ensemble: Ensemble
    alone: tuple[int, int]
    survivors: tuple[int, ...]
    missing: Mapping[int, Stage]
