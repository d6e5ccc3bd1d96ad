"""FedAvg (McMahan et al., 2017): clients share parameters, through the same secure sum.

Its clients train one shared architecture from one initialisation. With a `PrivateSGD` in place of
`SGD`, every local step is DP-SGD.
"""

import os
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Final, Self

import numpy as np
import torch
from torch import nn

from secure_fd.errors import ConfigurationError, LocalError, PeerError
from secure_fd.methods.base import Method, Own, Setting
from secure_fd.privacy.dp_sgd import PrivateBudget, PrivateSGD
from secure_fd.privacy.guarantee import Guarantee
from secure_fd.privacy.ledger import BudgetLedger, ledger_of
from secure_fd.privacy.samplers import Random
from secure_fd.protocol.messages import (
    Ask,
    ClientRole,
    ClientTurn,
    ServerReport,
    ServerRole,
    ServerTurn,
    Share,
    Void,
)
from secure_fd.protocol.transcript import Float32Array, ParameterRound, Transcript, uploads_of
from secure_fd.secure_sum.recorded import Seen
from secure_fd.training.dp_sgd import PrivateTrainer
from secure_fd.training.models import flatten, load_flat
from secure_fd.training.recipes import SGD, Schedule
from secure_fd.training.trainer import Learner
from secure_fd.votes.codec import FloatArray, UnitArray, WordArray

_INDEX: Final = struct.Struct(">Q")


@dataclass(frozen=True, slots=True)
class ParameterCodec:
    """Fixed point: a weighted parameter in [-limit, limit] becomes an integer in [0, bound].

    shares: by client, its records over the largest client's, in (0, 1], public. Rounding moves
    a mean of K clients by at most half a step over the mean share.
    """

    shares: tuple[float, ...]

    limit: ClassVar[int] = 16
    resolution: ClassVar[int] = 1 << 22
    """Steps in one unit."""

    def __post_init__(self) -> None:
        if not self.shares or not all(0 < share <= 1 for share in self.shares):
            raise ConfigurationError("shares", self.shares, "use numbers above 0, at most 1")

    @classmethod
    def by_records(cls, records: Sequence[int]) -> Self:
        """Shares of clients that hold so many training records.

        >>> ParameterCodec.by_records((50, 100)).shares
        (0.5, 1.0)
        """
        largest = max(records)
        return cls(tuple(count / largest for count in records))

    @property
    def bound(self) -> int:
        """Largest encoded integer."""
        return 2 * self.limit * self.resolution

    def fits(self, client: int, parameters: Float32Array) -> bool:
        """Whether parameters [m] are finite, and small enough to be encoded."""
        return bool(
            (np.abs(parameters.astype(np.float64)) * self.shares[client] <= self.limit).all()
        )

    def encode(self, client: int, parameters: Float32Array) -> WordArray:
        """[m] integers of share * parameters. Raises LocalError where one does not fit."""
        weighted = parameters.astype(np.float64) * self.shares[client]
        if not self.fits(client, parameters):
            raise LocalError(
                f"parameters: one is not finite or beyond {self.limit}; training has diverged"
            )
        steps = np.rint((weighted + self.limit) * self.resolution)
        return np.asarray(steps, dtype=np.uint64)

    def decode(self, total: UnitArray, survivors: Sequence[int]) -> FloatArray:
        """[m] weighted mean over the clients in the sum, from the exact sum of their integers."""
        offset = len(survivors) * self.limit
        summed = total.astype(np.float64) / self.resolution - offset
        return np.asarray(summed / sum(self.shares[client] for client in survivors))

    def decode_one(self, client: int, values: UnitArray) -> Float32Array:
        """[m] parameters of one client, for whoever may read its upload."""
        summed = values.astype(np.float64) / self.resolution - self.limit
        return np.asarray(summed / self.shares[client], dtype=np.float32)


