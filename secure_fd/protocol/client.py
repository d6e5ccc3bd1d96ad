"""The client of a round: bytes in, bytes out, and training as a value.

A courier hands messages over. Where `work` is due, the courier runs it, beside that of other
clients or not, and calls `resume`. A client refuses a message by raising: it then sends nothing
more in this round, and its state is that before the message.
"""

import hashlib
import struct
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from secure_fd.crypto.keys import SERVER, IdentityPublic
from secure_fd.errors import LocalError, PeerError, SecureFDError
from secure_fd.protocol.broadcasts import BROADCAST_BYTES, BroadcastVerifier, position_of
from secure_fd.protocol.messages import (
    OPENED,
    UNOPENED,
    ClientRole,
    ClientTurn,
    RoundAborted,
    SumInput,
)
from secure_fd.secagg.session import NO_NOISE, NoiseTerms, RoundTerms
from secure_fd.secure_sum.base import SumClient
from secure_fd.wire import Kind, read_header

if TYPE_CHECKING:
    from secure_fd.storage import Store
    from secure_fd.training.trainer import Steps

_PLACE: Final = struct.Struct(">32s32sIIqqq??")


class Client:
    """A client of a federation, without a transport.

    Args:
        number: its place in the roster.
        session: 32 bytes that name the federation.
        server: the key with which broadcasts must be signed.
        role: of this client in the method.
        sums: its role in the secure sum.
        noise: public terms of noise in the values.
        file: state that must outlive this process, written before anything that depends on it is
            sent: broadcasts received, sums asked for, releases. A new process continues from it.
            Network and open round are not in it, so the client returns as one that was away.

    >>> from secure_fd import simulate
    >>> simulate("digits", clients=3).federation.clients[2].number
    2
    """

    def __init__(
        self,
        number: int,
        session: bytes,
        server: IdentityPublic,
        role: ClientRole,
        sums: SumClient,
        noise: NoiseTerms = NO_NOISE,
        file: "Store | None" = None,
    ) -> None:
        self.number, self.role = number, role
        self.work: Steps | None = None
        self.shared = ""  # title of the newest input
        self._session, self._sum, self._noise = session, sums, noise
        self._chain = BroadcastVerifier(session, server)
        self._inbox: deque[bytes] = deque()
        self._turn: ClientTurn | None = None
        self._announcement: bytes | None = None
        self._index = self._shared = self._gave = -1  # newest sum: announced, shared in, opened
        self._loaded = -1  # newest sum that this process can answer messages of
        self._awaited = False  # the result of the newest sum is still to come
        self._counted = self._released = False  # newest share; a counted one of this round opened
        self._first = 0  # position of the newest round's announcement: the file begins there
        self._kept = 0  # the same when the file was last written
        self._written = b""  # hash of the memory of the role in the file
        self._file = file
        if file is not None:
            self._recall(file)

    @property
    def position(self) -> int:
        """Number of broadcasts that it has read: it has missed those after them."""
        return self._chain.count

    @property
    def digest(self) -> bytes:
        """The running digest of all broadcasts that it has read, 32 bytes."""
        return self._chain.digest

    def _recall(self, file: "Store") -> None:
        """Restore the state that an earlier process of this client wrote, if there was one."""
        place, role = file.get("place"), file.get("role")
        if place is None and file.get("told") is None:  # its name in an earlier version
            return
        if place is None or len(place) != _PLACE.size:
            raise LocalError("this state file is of an earlier version: make a new roster")
        session, digest, count, self._first, *known = _PLACE.unpack(place)
        if session != self._session:
            raise LocalError("a state file belongs to another session")
        self._index, self._shared, self._gave, self._awaited, self._released = known
        self._kept = self._first
        self._chain.recall(digest, count)
        if role is not None:
            try:
                self.role.recall(role)
            except PeerError as error:
                raise LocalError("a state file is damaged, or of another method") from error
        for position in range(self._first, count):
            kept = file.get(f"broadcast {position}")
            if kept is None:
                raise LocalError(f"a state file lacks broadcast {position}")
            kind, _, _ = read_header(kept, self._session, SERVER)
            self._learn_of(kind, kept[BROADCAST_BYTES:], recalled=True)

    def _learn_of(self, kind: int, payload: bytes, *, recalled: bool = False) -> None:
        """Take in a broadcast that came, or was read, when this client was not in the round."""
        if kind == Kind.ROUND_START:
            self._announcement = payload
        elif self._announcement is not None:
            self.role.missed(self._announcement, payload if kind == Kind.RESULT else None)
        if kind == Kind.ABORTED:
            self._note_aborted(payload, recalled=recalled)

    def _remember(self, broadcast: bytes | None = None) -> None:
        """Write what was received, asked and released; it is on the disk at return."""
        if self._file is None:
            return
        newest, dropped = self._chain.count - 1, range(self._kept, self._first)
        read = (self._session, self._chain.digest, self._chain.count, self._first)
        known = (self._index, self._shared, self._gave, self._awaited, self._released)
        values = {"place": _PLACE.pack(*read, *known)}
        if broadcast is not None:
            values[f"broadcast {newest}"] = broadcast
        memory = self.role.memory()
        if (digest := hashlib.sha256(memory).digest()) != self._written:
            values["role"], self._written = memory, digest
        self._file.put(values, drop=(f"broadcast {k}" for k in dropped))
        self._kept = self._first

    def start(self) -> list[bytes]:
        """Join the session and begin to learn alone."""
        return self._sum.start() + self._begin(self.role.begin())

    def alone(self) -> list[bytes]:
        """Begin a round in which the server asks nothing."""
        return self._begin(self.role.round(b""))

    def _begin(self, turn: ClientTurn) -> list[bytes]:
        self._turn = turn
        return self._go(partial(next, turn))

    def receive(self, data: bytes) -> list[bytes]:
        """Take one message of the server and give the answers; they wait while work is due.

        Raises PeerError for a message that does not follow what this client has read, or that the
        server did not sign; whatever the method or its protection refuses comes through.
        """
        self._inbox.append(data)
        return self._take_all()

    def resume(self) -> list[bytes]:
        """Go on after the work that was due is done."""
        self.work = None
        sent = [] if self._turn is None else self._go(partial(next, self._turn))
        return sent + self._take_all()

    def _take_all(self) -> list[bytes]:
        sent: list[bytes] = []
        while self._inbox and self.work is None:
            sent += self._take(self._inbox.popleft())
        return sent

    def _take(self, data: bytes) -> list[bytes]:
        kind, index, body = read_header(data, self._session, SERVER)
        if kind < Kind.INPUT or kind in (Kind.CIPHER, Kind.REPORT):
            self._check_takes_part()
            answers = self._sum.receive(data)
            self._note_given()
            return answers
        if kind == Kind.CATCH_UP:
            self._catch_up(body)
            return []
        if self._chain.has_read(data):
            return []
        if kind == Kind.ROUND_START:
            self._announcement = payload = self._read(kind, index, data)
            return self._begin(self.role.round(payload))
        if self._turn is None:  # unread, so that it comes again
            raise PeerError("an answer came where nothing was asked")
        payload = self._read(kind, index, data)
        if kind == Kind.ABORTED:
            self._note_aborted(payload)
            return self._go(partial(self._turn.throw, RoundAborted()))
        return self._go(partial(self._turn.send, payload))

    def _check_takes_part(self) -> None:
        """PeerError where this client is not in the newest sum, or the sum has its result already.

        A sum that was called unopened is not counted, so nothing may open it afterwards.
        """
        if self._loaded != self._index or (self._index >= 0 and not self._awaited):
            raise PeerError(f"a message of a sum came, and none is open after sum {self._index}")

    def _note_given(self) -> None:
        """Write that this client gives what opens its newest share, before that leaves."""
        if self._sum.gave and self._gave != self._shared:
            self._gave, self._released = self._shared, self._released or self._counted
            self._remember()

    def _read(self, kind: int, index: int, broadcast: bytes) -> bytes:
        """Return the body of the next broadcast; PeerError if it cannot follow, nothing read."""
        payload, begins = broadcast[BROADCAST_BYTES:], kind == Kind.ROUND_START
        self._check_follows(kind, index, payload)
        self._chain.read(kind, broadcast)
        # A round that begins while a sum has no result yet does not undo that it was opened.
        self._released = self._released and (not begins or self._awaited)
        self._awaited = index > (self._shared if begins else self._index)
        self._index = index
        if begins:  # the role's memory has what is left of earlier rounds
            self._first = self._chain.count - 1
        self._remember(broadcast)
        self.role.announced(index, self._chain.digest)
        return payload

    def _check_follows(self, kind: int, index: int, payload: bytes) -> None:
        """PeerError for a second result of a sum, and for one of another sum than the newest."""
        if kind in (Kind.RESULT, Kind.ABORTED) and not self._awaited:
            raise PeerError("an answer came where nothing was asked")
        if index != self._index and (kind == Kind.ABORTED or index != self._index + 1):
            raise PeerError(f"sum {index} does not follow sum {self._index}")
        if kind == Kind.ABORTED and payload not in (OPENED, UNOPENED):
            raise PeerError("an aborted sum is neither opened nor unopened")

    def _catch_up(self, broadcast: bytes) -> None:
        """Read an earlier broadcast; one that this client has already read changes nothing."""
        if position_of(broadcast) < self._chain.count:
            return
        kind, index, _ = read_header(broadcast, self._session, SERVER)
        self._turn, payload = None, self._read(kind, index, broadcast)
        self._learn_of(kind, payload)

    def _note_aborted(self, payload: bytes, *, recalled: bool = False) -> None:
        """Take back the release of an aborted sum that no party opened.

        PeerError where it is called unopened after this client gave what opens it, or its counted
        input of this round.
        """
        helped = self._released or 0 <= self._gave == self._index
        if payload == UNOPENED and helped and not recalled:
            raise PeerError("a sum that this client helped to open is called unopened")
        if payload == UNOPENED and not helped and self._announcement is not None:
            self.role.unopened(self._announcement)

    def _go(self, step: Callable[[], "SumInput | Steps"]) -> list[bytes]:
        """Run the role until it has training or an input; a refusal ends its turn."""
        try:
            wanted = step()
            if isinstance(wanted, SumInput):
                return self._share(wanted)
            self.work = wanted
        except (StopIteration, RoundAborted):
            self._turn = None
        except SecureFDError:
            self._turn = None
            raise
        return []

    def _share(self, share: SumInput) -> list[bytes]:
        terms = RoundTerms(
            *(self._index, len(share.values), share.bound),
            *(self._chain.digest, self._noise.of_members(share.members), share.limits),
        )
        self._shared, self._counted, self._loaded = self._index, share.counted, -1
        self.shared = share.title
        self._remember()
        opening = self._sum.load(terms, share.values)
        self._loaded = self._index
        self._note_given()
        return opening
