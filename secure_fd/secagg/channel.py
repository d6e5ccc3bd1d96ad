"""The secret that two clients of a session share: it seals messages and joins every mask key.

It moves on with every round, by a hash that cannot be run backwards, and drops its old keys: a
memory that is read later opens no round that was recorded before. One set-up serves the rounds of
one epoch, so a channel moves a bounded number of steps.
"""

import hashlib
from typing import Final, Self

from secure_fd.crypto.keys import KEY_BYTES, Purpose, Sealer, SecretHolder, derive_key
from secure_fd.errors import LocalError
from secure_fd.secagg.session import Session
from secure_fd.wire import Place

_FRESH: Final = -1
"""Stands for the round of a channel that has served none."""
_NEXT: Final = b"secure-fd channel ratchet"
STATE_BYTES: Final = 8 + KEY_BYTES


class Channel(SecretHolder):
    """One client's end of a channel that the server relays and cannot read.

    What travels sealed needs no signature: it came from the client whose identity signed the
    channel's keys. chain: what the keys of the round `at`, and of all later ones, follow from.
    """

    __slots__ = (
        "_at",
        "_chain",
        "_closed",
        "_inbound",
        "_one",
        "_outbound",
        "_pair",
        "_peer",
        "_session",
    )

    def __init__(
        self, session: Session, one: int, peer: int, chain: bytes, at: int = _FRESH
    ) -> None:
        """one: whose end."""
        self._session, self._one, self._peer = session, one, peer
        self._chain, self._at = chain, at
        self._outbound: Sealer | None = None
        self._closed = False
        if at != _FRESH:
            self._derive()

    @classmethod
    def agreed(cls, session: Session, one: int, peer: int, secret: bytes, bound: bytes) -> Self:
        """A new channel. secret: of both ends. bound: what of the set-up its keys depend on."""
        info = session.place.context(Purpose.CHANNEL, *sorted((one, peer))) + bound
        return cls(session, one, peer, derive_key(secret, salt=session.id, info=info))

    def seal(self, index: int, plaintext: bytes, context: bytes) -> bytes:
        """Seal this round's one message to the peer; LocalError for a second one."""
        self._move(index)
        if self._outbound is None:
            raise LocalError(f"round {index}: a message may have been sealed before the restart")
        return self._outbound.seal(index, plaintext, context)

    def open(self, index: int, sealed: bytes, context: bytes, what: str) -> bytes:
        """Open this round's message of the peer; PeerError where it is not the peer's."""
        self._move(index)
        return self._inbound.open(index, sealed, context, what)

    def pair_secret(self, index: int) -> bytes:
        """32 bytes that both ends have for one round; they reveal nothing about other rounds."""
        self._move(index)
        return self._pair

    def close(self) -> None:
        """Drop the last round's keys where no round of the epoch is left to move on to."""
        self._chain = hashlib.sha256(_NEXT + self._chain).digest()
        del self._inbound, self._outbound, self._pair
        self._closed = True

    def state(self) -> bytes:
        """Position for a file that only its owner reads: the round, then the chain."""
        return (self._at + 1).to_bytes(8, "big") + self._chain

    @classmethod
    def restored(cls, session: Session, one: int, peer: int, state: bytes) -> Self:
        """From `state`. It seals nothing for the round where it stood, which it may have done."""
        made = cls(session, one, peer, state[8:], int.from_bytes(state[:8], "big") - 1)
        made._outbound = None
        return made

    def _move(self, index: int) -> None:
        """Drop the keys of every round before this one; LocalError where these are gone already."""
        if self._closed:
            raise LocalError(f"round {index}: the channel has served its epoch")
        if index == self._at:
            return
        if index < self._at:
            raise LocalError(f"round {index}: the channel has moved on to round {self._at}")
        if self._at == _FRESH:
            self._at = index - index % self._session.epoch
            self._chain = self._mixed(Purpose.RATCHET, self._chain, KEY_BYTES)
        elif index // self._session.epoch != self._at // self._session.epoch:
            raise LocalError(f"round {index} is of another epoch, and needs another set-up")
        for _ in range(index - self._at):
            self._chain = hashlib.sha256(_NEXT + self._chain).digest()
        self._at = index
        self._derive()

    def _derive(self) -> None:
        """The keys of the round: of messages upward and downward by number, and the pair's own."""
        keys = self._mixed(Purpose.ROUND_CHANNEL, self._chain, 3 * KEY_BYTES)
        upward, downward, self._pair = (keys[at : at + KEY_BYTES] for at in (0, 32, 64))
        first = self._one < self._peer
        self._outbound = Sealer(upward if first else downward)
        self._inbound = Sealer(downward if first else upward)

    def _mixed(self, purpose: Purpose, secret: bytes, length: int) -> bytes:
        place = Place(self._session.id, self._at)
        info = place.context(purpose, *sorted((self._one, self._peer)))
        return derive_key(secret, salt=self._session.id, info=info, length=length)
