"""DaFKD (Wang et al., CVPR 2023), its discriminators kept at home (the supplement, section B).

A round is two sums. Clients train from the global network; each trains its discriminator and its
copy of the generator, and the sum of generators (section A) and of networks gives the mean of each.
Then everybody draws the same generated x from the joint seed, and client k shares f_k(x) s_k(x).
The class total of that product is f_k(x), so one vector carries both sums of equation 8; for the
same reason the supplement's way, f_k s_k in clear beside a protected sum of f_k, would give f_k
away. The server divides, and distils the global network from sum_k alpha_k(x) s_k(x).

Where the supplement is silent: the global network is distilled from the mean of the clients'
networks, as in FedDF (Lin et al., 2020), or goes on from the last round's; means of networks are
by records, and those of generators count every client the same, as equation 13 does.
"""

import struct
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import ClassVar, Final, Literal

import numpy as np
import torch
from torch import Tensor, nn

from secure_fd.adversarial import AdversarialSettings, Adversary, Generator
from secure_fd.data.images import Images
from secure_fd.errors import ConfigurationError, PeerError
from secure_fd.exchange import (
    Ask,
    ClientReport,
    ClientTurn,
    Seen,
    ServerReport,
    ServerTurn,
    Share,
    Void,
)
from secure_fd.knowledge import (
    SOFT_LEVELS,
    Contribution,
    Ensemble,
    FloatArray,
    KnowledgeCodec,
    Released,
    UnitArray,
    ensemble_predictions,
)
from secure_fd.methods.base import LearningHalf, Own, RecordingHalf, Setting
from secure_fd.methods.fedavg import (
    ParameterCodec,
    check_one_architecture,
    model_bytes,
    read_model,
)
from secure_fd.models import flatten, load_flat
from secure_fd.training import Steps, Trainer, predict
from secure_fd.transcript import (
    DistillationRound,
    Float32Array,
    ParameterRound,
    Transcript,
    uploads_of,
)

Weight = Literal["domain", "ratio", "uniform"]
_INDEX: Final = struct.Struct(">Q")


@dataclass(frozen=True, slots=True)
class DaFKD:
    """weight: w_k(x) of a client's prediction; alpha_k = w_k / sum_i w_i.

    "domain" is f_k, "ratio" is f_k / (1 - f_k), which is the density ratio p_k / p by Theorem 1,
    over K, its largest value; "uniform" is FedDF's. generated: x a round. steps: of the server's
    distillation a round. start: the network that it distils from.

    >>> DaFKD().name
    'DaFKD'
    """

    weight: Weight = "domain"
    generated: int = 1024
    steps: int = 50
    start: Literal["mean", "last"] = "mean"
    adversarial: AdversarialSettings = field(default_factory=AdversarialSettings)

    needs_proxies: ClassVar[bool] = False

    def __post_init__(self) -> None:
        for name, allowed in (
            ("weight", ("domain", "ratio", "uniform")),
            ("start", ("mean", "last")),
        ):
            if getattr(self, name) not in allowed:
                raise ConfigurationError(name, getattr(self, name), f"use {' or '.join(allowed)}")
        for name in ("generated", "steps"):
            if getattr(self, name) < 1:
                raise ConfigurationError(name, getattr(self, name), "use 1 or more")

    @property
    def name(self) -> str:
        """The name in the literature."""
        return "FedDF" if self.weight == "uniform" else "DaFKD"

    def check(self, setting: Setting, models: Sequence[nn.Module]) -> None:
        """Raise ConfigurationError for networks that differ, and for a protection of votes."""
        check_one_architecture(models)
        setting.check_no_protection()

    def client(self, setting: Setting, own: Own) -> "DaFKDClient":
        """The half of one client."""
        return DaFKDClient(_Terms(self, setting, own.model), own)

    def server(self, setting: Setting, initial: nn.Module) -> "DaFKDServer":
        """The server's half."""
        return DaFKDServer(_Terms(self, setting, initial), initial)


def feddf(**settings: object) -> DaFKD:
    """FedDF (Lin et al., 2020) on generated samples: every client's prediction weighs the same.

    >>> feddf().name
    'FedDF'
    """
    return DaFKD("uniform", **settings)  # type: ignore[arg-type]


