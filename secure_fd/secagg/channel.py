"""The secret that two clients of a session share: it seals messages and joins every mask key."""

from typing import Final

from secure_fd.crypto.aead import Sealer
from secure_fd.crypto.context import Purpose
from secure_fd.crypto.kdf import KEY_BYTES, derive_key
from secure_fd.crypto.secrecy import SecretHolder
from secure_fd.secagg.wire import Place

PAIR_SECRET_BYTES: Final = KEY_BYTES


class Channel(SecretHolder):
    """One client's end of a channel that the server relays and cannot read.

    It lives as long as the session, so that a round needs no signature of its own: what arrives
    sealed came from the client whose identity signed the channel's key.
    """

    __slots__ = ("_high", "_inbound", "_low", "_outbound", "_pair", "_session")

    def __init__(self, session: bytes, one: int, peer: int, secret: bytes, bound: bytes) -> None:
        """one: whose end. secret: agreed by both. bound: what of the set-up the keys depend on."""
        self._session = session
        self._low, self._high = min(one, peer), max(one, peer)
        info = Place(session).context(Purpose.CHANNEL, self._low, self._high) + bound
        keys = derive_key(secret, salt=session, info=info, length=3 * KEY_BYTES)
        upward, downward, self._pair = (keys[at : at + KEY_BYTES] for at in (0, 32, 64))
        sends = upward if one == self._low else downward
        reads = downward if one == self._low else upward
        self._outbound, self._inbound = Sealer(sends), Sealer(reads)

    def seal(self, index: int, plaintext: bytes, context: bytes) -> bytes:
        """Seal this round's one message to the peer; LocalError for a second one."""
        return self._outbound.seal(index, plaintext, context)

    def open(self, index: int, sealed: bytes, context: bytes, what: str) -> bytes:
        """Open this round's message of the peer; PeerError where it is not the peer's."""
        return self._inbound.open(index, sealed, context, what)

    def pair_secret(self, index: int) -> bytes:
        """32 bytes that both ends know for one round; one round's say nothing of another's."""
        info = Place(self._session, index).context(Purpose.PAIR_SECRET, self._low, self._high)
        return derive_key(self._pair, salt=self._session, info=info)
