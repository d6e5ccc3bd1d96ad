"""One push of the server to a site and the site's answer: what crosses, whole, as bytes.

    push     magic, kind u8, at u64, parts
    answer   magic, state u8, at u64, process [8], position u32, computing f64, parts
    parts    count u32, then each with its length u32

`at` numbers pushes, over all lives of a server: an answer to another push is not read, and a push
that is not newer than one that was read is not carried out. Parts are messages of the parties; they
carry their own signatures, and nothing here is trusted by them.
"""

import struct
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final

from secure_fd.errors import PeerError
from secure_fd.exchange import LIMIT

_PUSH: Final = struct.Struct(">4sBQ")
_ANSWER: Final = struct.Struct(">4sBQ8sId")
_COUNT: Final = struct.Struct(">I")
_PUSH_MAGIC: Final = b"sfp1"
_ANSWER_MAGIC: Final = b"sfa1"
PROCESS_BYTES: Final = 8
MOST_PARTS: Final = 1 << 16
"""Parts of one push at most: a site that was away is owed one for each broadcast."""


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


@dataclass(frozen=True, slots=True)
class Push:
    """What goes to one site.

    >>> Push.decode(Push(PushKind.CARRY, 3, (b"ab",)).encode()).parts
    (b'ab',)
    """

    kind: PushKind
    at: int
    parts: tuple[bytes, ...] = field(default=(), repr=False)

    def encode(self) -> bytes:
        """For the wire."""
        return _PUSH.pack(_PUSH_MAGIC, self.kind, self.at) + _joined(self.parts)

    @classmethod
    def decode(cls, data: bytes) -> "Push":
        """PeerError for anything that `encode` does not write."""
        _check(data, _PUSH.size, _PUSH_MAGIC)
        _, kind, at = _PUSH.unpack_from(data)
        if kind not in tuple(PushKind):
            raise PeerError(f"a push has no kind {kind}")
        return cls(PushKind(kind), at, _parts(data, _PUSH.size))


@dataclass(frozen=True, slots=True)
class Answer:
    """What comes back.

    process: drawn when the site's process began. position: broadcasts that it has read. computing:
    wall seconds between the arrival of the push and the answer.

    >>> Answer.decode(Answer(AnswerState.DONE, 3, bytes(8), 0, 0.5, (b"ab",)).encode()).computing
    0.5
    """

    state: AnswerState
    at: int
    process: bytes
    position: int
    computing: float
    parts: tuple[bytes, ...] = field(default=(), repr=False)

    def encode(self) -> bytes:
        """For the wire."""
        head = (self.state, self.at, self.process, self.position, self.computing)
        return _ANSWER.pack(_ANSWER_MAGIC, *head) + _joined(self.parts)

    @classmethod
    def decode(cls, data: bytes) -> "Answer":
        """PeerError for anything that `encode` does not write."""
        _check(data, _ANSWER.size, _ANSWER_MAGIC)
        _, state, at, process, position, computing = _ANSWER.unpack_from(data)
        if state not in tuple(AnswerState) or not 0 <= computing < 1e9:
            raise PeerError("an answer has no such state, or no time that it took")
        return cls(AnswerState(state), at, process, position, computing, _parts(data, _ANSWER.size))


def _check(data: bytes, head: int, magic: bytes) -> None:
    if not head + _COUNT.size <= len(data) <= LIMIT or data[:4] != magic:
        raise PeerError(f"{len(data)} bytes are no push and no answer of this version")


def _joined(parts: tuple[bytes, ...]) -> bytes:
    sized = (_COUNT.pack(len(part)) + part for part in parts)
    return b"".join((_COUNT.pack(len(parts)), *sized))


def _parts(data: bytes, at: int) -> tuple[bytes, ...]:
    """PeerError unless the parts end where the data does."""
    (count,), at = _COUNT.unpack_from(data, at), at + _COUNT.size
    if count > MOST_PARTS:
        raise PeerError(f"{count} parts are more than {MOST_PARTS}")
    found = []
    for _ in range(count):
        if at + _COUNT.size > len(data):
            raise PeerError("a part is missing")
        (size,), at = _COUNT.unpack_from(data, at), at + _COUNT.size
        found.append(data[at : at + size])
        at += size
    if at != len(data):
        raise PeerError("the parts do not fill the message")
    return tuple(found)