def model_bytes(parameters: Float32Array) -> bytes:
    """Parameters [m] as they travel: float32, little-endian.

    >>> read_model(model_bytes(np.ones(2, dtype=np.float32)), 2).tolist()
    [1.0, 1.0]
    """
    return parameters.astype("<f4").tobytes()


def read_model(message: bytes, count: int) -> Float32Array:
    """[count] parameters; PeerError for another length or a value that is not finite."""
    if len(message) != 4 * count:
        raise PeerError(f"{len(message)} bytes are not of this architecture")
    found = np.frombuffer(message, "<f4").astype(np.float32)
    if not np.isfinite(found).all():
        raise PeerError("a model holds a value that is not finite")
    return found


def check_one_architecture(models: Sequence[nn.Module]) -> None:
    """Raise ConfigurationError for networks whose parameters cannot be averaged."""
    if len({tuple(p.shape for p in model.parameters()) for model in models}) != 1:
        raise ConfigurationError("models", len(models), "all must have one architecture")


@dataclass(frozen=True, slots=True)
class FedAvg(Method):
    """Local training from the global model, then the mean of the clients' parameters by records.

    optimiser: by default the schedule's; a `PrivateSGD` makes every step DP-SGD. local_steps: a
    round, by default as many as a distilling client takes in all. Momentum begins anew in each
    round. A client whose training diverges shares the model that it was sent. All networks must be
    of one architecture; the first client's parameters start the run. ledgers: by client, the budget
    of its data set, which books DP-SGD's steps before it draws; BudgetError beyond its total.
    random: source of DP-SGD's batches and noise.

    >>> FedAvg().name
    'FedAvg'
    """

    optimiser: SGD | PrivateSGD | None = None
    local_steps: int | None = None
    ledgers: Mapping[int, BudgetLedger] | None = field(default=None, repr=False, compare=False)
    random: Random = field(default=os.urandom, repr=False, compare=False)

    title: ClassVar[str] = "FedAvg"
    shares_parameters: ClassVar[bool] = True

    def trained_privately(
        self,
        epsilon: float,
        delta: float,
        rounds: int,
        schedule: Schedule,
        ledgers: Mapping[int, BudgetLedger] | None = None,
    ) -> Self:
        """The same method with DP-SGD, planned for so many rounds of the schedule."""
        steps = schedule.fedavg_steps if self.local_steps is None else self.local_steps
        private = PrivateSGD(epsilon, delta, rounds * steps)
        return replace(self, optimiser=private, ledgers=ledgers)

    def check(self, setting: Setting, models: Sequence[nn.Module]) -> None:
        """Raise ConfigurationError for networks that differ, or views that DP-SGD cannot take."""
        setting.check_no_protection()
        check_one_architecture(models)
        if isinstance(self.optimiser, PrivateSGD):
            setting.check_plain_steps("optimiser")

    def client(self, setting: Setting, own: Own) -> "FedAvgClient":
        """The half of one client."""
        steps, private = setting.schedule, None
        if isinstance(self.optimiser, PrivateSGD):
            ledger = ledger_of(self.ledgers, own.number)
            budget = PrivateBudget(self.optimiser, len(own.data.train), self.random, ledger)
            private = PrivateTrainer(own.model, own.data.train, budget, own.device)
        elif self.optimiser is not None:
            steps = replace(steps, sgd=self.optimiser)
        learner = own.learner(steps, private)
        count = setting.schedule.fedavg_steps if self.local_steps is None else self.local_steps
        return FedAvgClient(own.number, learner, ParameterCodec.by_records(setting.records), count)

    def server(self, setting: Setting, initial: nn.Module) -> "FedAvgServer":
        """The server's half."""
        return FedAvgServer(
            flatten(initial).cpu().numpy(), ParameterCodec.by_records(setting.records)
        )


