"""One push of the server to a site and the site's answer, as bytes.

Parts are messages of the parties: they carry their own signatures, and no party trusts anything
else here.
"""

from enum import IntEnum
from hashlib import sha256
from typing import Annotated, Final, Self, TypeAlias

from msgspec import Meta, Struct, msgpack

from secure_fd.codec import Codec
from secure_fd.crypto.keys import fields
from secure_fd.errors import PeerError
from secure_fd.wire import LIMIT

CHALLENGE_BYTES: Final = 32
_HINT_BYTES: Final = 8
_Count: TypeAlias = Annotated[int, Meta(ge=0)]
_Parts: TypeAlias = Annotated[tuple[bytes, ...], Meta(max_length=1 << 16)]
"""A site that was away is sent one part for each broadcast that it missed."""


class PushKind(IntEnum):
    """Request of the server to a site."""

    HELLO = 1
    """Prove who you are; parts: a challenge, the `roster_hint` and, after the set-up, its name.

    A site with another roster refuses; its parts are then its identity and its own hint.
    """
    JOIN = 2
    """Begin a set-up; part: challenge of the newest greeting. position: number of the attempt."""
    CARRY = 3
    """Read these messages."""
    ALONE = 4
    """Read these messages, then take a round in which the server asks nothing."""
    END = 5
    """Read these messages: the run is over."""


class _Envelope(Struct, frozen=True, array_like=True, tag=True):
    def __repr__(self) -> str:
        return f"<{type(self).__name__}>"

    def encode(self) -> bytes:
        """Encode in one pass: parts are megabytes, and their types are exact."""
        return msgpack.encode(self)

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Read the bytes of `encode`; PeerError for anything else."""
        found = _CODEC.decode(data) if len(data) <= LIMIT else None
        if not isinstance(found, cls):
            raise PeerError(f"{len(data)} bytes are no {cls.__name__} of this version")
        return found


class Push(_Envelope, frozen=True, array_like=True, tag=True):
    """Message of the server to one site.

    position: broadcasts that the server has sent so far. round, rounds: number of the round, from 1
    on, and of how many; for people alone.

    >>> Push.decode(Push(PushKind.CARRY, (b"ab",)).encode()).parts
    (b'ab',)
    """

    kind: PushKind
    parts: _Parts = ()
    position: _Count = 0
    round: _Count = 0
    rounds: _Count = 0


class Answer(_Envelope, frozen=True, array_like=True, tag=True):
    """Answer of a site.

    refused: whether it refused a message; it then reads no more of this round. position:
    broadcasts that it has read. computing: wall seconds between the arrival of the push and the
    answer.

    >>> Answer.decode(Answer(False, 0, 0.5, (b"ab",)).encode()).computing
    0.5
    """

    refused: bool
    position: _Count
    computing: Annotated[float, Meta(ge=0, lt=1e9)]
    parts: _Parts = ()


_CODEC: Final = Codec[_Envelope](Push | Answer, "a push or an answer of this version", PeerError)


def roster_hint(digest: bytes) -> bytes:
    """Return the first bytes of a roster's digest, which its command prints.

    It is not signed and decides nothing: parties with other rosters refuse each other's messages
    by the session's id. It only gives the reason.

    >>> roster_hint(bytes(32)).hex()
    '0000000000000000'
    """
    return digest[:_HINT_BYTES]


def other_roster(who: str, theirs: bytes, own: bytes) -> str:
    """Return a sentence about a party whose roster has another hint."""
    begins = theirs[:_HINT_BYTES].hex()
    return f"{who} has another roster (its digest begins {begins}, yours {own.hex()})"


def set_up_name(seed: bytes) -> bytes:
    """Return the hash of a set-up's seed, by which the server and a site compare theirs."""
    return sha256(seed).digest()


def hello_text(session: bytes, challenge: bytes) -> bytes:
    """Text that a site signs to prove which of the roster it is, under the server's challenge."""
    return fields(b"secure-fd site", session, challenge)
