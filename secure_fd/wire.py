"""Frame of every message of every protocol here, kinds of messages, and the result of a sum.

Header, 48 bytes, big-endian: version u16, type u16, sender u32, round u64, session id 32 bytes.
The round of a set-up message is SETUP. 48 bytes keep the words of a masked input aligned.
"""

import struct
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import Final

from secure_fd.crypto.keys import VERSION, context
from secure_fd.errors import PeerError
from secure_fd.votes.codec import UnitArray

LIMIT: Final = 1 << 28
"""Bytes of one message at most."""
HEADER: Final = struct.Struct(">HHIQ32s")
HEADER_BYTES: Final = HEADER.size
SETUP: Final = 2**64 - 1
"""Stands where a round's number would; no round has it."""


class Kind(IntEnum):
    """Types of the parties' own messages; smaller numbers belong to the protocol of the sum."""

    INPUT = 32
    """Client: a vector in clear."""
    ROUND_START = 33
    """Server, to all: a round begins."""
    RESULT = 34
    """Server, to all: what became of the last sum."""
    ABORTED = 35
    """Server, to all: the last sum did not come about."""
    CATCH_UP = 36
    """Server, to one: an earlier broadcast that did not reach it."""
    CIPHER = 37
    """A message of the encrypted sum."""
    REPORT = 38
    """Client: votes in shares, with a proof."""


class Stage(StrEnum):
    """Messages that a client that drops out no longer sends; later stages are missed as well.

    >>> [str(stage) for stage in Stage]
    ['prepare', 'input', 'consistency', 'unmask']
    """

    PREPARE = "prepare"
    INPUT = "input"
    CONSISTENCY = "consistency"
    UNMASK = "unmask"


@dataclass(frozen=True, slots=True)
class Sum:
    """Exact sums [m] over the surviving clients, ascending.

    >>> import numpy as np
    >>> Sum(np.array([2, 1], dtype=np.uint64), survivors=(0, 2)).survivors
    (0, 2)
    """

    total: UnitArray = field(repr=False)
    survivors: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Place:
    """Place of a message: a session, and a round of it or its set-up."""

    session: bytes
    index: int = SETUP

    def context(self, purpose: StrEnum, sender: int, receiver: int) -> bytes:
        """Return the context of what is made before, or without, the terms of a round."""
        terms = b"" if self.index == SETUP else self.index.to_bytes(8, "big")
        return context(purpose, session=self.session, terms=terms, sender=sender, receiver=receiver)


def frame(kind: IntEnum, place: Place, sender: int, *body: bytes | memoryview) -> bytes:
    """Return one message: the header, then the parts of its body."""
    return b"".join((HEADER.pack(VERSION, kind, sender, place.index, place.session), *body))


def read_header(data: bytes, session: bytes, sender: int) -> tuple[int, int, bytes]:
    """Return (kind, index, body) of a message.

    Raises:
        PeerError: another version, session or sender, or a length beyond `LIMIT`.
    """
    if not HEADER_BYTES <= len(data) <= LIMIT:
        raise PeerError(f"a message has {len(data)} bytes; use {HEADER_BYTES} to {LIMIT}")
    version, kind, claimed, index, place = HEADER.unpack_from(data)
    if (version, claimed, place) != (VERSION, sender, session):
        raise PeerError(f"a message is not of version {VERSION}, this session and party {sender}")
    return kind, index, data[HEADER_BYTES:]
