"""Votes of a client's selector and network about proxies, and the server's filter of ensembles."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from secure_fd.errors import ConfigurationError
from secure_fd.methods.base import Labels
from secure_fd.selection.familiarity import KnownProxies
from secure_fd.votes.codec import (
    Contribution,
    Ensemble,
    FloatArray,
    IntArray,
    Sums,
    ensemble_predictions,
    one_hot,
)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class VotePolicy(ABC):
    """What a client may answer about every proxy sample, once its network was asked.

    Attributes:
        scores: [P], higher where the proxy is more like the client's records; None without a
            selector. For evaluation; they never leave the client.
        familiar: what the client's records say of each proxy; None of a selector that asks none.
    """

    scores: FloatArray | None = field(default=None, repr=False)
    familiar: KnownProxies | None = field(default=None, repr=False)

    @abstractmethod
    def contribution(
        self, indices: IntArray, predictions: FloatArray, labels: Labels, trust: float = 0.0
    ) -> Contribution:
        """Return the answer about some proxies.

        Args:
            indices: [m] of the proxies.
            predictions: [m, C], the network's softmax predictions there.
            labels: soft or hard.
            trust: in [0, 1], how often the network agreed with the last ensemble before it was
                trained on it.
        """


@dataclass(frozen=True, slots=True, eq=False)
class CountedVotes(VotePolicy):
    """Votes of weight one or none, as in the paper.

    Attributes:
        weights: [P] in [0, 1], w_k; 0 abstains.
        allowed: [P, C] the classes that the client may name there, or None for all.
    """

    weights: FloatArray = field(repr=False)
    allowed: NDArray[np.bool_] | None = field(default=None, repr=False)

    def contribution(
        self,
        indices: IntArray,
        predictions: FloatArray,
        labels: Labels,
        trust: float = 0.0,  # noqa: ARG002 - the network alone names a class
    ) -> Contribution:
        """Return the network's prediction among the allowed classes."""
        if self.allowed is not None:
            predictions = among(predictions, self.allowed[indices])
        if labels == "hard":
            predictions = one_hot(predictions.argmax(axis=1), predictions.shape[1])
        return Contribution(self.weights[indices], predictions)


_SHARPNESS: Final = 2.0
"""Exponent of a soft weighed vote, as least squares shrinks every ratio towards the mean."""


@dataclass(frozen=True, slots=True, eq=False)
class WeighedVotes(VotePolicy):
    """Votes whose weight is the product of the selector's evidence and the network's prediction.

    Attributes:
        evidence: [P, C] in [0, 1], the selector's for each class that the client holds, 0 for the
            others.
        held: [C], the classes that it holds.
    """

    evidence: FloatArray = field(repr=False)
    held: NDArray[np.bool_] = field(repr=False)

    def contribution(
        self, indices: IntArray, predictions: FloatArray, labels: Labels, trust: float = 0.0
    ) -> Contribution:
        """Return w_k s_k = evidence x prediction, in which both must support a class.

        A network that has not distilled yet has no other class than its own, so its probability of
        all other classes counts only as far as it is trusted.

        A hard label is the class of the largest product, and its weight is the root of it: the same
        order over fewer orders of magnitude, for few levels.
        """
        evidence = self.evidence[indices]
        own = among(predictions, self.held[None, :])
        joint = evidence * (trust * predictions + (1.0 - trust) * own)
        if labels == "hard":
            named = one_hot(joint.argmax(axis=1), joint.shape[1])
            return Contribution(np.sqrt(np.clip(joint.max(axis=1), 0.0, 1.0)), named)
        joint **= _SHARPNESS
        weights = joint.sum(axis=1)
        shares = np.divide(
            joint, weights[:, None], out=predictions.copy(), where=weights[:, None] > 0
        )
        return Contribution(np.clip(weights, 0.0, 1.0), shares)


def among(predictions: FloatArray, allowed: NDArray[np.bool_]) -> FloatArray:
    """Predictions [m, C] rescaled over the allowed classes [m or 1, C] alone; as they are for none.

    A tiny floor keeps an allowed class nameable where the network gives it nothing.
    """
    inside = (predictions + np.finfo(np.float64).tiny) * allowed
    total = inside.sum(axis=1, keepdims=True)
    return np.asarray(np.divide(inside, total, out=predictions.copy(), where=total > 0))


def check_server_threshold(threshold: float) -> None:
    """Raise ConfigurationError unless the threshold is an l1 distance between 0 and 2."""
    if not 0 < threshold <= 2:
        raise ConfigurationError("server_threshold", threshold, "use a number above 0, at most 2")


def precise(predictions: FloatArray, threshold: float) -> NDArray[np.bool_]:
    """[m] True where 2 (1 - max h(x)) <= tau_server and the maximum is unique.

    The distance is the l1 distance of h(x) to its own one-hot label (section "Server-Side
    Selector"); a tie names no label, whatever the threshold.
    """
    top = np.sort(predictions, axis=1)[:, -2:]
    return np.asarray((2.0 * (1.0 - top[:, 1]) <= threshold) & (top[:, 1] > top[:, 0]))


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
