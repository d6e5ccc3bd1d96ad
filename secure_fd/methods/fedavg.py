"""Model parameters as integers that may be summed exactly: FedAvg on the same secure sum."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from secure_fd.aggregation.base import Dropouts, SecureSum, Stage, VoidRoundError, sum_for
from secure_fd.data.federated import ClientData
from secure_fd.data.images import Images
from secure_fd.errors import ConfigurationError, LocalError
from secure_fd.federation import check_own_models
from secure_fd.knowledge import FloatArray, UnitArray, WordArray
from secure_fd.models import flatten, load_flat
from secure_fd.privacy.units import Guarantee
from secure_fd.private_training import PrivateSGD, PrivateTrainer
from secure_fd.recipes import SGD, Schedule
from secure_fd.training import Learners, accuracy, default_device
from secure_fd.transcript import (
    Float32Array,
    ParameterRound,
    Stopwatch,
    Transcript,
    readable_uploads,
)


@dataclass(frozen=True, slots=True)
class ParameterCodec:
    """Fixed point: a weighted parameter in [-limit, limit] becomes an integer in [0, bound].

    shares: by client, its records over the largest client's, in (0, 1], public. resolution: steps
    in one unit; rounding moves a mean of K clients by at most half a step over the mean share.
    """

    shares: tuple[float, ...]
    limit: int = 16
    resolution: int = 1 << 22

    def __post_init__(self) -> None:
        if not self.shares or not all(0 < share <= 1 for share in self.shares):
            raise ConfigurationError("shares", self.shares, "use numbers above 0, at most 1")

    @property
    def bound(self) -> int:
        """Largest encoded integer."""
        return 2 * self.limit * self.resolution

    def encode(self, client: int, parameters: Float32Array) -> WordArray:
        """[m] integers of share * parameters. Raises LocalError where one does not fit."""
        weighted = parameters.astype(np.float64) * self.shares[client]
        if not (np.abs(weighted) <= self.limit).all():
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


# FedAvg (McMahan et al., 2017): clients share parameters, through the same secure sum.
#
# Its clients train one shared architecture from one initialisation. With a `PrivateSGD` in place
# of
# `SGD`, every local step is DP-SGD.


@dataclass(frozen=True, slots=True)
class FedAvgReport:
    """One round: mean bytes that a client has sent and received until now, and who was there.

    survivors: the clients in the mean; none where the round was void, and the model stayed as it
    was. missing: clients and the stage from which on each was silent.
    """

    index: int
    bytes_up: float
    bytes_down: float
    survivors: tuple[int, ...]
    missing: tuple[tuple[int, Stage], ...]


class FedAvg:
    """Rounds of local training and weighted averaging.

    models: one a client, of equal architecture; the first one's parameters start the run.
    dropouts: simulated faults; a client that was away is sent the model when it comes back.
    anneal_over, augment: as in `Schedule`. Momentum is a client's own, and outlives the averaging.
    """

    def __init__(
        self,
        models: Sequence[nn.Module],
        data: Sequence[ClientData],
        *,
        optimiser: SGD | PrivateSGD | None = None,
        local_steps: int = 11,
        anneal_over: int | None = None,
        augment: str = "none",
        aggregation: SecureSum | None = None,
        dropouts: Dropouts | None = None,
        seed: int = 0,
        device: torch.device | None = None,
    ) -> None:
        if len(models) != len(data):
            raise ConfigurationError("models", len(models), f"use one a client: {len(data)}")
        if len({sum(p.numel() for p in model.parameters()) for model in models}) != 1:
            raise ConfigurationError("models", len(models), "all must have one architecture")
        self._device = device or default_device()
        self._local_steps = local_steps
        self._sum = sum_for(len(models), aggregation)
        self.aggregation_time = Stopwatch()
        self._dropouts = dropouts or Dropouts(0.0, seed=0)
        largest = max(len(d.train) for d in data)
        self._codec = ParameterCodec(tuple(len(d.train) / largest for d in data))
        self._global: Float32Array = flatten(models[0]).cpu().numpy()
        train = [client.train for client in data]
        self._learners: Learners | _PrivateLearners
        check_own_models(models)
        if isinstance(optimiser, PrivateSGD):
            if anneal_over is not None or augment != "none":
                raise ConfigurationError(
                    "optimiser", "PrivateSGD", "it takes neither anneal_over nor augment"
                )
            self._learners = _PrivateLearners(models, train, optimiser, self._device)
        else:
            schedule = Schedule(anneal_over=anneal_over, augment=augment, sgd=optimiser or SGD())
            self._learners = Learners(models, train, schedule, seed, self._device)
        self._indices = itertools.count()
        self.transcript = Transcript(len(models))
        self.transcript.broadcast(self._global.nbytes)
        self._behind: set[int] = set()  # clients that lack the newest global model

    @property
    def model(self) -> nn.Module:
        """The global model after the last round."""
        self._load(0)
        return self._learners.models[0]

    def accuracies(self, test: Images) -> list[float]:
        """The global model's accuracy, which every client has."""
        return [accuracy(self.model, test.to(self._device))] * len(self._learners.models)

    def guarantee(self) -> Guarantee | None:
        """Of DP-SGD at the client with fewest records, where it is on; else None."""
        if isinstance(self._learners, Learners):
            return None
        made = [trainer.guarantee() for trainer in self._learners.trainers]
        return max(made, key=lambda claim: claim.epsilon)

    def rounds(self, count: int) -> Iterator[FedAvgReport]:
        """Run rounds; each is reported when the global model is updated. A later call goes on."""
        for _ in range(count):
            yield self._round(next(self._indices))

    def _round(self, index: int) -> FedAvgReport:
        dropouts = self._dropouts.plan(index, len(self._learners.models))
        self._learners.begin_round(index)
        vectors = self._train({k for k, stage in dropouts.items() if stage is Stage.PREPARE})
        try:
            with self.aggregation_time:
                result = self._sum.sum(index, vectors, self._codec.bound, dropouts=dropouts)
        except VoidRoundError as ended:
            self.transcript.count_void(ended)
            return self._report(index, (), ended.missing)
        self.transcript.count(result)
        self._global = self._codec.decode(result.total, result.survivors).astype(np.float32)
        self._behind = set(range(len(self._learners.models)))
        self._send(self._behind - set(result.missing))
        read = readable_uploads(result, vectors)
        uploads = (
            None if read is None else {k: self._codec.decode_one(k, v) for k, v in read.items()}
        )
        self.transcript.add_parameters(
            ParameterRound(index, uploads, result.payloads, self._global)
        )
        return self._report(index, result.survivors, result.missing)

    def _train(self, away: set[int]) -> dict[int, WordArray]:
        """By client that is there, its parameters after local steps from the global model."""
        models = self._learners.models
        present = [client for client in range(len(models)) if client not in away]
        for client in present:
            self._send(self._behind & {client})
            self._load(client)
        self._learners.local_steps(self._local_steps, present)
        return {k: self._codec.encode(k, flatten(models[k]).cpu().numpy()) for k in present}

    def _send(self, clients: set[int]) -> None:
        """Send the global model to these clients, which are up to date then."""
        size = np.array(self._global.nbytes)
        self.transcript.send(sorted(clients), size)
        self._behind = self._behind - clients

    def _report(
        self, index: int, survivors: tuple[int, ...], missing: Mapping[int, Stage]
    ) -> FedAvgReport:
        up, down = (float(moved.mean()) for moved in (self.transcript.up, self.transcript.down))
        return FedAvgReport(index, up, down, survivors, tuple(missing.items()))

    def _load(self, client: int) -> None:
        load_flat(self._learners.models[client], torch.from_numpy(self._global).to(self._device))


class _PrivateLearners:
    """Clients whose every step is DP-SGD, one after another."""

    def __init__(
        self,
        models: Sequence[nn.Module],
        train: Sequence[Images],
        settings: PrivateSGD,
        device: torch.device,
    ) -> None:
        self.trainers = [
            PrivateTrainer(model, images, settings, device)
            for model, images in zip(models, train, strict=True)
        ]
        self.models = [trainer.model for trainer in self.trainers]

    def begin_round(self, index: int) -> None:
        """Nothing changes from round to round."""

    def local_steps(self, steps: int, present: Sequence[int]) -> None:
        """Steps of the present clients."""
        for client in present:
            self.trainers[client].local_steps(steps)
