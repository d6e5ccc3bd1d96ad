"""What a distillation method decides: who answers, how, and what the server lets teach."""

from abc import ABC, abstractmethod
from typing import Protocol

import numpy as np
from torch import Tensor, nn

from secure_fd.data.federated import ClientData
from secure_fd.errors import ConfigurationError, LocalError
from secure_fd.knowledge import (
    HARD_LEVELS,
    SOFT_LEVELS,
    WEIGHED_LEVELS,
    Ensemble,
    FloatArray,
    IntArray,
    Sums,
    one_hot,
)
from secure_fd.methods.votes import CountedVotes, Labels, Opinion
from secure_fd.selection.server import ensemble_predictions, precise


class Method(Protocol):
    """One row of the table in the documentation: a choice of w_k, s_k and a server rule."""

    @property
    def name(self) -> str:
        """The name in the literature."""

    @property
    def labels(self) -> Labels:
        """Whether clients share softmax predictions or one-hot labels."""

    @property
    def levels(self) -> int:
        """Integer units in one whole vote."""

    @property
    def revisits(self) -> bool:
        """Whether clients take a round's local steps after they have learnt from the ensemble."""

    def opinion(self, client: ClientData, proxies: Tensor) -> Opinion:
        """Where the client answers, and with what weight."""

    def ensemble(self, indices: IntArray, sums: Sums) -> Ensemble:
        """What the server sends back for a round's proxies."""


class EverybodyAnswers:
    """A method in which every client answers every proxy, and every answer counts the same."""

    __slots__ = ()
    labels: Labels

    @property
    def levels(self) -> int:
        """Integer units in one whole vote."""
        return levels(self.labels)

    def opinion(self, client: ClientData, proxies: Tensor) -> Opinion:  # noqa: ARG002 - nobody abstains
        """Weight 1 and every class, everywhere."""
        return CountedVotes(np.ones(len(proxies)))


class ByNetwork(ABC):
    """A method whose selector reads the client's network, and so changes its mind every round."""

    @abstractmethod
    def scores(self, network: nn.Module, pixels: Tensor) -> FloatArray:
        """[N] of any images, higher where they are more the client's own."""

    @abstractmethod
    def opinion_of_network(
        self, client: ClientData, proxies: Tensor, indices: IntArray, network: nn.Module
    ) -> Opinion:
        """What the client may say about the proxies at these indices now."""

    def opinion(self, client: ClientData, proxies: Tensor) -> Opinion:  # noqa: ARG002 - no use without the network
        """LocalError: there is no opinion without the network."""
        raise LocalError("this method's selector needs the client's network")


def levels(labels: Labels, *, weighed: bool = False) -> int:
    """Integer units in one whole vote. Raises ConfigurationError for other labels than these."""
    if labels not in ("soft", "hard"):
        raise ConfigurationError("labels", labels, "use soft or hard")
    if labels == "soft":
        return SOFT_LEVELS
    return WEIGHED_LEVELS if weighed else HARD_LEVELS


def teachable(predictions: FloatArray, labels: Labels) -> FloatArray:
    """Predictions as they are sent back: one-hot where labels are hard."""
    if labels == "soft":
        return predictions
    return one_hot(predictions.argmax(axis=1), predictions.shape[1])


def filtered(indices: IntArray, sums: Sums, labels: Labels, server_threshold: float) -> Ensemble:
    """h(x) where it is precise; where nobody answered, zeros tie and teach nothing."""
    predictions = ensemble_predictions(sums)
    kept = precise(predictions, server_threshold)
    return Ensemble(indices, teachable(predictions, labels), kept)
