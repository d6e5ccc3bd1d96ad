"""DaFKD (Wang et al., CVPR 2023), its discriminators kept at home (the supplement, section B).

A round: clients train from the global network; then each trains its discriminator and its copy of
the generator, and sums of generators give the mean that all go on from (section A), so many times.
The last of these sums holds the networks too. Then everybody draws the same generated x from the
joint seed, and client k shares f_k(x) s_k(x). The class total of that product is f_k(x), so one
vector carries both sums of equation 8; for the same reason the supplement's way, f_k s_k in clear
beside a protected sum of f_k, would give f_k away. The server divides, and distils the global
network from sum_k alpha_k(x) s_k(x).

Records that are features of a public map make the feature generator of Fig. 7: it makes feature
maps, never images.

Where the supplement is silent: the global network is distilled from the mean of the clients'
networks, as in FedDF (Lin et al., 2020); means of networks are by records, and those of generators
count every client the same, as equation 13 does. The distilled x are of a running mean of these
means, as generators that chase discriminators swing.
"""

import os
import struct
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import ClassVar, Final, Literal, Self, get_args

import numpy as np
import torch
from torch import Tensor, nn

from secure_fd.data.federated import ClientData
from secure_fd.data.images import Images
from secure_fd.errors import ConfigurationError, PeerError
from secure_fd.methods.adversarial import AdversarialSettings, Adversary, Generator
from secure_fd.methods.base import Method, Own, Setting
from secure_fd.methods.fedavg import (
    ParameterCodec,
    check_one_architecture,
    model_bytes,
    read_model,
)
from secure_fd.privacy.dp_sgd import PrivateBudget, PrivateSGD
from secure_fd.privacy.guarantee import Guarantee
from secure_fd.privacy.ledger import BudgetLedger, ledger_of
from secure_fd.privacy.samplers import Random
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
from secure_fd.protocol.transcript import (
    DistillationRound,
    Float32Array,
    GeneratorRound,
    ParameterRound,
    Transcript,
    uploads_of,
)
from secure_fd.secure_sum.recorded import Seen
from secure_fd.selection.selectors import ClientSelector
from secure_fd.training.dp_sgd import PrivateTrainer
from secure_fd.training.models import flatten, load_flat
from secure_fd.training.recipes import Recipe, Schedule, few_rounds
from secure_fd.training.trainer import Learner, Steps, Trainer, predict
from secure_fd.votes.codec import (
    SOFT_LEVELS,
    Contribution,
    Ensemble,
    FloatArray,
    KnowledgeCodec,
    Released,
    UnitArray,
    ensemble_predictions,
)
from secure_fd.wire import Sum

Weight = Literal["domain", "ratio", "uniform"]
_INDEX: Final = struct.Struct(">Q")
_INERTIA: Final = 0.9
"""A sum counts this much less than the next in the generator that makes the distilled x."""


