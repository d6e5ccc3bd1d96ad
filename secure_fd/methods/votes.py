"""What a client says about proxies: votes that count, as in the papers, or votes that weigh."""

from dataclasses import dataclass, field
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from secure_fd.knowledge import Contribution, FloatArray, IntArray, one_hot

Labels = Literal["soft", "hard"]


class Opinion(Protocol):
    """What a client may say about every proxy, once its network has been asked."""

    @property
    def scores(self) -> FloatArray | None:
        """[P], higher where the proxy is more the client's own; None where nothing selects.

        They serve evaluation and never leave the client.
        """

    def contribution(
        self, indices: IntArray, predictions: FloatArray, labels: Labels, trust: float = 0.0
    ) -> Contribution:
        """The answer about proxies [m], from the network's softmax predictions [m, C].

        trust: in [0, 1], how often the network agreed with the last ensemble before it learnt it.
        """


@dataclass(frozen=True, slots=True, eq=False)
class CountedVotes:
    """Votes of weight one or none, as the paper has them.

    weights: [P] in [0, 1], w_k; 0 abstains. allowed: [P, C] the classes that the client may name
    there, or None for all.
    """

    weights: FloatArray = field(repr=False)
    allowed: NDArray[np.bool_] | None = field(default=None, repr=False)
    scores: FloatArray | None = field(default=None, repr=False)

    def contribution(
        self,
        indices: IntArray,
        predictions: FloatArray,
        labels: Labels,
        trust: float = 0.0,  # noqa: ARG002 - the network alone names a class
    ) -> Contribution:
        """The network's prediction among the allowed classes."""
        if self.allowed is not None:
            predictions = among(predictions, self.allowed[indices])
        if labels == "hard":
            predictions = one_hot(predictions.argmax(axis=1), predictions.shape[1])
        return Contribution(self.weights[indices], predictions)


@dataclass(frozen=True, slots=True, eq=False)
class WeighedVotes:
    """Votes that weigh as much as selector and network together make of them.

    evidence: [P, C] in [0, 1], how far the selector grants each class that the client holds, 0 for
    the others. held: [C], the classes that it holds. sharpness: exponent of a soft vote.
    asks_network: whether the network may ever speak against the selector.
    """

    evidence: FloatArray = field(repr=False)
    held: NDArray[np.bool_] = field(repr=False)
    sharpness: float = 1.0
    asks_network: bool = True
    scores: FloatArray | None = field(default=None, repr=False)

    def contribution(
        self, indices: IntArray, predictions: FloatArray, labels: Labels, trust: float = 0.0
    ) -> Contribution:
        """w_k s_k = evidence x prediction: what both experts grant each class.

        Only as far as it is trusted may the network say "none of my classes": before it was taught,
        it knows no other and can but divide between its own.

        A hard label is the class of the largest product, and weighs its root: the same order over
        fewer orders of magnitude, for few levels to tell apart.
        """
        evidence = self.evidence[indices]
        if not self.asks_network:
            trust = 0.0
        own = among(predictions, self.held[None, :])
        joint = evidence * (trust * predictions + (1.0 - trust) * own)
        if labels == "hard":
            named = one_hot(joint.argmax(axis=1), joint.shape[1])
            return Contribution(np.sqrt(np.clip(joint.max(axis=1), 0.0, 1.0)), named)
        joint **= self.sharpness
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