class _Terms:
    """What both halves derive for themselves: codecs, the first generator, each round's x."""

    def __init__(self, method: DaFKD, setting: Setting, network: nn.Module) -> None:
        self.method, self.setting = method, setting
        self.first = Generator(setting.shape, setting.n_classes, method.adversarial, seed=0)
        largest = max(setting.records)
        self.networks = ParameterCodec(tuple(count / largest for count in setting.records))
        self.generators = ParameterCodec(tuple(1.0 for _ in setting.records))
        self.votes = KnowledgeCodec(setting.n_classes, SOFT_LEVELS)
        shared = len(flatten(network)) if method.start == "mean" else 0
        self.sizes = (shared, len(flatten(self.first)))
        """Parameters of the network, and of the generator, in the first sum."""

    @torch.no_grad()
    def generated(self, generator: Generator, index: int) -> Tensor:
        """[m, ...] of round `index`: alike for all who hold the same generator."""
        z, classes = generator.draw(self.method.generated, self.setting.seed, index)
        device = next(generator.parameters()).device
        made: Tensor = generator(z.to(device), classes.to(device))
        return made

    def decode(self, total: UnitArray, survivors: Sequence[int]) -> Float32Array:
        """[networks + generators] means, from the exact sum of the survivors' integers."""
        cut = self.sizes[0]
        network = self.networks.decode(total[:cut], survivors)
        generator = self.generators.decode(total[cut:], survivors)
        return np.concatenate([network, generator]).astype(np.float32)

    def decode_one(self, client: int, values: UnitArray) -> Float32Array:
        """[networks + generators] of one client, for whoever may read its upload."""
        cut = self.sizes[0]
        network = self.networks.decode_one(client, values[:cut])
        generator = self.generators.decode_one(client, values[cut:])
        return np.concatenate([network, generator])


class DaFKDClient(LearningHalf):
    """Trains network, discriminator and generator; shares parameters, then f_k(x) s_k(x)."""

    def __init__(self, terms: _Terms, own: Own) -> None:
        self.learner = own.learner(terms.setting.schedule)
        self._terms, self._own = terms, own
        self._generator = deepcopy(terms.first)
        self.adversary = Adversary(
            self._generator,
            own.model,
            own.data.train,
            terms.method.adversarial,
            own.seed,
            own.device,
        )
        self._network: Float32Array | None = None
        self._units: UnitArray | None = None

    def begin(self) -> ClientTurn:
        """Nothing: training starts from the server's network."""
        yield from ()

    def round(self, subject: bytes) -> ClientTurn:
        """Train, share parameters, then the weighted predictions on the round's generated x."""
        index, self._units = self._read(subject), None
        self._load()
        yield from self.learner.local(self._terms.setting.schedule.fedavg_steps)
        settings = self._terms.method.adversarial
        yield Steps(self.adversary, settings.steps, settings.rate)
        try:
            told = yield self._parameters()
            self._take_generator(told)
            told = yield self._votes(index)
            self._network = read_model(told, len(flatten(self._own.model)))
        except Void:
            pass
        self._load()

    def missed(self, subject: bytes, message: bytes | None) -> None:
        """Take over the generator or the network that was sent; their lengths differ."""
        self._read(subject)
        if message is not None and len(message) == 4 * self._terms.sizes[1]:
            self._take_generator(message)
        elif message is not None:
            self._network = read_model(message, len(flatten(self._own.model)))
        self._load()

    def report(self) -> ClientReport:
        """Its votes of the last round."""
        return ClientReport(units=self._units)

    def _read(self, subject: bytes) -> int:
        """The round; in the first one, the network that starts the run."""
        if len(subject) < _INDEX.size:
            raise PeerError(f"a round's subject of {len(subject)} bytes is too short")
        index = int(_INDEX.unpack_from(subject)[0])
        self.learner.round = index
        if len(subject) > _INDEX.size:
            self._network = read_model(subject[_INDEX.size :], len(flatten(self._own.model)))
        return index

    def _parameters(self) -> Share:
        """The first sum: the network where its mean is used, and the generator."""
        terms, own = self._terms, self._own
        parts = [terms.generators.encode(own.number, flatten(self._generator).cpu().numpy())]
        if terms.sizes[0]:
            network = flatten(own.model).cpu().numpy()
            parts.insert(0, terms.networks.encode(own.number, network))
        return Share(np.concatenate(parts), terms.networks.bound)

    def _votes(self, index: int) -> Share:
        """The second sum: w_k(x) s_k(x)."""
        x = self._terms.generated(self._generator, index)
        said = Contribution(self._weights(x), predict(self._own.model, x))
        self._units = self._terms.votes.encode(Released.of(said))
        return Share(self._units, self._terms.votes.levels)

    def _weights(self, x: Tensor) -> FloatArray:
        """[m] in [0, 1]."""
        f = np.asarray(self.adversary.weigh(x).double().cpu().numpy())
        match self._terms.method.weight:
            case "domain":
                return f
            case "ratio":
                most = self._terms.setting.n_clients
                return np.asarray(np.clip(f / np.maximum(1 - f, 1 / (1 + most)) / most, 0, 1))
            case _:
                return np.ones(len(x))

    def _take_generator(self, message: bytes) -> None:
        parameters = read_model(message, self._terms.sizes[1])
        load_flat(self._generator, torch.from_numpy(parameters).to(self._own.device))
        self.adversary.restart()

    def _load(self) -> None:
        if self._network is None:
            raise PeerError("no global network was sent")
        load_flat(self._own.model, torch.from_numpy(self._network).to(self._own.device))


