"""A client of the secure sum. Nothing here does input or output: bytes in, bytes out.

Rules a client keeps, whatever the server sends:
 1. Its roster is pinned; the cohort of a round is the whole roster, and not below its floor.
 2. A round's number only grows; a round that began is spent, whether it ended well or not.
 3. Every round has a fresh X25519 key. Masks are agreed only with keys that a pinned identity
    signed for this session, this round and these terms (length, bound, subject).
 4. Bound, lanes and the modulus 2**64 are its own; no message carries them.
 5. It sends one advert and one masked input a round, and nothing else. In particular no message
    makes it send its words unmasked.
 6. Any failure, ours or theirs, leaves the round aborted, for good, and its key dropped.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from secure_fd.crypto.context import SERVER
from secure_fd.crypto.keys import AgreementKey, IdentityKey
from secure_fd.crypto.randomness import RandomBytes
from secure_fd.crypto.secrecy import SecretHolder
from secure_fd.errors import ConfigurationError, LocalError, PeerError
from secure_fd.knowledge import WordArray
from secure_fd.secagg.masking import mask_input
from secure_fd.secagg.messages import (
    Advert,
    MessageType,
    decode_roster,
    encode_advert,
    encode_masked,
    message_type,
)
from secure_fd.secagg.session import RoundCounter, RoundScope, RoundTerms, Session

MIN_COHORT: Final = 3


@dataclass(frozen=True, slots=True)
class Floors:
    """What a client insists on before it takes part.

    cohort: the fewest clients that may share a round. Of two clients each reads the other's
    input from the sum, so fewer than three need insecure_pair, and one is never allowed.
    """

    cohort: int = MIN_COHORT
    insecure_pair: bool = False

    def __post_init__(self) -> None:
        least = 2 if self.insecure_pair else MIN_COHORT
        if self.cohort < least:
            raise ConfigurationError("cohort", self.cohort, f"use {least} or more")


class ClientState(Enum):
    """Where a client stands in a round."""

    READY = auto()
    ADVERTISED = auto()
    SENT = auto()
    ABORTED = auto()


class Client(SecretHolder):
    """A client for a whole session: its identity, its floors, and the rounds it has begun."""

    __slots__ = ("_identity", "_random", "_rounds", "number", "session")

    def __init__(
        self,
        number: int,
        identity: IdentityKey,
        session: Session,
        floors: Floors | None = None,
        random: RandomBytes = os.urandom,
    ) -> None:
        floors = floors or Floors()
        if number not in session.roster:
            raise LocalError(f"client {number} is not on the pinned roster")
        if session.roster[number].raw != identity.public.raw:
            raise LocalError(f"the pinned identity of client {number} is not the one it holds")
        if len(session.roster) < floors.cohort:
            raise LocalError(
                f"a cohort of {len(session.roster)} clients is below this client's floor "
                f"of {floors.cohort}"
            )
        self.number = number
        self.session = session
        self._identity = identity
        self._random = random
        self._rounds = RoundCounter()

    def open_round(self, terms: RoundTerms) -> "ClientRound":
        """Begin a round; LocalError unless its number is above that of every earlier one."""
        scope = RoundScope(self.session, terms)
        self._rounds.spend(terms.index)
        return ClientRound(self.number, self._identity, scope, AgreementKey.generate(self._random))


class _Held(SecretHolder):
    """What a round must forget when it ends: its key, and its words until they are masked."""

    __slots__ = ("key", "words")

    def __init__(self, key: AgreementKey) -> None:
        self.key = key
        self.words: WordArray | None = None


class ClientRound(SecretHolder):
    """One round of one client: load the values, start, then answer each message."""

    __slots__ = ("_advert", "_held", "_state", "number", "scope")

    def __init__(
        self, number: int, identity: IdentityKey, scope: RoundScope, key: AgreementKey
    ) -> None:
        self.number = number
        self.scope = scope
        self._state = ClientState.READY
        self._held: _Held | None = _Held(key)
        self._advert = Advert.signed(scope, number, key.public, identity)

    @property
    def state(self) -> ClientState:
        """Where the round stands; ABORTED never changes again."""
        return self._state

    def load(self, values: WordArray) -> None:
        """Take the private values [m]: once, any time before the roster is answered.

        LocalError for another length than agreed or a value above the bound.
        """
        state, held = self._take()
        if held is None or held.words is not None:
            raise LocalError(f"values cannot be loaded again, nor in state {state.name}")
        if values.shape != (self.scope.terms.length,):
            raise LocalError(f"values: {values.shape} where {self.scope.terms.length} are agreed")
        held.words = self.scope.layout.pack(values)
        self._state, self._held = state, held

    def start(self) -> bytes:
        """Open the round with the advert; LocalError if it is open already."""
        state, held = self._take()
        if state is not ClientState.READY:
            raise LocalError(f"a round starts from READY, not from {state.name}")
        self._state, self._held = ClientState.ADVERTISED, held
        return encode_advert(self._advert, self.scope)

    def receive(self, data: bytes) -> bytes:
        """Answer one message of the server; PeerError for any that the table does not list."""
        state, held = self._take()
        kind = message_type(data, self.scope, SERVER)
        if held is None or (state, kind) not in _TRANSITIONS:
            raise PeerError(f"a {kind.name} message is not allowed in state {state.name}")
        answer, successor = _TRANSITIONS[state, kind]
        reply = answer(self, data, held)
        self._state = successor
        return reply

    def _take(self) -> tuple[ClientState, _Held | None]:
        """Leave the round aborted and empty; whoever succeeds puts back what it still needs."""
        state, held = self._state, self._held
        self._state, self._held = ClientState.ABORTED, None
        return state, held

    def _answer_roster(self, data: bytes, held: _Held) -> bytes:
        """Check every advert, mask the words under all peers' keys; key and words are spent."""
        if held.words is None:
            raise LocalError("the roster cannot be answered before values are loaded")
        peers = self._verified_peers(decode_roster(data, self.scope))
        mask_input(self.scope, self.number, held.key, peers, held.words)
        return encode_masked(held.words, self.scope, self.number)

    def _verified_peers(self, adverts: list[Advert]) -> dict[int, bytes]:
        for advert in adverts:
            if advert.client != self.number:
                advert.verify(self.scope)
            elif advert != self._advert:
                raise PeerError(f"the roster alters client {self.number}'s own advert")
        return {a.client: a.key for a in adverts if a.client != self.number}


_Answer = Callable[[ClientRound, bytes, _Held], bytes]

# Reading: in this state, this message -> how to answer it, and the state after. Anything that
# is not listed aborts.
_TRANSITIONS: Final[Mapping[tuple[ClientState, MessageType], tuple[_Answer, ClientState]]] = {
    (ClientState.ADVERTISED, MessageType.ROSTER): (
        ClientRound._answer_roster,
        ClientState.SENT,
    ),
}
