"""The round loop of federated distillation, in one process (Algorithm 1 of the paper).

A proxy sample's way through a round: the client's selector and network answer (`_answer`), the
protection releases (`Protection.release`), the codec makes integers, the secure sum adds them, the
protection debiases, the method's server rule makes the ensemble, and every client learns from it.
"""

import hashlib
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from secure_fd.aggregation.base import SecureSum
from secure_fd.aggregation.plain import PlainSum
from secure_fd.config import Schedule
from secure_fd.data.federated import ClientData
from secure_fd.data.images import Images, concatenate
from secure_fd.errors import ConfigurationError
from secure_fd.knowledge import (
    Contribution,
    Ensemble,
    FloatArray,
    IntArray,
    KnowledgeCodec,
)
from secure_fd.messages import ensemble_bytes, proxy_bytes
from secure_fd.methods.base import Method, Opinion, levels
from secure_fd.protection.base import NoProtection, Protection
from secure_fd.training import Trainer, accuracy, default_device, predict
from secure_fd.transcript import DistillationRound, Transcript, readable_uploads


@dataclass(frozen=True, slots=True)
class Participant:
    """What one client brings: a network of its own and its private records."""

    model: nn.Module
    data: ClientData


@dataclass(frozen=True, slots=True)
class RoundReport:
    """One round in figures.

    kept: share of the round's proxies that teach. single: share of the answered proxies that
    exactly one client answered, whose released vote no sum can hide. bytes_up, bytes_down: mean
    over clients, from the start until now.
    """

    index: int
    kept: float
    single: float
    bytes_up: float
    bytes_down: float


class Federation:
    """Clients that learn from each other's filtered predictions.

    proxies: public pixels [P, ...]. aggregation: how the server sums (in clear by default).
    protection: what stands before the wire (nothing by default). seed: of training alone.
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
        seed: int = 0,
        device: torch.device | None = None,
    ) -> None:
        self._schedule = schedule or Schedule()
        self._n_classes = _check(participants, len(proxies), self._schedule)
        self._device = device or default_device()
        self._data = [p.data for p in participants]
        self._proxies = proxies.to(self._device)
        self._method = method
        self._sum = aggregation or PlainSum(len(participants))
        self._protection = protection or NoProtection()
        self._codec = KnowledgeCodec(
            self._n_classes, self._protection.levels(levels(method.labels))
        )
        self._rng = np.random.default_rng((seed, 1))
        self._trainers = [
            Trainer(p.model, p.data.train, self._schedule.sgd, seed * 1000 + k, self._device)
            for k, p in enumerate(participants)
        ]
        self._memory = _Memory(self._proxies, self._n_classes)
        self._opinions: dict[int, Opinion] = {}
        self._answered = np.zeros(2)
        self._indices = itertools.count()
        self._begun = False
        self.transcript = Transcript(len(participants))

    @property
    def models(self) -> list[nn.Module]:
        """Every client's own network."""
        return [trainer.model for trainer in self._trainers]

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
        chosen = self._rng.permutation(len(self._proxies))[: self._schedule.proxies_per_round]
        sent = self._share(index, np.sort(chosen))
        for trainer in self._trainers:
            trainer.local_steps(self._schedule.local_steps)
        pixels, targets = self._memory.learn(sent.ensemble, forget=not self._schedule.remember)
        for trainer in self._trainers:
            trainer.distillation_steps(pixels, targets, self._schedule.proxy_steps)
        return self._report(sent)

    def _share(self, index: int, chosen: IntArray) -> "_Sent":
        """From answers to the ensemble: everything in a round that crosses the boundary."""
        released = {
            k: self._protection.release(k, chosen, partial(self._answer, k))
            for k in range(len(self._data))
        }
        vectors = {k: self._codec.encode(given) for k, given in released.items()}
        subject = hashlib.sha256(chosen.astype("<u4").tobytes()).digest()
        result = self._sum.sum(index, vectors, self._codec.levels, subject=subject)
        sums = self._protection.debias(self._codec.decode(result.total))
        ensemble = self._method.ensemble(chosen, sums)
        self.transcript.count(result.traffic)
        self.transcript.broadcast(ensemble_bytes(ensemble, self._method.labels))
        self.transcript.distillation.append(
            DistillationRound(
                index=index,
                proxy_indices=chosen,
                levels=self._codec.levels,
                uploads=readable_uploads(result, vectors),
                payloads=result.payloads,
                total=result.total,
                ensemble=ensemble,
            )
        )
        answered = sum((given.weights > 0).astype(np.int64) for given in released.values())
        return _Sent(index, ensemble, np.asarray(answered))

    def _answer(self, client: int, indices: IntArray) -> Contribution:
        predictions = predict(self.models[client], self._proxies[torch.from_numpy(indices)])
        return self.opinion(client).contribution(indices, predictions, self._method.labels)

    def _report(self, sent: "_Sent") -> RoundReport:
        single, answered = (sent.answered == 1).sum(), max(1, int((sent.answered > 0).sum()))
        self._answered += (single, answered)
        return RoundReport(
            index=sent.index,
            kept=float(sent.ensemble.kept.mean()),
            single=float(single / answered),
            bytes_up=float(self.transcript.up.mean()),
            bytes_down=float(self.transcript.down.mean()),
        )


@dataclass(frozen=True, slots=True, eq=False)
class _Sent:
    """A round's ensemble and how many clients answered each of its proxies, [m]."""

    index: int
    ensemble: Ensemble
    answered: IntArray


class _Memory:
    """What every client was taught so far: the newest ensemble of each proxy."""

    def __init__(self, proxies: Tensor, n_classes: int) -> None:
        self._pixels = proxies
        self._targets = torch.zeros(len(proxies), n_classes, device=proxies.device)
        self._known = torch.zeros(len(proxies), dtype=torch.bool, device=proxies.device)

    def learn(self, ensemble: Ensemble, forget: bool) -> tuple[Tensor, Tensor]:
        """Pixels and targets to distil from, after this ensemble came in."""
        if forget:
            self._known[:] = False
        indices = torch.from_numpy(ensemble.indices).to(self._known.device)
        kept = torch.from_numpy(ensemble.kept).to(self._known.device)
        taught = torch.from_numpy(ensemble.predictions).float().to(self._known.device)
        self._known[indices] = kept
        self._targets[indices] = taught
        return self._pixels[self._known], self._targets[self._known]


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
