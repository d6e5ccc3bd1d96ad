"""The round loop of federated distillation, in one process (Algorithm 1 of the paper).

A proxy sample's way through a round: the client's selector and network answer (`_answer`), the
protection releases (`Protection.release`), the codec makes integers, the secure sum adds them, the
protection debiases, the method's server rule makes the ensemble, and every client learns from it.
"""

import hashlib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from secure_fd.aggregation.base import SecureSum, Stage, SumResult, VoidRoundError
from secure_fd.aggregation.dropout import Dropouts
from secure_fd.aggregation.plain import sum_for
from secure_fd.config import Schedule
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
)
from secure_fd.memory import Memory
from secure_fd.messages import ensemble_bytes, proxy_bytes
from secure_fd.methods.base import Method, Opinion, levels
from secure_fd.protection.base import FromAnswers, NetworkFree, NoProtection, Protection
from secure_fd.proxy_choice import ProxyChoice
from secure_fd.round_report import RoundReport
from secure_fd.stopwatch import Stopwatch
from secure_fd.training import Trainer, accuracy, default_device, predict
from secure_fd.transcript import DistillationRound, Transcript, readable_uploads


@dataclass(frozen=True, slots=True)
class Participant:
    """What one client brings: a network of its own and its private records."""

    model: nn.Module
    data: ClientData


