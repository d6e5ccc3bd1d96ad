"""The exchange that every method is: the base classes of its two roles, and what they yield.

A method is two generators that face each other. The server role yields what it asks and is sent a
sum; the client role yields what it shares, or training that is due, and is sent the server's next
message. Nothing here does input or output.

    server   SumRequest(body)   client   SumInput(values), Steps(training)
    server   is sent Sum        client   is sent the server's message
"""

from collections.abc import Generator
from dataclasses import dataclass, field
from typing import ClassVar, Final

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from secure_fd.data.images import Images
from secure_fd.errors import ConfigurationError
from secure_fd.privacy.guarantee import Guarantee
from secure_fd.protocol.transcript import ObservedRound, Transcript
from secure_fd.training.trainer import Learner, Steps, accuracy, predict
from secure_fd.votes.codec import FloatArray, UnitArray
from secure_fd.votes.packing import NO_LIMITS, Limits
from secure_fd.wire import Sum

OPENED: Final = b"\1"
UNOPENED: Final = b"\0"
"""Bodies of an ABORTED message: whether clients may have given what it takes to read the sum."""


class RoundAborted(Exception):  # noqa: N818 - thrown into both roles as an event, not as a failure
    """Thrown into both roles of a method where a round is aborted.

    >>> issubclass(RoundAborted, Exception)
    True
    """


@dataclass(frozen=True, slots=True)
class SumInput:
    """Integers [m] in [0, bound], within the limits, that a client hands to the sum.

    counted: whether the client counts them as a release, which `ClientRole.unopened` takes back.
    members: inputs without which the sum is not opened, where a method needs more than the sum.
    title: what it is, for the site's log alone.

    >>> import numpy as np
    >>> SumInput(np.array([1, 0], dtype=np.uint64), bound=1).bound
    1
    """

    values: UnitArray = field(repr=False)
    bound: int
    limits: Limits = NO_LIMITS
    counted: bool = False
    members: int = 0
    title: str = "answer"


@dataclass(frozen=True, slots=True)
class SumRequest:
    """Announcement to all clients, and the form of the sum that the server expects.

    body: bytes of the announcement. length: integers in a vector. bound: the largest of them.
    limits: what else holds for those of one client. members: inputs without which the sum is not
    opened. counted: whether clients count it as a release: once it has its result, no later sum
    of the round ends as unopened.

    >>> SumRequest(b"round 0", length=10, bound=63).length
    10
    """

    body: bytes = field(repr=False)
    length: int
    bound: int
    limits: Limits = NO_LIMITS
    members: int = 0
    counted: bool = False


ClientTurn = Generator[SumInput | Steps, bytes, None]
"""Yields shares and training; is sent the server's message after a share, nothing after steps."""
ServerTurn = Generator[SumRequest, Sum, bytes | None]
"""Yields asks; is sent sums; returns the round's last message, or None for none."""


class ClientRole:
    """Base class of what a method does at one client.

    A method defines `round`; the other methods have defaults. learner: the network and the records
    of this client.
    """

    learner: Learner
    units: UnitArray | None = None
    """[m * C] integers of its last votes before noise, None where it gave none. For evaluation."""
    has_target: NDArray[np.bool_] = np.zeros(0, dtype=np.bool_)
    """For each class that it holds, if the last round had a target; empty for proxy methods."""

    def begin(self) -> ClientTurn:
        """Train alone, once, before the first round: by default the schedule's warm-up steps."""
        yield from self.learner.warm_up()

    def round(self, announcement: bytes) -> ClientTurn:
        """Take part in the announced round; `RoundAborted` is thrown in if it aborts."""
        raise NotImplementedError

    def announced(self, index: int, digest: bytes) -> None:
        """Take the number of the newest sum, and the digest of all broadcasts up to this one.

        No other sum has both. Called before the turn that answers the broadcast continues. By
        default a release may enter any sum.
        """

    def missed(self, announcement: bytes, message: bytes | None) -> None:
        """Take the result of a round that this client left early; message: None if it aborted.

        By default only clients in the round learn from it.
        """

    def unopened(self, announcement: bytes) -> None:
        """Take back the release of an aborted round whose sum no party can have read.

        By default no releases are counted.
        """

    def memory(self) -> bytes:
        """Return what must outlive the process beside the network: no records.

        The state file drops broadcasts of earlier rounds, so `memory` has to hold what a later
        round needs of them. After `recall` those of the newest round are read again through
        `missed`, also where `memory` has them already.
        """
        return b""

    def recall(self, memory: bytes) -> None:
        """Continue from what `memory` returned; LocalError or PeerError for other bytes."""

    def scores(self) -> FloatArray | None:
        """Return the [P] scores of the client selector for evaluation; None without one."""
        return None

    def accuracy(self, test: Images) -> float:
        """Return the accuracy of this client's final predictor, by default its network."""
        return accuracy(self.learner.model, test)

    def answers(self, pixels: Tensor) -> FloatArray:
        """Return the scores [N, C] of this client's final predictor, by default its network."""
        return predict(self.learner.model, pixels)

    def guarantee(self) -> Guarantee | None:
        """Return the privacy guarantee of all releases so far; None without one."""
        return None


class ServerRole:
    """Base class of what a method does at the server. A method defines `round`."""

    checkpointed: ClassVar[tuple[str, ...]] = ()
    """Attributes that change from round to round; without any, a server that starts again repeats
    the role from its first round on."""
    kept: float | None = None
    """Share of the last round's proxies that clients distil from; None where there are none."""

    def round(self, index: int) -> ServerTurn:
        """Run one round; `RoundAborted` is thrown in if its sum fails."""
        raise NotImplementedError

    def unopened(self, index: int) -> None:
        """Take back the requests of an aborted round whose sum no party can have read.

        By default no releases are counted.
        """

    def start_from(self, network: nn.Module) -> None:  # noqa: ARG002 - a global model takes it
        """Start the run from this network, before round one, in the place of the role's own.

        Raises ConfigurationError by default: a server of a global model has to implement it.
        """
        allowed = "it does not start from a network that was saved"
        raise ConfigurationError("method", type(self).__name__, allowed)

    def record(self, seen: ObservedRound[None], transcript: Transcript) -> None:
        """Add a sum of the last round, and what came of it, to the transcript; not by default."""

    def most_released(self) -> int:
        """Return the most often that clients were asked about any proxy."""
        return 0

    def parameters(self) -> NDArray[np.float32] | None:
        """Return the newest global model, [m]; None where there is none."""
        return None
