"""What a distillation method decides: who answers, how, and what the server lets teach."""

from typing import Literal, Protocol

import numpy as np
from torch import Tensor

from secure_fd.data.federated import ClientData
from secure_fd.knowledge import (
    HARD_LEVELS,
    SOFT_LEVELS,
    Ensemble,
    FloatArray,
    IntArray,
    Sums,
)

Labels = Literal["soft", "hard"]


class Method(Protocol):
    """One row of the table in the documentation: a choice of w_k, s_k and a server rule."""

    @property
    def name(self) -> str:
        """The name in the literature."""

    @property
    def labels(self) -> Labels:
        """Whether clients share softmax predictions or one-hot labels."""

    def weights(self, client: ClientData, proxies: Tensor) -> FloatArray:
        """w_k at every proxy: [P] in [0, 1]."""

    def ensemble(self, indices: IntArray, sums: Sums) -> Ensemble:
        """What the server sends back for a round's proxies."""


def levels(labels: Labels) -> int:
    """Integer units in one whole vote."""
    return HARD_LEVELS if labels == "hard" else SOFT_LEVELS


def teachable(predictions: FloatArray, labels: Labels) -> FloatArray:
    """Predictions as they are sent back: one-hot where labels are hard."""
    if labels == "soft":
        return predictions
    rows = np.zeros_like(predictions)
    rows[np.arange(len(rows)), predictions.argmax(axis=1)] = 1.0
    return rows
