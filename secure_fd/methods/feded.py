"""FedED (Sui et al., 2020): the server distils the mean, and clients distil the server's network.

Clients answer every proxy. The server trains its own network towards their mean, on the round's
proxies and on those of all earlier rounds, and sends back that network's predictions.

Choices made here: the proxies have no labels, so the distillation loss stands alone. The server
sends predictions, not parameters, because the clients' architectures differ. The central
architecture is the caller's choice, and so are the server's steps a round. It may take more of them
on the first ensemble, as clients do before they first answer: an untrained network predicts one
class for all proxies, and with hard labels clients would be trained on that. A round ends with the
distillation at the clients.
"""

from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch
from torch import nn

from secure_fd.data.images import Images
from secure_fd.errors import ConfigurationError
from secure_fd.methods.base import Labels, Setting
from secure_fd.methods.votes import DistillationTargets, VoteServer, VotingMethod
from secure_fd.training.trainer import Trainer, predict
from secure_fd.votes.codec import Ensemble, IntArray, Sums, hard_or_soft


@dataclass(frozen=True, slots=True)
class FedED(VotingMethod):
    """A method whose server trains a central network on the mean of the clients' predictions.

    Args:
        labels: what clients share, and receive.
        model: the central network at the start of a run; the server trains a copy.
        warmup: steps that the server takes in the first round beside the schedule's.
        seed: of the server's batches.

    >>> from secure_fd import models
    >>> FedED("soft", models.build("cnn-5-5-50", 10, seed=0)).name
    'FedED soft'
    """

    title: ClassVar[str] = "FedED"

    labels: Labels
    model: nn.Module = field(repr=False)
    warmup: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.warmup < 0:
            raise ConfigurationError("warmup", self.warmup, "use 0 or more steps")

    def server(self, setting: Setting, initial: nn.Module) -> "FedEDServer":  # noqa: ARG002 - it has its own network
        """Make the server's role."""
        return FedEDServer(self, setting)


class FedEDServer(VoteServer):
    """Trains the central network as a client of the schedule distils, and sends its predictions."""

    checkpointed = ("ensemble", "known", "terms", "_warmup", "_trainer", "_model", "_targets")

    def __init__(self, method: FedED, setting: Setting) -> None:
        super().__init__(method, setting)
        self._proxies, schedule = setting.public_proxies(), setting.schedule
        self._steps, self._warmup = max(1, schedule.proxy_steps), method.warmup
        self._model = deepcopy(method.model)
        nothing = Images(self._proxies[:0], torch.zeros(0, dtype=torch.int64))
        sgd = replace(schedule.sgd, own_batch=0)  # a server has no records
        self._trainer = Trainer(self._model, nothing, sgd, method.seed, self._proxies.device)
        self._targets = DistillationTargets(
            self._proxies, setting.n_classes, remember=schedule.remember
        )

    def apply(self, indices: IntArray, sums: Sums) -> Ensemble:
        """Train on the mean, and return the central network's answers."""
        mean = super().apply(indices, sums)
        steps, self._warmup = self._steps + self._warmup, 0
        self._trainer.take_steps(steps, *self._targets.learn(mean))
        answers = predict(self._model, self._proxies[torch.from_numpy(indices)])
        return replace(mean, predictions=hard_or_soft(answers, self.terms.method.labels))
