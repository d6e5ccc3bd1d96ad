"""Methods of controls and ablations: the truth, all records, other votes of Selective-FD."""

from dataclasses import dataclass, field, replace
from typing import ClassVar, cast

import numpy as np
import torch
from torch import Tensor

from secure_fd.data.federated import ClientData, FederatedData
from secure_fd.data.images import concatenate
from secure_fd.methods.base import Own, Setting
from secure_fd.methods.pooled_heads import HeadClient, PooledHeads
from secure_fd.methods.selective_fd import SelectiveFD, WeighedVotes
from secure_fd.methods.votes import CountedVotes, VotePolicy
from secure_fd.selection.selectors import ProxyRatioSelector, Selection
from secure_fd.votes.codec import FloatArray


@dataclass(frozen=True, slots=True, eq=False)
class TrueLabels(PooledHeads):
    """Pooled heads whose clients are trained on the true labels [P, C] in place of the head's."""

    truth: FloatArray = field(default_factory=lambda: np.empty((0, 0)), repr=False)

    def surveys(self, setting: Setting) -> bool:  # noqa: ARG002 - all proxies have a label
        """No proxy is left out."""
        return False

    def client(self, setting: Setting, own: Own) -> "TruthClient":
        """Return the role of one client."""
        return TruthClient(self, setting, own)


class TruthClient(HeadClient):
    """Client of pooled heads that also receives the true labels of all proxies."""

    def __init__(self, method: TrueLabels, setting: Setting, own: Own) -> None:
        super().__init__(method, setting, own)
        self._truth = torch.from_numpy(method.truth).float()

    def lesson(self) -> tuple[Tensor, Tensor]:
        """The proxies of the lesson with their true labels."""
        pixels, _ = super().lesson()
        return pixels, self._truth[self.known]


class NetworkNamesClasses(SelectiveFD):
    """Weighed votes in which the selector's evidence is summed over the client's classes.

    The network alone then names the class. That is better if clients hold all classes and have
    trained alone first.
    """

    __slots__ = ()

    def policy_of(self, found: Selection, n_classes: int) -> VotePolicy:
        """Return the votes that a selection allows."""
        votes = cast(WeighedVotes, super().policy_of(found, n_classes))
        evidence = np.minimum(votes.evidence.sum(axis=1, keepdims=True), 1.0) * votes.held
        return replace(votes, evidence=evidence)


class AllClasses(SelectiveFD):
    """Counted votes in which the network may name any class, as in the authors' code."""

    __slots__ = ()

    def policy_of(self, found: Selection, n_classes: int) -> VotePolicy:
        """Return the votes that a selection allows."""
        votes = cast(CountedVotes, super().policy_of(found, n_classes))
        return replace(votes, allowed=None)


class EvenClasses(ProxyRatioSelector):
    """Takes all classes for equally common among the proxies."""

    __slots__ = ()

    prior: ClassVar[float] = 0.0


class WithoutSurvey(SelectiveFD):
    """No survey of known proxies, and targets of all classes weigh the same."""

    __slots__ = ()

    class_balance: ClassVar[float] = 0.0

    @property
    def survey_first(self) -> bool:
        """No."""
        return False


def centralised(data: FederatedData) -> FederatedData:
    """The same data, of which every client holds all private records."""
    train, validation = (
        concatenate([getattr(client, part) for client in data.clients])
        for part in ("train", "validation")
    )
    everything = ClientData(train, validation, data.n_classes)
    return replace(data, clients=(everything,) * len(data.clients))