class Federation:
    """Clients that learn from each other's filtered predictions.

    proxies: public pixels [P, ...]. aggregation: how the server sums (in clear by default).
    protection: what stands before the wire (nothing by default). dropouts: simulated faults; a
    client that drops out is away for the rest of the round. releases_per_pair: how often a client
    answers one proxy in all; None: once a round. seed: of training, and of the proxies' draw where
    clients do not draw them together.
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
        seed: int = 0,
        device: torch.device | None = None,
    ) -> None:
        self._schedule = schedule or Schedule()
        self._n_classes = _check(participants, len(proxies), self._schedule)
        self._device = device or default_device()
        self._data = [p.data for p in participants]
        self._proxies = proxies.to(self._device)
        self._method = method
        self._sum = sum_for(len(participants), aggregation)
        self._protection = protection or NoProtection()
        self._protection.check_sum(self._sum)
        self._dropouts = dropouts or Dropouts(0.0, seed=0)
        wanted = self._schedule.proxies_per_round
        self._choice = ProxyChoice(self._sum, len(proxies), wanted, seed, releases_per_pair)
        self._trainers = [
            Trainer(p.model, p.data.train, self._schedule.sgd, seed * 1000 + k, self._device)
            for k, p in enumerate(participants)
        ]
        self._memory = Memory(
            self._proxies, self._n_classes, len(participants), remember=self._schedule.remember
        )
        self._opinions: dict[int, Opinion] = {}
        self._answered = np.zeros(2)
        self._indices = itertools.count()
        self._begun = False
        self.aggregation_time = Stopwatch()
        """Inside the secure sum, its set-up and its draws, of all its parties together."""
        self.transcript = Transcript(len(participants))

    @property
    def models(self) -> list[nn.Module]:
        """Every client's own network."""
        return [trainer.model for trainer in self._trainers]

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
        return [accuracy(trainer.model, held) for trainer in self._trainers]

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
        for trainer in self._trainers:
            trainer.local_steps(self._schedule.warmup_steps)
        records = [concatenate([d.train, d.validation]) for d in self._data]
        self._protection.prepare(self._proxies, self._n_classes, records)
        units = self._protection.levels(levels(self._method.labels))  # may hang on the classes held
        self._codec = KnowledgeCodec(self._n_classes, units)
        self.transcript.broadcast(proxy_bytes(self._proxies))
        self._begun = True

    @property
    def single_contributors(self) -> float:
        """Share of the answered proxies of all rounds that exactly one client answered.

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
        opinion = self._opinions.get(client)
        return None if opinion is None else opinion.scores

    def _round(self, index: int) -> RoundReport:
        with self.aggregation_time:  # the clients of some sums agree on keys before they draw
            chosen = self._choice.draw(index)
        dropouts = self._dropouts.plan(index, len(self._data))
        try:
            sent = self._share(index, chosen, dropouts)
        except VoidRoundError as ended:
            self.transcript.count_void(ended)
            self._train_locally(ended.missing)
            return self._report(index, ended.missing, None)
        present = self._train_locally(sent.missing)
        self._teach(sent.ensemble, present)
        return self._report(index, sent.missing, sent)

    def _share(self, index: int, chosen: IntArray, dropouts: Mapping[int, Stage]) -> "_Sent":
        """From answers to the ensemble: everything in a round that crosses the boundary."""
        released = {
            k: self._release(k, chosen)
            for k in range(len(self._data))
            if dropouts.get(k) is not Stage.PREPARE
        }
        vectors = {
            k: self._protection.perturb(k, self._codec.encode(given))
            for k, given in released.items()
        }
        result = self._add_up(index, chosen, vectors, dropouts)
        room = self._protection.noise_terms.room
        votes = self._codec.decode(result.total, len(result.survivors), room)
        sums = self._protection.debias(votes, result.survivors)
        ensemble = self._method.ensemble(chosen, sums)
        self.transcript.count(result)
        self.transcript.distillation.append(
            DistillationRound(
                index=index,
                proxy_indices=chosen,
                levels=self._codec.levels,
                uploads=readable_uploads(result, vectors),
                payloads=result.payloads,
                total=result.total,
                ensemble=ensemble,
                survivors=result.survivors,
            )
        )
        answered = sum((released[k].weights > 0).astype(np.int64) for k in result.survivors)
        return _Sent(ensemble, np.asarray(answered), result.survivors, result.missing)

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

    def _train_locally(self, missing: Mapping[int, Stage]) -> list[int]:
        """Local steps at every client that is there; returns who that is."""
        present = [k for k in range(len(self._trainers)) if k not in missing]
        for k in present:
            self._trainers[k].local_steps(self._schedule.local_steps)
        return present

    def _teach(self, ensemble: Ensemble, present: Sequence[int]) -> None:
        """Send the ensemble, and older ones to those that missed them; then they learn."""
        size = ensemble_bytes(ensemble, self._method.labels)
        self.transcript.send(present, self._memory.owe(size, present))
        pixels, targets = self._memory.learn(ensemble)
        for k in present:
            self._trainers[k].distillation_steps(pixels, targets, self._schedule.proxy_steps)

    def _answer(self, client: int, indices: IntArray) -> Contribution:
        predictions = predict(self.models[client], self._proxies[torch.from_numpy(indices)])
        return self.opinion(client).contribution(indices, predictions, self._method.labels)

    def _report(
        self, index: int, missing: Mapping[int, Stage], sent: "_Sent | None"
    ) -> RoundReport:
        answered = np.zeros(0, dtype=np.int64) if sent is None else sent.answered
        single, some = int((answered == 1).sum()), int((answered > 0).sum())
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
    """A round's ensemble, how many survivors answered each proxy [m], and who was missing."""

    ensemble: Ensemble
    answered: IntArray
    survivors: tuple[int, ...]
    missing: Mapping[int, Stage]


def _check(participants: Sequence[Participant], n_proxies: int, schedule: Schedule) -> int:
    """The number of classes that all participants agree on."""
    if len(participants) < 2:
        raise ConfigurationError("participants", len(participants), "use 2 or more")
    counts = {participant.data.n_classes for participant in participants}
    if len(counts) != 1:
        raise ConfigurationError("n_classes", sorted(counts), "all participants must agree")
    if not 1 <= schedule.proxies_per_round <= n_proxies:
        raise ConfigurationError(
            "proxies_per_round", schedule.proxies_per_round, f"there are {n_proxies} proxies"
        )
    return counts.pop()
