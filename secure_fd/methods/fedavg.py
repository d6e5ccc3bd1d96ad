"""FedAvg (McMahan et al., 2017): clients share parameters, through the same secure sum.

Its clients train one shared architecture from one initialisation; with `private`, every local step
is one of DP-SGD. `AveragesParameters` and `GlobalModelClient` are what DaFKD has in common with it.
"""

import os
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import ClassVar, Self

import numpy as np
import torch
from torch import nn

from secure_fd.errors import ConfigurationError, PeerError
from secure_fd.methods.base import Method, Own, Setting, read_index, write_index
from secure_fd.privacy.dp_sgd import PrivateBudget, PrivateSGD
from secure_fd.privacy.guarantee import Guarantee
from secure_fd.privacy.ledger import Ledger, ledger_of
from secure_fd.privacy.samplers import Random
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
    Float32Array,
    ObservedRound,
    Transcript,
)
from secure_fd.training.dp_sgd import PrivateTrainer
from secure_fd.training.models import flatten, load_flat
from secure_fd.training.recipes import Schedule
from secure_fd.training.trainer import Learner
from secure_fd.votes.codec import FloatArray
from secure_fd.votes.fixed_point import FixedPoint, record_shares


def parameter_codec(shares: tuple[float, ...]) -> FixedPoint:
    """Make the codec of parameters in [-16, 16], in steps of 2^-22.

    >>> parameter_codec((1.0,)).levels == 1 << 27
    True
    """
    return FixedPoint(shares, limit=16.0, levels=1 << 27)


def model_bytes(parameters: Float32Array) -> bytes:
    """Encode parameters [m] as float32, little-endian.

    >>> read_model(model_bytes(np.ones(2, dtype=np.float32)), 2).tolist()
    [1.0, 1.0]
    """
    return parameters.astype("<f4").tobytes()


def read_model(message: bytes, count: int) -> Float32Array:
    """Read [count] parameters; PeerError for another length or a value that is not finite."""
    if len(message) != 4 * count:
        raise PeerError(f"{len(message)} bytes are not of this architecture")
    found = np.frombuffer(message, "<f4").astype(np.float32)
    if not np.isfinite(found).all():
        raise PeerError("a model holds a value that is not finite")
    return found


def parameters_of(network: nn.Module) -> Float32Array:
    """Return the parameters [m] of a network."""
    return np.asarray(flatten(network).cpu().numpy())


def fill(network: nn.Module, parameters: FloatArray | Float32Array) -> None:
    """Load parameters [m] into a network."""
    load_flat(network, torch.from_numpy(parameters.astype(np.float32)))


@dataclass(frozen=True, slots=True, kw_only=True)
class AveragesParameters(Method):
    """Base class of methods whose clients share parameters of one architecture.

    Attributes:
        private: DP-SGD of every network that reads records, planned for all steps of the run.
        ledgers: for each client, the budget of its data set, which books DP-SGD's steps before it
            draws; BudgetError beyond its total.
        random: source of DP-SGD's batches and noise.
    """

    private: PrivateSGD | None = None
    ledgers: Mapping[int, Ledger] | None = field(default=None, repr=False, compare=False)
    random: Random = field(default=os.urandom, repr=False, compare=False)

    shares_parameters: ClassVar[bool] = True

    @abstractmethod
    def private_steps(self, schedule: Schedule) -> int:
        """Return the gradient steps on a client's records in one round."""

    def trained_privately(
        self,
        epsilon: float,
        delta: float,
        rounds: int,
        schedule: Schedule,
        ledgers: Mapping[int, Ledger] | None = None,
    ) -> Self:
        """Return the method with every step on a record one of DP-SGD.

        Args:
            epsilon: of the whole run.
            delta: of the whole run.
            rounds: of the run.
            schedule: steps of a round.
            ledgers: by client, the budget of its data set; None where no budget is kept.
        """
        private = PrivateSGD(epsilon, delta, rounds * self.private_steps(schedule))
        return replace(self, private=private, ledgers=ledgers)

    def check(self, setting: Setting, models: Sequence[nn.Module]) -> None:
        """Raise ConfigurationError for networks that differ.

        Also for views or falling rates under DP-SGD, which takes none.
        """
        setting.check_no_protection()
        if len({tuple(p.shape for p in model.parameters()) for model in models}) != 1:
            raise ConfigurationError("models", len(models), "all must have one architecture")
        falls = setting.schedule.anneal_over is not None
        if self.private is not None and (falls or setting.schedule.augment != "none"):
            allowed = "it takes neither anneal_over nor augment"
            raise ConfigurationError("private", "PrivateSGD", allowed)

    def budget(self, own: Own) -> PrivateBudget | None:
        """Return a client's budget of DP-SGD's steps; None without DP-SGD."""
        if self.private is None:
            return None
        ledger = ledger_of(self.ledgers, own.number)
        return PrivateBudget(self.private, len(own.data.train), self.random, ledger)

    def learner(self, own: Own, schedule: Schedule, budget: PrivateBudget | None) -> Learner:
        """Return a client's network and records, trained by DP-SGD where there is a budget."""
        if budget is None:
            return own.learner(schedule)
        return own.learner(schedule, PrivateTrainer(own.model, own.data.train, budget, own.device))


