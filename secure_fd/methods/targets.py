"""What a client keeps between rounds: targets of distillation, and its network's agreement."""

from typing import Final

import numpy as np
import torch
from torch import Tensor

from secure_fd.errors import LocalError
from secure_fd.votes.codec import Ensemble, FloatArray, IntArray


class DistillationTargets:
    """The newest ensemble of each proxy.

    Args:
        proxies: [P, ...], all of them.
        n_classes: of a prediction.
        remember: whether ensembles of earlier rounds are targets as well.
        class_balance: exponent b of a target's weight 1 / share^b, with the share of its class
            among all targets, so that rare classes are learnt too.
    """

    def __init__(
        self, proxies: Tensor, n_classes: int, *, remember: bool, class_balance: float = 0.0
    ) -> None:
        self._proxies, self._remember, self._balance = proxies, remember, class_balance
        self._targets = torch.zeros(len(proxies), n_classes, device=proxies.device)
        self._known = torch.zeros(len(proxies), dtype=torch.bool, device=proxies.device)

    def learn(self, ensemble: Ensemble) -> tuple[Tensor, Tensor]:
        """Take an ensemble; return pixels [m, ...] and targets [m, C] to distil from."""
        if not self._remember:
            self._known[:] = False
        device = self._known.device
        indices = torch.from_numpy(ensemble.indices).to(device)
        self._known[indices] = torch.from_numpy(ensemble.kept).to(device)
        self._targets[indices] = torch.from_numpy(ensemble.predictions).float().to(device)
        known = self._known.nonzero()[:, 0]
        return self._proxies[known], self._weighed(self._targets[known])

    def memory(self) -> bytes:
        """Return the targets of all proxies, and which of them are in use."""
        targets = self._targets.cpu().numpy().astype("<f4").tobytes()
        return targets + self._known.cpu().numpy().tobytes()

    def recall(self, memory: bytes) -> int:
        """Continue from what `memory` returned; the bytes read. LocalError for too few."""
        proxies, classes = self._targets.shape
        cut = 4 * proxies * classes
        if len(memory) < cut + proxies:
            raise LocalError(f"targets of {proxies} proxies have {cut + proxies} bytes")
        targets = np.frombuffer(memory[:cut], "<f4").astype(np.float32)
        known = np.frombuffer(memory[cut : cut + proxies], np.bool_).copy()
        self._targets.copy_(torch.from_numpy(targets.reshape(proxies, classes)))
        self._known.copy_(torch.from_numpy(known))
        return cut + proxies

    def _weighed(self, targets: Tensor) -> Tensor:
        """Targets [m, C] times a weight of mean one: the loss is linear in them."""
        if not self._balance or not len(targets):
            return targets
        named = targets.argmax(dim=1)
        weights = torch.bincount(named, minlength=targets.shape[1]).float()[named] ** -self._balance
        return targets * (weights / weights.mean())[:, None]


LEAST_COMPARED: Final = 32
"""A server could keep a single proxy to read what the network predicts there."""


class AgreementTracker:
    """How often one client's network agreed with an ensemble before it was trained on it.

    The client compares its own predictions with the ensemble that it received. The value is zero
    before the first comparison, and an ensemble of fewer than `LEAST_COMPARED` kept proxies changes
    nothing.
    """

    def __init__(self) -> None:
        self.value = 0.0
        """In [0, 1]."""
        self._predicted: IntArray | None = None

    def forget(self) -> None:
        """Drop the predictions of a round without an ensemble."""
        self._predicted = None

    def predicted(self, predictions: FloatArray) -> None:
        """Keep the network's predictions [m, C] about the round's proxies."""
        self._predicted = np.asarray(predictions.argmax(axis=1))

    def compare(self, ensemble: Ensemble) -> None:
        """Compare with the ensemble about the same proxies."""
        named, own, kept = ensemble.predictions.argmax(axis=1), self._predicted, ensemble.kept
        if own is not None and own.shape == named.shape and kept.sum() >= LEAST_COMPARED:
            self.value = float((own == named)[kept].mean())
        self.forget()
