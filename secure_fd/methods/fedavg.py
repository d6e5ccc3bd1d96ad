"""FedAvg (McMahan et al., 2017): clients share parameters, through the same secure sum.

Its clients train one shared architecture from one initialisation. With a `PrivateSGD` in place of
`SGD`, every local step is DP-SGD.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from secure_fd.aggregation.base import SecureSum
from secure_fd.aggregation.plain import PlainSum
from secure_fd.config import SGD
from secure_fd.data.federated import ClientData
from secure_fd.data.images import Images
from secure_fd.errors import ConfigurationError
from secure_fd.models import flatten, load_flat
from secure_fd.parameters import ParameterCodec
from secure_fd.privacy.units import Guarantee
from secure_fd.private_training import PrivateSGD, PrivateTrainer
from secure_fd.training import Trainer, accuracy, default_device
from secure_fd.transcript import Float32Array, ParameterRound, Transcript


@dataclass(frozen=True, slots=True)
class FedAvgReport:
    """One round: mean bytes that a client has sent and received until now."""

    index: int
    bytes_up: float
    bytes_down: float


class FedAvg:
    """Rounds of local training and weighted averaging.

    models: one a client, of equal architecture; the first one's parameters start the run.
    """

    def __init__(
        self,
        models: Sequence[nn.Module],
        data: Sequence[ClientData],
        *,
        optimiser: SGD | PrivateSGD | None = None,
        local_steps: int = 11,
        aggregation: SecureSum | None = None,
        seed: int = 0,
        device: torch.device | None = None,
    ) -> None:
        if len(models) != len(data):
            raise ConfigurationError("models", len(models), f"use one a client: {len(data)}")
        if len({sum(p.numel() for p in model.parameters()) for model in models}) != 1:
            raise ConfigurationError("models", len(models), "all must have one architecture")
        self._device = device or default_device()
        self._local_steps = local_steps
        self._sum = aggregation or PlainSum(len(models))
        largest = max(len(d.train) for d in data)
        self._codec = ParameterCodec(tuple(len(d.train) / largest for d in data))
        self._global: Float32Array = flatten(models[0]).cpu().numpy()
        chosen = optimiser or SGD()
        self._trainers = [
            _trainer(m, d.train, chosen, seed * 1000 + k, self._device)
            for k, (m, d) in enumerate(zip(models, data, strict=True))
        ]
        self._indices = itertools.count()
        self.transcript = Transcript(len(models))
        self.transcript.broadcast(self._global.nbytes)

    @property
    def model(self) -> nn.Module:
        """The global model after the last round."""
        self._load(self._trainers[0])
        return self._trainers[0].model

    def accuracies(self, test: Images) -> list[float]:
        """The global model's accuracy, which every client has."""
        return [accuracy(self.model, test.to(self._device))] * len(self._trainers)

    def guarantee(self) -> Guarantee | None:
        """Of DP-SGD at the client with fewest records, where it is on; else None."""
        made = [t.guarantee() for t in self._trainers if isinstance(t, PrivateTrainer)]
        return max(made, key=lambda claim: claim.epsilon) if made else None

    def rounds(self, count: int) -> Iterator[FedAvgReport]:
        """Run rounds; each is reported when the global model is updated. A later call goes on."""
        for _ in range(count):
            yield self._round(next(self._indices))

    def _round(self, index: int) -> FedAvgReport:
        vectors = {}
        for client, trainer in enumerate(self._trainers):
            self._load(trainer)
            trainer.local_steps(self._local_steps)
            local = flatten(trainer.model).cpu().numpy()
            vectors[client] = self._codec.encode(client, local)
        result = self._sum.sum(index, vectors, self._codec.bound)
        self._global = self._codec.decode(result.total).astype(np.float32)
        uploads = (
            {k: self._codec.decode_one(k, v) for k, v in vectors.items()}
            if result.readable
            else None
        )
        self.transcript.count(result.traffic)
        self.transcript.broadcast(self._global.nbytes)
        self.transcript.add_parameters(
            ParameterRound(index, uploads, result.payloads, self._global)
        )
        return FedAvgReport(
            index, float(self.transcript.up.mean()), float(self.transcript.down.mean())
        )

    def _load(self, trainer: Trainer | PrivateTrainer) -> None:
        load_flat(trainer.model, torch.from_numpy(self._global).to(self._device))


def _trainer(
    model: nn.Module, train: Images, chosen: SGD | PrivateSGD, seed: int, device: torch.device
) -> Trainer | PrivateTrainer:
    if isinstance(chosen, PrivateSGD):
        return PrivateTrainer(model, train, chosen, device)
    return Trainer(model, train, chosen, seed, device)