@dataclass(frozen=True, slots=True)
class FedAvg(AveragesParameters):
    """Local training from the global model, then the mean of the clients' parameters by records.

    A client takes as many local steps as a distilling client takes in all. Momentum begins anew in
    each round. A client whose training diverges shares the model that it was sent. The first
    client's parameters start the run.

    >>> FedAvg().name
    'FedAvg'
    """

    title: ClassVar[str] = "FedAvg"

    def private_steps(self, schedule: Schedule) -> int:
        """Return the local steps of a round."""
        return schedule.fedavg_steps

    def client(self, setting: Setting, own: Own) -> "FedAvgClient":
        """Make the role of one client."""
        learner = self.learner(own, setting.schedule, self.budget(own))
        return FedAvgClient(own.number, learner, parameter_codec(record_shares(setting.records)))

    def server(self, setting: Setting, initial: nn.Module) -> "FedAvgServer":
        """Make the server's role."""
        return FedAvgServer(initial, parameter_codec(record_shares(setting.records)))


class GlobalModelClient(ClientRole):
    """Base class of clients that train from a global model, which they receive first.

    A subclass defines `round`.
    """

    def __init__(self, learner: Learner) -> None:
        self.learner = learner
        self.global_model: Float32Array | None = None
        """[m] the newest one."""
        self.diverged = 0
        """Rounds in which its parameters were beyond what can be shared."""

    def begin(self) -> ClientTurn:
        """Do nothing: training starts from the server's model."""
        yield from ()

    def take(self, message: bytes) -> None:
        """Read a message of the server, by default a global model; PeerError for another form."""
        size = sum(p.numel() for p in self.learner.model.parameters())
        self.global_model = read_model(message, size)

    def missed(self, announcement: bytes, message: bytes | None) -> None:
        """Take the newest global model."""
        self.begin_round(announcement)
        if message is not None:
            self.take(message)
        self.load()

    def memory(self) -> bytes:
        """Return the newest global model; nothing before there is one."""
        return b"" if self.global_model is None else model_bytes(self.global_model)

    def recall(self, memory: bytes) -> None:
        """Take it over; PeerError for another architecture."""
        if memory:
            GlobalModelClient.take(self, memory)

    def guarantee(self) -> Guarantee | None:
        """Return the guarantee of DP-SGD."""
        trainer = self.learner.trainer
        return trainer.budget.guarantee() if isinstance(trainer, PrivateTrainer) else None

    def begin_round(self, announcement: bytes) -> int:
        """Read a round's number, and the model that may follow it to start a run."""
        number = write_index(0)
        self.learner.round = read_index(announcement[: len(number)])
        if len(announcement) > len(number):
            self.take(announcement[len(number) :])
        return self.learner.round

    def load(self) -> None:
        """Load the global model into the network; PeerError if none was received."""
        if self.global_model is None:
            raise PeerError("no global model was sent")
        fill(self.learner.model, self.global_model)

    def shareable(self, number: int, codec: FixedPoint) -> Float32Array:
        """Return the network's parameters, after taking over the global ones if they diverged.

        number: of the client.
        """
        own = parameters_of(self.learner.model)
        if self.global_model is None or codec.fits(number, own):
            return own
        self.diverged += 1
        self.load()
        self.learner.trainer.reset_momentum()
        return self.global_model


class FedAvgClient(GlobalModelClient):
    """Takes local steps from the global model; shares its parameters, weighted by its records."""

    def __init__(self, number: int, learner: Learner, codec: FixedPoint) -> None:
        super().__init__(learner)
        self._number, self._codec = number, codec

    def round(self, announcement: bytes) -> ClientTurn:
        """Train from the newest global model, share, and take over the mean."""
        self.begin_round(announcement)
        self.load()
        self.learner.trainer.reset_momentum()
        yield from self.learner.local(self.learner.schedule.fedavg_steps)
        shared = self.shareable(self._number, self._codec)
        with suppress(RoundAborted):
            self.take(
                (yield SumInput(self._codec.encode(self._number, shared), self._codec.levels))
            )
        self.load()


class FedAvgServer(ServerRole):
    """Sends the weighted mean of the clients' parameters."""

    checkpointed = ("_parameters", "_sent")

    def __init__(self, initial: nn.Module, codec: FixedPoint) -> None:
        self._parameters, self._codec, self._sent = parameters_of(initial), codec, False

    def start_from(self, network: nn.Module) -> None:
        """Send the parameters of this network in the first round."""
        self._parameters = parameters_of(network)

    def round(self, index: int) -> ServerTurn:
        """Ask for parameters and send their mean; the first announcement carries the start."""
        start = b"" if self._sent else model_bytes(self._parameters)
        announcement, self._sent = write_index(index) + start, True
        got = yield SumRequest(announcement, len(self._parameters), self._codec.levels)
        self._parameters = self._codec.decode(got.total, got.survivors).astype(np.float32)
        return model_bytes(self._parameters)

    def parameters(self) -> Float32Array:
        """Return the newest global model."""
        return self._parameters

    def record(self, seen: ObservedRound[None], transcript: Transcript) -> None:
        """Add the round as the server saw it."""
        uploads = self._codec.decode_each(seen.uploads)
        transcript.add_parameters(seen.giving(self._parameters, uploads=uploads, total=None))