@dataclass(frozen=True, slots=True)
class DaFKD(Method):
    """weight: w_k(x) of a client's prediction; alpha_k = w_k / sum_i w_i.

    "domain" is f_k, "ratio" is f_k / (1 - f_k), which is the density ratio p_k / p by Theorem 1,
    over K, its largest value; "uniform" is FedDF's. generated: x a round. steps: of the server's
    distillation a round. private: DP-SGD of classifier
    and discriminator, whose steps are those of both in the whole run; all that is shared is
    computed from these two, and covered with them. ledgers: by client, the budget of its data set,
    which books DP-SGD's steps before it draws; BudgetError beyond its total. selector: a client
    selector fitted on public proxies, whose density ratio r weighs instead of the discriminators:
    f = r / (1 + r). random: source of DP-SGD's batches and noise.

    >>> DaFKD().name
    'DaFKD'
    """

    title: ClassVar[str] = "DaFKD"
    shares_parameters: ClassVar[bool] = True

    weight: Weight = "domain"
    generated: int = 4096
    steps: int = 500
    adversarial: AdversarialSettings = field(default_factory=AdversarialSettings)
    private: PrivateSGD | None = None
    ledgers: Mapping[int, BudgetLedger] | None = field(default=None, repr=False, compare=False)
    selector: ClientSelector | None = None
    random: Random = field(default=os.urandom, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.weight not in get_args(Weight):
            raise ConfigurationError("weight", self.weight, f"use {' or '.join(get_args(Weight))}")
        for name in ("generated", "steps"):
            if getattr(self, name) < 1:
                raise ConfigurationError(name, getattr(self, name), "use 1 or more")

        if self.selector is not None and self.private is not None:
            raise ConfigurationError("selector", "set", "it reads records apart from DP-SGD")

    @property
    def needs_proxies(self) -> bool:
        """For a selector alone."""
        return self.selector is not None

    @property
    def name(self) -> str:
        """The name in the literature."""
        return "FedDF" if self.weight == "uniform" else self.title

    def recipe(
        self,
        n_classes: int,  # noqa: ARG002 - it has no proxies
        n_proxies: int,  # noqa: ARG002
        held: float,  # noqa: ARG002
        image_set: str = "",  # noqa: ARG002
    ) -> Recipe:
        """Return few rounds of many local steps."""
        return few_rounds()

    def private_steps(self, schedule: Schedule) -> int:
        """Gradient steps on a client's records in one round, classifier's and discriminator's.

        >>> DaFKD().private_steps(Schedule(local_steps=200, proxy_steps=0))
        600
        """
        return schedule.fedavg_steps + self.adversarial.sums * self.adversarial.steps

    def trained_privately(
        self,
        epsilon: float,
        delta: float,
        rounds: int,
        schedule: Schedule,
        ledgers: Mapping[int, BudgetLedger] | None = None,
    ) -> Self:
        """The same method, classifier and discriminator by DP-SGD for so many rounds."""
        steps = rounds * self.private_steps(schedule)
        return replace(self, private=PrivateSGD(epsilon, delta, steps), ledgers=ledgers)

    def check(self, setting: Setting, models: Sequence[nn.Module]) -> None:
        """Raise ConfigurationError for networks that differ, and for a protection of votes."""
        check_one_architecture(models)
        setting.check_no_protection()
        if self.private is not None:
            setting.check_plain_steps("private")

    def client(self, setting: Setting, own: Own) -> "DaFKDClient":
        """The half of one client."""
        return DaFKDClient(_Terms(self, setting, own.model), own)

    def server(self, setting: Setting, initial: nn.Module) -> "DaFKDServer":
        """The server's half."""
        return DaFKDServer(_Terms(self, setting, initial), initial)


@dataclass(frozen=True, slots=True)
class FedDF(DaFKD):
    """FedDF (Lin et al., 2020) on generated samples: every client's prediction weighs the same.

    >>> FedDF().name
    'FedDF'
    """

    weight: Weight = "uniform"


_GENERATOR, _ASKED, _NETWORK = b"g", b"v", b"n"
"""What a message of the server holds: a mean generator; that, and the one that makes the round's
x; the global network."""


class _Terms:
    """What both halves derive for themselves: codecs, the first generator, each round's x."""

    def __init__(self, method: DaFKD, setting: Setting, network: nn.Module) -> None:
        self.method, self.setting = method, setting
        self.first = Generator(setting.shape, setting.n_classes, method.adversarial, seed=0)
        self.networks = ParameterCodec.by_records(setting.records)
        self.generators = ParameterCodec(tuple(1.0 for _ in setting.records))
        self.votes = KnowledgeCodec(setting.n_classes, SOFT_LEVELS)
        self.network, self.generator = len(flatten(network)), len(flatten(self.first))
        """Parameters of each."""

    def shared(self, exchange: int) -> tuple[int, int]:
        """Parameters of the generator and of the network in one sum of a round."""
        last = exchange == self.method.adversarial.sums - 1
        return self.generator, self.network if last else 0

    @torch.no_grad()
    def generated(self, generator: Generator, index: int) -> Tensor:
        """[m, ...] of round `index`: alike for all who hold the same generator."""
        z, classes = generator.draw(self.method.generated, self.setting.seed, index)
        device = next(generator.parameters()).device
        made: Tensor = generator(z.to(device), classes.to(device))
        return made


class DaFKDClient(ClientRole):
    """Trains network, discriminator and generator; shares parameters, then f_k(x) s_k(x)."""

    def __init__(self, terms: _Terms, own: Own) -> None:
        self._terms, self._own = terms, own
        self._generator, self._makes = deepcopy(terms.first), deepcopy(terms.first).to(own.device)
        train, private = own.data.train, terms.method.private
        ledger, budget = ledger_of(terms.method.ledgers, own.number), None
        if private is not None:
            budget = PrivateBudget(private, len(train), terms.method.random, ledger)
        trainer = None if budget is None else PrivateTrainer(own.model, train, budget, own.device)
        schedule = terms.setting.schedule
        self.learner = Learner(own.model, train, schedule, own.seed, own.device, trainer)
        self.adversary = Adversary(
            self._generator,
            own.model,
            train,
            terms.method.adversarial,
            own.seed,
            own.device,
            budget,
        )
        self._budget, self._judge = budget, self._judge_of(own.data)
        self._network: Float32Array | None = None
        self._units: UnitArray | None = None

    def _judge_of(self, data: ClientData) -> Callable[[Tensor], FloatArray]:
        """f_k of x [m, ...]: the discriminator's, or the selector's."""
        if self._terms.method.selector is None:
            return lambda x: np.asarray(self.adversary.weigh(x).double().cpu().numpy())
        fitted = self._terms.method.selector.fit(data, self._terms.setting.public_proxies())

        def by_ratio(x: Tensor) -> FloatArray:
            ratio = np.maximum(fitted.predict(x).ratios.sum(axis=1), 0.0)
            return np.asarray(ratio / (1.0 + ratio))

        return by_ratio

    def begin(self) -> ClientTurn:
        """Nothing: training starts from the server's network."""
        yield from ()

    def round(self, subject: bytes) -> ClientTurn:
        """Train, share parameters, then the weighted predictions on the round's generated x."""
        index, self._units = self._read(subject), None
        self._load()
        yield from self.learner.local(self._terms.setting.schedule.fedavg_steps)
        settings = self._terms.method.adversarial
        try:
            for exchange in range(settings.sums):
                yield Steps(self.adversary, settings.steps, self.adversary.learning_rate)
                self._take((yield self._parameters(exchange)))
            self._take((yield self._votes(index)))
        except Void:
            pass
        self._load()

    def missed(self, subject: bytes, message: bytes | None) -> None:
        """Take over what was sent."""
        self._read(subject)
        if message is not None:
            self._take(message)
        self._load()

    def memory(self) -> bytes:
        """Both generators, and the newest global network where there is one."""
        network = b"" if self._network is None else model_bytes(self._network)
        return _bytes(self._generator) + _bytes(self._makes) + network

    def recall(self, memory: bytes) -> None:
        """Take them over; PeerError for another form."""
        cut, terms = 8 * self._terms.generator, self._terms
        self._take(_ASKED + memory[:cut])
        self._network = read_model(memory[cut:], terms.network) if memory[cut:] else None

    def report(self) -> ClientReport:
        """Its votes of the last round."""
        return ClientReport(units=self._units)

    def guarantee(self) -> Guarantee | None:
        """Of DP-SGD, where it is on."""
        return None if self._budget is None else self._budget.guarantee()

    def _read(self, subject: bytes) -> int:
        """The round; in the first one, the network that starts the run."""
        if len(subject) < _INDEX.size:
            raise PeerError(f"a round's subject of {len(subject)} bytes is too short")
        index = int(_INDEX.unpack_from(subject)[0])
        self.learner.round = index
        if len(subject) > _INDEX.size:
            self._take(subject[_INDEX.size :])
        return index

    def _take(self, message: bytes) -> None:
        """Take over generators or the network. Raises PeerError for what is neither."""
        kind, body, terms = message[:1], message[1:], self._terms
        if kind == _NETWORK:
            self._network = read_model(body, terms.network)
        elif kind == _GENERATOR:
            _fill(self._generator, read_model(body, terms.generator))
        elif kind == _ASKED:
            both = read_model(body, 2 * terms.generator)
            _fill(self._generator, both[: terms.generator])
            _fill(self._makes, both[terms.generator :])
        else:
            raise PeerError("a message holds neither a network nor a generator")

    def _parameters(self, exchange: int) -> Share:
        """The generator, and in a round's last sum of generators the network."""
        terms, own = self._terms, self._own
        parts = [terms.generators.encode(own.number, flatten(self._generator).cpu().numpy())]
        if terms.shared(exchange)[1]:
            parts.append(terms.networks.encode(own.number, flatten(own.model).cpu().numpy()))
        return Share(np.concatenate(parts), terms.networks.bound)

    def _votes(self, index: int) -> Share:
        """w_k(x) s_k(x)."""
        x = self._terms.generated(self._makes, index)
        said = Contribution(self._weights(x), predict(self._own.model, x))
        self._units = self._terms.votes.encode(Released.of(said))
        return Share(self._units, self._terms.votes.levels)

    def _weights(self, x: Tensor) -> FloatArray:
        """[m] in [0, 1]."""
        f = self._judge(x)
        match self._terms.method.weight:
            case "domain":
                return f
            case "ratio":
                most = self._terms.setting.n_clients
                return np.asarray(np.clip(f / np.maximum(1 - f, 1 / (1 + most)) / most, 0, 1))
            case _:
                return np.ones(len(x))

    def _load(self) -> None:
        if self._network is None:
            raise PeerError("no global network was sent")
        _fill(self._own.model, self._network)


class DaFKDServer(ServerRole):
    """Means of parameters, alpha-weighted predictions, and the distillation of equation 8."""

    def __init__(self, terms: _Terms, initial: nn.Module) -> None:
        self._terms, self._sent = terms, False
        self._network, device = deepcopy(initial), next(initial.parameters()).device
        self._generator, self._makes = (deepcopy(terms.first).to(device) for _ in range(2))
        self._ensemble: Ensemble | None = None
        self._recorded = 0

    def start_from(self, network: nn.Module) -> None:
        """Send this network in the first round."""
        self._network.load_state_dict(network.state_dict())

    def round(self, index: int) -> ServerTurn:
        """Sums of generators, one of votes on generated x; sends the distilled network."""
        self._recorded, self._ensemble, terms = 0, None, self._terms
        body = _INDEX.pack(index) + (b"" if self._sent else self._sent_network())
        self._sent = True
        for exchange in range(terms.method.adversarial.sums):
            got = yield Ask(body, sum(terms.shared(exchange)), terms.networks.bound)
            self._take_means(exchange, got)
            body = _GENERATOR + _bytes(self._generator)
        body = _ASKED + _bytes(self._generator) + _bytes(self._makes)
        votes = terms.votes
        got = yield Ask(body, terms.method.generated * votes.n_classes, votes.levels)
        sums = votes.decode(got.total, len(got.survivors))
        x = terms.generated(self._makes, index)
        self._ensemble = Ensemble(np.arange(len(x)), ensemble_predictions(sums), sums.count > 0)
        self._distil(x, self._ensemble, index)
        return self._sent_network()

    def _sent_network(self) -> bytes:
        return _NETWORK + _bytes(self._network)

    def _take_means(self, exchange: int, got: Sum) -> None:
        """Go on from the means of a sum."""
        terms, cut = self._terms, self._terms.generator
        made = terms.generators.decode(got.total[:cut], got.survivors)
        _fill(self._generator, made)
        kept = flatten(self._makes).double().cpu().numpy()
        _fill(self._makes, _INERTIA * kept + (1 - _INERTIA) * made)
        if terms.shared(exchange)[1]:
            _fill(self._network, terms.networks.decode(got.total[cut:], got.survivors))

    def _distil(self, x: Tensor, ensemble: Ensemble, index: int) -> None:
        """Equation 8, at the round's rate, which falls to zero."""
        terms, device = self._terms, x.device
        schedule = terms.setting.schedule
        kept = torch.from_numpy(ensemble.kept).to(device)
        targets = torch.from_numpy(ensemble.predictions).float().to(device)[kept]
        nothing = Images(x[:0], torch.zeros(0, dtype=torch.int64))
        apart = replace(schedule.sgd, learning_rate=schedule.rate(index), own_batch=0)
        trainer = Trainer(self._network, nothing, apart, index, device)  # a server has no records
        for count, rate in replace(schedule, sgd=apart, anneal_over=1).rates(0, terms.method.steps):
            trainer.learning_rate = rate
            trainer.distillation_steps(x[kept], targets, count)

    def report(self) -> ServerReport:
        """The newest global network, and the share of generated x that taught it."""
        kept = None if self._ensemble is None else float(self._ensemble.kept.mean())
        return ServerReport(kept=kept, parameters=flatten(self._network).cpu().numpy())

    def record(self, index: int, seen: Seen, transcript: Transcript) -> None:
        """Add one of the sums as the server saw it."""
        terms, exchange = self._terms, self._recorded
        self._recorded += 1
        if exchange < terms.method.adversarial.sums:
            sent = self._sent_parameters(exchange, seen)
            makes, network = (flatten(m).cpu().numpy() for m in (self._makes, self._network))
            generators = {k: parts[0] for k, parts in sent.items()} if seen.readable else None
            transcript.generator = GeneratorRound(index, generators, makes)
            if exchange + 1 == terms.method.adversarial.sums:
                networks = {k: parts[1] for k, parts in sent.items()} if seen.readable else None
                transcript.add_parameters(ParameterRound(index, networks, {}, network))
        elif self._ensemble is not None:
            clients, levels = terms.setting.n_clients, terms.votes.levels
            transcript.generated.append(
                DistillationRound.of(index, seen, self._ensemble, levels, clients)
            )

    def _sent_parameters(
        self, exchange: int, seen: Seen
    ) -> dict[int, tuple[Float32Array, Float32Array]]:
        """By client, its generator and its network before the distillation; empty under masks."""
        terms, cut = self._terms, self._terms.generator
        clients, length = terms.setting.n_clients, sum(terms.shared(exchange))
        read = uploads_of(seen, clients, terms.networks.bound, 0, length) or {}
        return {
            k: (
                terms.generators.decode_one(k, values[:cut]),
                terms.networks.decode_one(k, values[cut:]),
            )
            for k, values in read.items()
        }


def _fill(model: nn.Module, parameters: FloatArray | Float32Array) -> None:
    device = next(model.parameters()).device
    load_flat(model, torch.from_numpy(parameters.astype(np.float32)).to(device))


def _bytes(model: nn.Module) -> bytes:
    return model_bytes(flatten(model).cpu().numpy())
