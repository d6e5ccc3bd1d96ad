"""Broadcasts of the server to all clients, chained by one running hash and signed.

    broadcast   header, position u32, signature [64], body
    digest      at first the session's id; then SHA-256(digest || SHA-256(header, position, body))
    signature   Ed25519, the server's, on session, position and the digest after this broadcast

The digest is bound into every sum, so that inputs of clients that received different broadcasts do
not add up. A signature covers everything up to its position: two of one session and position whose
digests differ prove that the server sent different broadcasts. It costs 64 bytes a broadcast, one
signature and, in each client, one check.
"""

import hashlib
import struct
from typing import Final

from secure_fd.crypto.keys import SERVER, SIGNATURE_BYTES, IdentityKey, IdentityPublic, fields
from secure_fd.errors import PeerError
from secure_fd.wire import HEADER_BYTES, Kind, Place, frame

_POSITION: Final = struct.Struct(">I")
_SIGNED_FROM: Final = HEADER_BYTES + _POSITION.size
BROADCAST_BYTES: Final = _SIGNED_FROM + SIGNATURE_BYTES
"""Bytes of a broadcast beside its body."""
_LABEL: Final = b"secure-fd broadcast"


def _text(session: bytes, position: int, digest: bytes) -> bytes:
    return fields(_LABEL, session, _POSITION.pack(position), digest)


class BroadcastChain:
    """Running hash of all broadcasts that one party has sent or read, in order.

    digest: 32 bytes. count: broadcasts so far.

    >>> BroadcastChain(bytes(32)).count
    0
    """

    __slots__ = ("_session", "count", "digest")

    def __init__(self, session: bytes) -> None:
        self.digest, self.count, self._session = session, 0, session

    @staticmethod
    def _after(digest: bytes, header: bytes | memoryview, body: bytes | memoryview) -> bytes:
        """The digest after one more broadcast. header: up to the position, which it includes.

        The signature is left out: the broadcast is the same under any.
        """
        broadcast = hashlib.sha256(header)
        broadcast.update(body)
        return hashlib.sha256(digest + broadcast.digest()).digest()

    def recall(self, digest: bytes, count: int) -> None:
        """Continue after `count` broadcasts."""
        self.digest, self.count = digest, count

    def _take(self, digest: bytes) -> None:
        self.digest, self.count = digest, self.count + 1


class BroadcastSigner(BroadcastChain):
    """The server's side: writes and signs broadcasts.

    >>> import os
    >>> key = IdentityKey.generate(os.urandom)
    >>> signer, verifier = BroadcastSigner(bytes(32), key), BroadcastVerifier(bytes(32), key.public)
    >>> verifier.read(Kind.RESULT, signer.write(Kind.RESULT, 0, b"an ensemble"))
    >>> signer.digest == verifier.digest
    True
    """

    __slots__ = ("_key",)

    def __init__(self, session: bytes, key: IdentityKey) -> None:
        super().__init__(session)
        self._key = key

    def write(self, kind: Kind, index: int, body: bytes) -> bytes:
        """The next broadcast, taken into the hash."""
        position = _POSITION.pack(self.count)
        header = frame(kind, Place(self._session, index), SERVER, position)
        digest = self._after(self.digest, header, body)
        signature = self._key.sign(_text(self._session, self.count, digest))
        self._take(digest)
        return header + signature + body


class BroadcastVerifier(BroadcastChain):
    """A client's side: checks and reads broadcasts. server: the pinned key."""

    __slots__ = ("_before", "_server", "_signature")

    def __init__(self, session: bytes, server: IdentityPublic) -> None:
        super().__init__(session)
        self._server, self._before = server, session
        self._signature = b""  # of the newest broadcast that this process read

    def has_read(self, data: bytes) -> bool:
        """Return whether this is the newest broadcast once more, byte for byte.

        After `recall` none is known until the next one is read.
        """
        if not self._signature or position_of(data) != self.count - 1:
            return False
        return self._digest_of(data, self._before) == (self.digest, self._signature)

    def read(self, kind: int, data: bytes) -> None:
        """Take the next broadcast, whose header, with this kind, is of the session and the server.

        PeerError unless it follows the last one and the server signed it; nothing is taken then.
        """
        if position_of(data) != self.count:
            raise PeerError(f"a broadcast does not follow the {self.count} before it")
        if kind not in (Kind.ROUND_START, Kind.RESULT, Kind.ABORTED):
            raise PeerError(f"a message of type {kind} is no broadcast")
        digest, signature = self._digest_of(data, self.digest)
        text = _text(self._session, self.count, digest)
        self._server.verify(signature, text, f"broadcast {self.count}")
        self._before, self._signature = self.digest, signature
        self._take(digest)

    def _digest_of(self, data: bytes, digest: bytes) -> tuple[bytes, bytes]:
        """Digest and signature of a broadcast that follows `digest`."""
        view = memoryview(data)
        after = self._after(digest, view[:_SIGNED_FROM], view[BROADCAST_BYTES:])
        return after, data[_SIGNED_FROM:BROADCAST_BYTES]


def position_of(data: bytes) -> int:
    """Return a broadcast's number, from 0; PeerError where it is too short to be one.

    >>> import os
    >>> signer = BroadcastSigner(bytes(32), IdentityKey.generate(os.urandom))
    >>> [position_of(signer.write(Kind.ABORTED, 0, b"")) for _ in range(2)]
    [0, 1]
    """
    if len(data) < BROADCAST_BYTES:
        raise PeerError(f"a broadcast of {len(data)} bytes is too short")
    return int(_POSITION.unpack_from(data, HEADER_BYTES)[0])