class FedAvgClient(ClientRole):
    """Local steps from the global model; shares its parameters, weighted by its records."""

    def __init__(self, number: int, learner: Learner, codec: ParameterCodec, steps: int) -> None:
        self.learner = learner
        self._number, self._codec, self._steps = number, codec, steps
        self._model: Float32Array | None = None
        self.diverged = 0
        """Rounds in which its training left what can be shared."""

    def begin(self) -> ClientTurn:
        """Nothing: training starts from the server's model."""
        yield from ()

    def round(self, subject: bytes) -> ClientTurn:
        """Train from the newest global model, share, and take over the mean."""
        self._read(subject)
        self._load()
        self.learner.trainer.reset_momentum()
        yield from self.learner.local(self._steps)
        own = self._trained()
        try:
            told = yield Share(self._codec.encode(self._number, own), self._codec.bound)
        except Void:
            self._load()
            return
        self._model = self._parameters(told)
        self._load()

    def missed(self, subject: bytes, message: bytes | None) -> None:
        """Take over the newest global model, whether or not this client had a part in it."""
        self._read(subject)
        if message is not None:
            self._model = self._parameters(message)
        self._load()

    def memory(self) -> bytes:
        """The newest global model; nothing before there is one."""
        return b"" if self._model is None else model_bytes(self._model)

    def recall(self, memory: bytes) -> None:
        """Take it over; PeerError for another architecture."""
        self._model = self._parameters(memory) if memory else None

    def guarantee(self) -> Guarantee | None:
        """Of DP-SGD, where it is on."""
        trainer = self.learner.trainer
        return trainer.guarantee() if isinstance(trainer, PrivateTrainer) else None

    def _trained(self) -> Float32Array:
        """[m] its parameters; those that it was sent where its own do not fit."""
        own = np.asarray(flatten(self.learner.model).cpu().numpy())
        if self._model is None or self._codec.fits(self._number, own):
            return own
        self.diverged += 1
        return self._model

    def _read(self, subject: bytes) -> None:
        """The round; in the first one, the model that starts the run."""
        if len(subject) < _INDEX.size:
            raise PeerError(f"a round's subject of {len(subject)} bytes is too short")
        self.learner.round = int(_INDEX.unpack_from(subject)[0])
        if len(subject) > _INDEX.size:
            self._model = self._parameters(subject[_INDEX.size :])

    def _parameters(self, message: bytes) -> Float32Array:
        """[m] of the global model; see `read_model`."""
        return read_model(message, sum(p.numel() for p in self.learner.model.parameters()))

    def _load(self) -> None:
        if self._model is None:
            raise PeerError("no global model was sent")
        load_flat(self.learner.model, torch.from_numpy(self._model).to(self.learner.device))


class FedAvgServer(ServerRole):
    """The weighted mean."""

    def __init__(self, initial: Float32Array, codec: ParameterCodec) -> None:
        self._parameters, self._codec, self._sent = initial, codec, False

    def start_from(self, network: nn.Module) -> None:
        """Send the parameters of this network in the first round."""
        self._parameters = flatten(network).cpu().numpy()

    def round(self, index: int) -> ServerTurn:
        """Ask for parameters, and send their mean; the first subject carries the start."""
        initial = b"" if self._sent else model_bytes(self._parameters)
        self._sent = True
        got = yield Ask(_INDEX.pack(index) + initial, len(self._parameters), self._codec.bound)
        self._parameters = self._codec.decode(got.total, got.survivors).astype(np.float32)
        return model_bytes(self._parameters)

    def report(self) -> ServerReport:
        """The newest global model."""
        return ServerReport(parameters=self._parameters)

    def record(self, index: int, seen: Seen, transcript: Transcript) -> None:
        """Add the round as the server saw it."""
        codec = self._codec
        read = uploads_of(seen, len(codec.shares), codec.bound, 0, len(self._parameters))
        uploads = None if read is None else {k: codec.decode_one(k, v) for k, v in read.items()}
        transcript.add_parameters(
            ParameterRound(index, uploads, dict(seen.payloads), self._parameters)
        )
