"""What a distillation method decides: who answers, how, and what the server lets teach."""

from dataclasses import dataclass, field
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from secure_fd.data.federated import ClientData
from secure_fd.knowledge import (
    HARD_LEVELS,
    SOFT_LEVELS,
    Contribution,
    Ensemble,
    FloatArray,
    IntArray,
    Sums,
    one_hot,
)

Labels = Literal["soft", "hard"]


@dataclass(frozen=True, slots=True, eq=False)
class Opinion:
    """What a client may say about every proxy, fixed before round one.

    weights: [P] in [0, 1], w_k; 0 abstains. allowed: [P, C] the classes that it may name there,
    or None for all. scores: [P], higher where the proxy is more the client's own; None where the
    method has no selector. They serve evaluation and never leave the client.
    """

    weights: FloatArray = field(repr=False)
    allowed: NDArray[np.bool_] | None = field(default=None, repr=False)
    scores: FloatArray | None = field(default=None, repr=False)

    def contribution(
        self, indices: IntArray, predictions: FloatArray, labels: "Labels"
    ) -> Contribution:
        """The answer about proxies [m], from the network's softmax predictions [m, C]."""
        if self.allowed is not None:
            inside = predictions * self.allowed[indices]
            # The tiny floor keeps an allowed class nameable where the network gives it nothing.
            floor = np.finfo(np.float64).tiny * self.allowed[indices]
            inside = inside + floor
            total = inside.sum(axis=1, keepdims=True)
            predictions = np.divide(inside, total, out=predictions.copy(), where=total > 0)
        if labels == "hard":
            predictions = one_hot(predictions.argmax(axis=1), predictions.shape[1])
        return Contribution(self.weights[indices], predictions)


class Method(Protocol):
    """One row of the table in the documentation: a choice of w_k, s_k and a server rule."""

    @property
    def name(self) -> str:
        """The name in the literature."""

    @property
    def labels(self) -> Labels:
        """Whether clients share softmax predictions or one-hot labels."""

    def opinion(self, client: ClientData, proxies: Tensor) -> Opinion:
        """Where the client answers, and with what weight."""

    def ensemble(self, indices: IntArray, sums: Sums) -> Ensemble:
        """What the server sends back for a round's proxies."""


def levels(labels: Labels) -> int:
    """Integer units in one whole vote."""
    return HARD_LEVELS if labels == "hard" else SOFT_LEVELS


def teachable(predictions: FloatArray, labels: Labels) -> FloatArray:
    """Predictions as they are sent back: one-hot where labels are hard."""
    if labels == "soft":
        return predictions
    return one_hot(predictions.argmax(axis=1), predictions.shape[1])
