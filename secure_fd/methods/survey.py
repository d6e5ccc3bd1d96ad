"""One sum before the first vote: which proxies does anybody know?

Where all clients abstain, an average of their votes still names a class. So each client first says
of every proxy whether it is like its own records of each class that it holds (see `selection.own`),
and of which classes it can say so: one bit each. The sums tell which share of a class's holders
knows a proxy. One that less than half of every class's holders know teaches nothing, in any round.

Of a class's own proxies, as many are known as of its records. So the share of known proxies tells
the share of proxies that are of the clients' classes. Where that is one, within its error, the gate
stays shut and every proxy is taught.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from secure_fd.errors import PeerError
from secure_fd.exchange import Seen
from secure_fd.knowledge import FloatArray, UnitArray
from secure_fd.selection.client import Familiar
from secure_fd.selection.own import ENOUGH, UNTYPICAL
from secure_fd.transcript import SurveyRound, Transcript, uploads_of

BOUND = 1
_FEW = 0.05
"""Share of unknown proxies that is not looked for: what is left of it is not worth the loss."""
_ERRORS = 3.0
_HALF = 0.5


@runtime_checkable
class Surveys(Protocol):
    """What a method has that asks before it votes. asks_first: whether it does."""

    @property
    def asks_first(self) -> bool:
        """Whether clients are asked what they know."""


@dataclass(frozen=True, slots=True, eq=False)
class Known:
    """rates: [P] share of the holders that know a proxy, of the class where it is largest.

    error: of `share`, one standard error.

    >>> found = Known(np.array([0.0, 1.0, 1.0, 0.7]), error=0.02)
    >>> found.proxies.tolist(), round(found.share, 2)
    ([False, True, True, True], 0.75)
    """

    rates: FloatArray = field(repr=False)
    error: float

    @property
    def share(self) -> float:
        """Estimated share of proxies that are of a class that clients hold; may exceed one."""
        return float(self.rates.mean()) / (1.0 - UNTYPICAL)

    @property
    def gated(self) -> bool:
        """Whether unknown proxies are kept out."""
        return 1.0 - self.share > max(_FEW, _ERRORS * self.error)

    @property
    def proxies(self) -> NDArray[np.bool_]:
        """[P] True where a proxy may teach."""
        return (self.rates >= _HALF) | (not self.gated)


@dataclass(frozen=True, slots=True)
class Survey:
    """The form of the sum: P C bits, then C for the classes of which a client can tell.

    >>> from secure_fd.selection.client import Familiar
    >>> asked = Survey(n_proxies=1, n_classes=2)
    >>> holder = Familiar(np.array([[True, False]]), np.array([True, False]))
    >>> asked.encode(holder).tolist()
    [1, 0, 1, 0]
    """

    n_proxies: int
    n_classes: int

    @property
    def length(self) -> int:
        """Integers of a client."""
        return (self.n_proxies + 1) * self.n_classes

    def encode(self, familiar: Familiar | None) -> UnitArray:
        """[length] bits; zeros of a client that cannot tell."""
        if familiar is None:
            return np.zeros(self.length, dtype=np.uint64)
        return np.concatenate([familiar.knows.reshape(-1), familiar.holds]).astype(np.uint64)

    def record(self, index: int, seen: Seen, transcript: Transcript) -> bool:
        """Keep a sum as the server saw it; False where it is of another form: votes, or counts."""
        total = seen.result.total
        if len(total) != self.length:
            return False
        uploads = uploads_of(seen, transcript.n_clients, BOUND, 0, self.length)
        transcript.survey = SurveyRound(index, uploads, total)
        return True

    def known(self, total: UnitArray, contributors: int, records: Sequence[int]) -> Known:
        """What the sums [length] of so many contributors say. records: by client, for the error.

        PeerError where they are more than so many clients can give.
        """
        bits = total.astype(np.float64).reshape(-1, self.n_classes)
        knowing, holders = bits[:-1], bits[-1]
        if holders.max() > contributors or (knowing > holders).any():
            raise PeerError(f"a survey has more than its {contributors} contributors can say")
        if not holders.any():
            return Known(np.ones(self.n_proxies), 0.0)
        rates = (knowing / np.maximum(holders, 1.0)).max(axis=1)
        asked = sum(min(count, ENOUGH) for count in records)
        parts = 1.0 / self.n_proxies + 1.0 / max(1, asked)
        return Known(rates, math.sqrt(UNTYPICAL / (1.0 - UNTYPICAL) * parts))
