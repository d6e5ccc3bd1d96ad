"""The server of a round: the method's rule, the server role of the sum, the log of broadcasts.

`begin` opens a round, `receive` takes messages, `advance` closes a stage with the clients that
answered: it relays what the sum needs, or broadcasts what the method makes of the sum.

A bad message costs its sender alone the round. A sum that cannot be what clients that
keep to the rules give aborts the round, as one does that too few answered.
"""

from collections.abc import Callable
from functools import partial

from secure_fd.crypto.keys import SERVER, IdentityKey, IdentityPublic
from secure_fd.errors import PeerError
from secure_fd.protocol.broadcasts import BroadcastSigner
from secure_fd.protocol.messages import (
    OPENED,
    UNOPENED,
    RoundAborted,
    ServerRole,
    ServerTurn,
    SumRequest,
)
from secure_fd.secagg.session import NO_NOISE, NoiseTerms, RoundTerms
from secure_fd.secure_sum.base import SumServer
from secure_fd.wire import (
    LIMIT,
    Kind,
    Place,
    Sum,
    frame,
)

Outbound = dict[int, list[bytes]]
"""Messages by client, in the order in which they are to be read."""


class Server:
    """The server of a federation, without a transport.

    clients: the roster's numbers. session: 32 bytes that name the federation. key: signs
    broadcasts; clients pin its public key. role: of the server in the method. sums: role of the
    server in the secure sum. noise: public terms of noise in the values.

    >>> from secure_fd import simulate
    >>> simulate("digits", clients=3).federation.server.busy
    False
    """

    def __init__(
        self,
        clients: tuple[int, ...],
        session: bytes,
        key: IdentityKey,
        role: ServerRole,
        sums: SumServer,
        noise: NoiseTerms = NO_NOISE,
    ) -> None:
        self.role, self.sums = role, sums
        self.last: Sum | None = None
        """The newest sum; None before any, and after an aborted one."""
        self.results: tuple[Sum, ...] = ()
        """The sums of this round, in order."""
        self.terms: RoundTerms | None = None
        """Terms of the newest sum that was opened."""
        self.aborted = False
        """True if the last round ended without its sum."""
        self.why = ""
        """Reason of the abort, in a sentence."""
        self.refused: dict[int, str] = {}
        """For each client that sent a bad message in this round, the fault."""
        self.key: IdentityPublic = key.public
        """Identity that clients pin."""
        self._clients, self._session, self._noise = clients, session, noise
        self._chain = BroadcastSigner(session, key)
        self._log: list[bytes] = []
        self.dropped = 0
        """Broadcasts before the first that is still in the log."""
        self._delivered = dict.fromkeys(clients, 0)  # broadcasts that were handed to a client
        self._away: set[int] = set()
        self._turn: ServerTurn | None = None
        self._round = self._exchange = 0
        self._counted = self._released = False  # newest sum; a counted one of this round opened

    @property
    def busy(self) -> bool:
        """True if a stage of the set-up or of a sum is open."""
        return self.sums.busy

    @property
    def count(self) -> int:
        """Broadcasts so far."""
        return self._chain.count

    @property
    def place(self) -> tuple[int, int]:
        """Rounds and sums that were begun."""
        return self._round, self._exchange

    def go_on_from(self, rounds: int, sums: int, digest: bytes, count: int) -> None:
        """Stand where an earlier process stood after a round whose broadcasts all clients have.

        The role is restored apart. rounds, sums: that were begun. digest, count: of the broadcasts.
        """
        self._round, self._exchange, self.dropped = rounds, sums, count
        self._chain.recall(digest, count)
        self._delivered = dict.fromkeys(self._clients, count)

    @property
    def digest(self) -> bytes:
        """The running digest of all broadcasts, 32 bytes."""
        return self._chain.digest

    def drop(self, count: int) -> None:
        """Drop the broadcasts before this position, which every client has read."""
        del self._log[: max(0, count - self.dropped)]
        self.dropped = max(self.dropped, count)

    def begin(self) -> Outbound:
        """Open the next round, with all clients; no message where the method asks nothing."""
        self.aborted, self.why, self.refused = False, "", {}
        self.last, self.results, self._away, self._released = None, (), set(), False
        self._turn, index = self.role.round(self._round), self._round
        try:
            out = self._go(partial(next, self._turn), Kind.ROUND_START)
        finally:
            self._round = index + 1
        return out

    def receive(self, sender: int, data: bytes) -> None:
        """Take one message of the client that the transport names.

        A bad one is not taken and drops its sender for the round, with what was wrong in `refused`:
        nothing more of it is read, and nothing is sent to it.
        """
        if sender in self.refused:
            return
        if len(data) > LIMIT:
            self.refused[sender] = f"a message has {len(data)} bytes; use up to {LIMIT}"
            return
        try:
            self.sums.receive(sender, data)
        except PeerError as error:
            self.refused[sender] = str(error)

    def returned(self, client: int, position: int) -> None:
        """Note that a client has read `position` broadcasts: the later ones are sent again."""
        self._delivered[client] = min(position, self.count)

    def owed(self, client: int) -> list[bytes]:
        """Return the earlier broadcasts that a client lacks, which are handed to it now."""
        place, had = Place(self._session, max(self._exchange - 1, 0)), self._delivered[client]
        self._delivered[client] = self.count
        missed = self._log[max(0, had - self.dropped) :]
        return [frame(Kind.CATCH_UP, place, SERVER, old) for old in missed]

    def advance(self) -> Outbound:
        """Close the stage: relays of the sum, or what the method makes of it."""
        if self._turn is None:  # the set-up
            return {k: [data] for k, data in self.sums.advance().items()}
        self._away |= self.sums.waiting
        failed, relayed = "", dict[int, bytes]()
        try:
            relayed = dict(self.sums.advance())
        except PeerError as error:  # too few answered, or what they sent does not add up
            failed = str(error)
        self.refused |= self.sums.accused
        self._away |= set(self.refused)
        if failed:
            self._abort(failed)
            if not self._opened:
                self.role.unopened(self._round - 1)
            return self._go(partial(self._turn.throw, RoundAborted()), Kind.ABORTED)
        if self.sums.busy or self.sums.result is None:
            return {k: [data] for k, data in relayed.items() if k not in self._away}
        self.last, self._released = self.sums.result, self._released or self._counted
        self.results += (self.last,)
        return self._go(partial(self._turn.send, self.last), Kind.RESULT)

    @property
    def _opened(self) -> bool:
        """True if clients may have given what opens the newest sum, or a counted one before it."""
        return self.sums.opened or self._released

    def _abort(self, why: str) -> None:
        self.aborted, self.last, self.why = True, None, why

    def _go(self, step: Callable[[], SumRequest], kind: Kind) -> Outbound:
        """Run the role until it asks for a sum, or has its last message."""
        try:
            ask = step()
        except StopIteration as ended:
            return {} if ended.value is None else self._broadcast(kind, ended.value)
        except RoundAborted:
            return self._broadcast(kind, OPENED if self._opened else UNOPENED)
        except PeerError as error:  # the method found a sum that no honest clients make
            self._abort(str(error))
            return self._broadcast(Kind.ABORTED, OPENED)
        index, self._exchange = self._exchange, self._exchange + 1
        self._counted = ask.counted
        out = self._broadcast(kind, ask.body)
        digest, noise = self._chain.digest, self._noise.of_members(ask.members)
        self.terms = RoundTerms(index, ask.length, ask.bound, digest, noise, ask.limits)
        for k, data in self.sums.open(self.terms).items():
            if k not in self._away:  # this sum was not announced to it
                out.setdefault(k, []).append(data)
        return out

    def _broadcast(self, kind: Kind, body: bytes) -> Outbound:
        there = [k for k in self._clients if k not in self._away]
        missed = {k: self.owed(k) for k in there}
        data = self._chain.write(kind, max(self._exchange - 1, 0), body)
        self._log.append(data)
        self._delivered |= dict.fromkeys(there, self.count)
        return {k: [*missed[k], data] for k in there}
