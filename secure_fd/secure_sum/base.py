"""The interface of every secure sum: a client role and a server role, with bytes between them."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from secure_fd.secagg.session import RoundTerms
from secure_fd.votes.codec import UnitArray
from secure_fd.wire import Sum


class Stage(StrEnum):
    """What a client that drops out does not send any more; later stages are missed as well.

    >>> [str(stage) for stage in Stage]
    ['prepare', 'input', 'consistency', 'unmask']
    """

    PREPARE = "prepare"
    INPUT = "input"
    CONSISTENCY = "consistency"
    UNMASK = "unmask"


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes that a set-up moved, by client, all stages and framing included.

    stages: messages that a client which stays to the end sends one after the other.
    """

    up: Mapping[int, int]
    down: Mapping[int, int]
    stages: int


class SumClient(Protocol):
    """A client's half of a sum. What a method returns goes to the server, in order."""

    @property
    def gave(self) -> bool:
        """Whether it has given what the server needs to read the newest sum."""

    def start(self) -> list[bytes]:
        """Join: the first message of the set-up, where there is one."""

    def load(self, terms: RoundTerms, values: UnitArray) -> list[bytes]:
        """Begin the next sum with these values [m]; LocalError for values beyond its terms."""

    def receive(self, data: bytes) -> list[bytes]:
        """Answer one message of the server; PeerError for a bad one."""


class SumServer(Protocol):
    """A server's half of a sum."""

    @property
    def readable(self) -> bool:
        """Whether it reads inputs in clear."""

    @property
    def busy(self) -> bool:
        """Whether a stage of the set-up or of a sum is open."""

    @property
    def stage(self) -> Stage:
        """The stage that is open, or was last."""

    @property
    def result(self) -> Sum | None:
        """The newest sum, once it is there."""

    @property
    def missing(self) -> Mapping[int, Stage]:
        """By client, the first stage of this sum that it did not answer, as later ones showed."""

    @property
    def accused(self) -> Mapping[int, str]:
        """By client whose input turned out bad when a stage closed, what was wrong with it."""

    @property
    def opened(self) -> bool:
        """Whether clients may have given what it takes to read the newest sum, were it void."""

    @property
    def waiting(self) -> set[int]:
        """The clients whose message of this stage has not come."""

    def open(self, terms: RoundTerms) -> Mapping[int, bytes]:
        """Begin the next sum; what is to be relayed at once, by client."""

    def receive(self, sender: int, data: bytes) -> None:
        """Take a message; PeerError for one that is not of this stage and sender."""

    def advance(self) -> Mapping[int, bytes]:
        """Close the stage with the clients that answered; MissingClientError: too few."""


class SumPromise(Protocol):
    """What a sum says of itself."""

    @property
    def name(self) -> str:
        """The word that the command line and the report use."""

    @property
    def n_clients(self) -> int:
        """The cohort, numbered from 0."""

    @property
    def guarantee(self) -> str:
        """What the server learns, whom that trusts and what is assumed, in one sentence."""

    @property
    def hides(self) -> bool:
        """Whether the server sees sums only; noise that clients share is enough only then."""

    @property
    def corrupt(self) -> int:
        """The clients that its guarantee takes to be corrupt, at most, beside the server."""

    @property
    def caveats(self) -> tuple[str, ...]:
        """Insecure settings in force, for the report; empty by default."""


class SecureSum(SumPromise, Protocol):
    """A sum of integer vectors over a fixed cohort of clients, as halves that face each other.

    Only bytes pass between the halves. A client that falls silent is missing from the sum, or,
    after its input, from what recovers it; where too few are left the sum is void.

    >>> from secure_fd import PlainSum
    >>> sums: SecureSum = PlainSum(3)
    >>> sums.n_clients
    3
    """

    @property
    def session(self) -> bytes:
        """32 bytes that name the session of these parties."""

    @property
    def seed(self) -> bytes | None:
        """The clients' joint seed of public draws; None where they have no say in them."""

    def client(self, number: int) -> SumClient:
        """The half of client `number`."""

    def server(self) -> SumServer:
        """The server's half."""

    def setup_traffic(self) -> Traffic:
        """What the set-up moved, once: it is not counted again."""


class WithoutSetUp:
    """Defaults of a sum whose parties send nothing before the first round."""

    __slots__ = ()

    @property
    def seed(self) -> None:
        """None: the clients draw nothing together."""

    def setup_traffic(self) -> Traffic:
        """Return no bytes: whatever keys there are were handed out before."""
        return Traffic({}, {}, 0)
