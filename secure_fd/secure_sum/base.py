"""The interface of every secure sum: a client role and a server role, with bytes between them."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

from secure_fd.errors import PeerError
from secure_fd.secagg.session import RoundTerms
from secure_fd.votes.codec import UnitArray
from secure_fd.wire import Stage, Sum


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes that a set-up moved, by client, all stages and framing included."""

    up: Mapping[int, int]
    down: Mapping[int, int]


class SumClient(ABC):
    """Client role of a sum. What a method returns goes to the server, in order."""

    __slots__ = ()

    @property
    def gave(self) -> bool:
        """True once the server has all that it needs from this client to read the newest sum."""
        return False

    def start(self) -> list[bytes]:
        """Join: the first message of the set-up, where there is one."""
        return []

    @abstractmethod
    def load(self, terms: RoundTerms, values: UnitArray) -> list[bytes]:
        """Begin the next sum with these values [m]; LocalError for values beyond its terms."""

    def receive(self, data: bytes) -> list[bytes]:
        """Answer one message of the server; PeerError for a bad one, and by default for any."""
        raise PeerError(f"this sum has no message of {len(data)} bytes for a client")


class SumServer(ABC):
    """Server role of a sum. By default one stage, INPUT, has all messages of the clients."""

    __slots__ = ()

    @property
    @abstractmethod
    def busy(self) -> bool:
        """True while a stage of the set-up or of a sum is open."""

    @property
    @abstractmethod
    def result(self) -> Sum | None:
        """The newest sum, once it is there."""

    @property
    def stage(self) -> Stage:
        """The stage that is open, or was last."""
        return Stage.INPUT

    @property
    def missing(self) -> Mapping[int, Stage]:
        """The first stage of this sum that a client did not answer, by client."""
        return {}

    @property
    def accused(self) -> Mapping[int, str]:
        """The fault of an input that turned out bad when a stage closed, by client."""
        return {}

    @property
    @abstractmethod
    def opened(self) -> bool:
        """True once the newest sum may have been read, even if it is aborted afterwards."""

    @property
    @abstractmethod
    def waiting(self) -> Set[int]:
        """The clients whose message of this stage has not come."""

    @abstractmethod
    def open(self, terms: RoundTerms) -> Mapping[int, bytes]:
        """Begin the next sum; what is to be relayed at once, by client."""

    @abstractmethod
    def receive(self, sender: int, data: bytes) -> None:
        """Take a message; PeerError for one that is not of this stage and sender."""

    @abstractmethod
    def advance(self) -> Mapping[int, bytes]:
        """Close the stage with the clients that answered; MissingClientError: too few."""


class SumGuarantee:
    """Guarantee and other properties of a secure sum, known before it has parties."""

    __slots__ = ()

    name: str
    """The word that the command line and the report use."""
    n_clients: int
    """The cohort, numbered from 0."""
    guarantee: str
    """The server's view, the trusted parties and the assumptions, in one sentence."""
    hides: bool = False
    """True if the server sees sums only; noise that clients share is enough only then."""
    corrupt: int = 0
    """The clients that its guarantee takes to be corrupt, at most, beside the server."""
    caveats: tuple[str, ...] = ()
    """Insecure settings in force, for the report."""


class SecureSum(SumGuarantee):
    """A sum of integer vectors over a fixed cohort of clients, as a client and a server role.

    Only bytes pass between the roles. A client that falls silent is missing from the sum, or,
    after its input, from what recovers it; where too few are left the sum is aborted.

    >>> from secure_fd import PlainSum
    >>> sums: SecureSum = PlainSum(3)
    >>> sums.n_clients
    3
    """

    __slots__ = ()

    session: bytes
    """32 bytes that name the session of these parties."""
    seed: bytes | None = None
    """The clients' joint seed of public draws; None where they do not draw it."""
    setup_traffic: Traffic = Traffic({}, {})
    """Bytes that the set-up moved."""
    _clients: Sequence[SumClient]
    _server: SumServer

    def client(self, number: int) -> SumClient:
        """Return the client role of client `number`, enrolled."""
        return self._clients[number]

    def server(self) -> SumServer:
        """Return the server role, enrolled."""
        return self._server
