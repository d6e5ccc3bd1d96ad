"""FedED (Sui et al., 2020): the ensemble teaches a central network, which teaches the clients.

Clients answer every proxy. The server trains its own network towards their mean, on the round's
proxies and on all that it was taught before, and sends back that network's predictions.

Choices made here: the proxies have no labels, so the distillation loss stands alone. The server
sends predictions, not parameters, because the clients' architectures differ. The central
architecture is the caller's choice, and so are the server's steps a round. It may take more of them
on the first ensemble, as clients do before they first answer: what a network says that has learnt
nothing yet is one class for all proxies, and hard labels teach clients that. A round ends with the
distillation at the clients.
"""

from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor, nn

from secure_fd.data.images import Images
from secure_fd.errors import ConfigurationError
from secure_fd.methods.base import Labels, teachable
from secure_fd.methods.votes import Memory, VotingMethod
from secure_fd.training.recipes import SGD
from secure_fd.training.trainer import Trainer, default_device, predict
from secure_fd.votes.codec import Ensemble, IntArray, Sums, ensemble_predictions


class FedED(VotingMethod):
    """One run's server: it has a network that learns, so use a fresh one for every run.

    labels: what clients share and are sent. proxies: the public pixels [P, ...] that the federation
    has. model: the central network, which learns in place. sgd, steps: how the server trains a
    round, and warmup: how many steps more in the first. remember: it also learns from the ensembles
    of earlier rounds. seed: of its batches.

    Raises ConfigurationError where the server takes no step a round, or fewer than 0 more.

    >>> from secure_fd import models
    >>> FedED("soft", torch.zeros(4, 1, 28, 28), models.build("cnn-5-5-50", 10, seed=0)).name
    'FedED soft'
    """

    title: ClassVar[str] = "FedED"

    def __init__(
        self,
        labels: Labels,
        proxies: Tensor,
        model: nn.Module,
        *,
        sgd: SGD | None = None,
        steps: int = 10,
        warmup: int = 0,
        remember: bool = True,
        seed: int = 0,
        device: torch.device | None = None,
    ) -> None:
        if steps < 1:
            raise ConfigurationError("steps", steps, "use 1 or more")
        if warmup < 0:
            raise ConfigurationError("warmup", warmup, "use 0 or more")
        home = device or default_device()
        self.labels = labels
        self._steps, self._warmup = steps, warmup
        self._proxies = proxies.to(home)
        nothing = Images(self._proxies[:0], torch.zeros(0, dtype=torch.int64))
        self._model = model
        apart = replace(sgd or SGD(), own_batch=0)  # a server has no records
        self._trainer = Trainer(model, nothing, apart, seed, home)
        n_classes = predict(model, self._proxies[:1]).shape[1]
        self._memory = Memory(self._proxies, n_classes, remember=remember)

    @property
    def model(self) -> nn.Module:
        """The central network."""
        return self._model

    def ensemble(self, indices: IntArray, sums: Sums) -> Ensemble:
        """The central network's answers at the round's proxies, after it learnt from the mean."""
        answered = sums.count > 0
        lesson = Ensemble(indices, ensemble_predictions(sums), answered)
        steps, self._warmup = self._steps + self._warmup, 0
        self._trainer.distillation_steps(*self._memory.learn(lesson), steps)
        pixels = self._proxies[torch.from_numpy(indices)]
        answers = predict(self._model, pixels)
        return Ensemble(indices, teachable(answers, self.labels), answered)
