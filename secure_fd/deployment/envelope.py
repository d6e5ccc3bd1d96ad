"""One push of the server to a site and the site's answer: what crosses, whole, as bytes.

`at` numbers pushes, over all lives of a server: an answer to another push is not read, and a push
that is not newer than one that was read is not carried out. Parts are messages of the parties; they
carry their own signatures, and nothing here is trusted by them.
"""

from enum import IntEnum
from typing import Annotated, Final, Self, TypeAlias

from msgspec import Meta, Struct, msgpack

from secure_fd.codec import Codec
from secure_fd.errors import PeerError
from secure_fd.wire import LIMIT

PROCESS_BYTES: Final = 8
MOST_PARTS: Final = 1 << 16
"""Parts of one push at most: a site that was away is owed one for each broadcast."""

_Count: TypeAlias = Annotated[int, Meta(ge=0)]
_Process: TypeAlias = Annotated[bytes, Meta(min_length=PROCESS_BYTES, max_length=PROCESS_BYTES)]
_Parts: TypeAlias = Annotated[tuple[bytes, ...], Meta(max_length=MOST_PARTS)]


class PushKind(IntEnum):
    """What the server wants of a site."""

    HELLO = 1
    """Say who you are; parts: a challenge."""
    JOIN = 2
    """Begin a set-up."""
    BEGIN = 3
    """Learn alone, before the first round."""
    CARRY = 4
    """Read these messages."""
    ALONE = 5
    """Take a round in which the server asks nothing."""
    END = 6
    """The run is over; parts: messages that are still due."""


class AnswerState(IntEnum):
    """How a site took a push."""

    DONE = 0
    REFUSED = 1
    """It refused a message, and reads no more of this round."""
    STALE = 2
    """It had read this push, or a newer one."""


class _Envelope(Struct, frozen=True, array_like=True, tag=True):
    def __repr__(self) -> str:
        return f"<{type(self).__name__}>"

    def encode(self) -> bytes:
        """For the wire, in one pass: its parts are megabytes, and their types are exact."""
        return msgpack.encode(self)

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """PeerError for anything that `encode` does not write."""
        if len(data) > LIMIT:
            raise PeerError(f"{len(data)} bytes are more than a push or an answer has")
        found = CODEC.decode(data)
        if not isinstance(found, cls):
            raise PeerError("a push is no answer, and an answer is no push")
        return found


class Push(_Envelope, frozen=True, array_like=True, tag=True):
    """What goes to one site.

    >>> Push.decode(Push(PushKind.CARRY, 3, (b"ab",)).encode()).at
    3
    """

    kind: PushKind
    at: _Count
    parts: _Parts = ()


class Answer(_Envelope, frozen=True, array_like=True, tag=True):
    """What comes back.

    process: drawn when the site's process began. position: broadcasts that it has read. computing:
    wall seconds between the arrival of the push and the answer.

    >>> Answer.decode(Answer(AnswerState.DONE, 3, bytes(8), 0, 0.5, (b"ab",)).encode()).computing
    0.5
    """

    state: AnswerState
    at: _Count
    process: _Process
    position: _Count
    computing: Annotated[float, Meta(ge=0, lt=1e9)]
    parts: _Parts = ()


CODEC: Final = Codec[_Envelope](Push | Answer, "a push or an answer of this version", PeerError)
