"""The server of the secure sum. Nothing here does input or output: bytes in, bytes out.

Rules:
 1. A stage takes one message from every client of the roster, from nobody else and from nobody
    twice; the transport vouches for who sent it.
 2. Adverts are checked against the pinned identities, so the client at fault is named.
 3. A stage that ends with a client missing ends the round: the sum of the others stays masked,
    and MissingClientError says who.
 4. A decoded sum must lie in 0 .. clients * bound in every lane; otherwise the round is void.
 5. A round's number only grows. Any failure leaves the round aborted, for good.
"""

from collections.abc import Callable, Mapping
from enum import Enum, auto
from typing import Final

import numpy as np

from secure_fd.errors import LocalError, MissingClientError, PeerError
from secure_fd.knowledge import WordArray
from secure_fd.secagg.messages import (
    Advert,
    MessageType,
    decode_advert,
    decode_masked,
    encode_roster,
    message_type,
)
from secure_fd.secagg.session import RoundCounter, RoundScope, RoundTerms, Session


class ServerState(Enum):
    """Which stage of a round the server is collecting."""

    ADVERTS = auto()
    MASKED = auto()
    DONE = auto()
    ABORTED = auto()


class Server:
    """A server for a whole session; it holds no secret."""

    __slots__ = ("_rounds", "session")

    def __init__(self, session: Session) -> None:
        self.session = session
        self._rounds = RoundCounter()

    def open_round(self, terms: RoundTerms) -> "ServerRound":
        """Begin a round; LocalError unless its number is above that of every earlier one."""
        scope = RoundScope(self.session, terms)
        self._rounds.spend(terms.index)
        return ServerRound(scope)


class ServerRound:
    """One round of the server: receive a stage's messages, then advance to the next stage."""

    __slots__ = ("_adverts", "_inputs", "_state", "_total", "scope")

    def __init__(self, scope: RoundScope) -> None:
        self.scope = scope
        self._state = ServerState.ADVERTS
        self._adverts: dict[int, Advert] = {}
        self._inputs: dict[int, WordArray] = {}
        self._total: WordArray | None = None

    @property
    def state(self) -> ServerState:
        """Where the round stands; ABORTED never changes again."""
        return self._state

    @property
    def finished(self) -> bool:
        """Whether the sum is there."""
        return self._state is ServerState.DONE

    @property
    def total(self) -> WordArray:
        """The exact sums [m]; LocalError before the round is done."""
        if self._total is None or not self.finished:
            raise LocalError(f"there is no sum in state {self._state.name}")
        return self._total

    @property
    def payloads(self) -> Mapping[int, WordArray]:
        """The words that each client's masked input held."""
        return dict(self._inputs)

    def receive(self, sender: int, data: bytes) -> None:
        """Take one message that the transport says `sender` sent."""
        state = self._take()
        if sender not in self.scope.session.roster:
            raise PeerError(f"client {sender} is not on the pinned roster")
        kind = message_type(data, self.scope, sender)
        if (state, kind) not in _INBOUND:
            raise PeerError(f"a {kind.name} message is not allowed in state {state.name}")
        _INBOUND[state, kind](self, sender, data)
        self._state = state

    def advance(self) -> Mapping[int, bytes]:
        """Close the stage; what to send to each client, empty once the round is done.

        MissingClientError where a client did not answer the stage.
        """
        state = self._take()
        if state not in _ADVANCE:
            raise LocalError(f"there is no stage to close in state {state.name}")
        close, successor = _ADVANCE[state]
        outbound = close(self)
        self._state = successor
        return outbound

    def _take(self) -> ServerState:
        """Leave the round aborted; whoever succeeds puts the state back."""
        state, self._state = self._state, ServerState.ABORTED
        return state

    def _add_advert(self, sender: int, data: bytes) -> None:
        advert = decode_advert(data, self.scope, sender)
        self._refuse_repeat(sender, self._adverts)
        advert.verify(self.scope)
        self._adverts[sender] = advert

    def _add_masked(self, sender: int, data: bytes) -> None:
        words = decode_masked(data, self.scope, sender)
        self._refuse_repeat(sender, self._inputs)
        self._inputs[sender] = words

    def _close_adverts(self) -> Mapping[int, bytes]:
        self._require_all(self._adverts)
        roster = self.scope.session.roster
        message = encode_roster([self._adverts[client] for client in roster], self.scope)
        return dict.fromkeys(roster, message)

    def _close_masked(self) -> Mapping[int, bytes]:
        self._require_all(self._inputs)
        total = np.zeros(self.scope.words, dtype=np.uint64)
        for words in self._inputs.values():
            total += words
        self._total = self.scope.layout.unpack(total, self.scope.terms.length)
        return {}

    def _refuse_repeat(self, sender: int, seen: Mapping[int, object]) -> None:
        if sender in seen:
            raise PeerError(f"client {sender} sent a second message in one stage")

    def _require_all(self, seen: Mapping[int, object]) -> None:
        missing = [client for client in self.scope.session.roster if client not in seen]
        if missing:
            raise MissingClientError(
                f"clients {missing} did not answer in round {self.scope.terms.index}; "
                f"the round ends and nothing is revealed"
            )


# Reading: in this state, this message -> what takes it. Anything not listed aborts.
_INBOUND: Final[
    Mapping[tuple[ServerState, MessageType], Callable[[ServerRound, int, bytes], None]]
] = {
    (ServerState.ADVERTS, MessageType.ADVERT): ServerRound._add_advert,
    (ServerState.MASKED, MessageType.MASKED): ServerRound._add_masked,
}

# Reading: closing this stage -> what is sent, and the state after.
_ADVANCE: Final[
    Mapping[ServerState, tuple[Callable[[ServerRound], Mapping[int, bytes]], ServerState]]
] = {
    ServerState.ADVERTS: (ServerRound._close_adverts, ServerState.MASKED),
    ServerState.MASKED: (ServerRound._close_masked, ServerState.DONE),
}
