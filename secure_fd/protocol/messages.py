"""The one exchange that every method is, as values: what halves yield, and what crosses as bytes.

A method is two generators that face each other. The server's half yields what it asks and is sent a
sum; the client's half yields what it shares, or training that is due, and is sent the server's next
message. Nothing here does input or output.

    server   Ask(body)          client   Share(values), Steps(training)
    server   is sent Sum        client   is sent the server's message
"""

from collections.abc import Generator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from secure_fd.votes.codec import NO_LIMITS, Limits, UnitArray
from secure_fd.wire import Sum

if TYPE_CHECKING:
    from secure_fd.training.trainer import Steps


OPENED: Final = b"\1"
UNOPENED: Final = b"\0"
"""What a VOID message says: whether clients may have given what it takes to read the sum."""


class Void(Exception):  # noqa: N818 - thrown into both halves as an event, not as a failure
    """Thrown into both halves of a method where a sum did not come about.

    >>> issubclass(Void, Exception)
    True
    """


@dataclass(frozen=True, slots=True)
class Share:
    """Integers [m] in [0, bound], within the limits, that a client hands to the sum.

    counted: whether the client counts them as a release, which `ClientHalf.unopened` takes back.
    members: inputs without which the sum is not opened, where a method needs more than the sum.

    >>> import numpy as np
    >>> Share(np.array([1, 0], dtype=np.uint64), bound=1).bound
    1
    """

    values: UnitArray = field(repr=False)
    bound: int
    limits: Limits = NO_LIMITS
    counted: bool = False
    members: int = 0


@dataclass(frozen=True, slots=True)
class Ask:
    """What goes to all clients, and the form of the sum that the server expects.

    body: bytes of the subject. length: integers in a vector. bound: the largest of them. limits:
    what else holds for those of one client. members: inputs without which the sum is not opened.
    counted: whether clients count it as a release: once it has its result, no later sum of the
    round ends as unopened.

    >>> Ask(b"round 0", length=10, bound=63).length
    10
    """

    body: bytes = field(repr=False)
    length: int
    bound: int
    limits: Limits = NO_LIMITS
    members: int = 0
    counted: bool = False


ClientTurn = Generator["Share | Steps", bytes, None]
"""Yields shares and training; is sent the server's message after a share, nothing after steps."""
ServerTurn = Generator[Ask, Sum, bytes | None]
"""Yields asks; is sent sums; returns the round's last message, or None for none."""


@dataclass(frozen=True, slots=True)
class ClientReport:
    """What a client's half knows of its last round, for evaluation alone; nothing of it crosses.

    units: [m * C] integers of its votes before noise; None where it gave none. taught: by class
    that it holds, whether the round taught it something there; empty where proxies teach.
    """

    units: UnitArray | None = field(default=None, repr=False)
    taught: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, np.bool_), repr=False)


@dataclass(frozen=True, slots=True)
class ServerReport:
    """What a server's half knows after a round.

    kept: share of the round's proxies that teach; None where there are none. parameters: [m] of
    the newest global model, where there is one. most_released: the most often that clients were
    asked about any proxy.
    """

    kept: float | None = None
    parameters: NDArray[np.float32] | None = field(default=None, repr=False)
    most_released: int = 0


class ClientHalf(Protocol):
    """What a method does at one client."""

    def begin(self) -> ClientTurn:
        """Once, before the first round: training alone."""

    def announced(self, index: int, digest: bytes) -> None:
        """Take the number of the newest sum, and the digest of all broadcasts up to this one.

        No other sum has both. Called before the turn that answers the broadcast goes on.
        """

    def round(self, subject: bytes) -> ClientTurn:
        """One round about the server's subject. `Void` is thrown in where a sum fails."""

    def missed(self, subject: bytes, message: bytes | None) -> None:
        """A round that this client was not in to the end; message: None where it was void."""

    def unopened(self, subject: bytes) -> None:
        """The round's sum is void, and nobody can have read it: it counts as no release."""


@runtime_checkable
class Remembers(Protocol):
    """A half whose state outlives its process, its network apart.

    Broadcasts of earlier rounds are dropped from the state file of such a client: what a later
    round needs of them has to be in `memory`. Those of the newest round are read again through
    `missed` after `recall`, also where `memory` has them already.
    """

    def memory(self) -> bytes:
        """What was released and asked so far, and the newest results; no records."""

    def recall(self, memory: bytes) -> None:
        """Go on from what `memory` gave; LocalError or PeerError for other bytes."""


class ServerHalf(Protocol):
    """What a method does at the server."""

    def round(self, index: int) -> ServerTurn:
        """One round. `Void` is thrown in where a sum fails."""

    def unopened(self, index: int) -> None:
        """The round's sum is void, and nothing of it was asked to be opened."""
