"""DaFKD (Wang et al., CVPR 2023), its discriminators kept at home (the supplement, section B).

A round: clients train from the global network; then each trains its discriminator and its copy of
the generator, and sums of generators give the mean that all continue from (section A). This is
repeated. The last of these sums holds the networks too. Then all parties draw the same generated x
from the joint seed, and client k shares f_k(x) s_k(x). The class total of that product is f_k(x),
so one vector carries both sums of equation 8; for the same reason the supplement's way, f_k s_k in
clear beside a protected sum of f_k, would reveal f_k. The server divides, and distils the global
network from sum_k alpha_k(x) s_k(x), alpha_k = f_k / sum_i f_i.

Records that are features of a public map make the feature generator of Fig. 7: it makes feature
maps, never images.

Choices made here, as the supplement is silent: the global network is distilled from the mean of the
clients' networks, as in FedDF (Lin et al., 2020); means of networks are by records, and those of
generators count every client the same, as equation 13 does. The distilled x are of a running mean
of these means, as generators that chase discriminators swing.
"""

from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import ClassVar, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from secure_fd.data.images import Images
from secure_fd.errors import ConfigurationError, PeerError
from secure_fd.methods.base import Own, Setting, write_index
from secure_fd.methods.fedavg import (
    AveragesParameters,
    GlobalModelClient,
    fill,
    model_bytes,
    parameter_codec,
    parameters_of,
    read_model,
)
from secure_fd.methods.generator import AdversarialSettings, AdversarialTrainer, Generator
from secure_fd.protocol.messages import (
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
from secure_fd.training.recipes import Recipe, Schedule, few_rounds
from secure_fd.training.trainer import Steps, Trainer, network_device, predict
from secure_fd.votes.codec import SOFT_LEVELS, Contribution, Ensemble, KnowledgeCodec, Released
from secure_fd.votes.fixed_point import record_shares
from secure_fd.wire import Sum

_INERTIA: Final = 0.9
"""Weight of what came before in the generator that makes the distilled x."""
_GENERATOR, _BOTH_GENERATORS, _NETWORK = b"g", b"v", b"n"
"""Kinds of a server's message: the mean generator; that, and the one that makes the round's x; the
global network."""


@dataclass(frozen=True, slots=True)
class DaFKD(AveragesParameters):
    """DaFKD; all that clients share is computed from classifier and discriminator.

    DP-SGD of these two therefore covers it; its steps are those of both in the whole run.

    Attributes:
        generated: x of a round.
        steps: of the server's distillation in a round.
        adversarial: sizes and steps of generator and discriminators.

    >>> DaFKD().name
    'DaFKD'
    """

    generated: int = 4096
    steps: int = 500
    adversarial: AdversarialSettings = field(default_factory=AdversarialSettings)

    title: ClassVar[str] = "DaFKD"
    weighted: ClassVar[bool] = True
    """True if f_k weights a client's predictions."""

    def __post_init__(self) -> None:
        for name in ("generated", "steps"):
            if getattr(self, name) < 1:
                raise ConfigurationError(name, getattr(self, name), "use 1 or more")

    def recipe(self, n_classes: int, n_proxies: int, held: float, image_set: str = "") -> Recipe:  # noqa: ARG002
        """Return few rounds of many local steps."""
        return few_rounds()

    def private_steps(self, schedule: Schedule) -> int:
        """Return the gradient steps on a client's records in one round, of both networks.

        >>> DaFKD().private_steps(Schedule(local_steps=200, proxy_steps=0))
        600
        """
        return schedule.fedavg_steps + self.adversarial.sums * self.adversarial.steps

    def client(self, setting: Setting, own: Own) -> "DaFKDClient":
        """Make the role of one client."""
        return DaFKDClient(DaFKDTerms(self, setting, own.model), own)

    def server(self, setting: Setting, initial: nn.Module) -> "DaFKDServer":
        """Make the server's role."""
        return DaFKDServer(DaFKDTerms(self, setting, initial), initial)


@dataclass(frozen=True, slots=True)
class FedDF(DaFKD):
    """FedDF (Lin et al., 2020) on generated samples: every client's prediction weighs the same.

    >>> FedDF().name
    'FedDF'
    """

    title: ClassVar[str] = "FedDF"
    weighted: ClassVar[bool] = False


class DaFKDTerms:
    """Values that client and server each compute locally: codecs, the first generator, the x."""

    def __init__(self, method: DaFKD, setting: Setting, network: nn.Module) -> None:
        self.method, self.setting = method, setting
        self.first = Generator(setting.shape, setting.n_classes, method.adversarial, seed=0)
        self.networks = parameter_codec(record_shares(setting.records))
        self.generators = parameter_codec((1.0,) * setting.n_clients)
        self.votes = KnowledgeCodec(setting.n_classes, SOFT_LEVELS)
        self.network, self.generator = len(parameters_of(network)), len(parameters_of(self.first))
        """Parameters of each."""

    def is_last(self, exchange: int) -> bool:
        """Return whether a sum of generators is the round's last, which holds the networks too."""
        return exchange == self.method.adversarial.sums - 1

    def length(self, exchange: int) -> int:
        """Return the integers of a client in a sum of generators."""
        return self.generator + (self.network if self.is_last(exchange) else 0)

    @torch.no_grad()
    def generated(self, generator: Generator, index: int) -> Tensor:
        """Make the x of a round, [m, ...], the same for all holders of the generator."""
        made: Tensor = generator(*generator.draw(self.method.generated, self.setting.seed, index))
        return made


class DaFKDClient(GlobalModelClient):
    """Trains network, discriminator and generator; shares parameters, then f_k(x) s_k(x)."""

    def __init__(self, terms: DaFKDTerms, own: Own) -> None:
        method, budget = terms.method, terms.method.budget(own)
        super().__init__(method.learner(own, terms.setting.schedule, budget))
        self._terms, self._own = terms, own
        self._generator, self._averaged = (deepcopy(terms.first).to(own.device) for _ in range(2))
        train, settings = own.data.train, method.adversarial
        self.adversary = AdversarialTrainer(
            self._generator, own.model, train, settings, own.seed, budget
        )

    def round(self, announcement: bytes) -> ClientTurn:
        """Train, share parameters, then the weighted predictions on the round's generated x."""
        index, self.units = self.begin_round(announcement), None
        self.load()
        yield from self.learner.local(self._terms.setting.schedule.fedavg_steps)
        # Before the generator trains against this network: one that diverged would spoil it.
        self.shareable(self._own.number, self._terms.networks)
        settings = self._terms.method.adversarial
        try:
            for exchange in range(settings.sums):
                yield Steps(self.adversary, settings.steps, self.adversary.learning_rate)
                self.take((yield self._parameters(exchange)))
            self.take((yield self._votes(index)))
        except RoundAborted:
            pass
        self.load()

    def take(self, message: bytes) -> None:
        """Read generators or the network; PeerError for another form."""
        kind, body, size = message[:1], message[1:], self._terms.generator
        if kind == _NETWORK:
            super().take(body)
        elif kind == _GENERATOR:
            fill(self._generator, read_model(body, size))
        elif kind == _BOTH_GENERATORS:
            both = read_model(body, 2 * size)
            fill(self._generator, both[:size])
            fill(self._averaged, both[size:])
        else:
            raise PeerError("a message holds neither a network nor a generator")

    def memory(self) -> bytes:
        """Return both generators, and the newest global network."""
        return _bytes(self._generator, self._averaged) + super().memory()

    def recall(self, memory: bytes) -> None:
        """Take them over; PeerError for another form."""
        cut = 8 * self._terms.generator
        self.take(_BOTH_GENERATORS + memory[:cut])
        super().recall(memory[cut:])

    def _parameters(self, exchange: int) -> SumInput:
        """The generator, and in a round's last sum of generators the network."""
        terms, number = self._terms, self._own.number
        parts = [terms.generators.encode(number, parameters_of(self._generator))]
        if terms.is_last(exchange):
            parts.append(terms.networks.encode(number, parameters_of(self._own.model)))
        return SumInput(np.concatenate(parts), terms.networks.levels)

    def _votes(self, index: int) -> SumInput:
        """f_k(x) s_k(x), or s_k(x) in FedDF."""
        x = self._terms.generated(self._averaged, index)
        weights = np.ones(len(x))
        if self._terms.method.weighted:
            weights = np.asarray(self.adversary.domain(x).double().cpu().numpy())
        vote = Contribution(weights, predict(self._own.model, x))
        self.units = units = self._terms.votes.encode(Released.of(vote))
        return SumInput(units, self._terms.votes.levels)


class DaFKDServer(ServerRole):
    """Averages parameters and weighted predictions, and distils the network (equation 8)."""

    checkpointed = ("_sent", "_network", "_generator", "_averaged", "_ensemble")

    def __init__(self, terms: DaFKDTerms, initial: nn.Module) -> None:
        self._terms, self._sent = terms, False
        self._network, device = deepcopy(initial), network_device(initial)
        self._generator, self._averaged = (deepcopy(terms.first).to(device) for _ in range(2))
        self._ensemble: Ensemble | None = None

    def start_from(self, network: nn.Module) -> None:
        """Send this network in the first round."""
        self._network.load_state_dict(network.state_dict())

    def round(self, index: int) -> ServerTurn:
        """Ask for generators, then for votes on generated x; sends the distilled network."""
        self._ensemble, self.kept, terms = None, None, self._terms
        body = write_index(index) + (b"" if self._sent else _NETWORK + _bytes(self._network))
        self._sent = True
        for exchange in range(terms.method.adversarial.sums):
            got = yield SumRequest(body, terms.length(exchange), terms.networks.levels)
            self._take_means(exchange, got)
            body = _GENERATOR + _bytes(self._generator)
        body = _BOTH_GENERATORS + _bytes(self._generator, self._averaged)
        votes = terms.votes
        got = yield SumRequest(body, terms.method.generated * votes.n_classes, votes.levels)
        sums = votes.decode(got.total, len(got.survivors))
        x = terms.generated(self._averaged, index)
        self._ensemble = Ensemble(np.arange(len(x)), sums.mean, sums.count > 0)
        self.kept = float(self._ensemble.kept.mean())
        self._distil(x, self._ensemble, index)
        return _NETWORK + _bytes(self._network)

    def _take_means(self, exchange: int, got: Sum) -> None:
        """Continue from the means of a sum."""
        terms, cut = self._terms, self._terms.generator
        made = terms.generators.decode(got.total[:cut], got.survivors)
        fill(self._generator, made)
        kept = parameters_of(self._averaged).astype(np.float64)
        fill(self._averaged, _INERTIA * kept + (1 - _INERTIA) * made)
        if terms.is_last(exchange):
            fill(self._network, terms.networks.decode(got.total[cut:], got.survivors))

    def _distil(self, x: Tensor, ensemble: Ensemble, index: int) -> None:
        """Distil (equation 8) at the round's rate, which falls to zero.

        Where that diverges, the mean of the clients' networks stays.
        """
        mean, codec = parameters_of(self._network), self._terms.networks
        device, schedule = x.device, self._terms.setting.schedule
        kept = torch.from_numpy(ensemble.kept).to(device)
        targets = torch.from_numpy(ensemble.predictions).float().to(device)[kept]
        nothing = Images(x[:0], torch.zeros(0, dtype=torch.int64))  # a server has no records
        sgd = replace(schedule.sgd, learning_rate=schedule.rate(index), own_batch=0)
        trainer = Trainer(self._network, nothing, sgd, index, device)
        falling = replace(schedule, sgd=sgd, anneal_over=1)
        for count, rate in falling.rates(0, self._terms.method.steps):
            trainer.learning_rate = rate
            trainer.take_steps(count, x[kept], targets)
        made = parameters_of(self._network)
        if not all(codec.fits(client, made) for client in range(self._terms.setting.n_clients)):
            fill(self._network, mean)

    def parameters(self) -> NDArray[np.float32]:
        """Return the newest global network."""
        return parameters_of(self._network)

    def record(self, seen: ObservedRound[None], transcript: Transcript) -> None:
        """Add one of the sums as the server saw it."""
        terms = self._terms
        if seen.position < terms.method.adversarial.sums:
            bare = seen.giving(parameters_of(self._averaged), payloads=None, total=None)
            read = terms.generators.decode_each(seen.uploads, slice(terms.generator))
            transcript.generator = bare.giving(bare.result, uploads=read)
            if terms.is_last(seen.position):
                read = terms.networks.decode_each(seen.uploads, slice(terms.generator, None))
                transcript.add_parameters(bare.giving(parameters_of(self._network), uploads=read))
        elif self._ensemble is not None:
            transcript.generated.append(seen.giving(self._ensemble))


def _bytes(*models: nn.Module) -> bytes:
    return b"".join(model_bytes(parameters_of(model)) for model in models)
