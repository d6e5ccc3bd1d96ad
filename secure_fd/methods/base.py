"""Base class of all methods, and the terms that client and server roles are made from.

A method makes the role of each client and the role of the server. What it does not need has a
default in `Method`. `methods.votes.VotingMethod` is the base of methods that share predictions
about proxy samples, `methods.class_means.ClassMeansMethod` of those that share class means.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Final, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from secure_fd.data.federated import ClientData
from secure_fd.errors import ConfigurationError
from secure_fd.privacy.base import NoProtection, Protection
from secure_fd.privacy.ledger import Ledger
from secure_fd.protocol.messages import ClientRole, ServerRole
from secure_fd.selection.familiarity import KnownProxies
from secure_fd.training.recipes import Recipe, Schedule, plain
from secure_fd.training.trainer import Learner, LocalTrainer
from secure_fd.votes.codec import (
    HARD_LEVELS,
    SOFT_LEVELS,
    Contribution,
    Ensemble,
    FloatArray,
    IntArray,
    Sums,
    ensemble_predictions,
    one_hot,
)


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


Labels = Literal["soft", "hard"]


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

    weights: [P] in [0, 1], w_k; 0 abstains. allowed: [P, C] the classes that the client may name
    there, or None for all.
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
    """Votes that weigh as much as selector and network together make of them.

    evidence: [P, C] in [0, 1], how far the selector grants each class that the client holds, 0 for
    the others. held: [C], the classes that it holds.
    """

    evidence: FloatArray = field(repr=False)
    held: NDArray[np.bool_] = field(repr=False)

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


@dataclass(frozen=True, slots=True, eq=False)
class Setting:
    """What all parties of a federation know: public terms, the same for each of them.

    shape: of one record. proxies: [P, ...], or None where the method needs none. records: training
    records by client. seed: of the joint draws. releases: how often a client answers one proxy in
    all. protection: what stands before the wire; its public side alone is for servers.

    >>> from secure_fd import NoProtection, Schedule
    >>> terms = Setting(2, 10, (4,), None, Schedule(), (3, 4), bytes(32), None, NoProtection())
    >>> terms.n_clients
    2
    """

    n_clients: int
    n_classes: int
    shape: tuple[int, ...]
    proxies: Tensor | None = field(repr=False)
    schedule: Schedule
    records: tuple[int, ...]
    seed: bytes = field(repr=False)
    releases: int | None
    protection: Protection

    def public_proxies(self) -> Tensor:
        """[P, ...]; ConfigurationError where the federation has none."""
        if self.proxies is None:
            raise ConfigurationError("proxies", None, "this method needs public proxies")
        return self.proxies

    def check_plain_steps(self, field: str) -> None:
        """ConfigurationError for views or falling rates, which the steps of DP-SGD do not take."""
        if self.schedule.anneal_over is not None or self.schedule.augment != "none":
            raise ConfigurationError(
                field, "PrivateSGD", "it takes neither anneal_over nor augment"
            )

    def check_no_protection(self) -> None:
        """ConfigurationError where a protection was given to a method without votes to guard."""
        if self.protection.name != NoProtection.name:
            allowed = "this method shares no votes about proxies; leave the protection out"
            raise ConfigurationError("protection", self.protection.name, allowed)


@dataclass(frozen=True, slots=True, eq=False)
class Own:
    """What one client brings: its number, network, records, and the seed of its batches.

    >>> from secure_fd import federate, load, models, parse_split
    >>> data = federate(load("digits"), parse_split("strong"), 3, seed=0).clients[1]
    >>> network = models.build("cnn-5-5-50", 10, seed=0)
    >>> Own(1, network, data, seed=0, device=torch.device("cpu")).number
    1
    """

    number: int
    model: nn.Module = field(repr=False)
    data: ClientData = field(repr=False)
    seed: int
    device: torch.device

    def learner(self, schedule: Schedule, private: LocalTrainer | None = None) -> Learner:
        """Its network and records under a schedule."""
        train = self.data.train
        return Learner(self.model, train, schedule, self.seed, self.device, private)


class Method(ABC):
    """Base class of methods. A method holds settings; the roles that it makes hold a run's state.

    >>> from secure_fd import FedAvg, FedMD
    >>> FedAvg().shares_parameters, FedMD("hard").shares_parameters
    (True, False)
    """

    __slots__ = ()

    title: ClassVar[str]
    """The name in the literature."""
    takes_labels: ClassVar[bool] = False
    """Whether its first argument says if clients share soft or hard labels."""
    shares_parameters: ClassVar[bool] = False
    """Whether clients share parameters: then all networks have one architecture."""
    min_voters: int = 1
    """Fewest clients that answer a proxy whose predictions are asked for."""

    @property
    def name(self) -> str:
        """The name in the literature, with the settings that a report shows."""
        return self.title

    @property
    def needs_proxies(self) -> bool:
        """Whether clients need the public proxies; otherwise none are handed out."""
        return False

    @property
    def caveat(self) -> str:
        """What its sums reveal without noise beyond what the secure sum states, in a sentence."""
        return ""

    def recipe(self, n_classes: int, n_proxies: int, held: float, image_set: str = "") -> Recipe:  # noqa: ARG002
        """Return rounds and schedule by default. held: classes of a client, mean over clients."""
        return plain(n_proxies)

    def check(self, setting: Setting, models: Sequence[nn.Module]) -> None:  # noqa: ARG002 - any networks serve
        """Raise ConfigurationError for a federation that the method cannot run in.

        By default, refuse a privacy mechanism for votes.
        """
        setting.check_no_protection()

    @abstractmethod
    def client(self, setting: Setting, own: Own) -> "ClientRole":
        """Make the role of one client."""

    @abstractmethod
    def server(self, setting: Setting, initial: nn.Module) -> "ServerRole":
        """Make the server's role. initial: a network as the first client's is at the start."""

    def trained_privately(
        self,
        epsilon: float,  # noqa: ARG002 - refused
        delta: float,  # noqa: ARG002
        rounds: int,  # noqa: ARG002
        schedule: Schedule,  # noqa: ARG002
        ledgers: Mapping[int, Ledger] | None = None,  # noqa: ARG002
    ) -> Self:
        """Return the method with every step on a record one of DP-SGD.

        Args:
            epsilon: of the whole run.
            delta: of the whole run.
            rounds: of the run.
            schedule: steps of a round.
            ledgers: by client, the budget of its data set; None where no budget is kept.

        Raises:
            ConfigurationError: clients do not share parameters.
        """
        raise ConfigurationError("unit", "record", f"{self.name} shares no parameters")


def check_labels(labels: Labels) -> None:
    """Raise ConfigurationError for other labels than soft or hard ones."""
    if labels not in ("soft", "hard"):
        raise ConfigurationError("labels", labels, "use soft or hard")


def levels(labels: Labels) -> int:
    """Integer units in one whole vote. Raises ConfigurationError for other labels than these."""
    check_labels(labels)
    return SOFT_LEVELS if labels == "soft" else HARD_LEVELS


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
