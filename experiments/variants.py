"""What only a control or an ablation runs: the truth, all records."""

from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
import torch

from secure_fd.data.federated import ClientData, FederatedData
from secure_fd.data.images import concatenate
from secure_fd.knowledge import Ensemble, FloatArray, IntArray, Sums
from secure_fd.methods.base import Own, Setting
from secure_fd.methods.heads import HeadClient, PooledHeads, Public
from secure_fd.methods.selective_fd import SelectiveFD
from secure_fd.training import Lesson


@dataclass(frozen=True, slots=True, eq=False)
class TrueLabels(SelectiveFD):
    """Clients answer, and are taught the truth [P, C] instead: what perfect labels would give."""

    truth: FloatArray = field(default_factory=lambda: np.empty((0, 0)), repr=False)

    def ensemble(self, indices: IntArray, sums: Sums) -> Ensemble:  # noqa: ARG002 - nobody's vote counts
        """The truth about all proxies that were asked."""
        return Ensemble(indices, self.truth[indices], np.ones(len(indices), dtype=np.bool_))


@dataclass(frozen=True, slots=True, eq=False)
class TaughtTruth(PooledHeads):
    """Clients that a head was to teach learn the truth [P, C] instead."""

    truth: FloatArray = field(default_factory=lambda: np.empty((0, 0)), repr=False)

    def client(self, setting: Setting, own: Own) -> "TruthClient":
        """The half of one client."""
        return TruthClient(self, Public.of(self.features, setting), setting, own)


class TruthClient(HeadClient):
    """Shares what a client of pooled heads does, and is told the labels of all proxies."""

    def __init__(self, method: TaughtTruth, public: Public, setting: Setting, own: Own) -> None:
        super().__init__(method, public, setting, own)
        self._truth = torch.from_numpy(method.truth).float()

    def lesson(self) -> Lesson:
        """The proxies of the lesson with their true labels."""
        lesson = super().lesson()
        return replace(lesson, targets=self._truth[lesson.indices.cpu()])


def centralised(data: FederatedData) -> FederatedData:
    """The same data, of which every client holds all private records."""
    train, validation = (
        concatenate([getattr(client, part) for client in data.clients])
        for part in ("train", "validation")
    )
    everything = ClientData(train, validation, data.n_classes)
    return replace(data, clients=(everything,) * len(data.clients))


def taught_truth(made: SelectiveFD, truth: FloatArray) -> TrueLabels:
    """The same method, told the truth [P, C] about all proxies."""
    return TrueLabels(**{**_settings(made), "none_of_mine": False}, truth=truth)


def _settings(made: SelectiveFD) -> dict[str, Any]:
    return {each.name: getattr(made, each.name) for each in fields(made)}