class DaFKDServer(RecordingHalf):
    """Means of parameters, alpha-weighted predictions, and the distillation of equation 8."""

    def __init__(self, terms: _Terms, initial: nn.Module) -> None:
        self._terms, self._sent = terms, False
        self._network = deepcopy(initial)
        self._generator = deepcopy(terms.first).to(next(initial.parameters()).device)
        self._ensemble: Ensemble | None = None

    def round(self, index: int) -> ServerTurn:
        """Two sums: parameters, then weighted predictions on generated x; sends the network."""
        initial = b"" if self._sent else model_bytes(flatten(self._network).cpu().numpy())
        self._sent, self._ensemble, terms = True, None, self._terms
        got = yield Ask(_INDEX.pack(index) + initial, sum(terms.sizes), terms.networks.bound)
        self._take_means(got.total, got.survivors)
        votes = terms.votes
        length = terms.method.generated * votes.n_classes
        got = yield Ask(model_bytes(flatten(self._generator).cpu().numpy()), length, votes.levels)
        sums = votes.decode(got.total, len(got.survivors))
        x = terms.generated(self._generator, index)
        numbers = np.arange(len(x))
        self._ensemble = Ensemble(numbers, ensemble_predictions(sums), sums.count > 0)
        self._distil(x, self._ensemble, index)
        return model_bytes(flatten(self._network).cpu().numpy())

    def _take_means(self, total: UnitArray, survivors: Sequence[int]) -> None:
        terms = self._terms
        cut, device = terms.sizes[0], next(self._network.parameters()).device
        means = torch.from_numpy(terms.decode(total, survivors)).to(device)
        load_flat(self._generator, means[cut:])
        if cut:
            load_flat(self._network, means[:cut])

    def _distil(self, x: Tensor, ensemble: Ensemble, index: int) -> None:
        """Equation 8, by the schedule's steps and rate."""
        schedule, device = self._terms.setting.schedule, x.device
        kept = torch.from_numpy(ensemble.kept).to(device)
        targets = torch.from_numpy(ensemble.predictions).float().to(device)[kept]
        nothing = Images(x[:0], torch.zeros(0, dtype=torch.int64))
        apart = replace(schedule.sgd, own_batch=0)  # a server has no records
        trainer = Trainer(self._network, nothing, apart, index, device)
        trainer.learning_rate = schedule.rate(index)
        trainer.distillation_steps(x[kept], targets, self._terms.method.steps)

    def report(self) -> ServerReport:
        """The newest global network, and the share of generated x that taught it."""
        kept = None if self._ensemble is None else float(self._ensemble.kept.mean())
        return ServerReport(kept=kept, parameters=flatten(self._network).cpu().numpy())

    def record(self, index: int, seen: Seen, transcript: Transcript) -> None:
        """Add one of the two sums as the server saw it."""
        terms, total = self._terms, seen.result.total
        clients = terms.setting.n_clients
        if len(total) == sum(terms.sizes):
            # What one client sent, where the wire shows it, is a vector of parameters as FedAvg's.
            bound = terms.networks.bound
            read = uploads_of(seen, clients, bound, 0, len(total))
            uploads = None if read is None else {k: terms.decode_one(k, v) for k, v in read.items()}
            mean = terms.decode(total, seen.result.survivors)
            transcript.add_parameters(ParameterRound(index, uploads, seen.payloads, mean))
        elif self._ensemble is not None:
            transcript.distillation.append(
                DistillationRound.of(index, seen, self._ensemble, terms.votes.levels, clients)
            )
