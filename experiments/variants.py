"""What only a control or an ablation runs: the truth, all records, refitted, otherwise weighed."""

from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from experiments.rivals.by_network import ByNetwork
from secure_fd.data.federated import ClientData, FederatedData
from secure_fd.data.images import Images, concatenate
from secure_fd.knowledge import Ensemble, FloatArray, IntArray, Sums
from secure_fd.methods.base import Opinion, Own, Setting
from secure_fd.methods.heads import HeadClient, PooledHeads, Public
from secure_fd.methods.selective_fd import SelectiveFD
from secure_fd.selection.density import Same
from secure_fd.training import Lesson

_BATCH = 1000
Weight = Literal["selector", "one"]


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


@dataclass(frozen=True, slots=True, eq=False)
class Refitted(SelectiveFD, ByNetwork):
    """Each client's selector is fitted anew every so many rounds, on its network's features.

    They are what its last layer sees. Until the first time the selector is the usual one, on public
    features. What a network's features are fitted on is private, so no record unit covers this.
    """

    every: int = 10
    _asked: dict[Same[nn.Module], int] = field(default_factory=dict, repr=False)
    _opinions: dict[Same[nn.Module], Opinion] = field(default_factory=dict, repr=False)

    def scores(self, network: nn.Module, pixels: Tensor) -> FloatArray:  # noqa: ARG002 - of the proxies
        """[P] of the network's client, as its selector saw the proxies when it was last fitted."""
        found = self._opinions[Same(network)].scores
        if found is None:
            raise ValueError("a density ratio scores proxies")
        return found

    def opinion_of_network(
        self,
        client: ClientData,
        proxies: Tensor,
        indices: IntArray,  # noqa: ARG002 - of all proxies at once
        network: nn.Module,
    ) -> Opinion:
        """By the selector as it was last fitted, now where it is time."""
        key = Same(network)
        rounds = self._asked.get(key, 0)
        if rounds == 0:
            self._opinions[key] = self.opinion(client, proxies)
        elif rounds % self.every == 0:
            self._opinions[key] = self.opinion(*seen(network, client, proxies))
        self._asked[key] = rounds + 1
        return self._opinions[key]


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


def refitted(made: SelectiveFD) -> Refitted:
    """The same method, its selectors refitted."""
    return Refitted(**_settings(made))


def _settings(made: SelectiveFD) -> dict[str, Any]:
    return {each.name: getattr(made, each.name) for each in fields(made)}


def seen(network: nn.Module, client: ClientData, proxies: Tensor) -> tuple[ClientData, Tensor]:
    """Records and proxies as the network's last layer sees them, [N, d, 1, 1] scaled to [0, 1]."""
    parts = [
        before_last(network, pixels)
        for pixels in (client.train.pixels, client.validation.pixels, proxies)
    ]
    scale = max(float(part.max()) for part in parts if len(part)) or 1.0
    train, validation, public = (part / scale for part in parts)
    records = ClientData(
        Images(train, client.train.labels),
        Images(validation, client.validation.labels),
        client.n_classes,
    )
    return records, public


@torch.no_grad()
def before_last(network: nn.Module, pixels: Tensor) -> Tensor:
    """[N, d, 1, 1], after the last ReLU."""
    layers = nn.Sequential(*list(network.children())[:-1])
    parts = [layers(part) for part in torch.split(pixels, _BATCH)]
    return torch.cat(parts)[:, :, None, None]
