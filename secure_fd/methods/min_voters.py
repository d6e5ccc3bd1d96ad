"""Two sums a round: the number of clients that answer each proxy, then votes where enough do.

Masks hide which client voted. They do not hide a single vote: if one client alone answers a proxy,
the sum is its vote. With `min_voters` t > 1, a round has two sums over the same members:

    1. for each proxy of the round, the number of clients that answer it, after the noise of the
       label unit where there is one: one bit of each client;
    2. the predictions, at those proxies only that at least t clients answer.

A prediction about another proxy never leaves its client. A vote of a ninth of a whole one or less
does not count as an answer and is not sent, as a sum of it and one other vote would be nearly the
other.

The server broadcasts the members of the first sum, all counts, and the proxies that it asks about.
Each client checks that it is a member, and that every such proxy has a broadcast count of t or
more. It opens the second sum only if all members are in it; otherwise the round is aborted.
Both sums are one release of the round's proxies, which counts once the first sum is opened.

**Limits.** Voters of a proxy are counted, not those of a class: where one client alone holds a
class, that class's part of a sum is still its own. All clients receive the counts. In clear, the
server is trusted to keep to the members. A server that lies can broadcast a count that is not the
sum's, or leave members out of the list. A client that lies can give a bit and then no vote: t - 1
such clients expose one vote. Nothing here detects either lie.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from secure_fd.errors import ConfigurationError, PeerError
from secure_fd.secure_sum.base import SumGuarantee
from secure_fd.votes.codec import IntArray, wire_type
from secure_fd.wire import Sum

_MARK = b"\xff"
"""First byte of the message; an ensemble begins with its form, which is a small number."""


def check_min_voters(least: int, clients: float = math.inf) -> None:
    """Raise ConfigurationError unless `least` of the clients can answer a proxy."""
    if not 1 <= least <= clients:
        allowed = "1 or more" if clients == math.inf else f"1 to {clients}, the number of clients"
        raise ConfigurationError("min_voters", least, f"use {allowed}")


def check_sum(least: int, aggregation: SumGuarantee) -> None:
    """Raise ConfigurationError for a sum that cannot be held to the members of an earlier one."""
    if least > 1 and aggregation.name == "prio3":
        allowed = "a prio3 sum names no fewest members: use masks, he or a sum in clear"
        raise ConfigurationError("min_voters", least, allowed)


@dataclass(frozen=True, slots=True, eq=False)
class Voters:
    """The server's message after the first sum.

    Attributes:
        members: the clients in the sum, ascending.
        counts: [m] clients that answer each proxy of the round.
        asked: [m] True where the second sum is about the proxy.

    >>> found = Voters((0, 1, 2), np.array([0, 1, 3]), np.array([False, False, True]))
    >>> Voters.read(found.message(n_clients=3), proxies=3, n_clients=3).counts.tolist()
    [0, 1, 3]
    """

    members: tuple[int, ...]
    counts: IntArray
    asked: NDArray[np.bool_]

    @classmethod
    def of(cls, result: Sum, least: int) -> "Voters":
        """Select the proxies that at least `least` clients answer."""
        counts = result.total.astype(np.int64)
        return cls(result.survivors, counts, counts >= least)

    def message(self, n_clients: int) -> bytes:
        """Write a mark, a bit for each client, the counts, and a bit for each proxy."""
        members = np.isin(np.arange(n_clients), self.members)
        counts = self.counts.astype(wire_type(n_clients))
        parts = np.packbits(members), counts, np.packbits(self.asked)
        return _MARK + b"".join(part.tobytes() for part in parts)

    @staticmethod
    def is_message(message: bytes) -> bool:
        """Return whether the message has this form, and is no ensemble."""
        return message[:1] == _MARK

    @classmethod
    def read(cls, message: bytes, proxies: int, n_clients: int) -> "Voters":
        """Read what `message` wrote; PeerError for other bytes."""
        kind, bits = wire_type(n_clients), -(-n_clients // 8)
        end = 1 + bits + proxies * kind.itemsize
        if not cls.is_message(message) or len(message) != end + -(-proxies // 8):
            raise PeerError(f"{len(message)} bytes are no counts of voters for {proxies} proxies")
        members = np.unpackbits(np.frombuffer(message, np.uint8, bits, 1), count=n_clients)
        counts = np.frombuffer(message, kind, proxies, 1 + bits).astype(np.int64)
        asked = np.unpackbits(np.frombuffer(message, np.uint8, offset=end), count=proxies)
        found = cls(tuple(np.flatnonzero(members).tolist()), counts, asked.astype(np.bool_))
        if found.message(n_clients) != message:
            raise PeerError("counts of voters have a bit set beyond the clients or the proxies")
        return found

    def check(self, number: int, least: int) -> None:
        """Raise PeerError if this client is no member, or a proxy has fewer voters than agreed."""
        if number not in self.members:
            raise PeerError(f"client {number} is not among the members of the sum of voters")
        few = self.counts[self.asked & (self.counts < least)]
        if len(few):
            raise PeerError(
                f"the server asks about a proxy of {few.min()} voters, and agreed on {least}"
            )
