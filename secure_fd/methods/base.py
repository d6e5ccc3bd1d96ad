"""Base class of all methods, and the terms that client and server roles are made from.

A method makes the role of each client and the role of the server. What it does not need has a
default in `Method`. `methods.votes.VotingMethod` is the base of methods that share predictions
about proxy samples, `methods.class_means.ClassMeansMethod` of those that share class means.
"""

import struct
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Final, Literal

import torch
from torch import Tensor, nn

from secure_fd.data.federated import ClientData
from secure_fd.errors import ConfigurationError, PeerError
from secure_fd.privacy.base import NoProtection, PrivacyMechanism
from secure_fd.protocol.messages import ClientRole, ServerRole
from secure_fd.training.recipes import Recipe, Schedule, plain
from secure_fd.training.trainer import Learner, LocalTrainer
from secure_fd.votes.codec import HARD_LEVELS, SOFT_LEVELS

Labels = Literal["soft", "hard"]


@dataclass(frozen=True, slots=True, eq=False)
class Setting:
    """Public terms of a federation, the same for all parties.

    Attributes:
        n_clients: of the federation.
        n_classes: of the labels.
        shape: of one record.
        proxies: [P, ...], or None where the method needs none.
        schedule: steps of warm-up and rounds.
        records: training records by client.
        seed: of the joint draws.
        releases: how often a client answers one proxy in all; None: once a round.
        protection: the privacy mechanism; a server uses its public side alone.

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
    protection: PrivacyMechanism

    def public_proxies(self) -> Tensor:
        """Return the proxies [P, ...]; ConfigurationError where the federation has none."""
        if self.proxies is None:
            raise ConfigurationError("proxies", None, "this method needs public proxies")
        return self.proxies

    def check_no_protection(self) -> None:
        """Raise ConfigurationError for a privacy mechanism: the method has no votes for it."""
        if self.protection.name != NoProtection.name:
            allowed = "this method shares no votes about proxies; leave the protection out"
            raise ConfigurationError("protection", self.protection.name, allowed)


@dataclass(frozen=True, slots=True, eq=False)
class Own:
    """One client's number, network, records, and the seed of its batches.

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
        """Return the learner of its network and records under a schedule."""
        train = self.data.train
        return Learner(self.model, train, schedule, self.seed, self.device, private)


_INDEX: Final = struct.Struct(">Q")


def write_index(index: int) -> bytes:
    """Write a round's number, with which its announcement begins.

    >>> read_index(write_index(3))
    3
    """
    return _INDEX.pack(index)


def read_index(announcement: bytes) -> int:
    """Read a round's number from an announcement of nothing else; PeerError for another length."""
    if len(announcement) != _INDEX.size:
        raise PeerError(f"a round's announcement has {len(announcement)} bytes; use {_INDEX.size}")
    return int(_INDEX.unpack(announcement)[0])


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
    """True if its first argument chooses between soft and hard labels."""
    labels: Labels
    """Form of shared labels, if clients share labels: softmax predictions or one-hot rows."""
    needs_proxies: ClassVar[bool] = False
    """True if clients need the public proxies; otherwise none are handed out."""
    shares_parameters: ClassVar[bool] = False
    """True if clients share parameters: then all networks have one architecture."""
    min_voters: int = 1
    """Fewest clients that answer a proxy whose predictions are asked for."""

    def __post_init__(self) -> None:
        if self.takes_labels and self.labels not in ("soft", "hard"):
            raise ConfigurationError("labels", self.labels, "use soft or hard")

    @property
    def name(self) -> str:
        """The name in the literature, with the kind of label."""
        return f"{self.title} {self.labels}" if self.takes_labels else self.title

    @property
    def levels(self) -> int:
        """Integer units in one whole vote, where clients share labels."""
        return SOFT_LEVELS if self.labels == "soft" else HARD_LEVELS

    @property
    def caveat(self) -> str:
        """Sentence on what its sums reveal without noise beyond what the secure sum states."""
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
