"""Header and kinds of the messages of all sums, and the result of a sum."""

import struct
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final

from secure_fd.crypto.keys import VERSION
from secure_fd.errors import PeerError
from secure_fd.secagg.session import HEADER_BYTES
from secure_fd.votes.codec import UnitArray

LIMIT: Final = 1 << 28
"""Bytes of one message at most."""
_HEADER: Final = struct.Struct(">HHIQ32s")


class Kind(IntEnum):
    """Types of the parties' own messages; smaller numbers belong to the protocol of the sum."""

    INPUT = 32
    """Client: a vector in clear."""
    SUBJECT = 33
    """Server, to all: a round begins."""
    TELL = 34
    """Server, to all: what became of the last sum."""
    VOID = 35
    """Server, to all: the last sum did not come about."""
    MISSED = 36
    """Server, to one: an earlier broadcast that did not reach it."""
    CIPHER = 37
    """A message of the encrypted sum."""
    REPORT = 38
    """Client: votes in shares, with a proof."""


@dataclass(frozen=True, slots=True)
class Sum:
    """Exact sums [m] over the surviving clients, ascending.

    >>> import numpy as np
    >>> Sum(np.array([2, 1], dtype=np.uint64), survivors=(0, 2)).survivors
    (0, 2)
    """

    total: UnitArray = field(repr=False)
    survivors: tuple[int, ...]


def read_header(data: bytes, session: bytes, sender: int) -> tuple[int, int, bytes]:
    """(kind, index, body) of a message.

    PeerError for another version, session or sender, and for a length beyond `LIMIT`.
    """
    if not HEADER_BYTES <= len(data) <= LIMIT:
        raise PeerError(f"a message has {len(data)} bytes; use {HEADER_BYTES} to {LIMIT}")
    version, kind, claimed, index, place = _HEADER.unpack_from(data)
    if (version, claimed, place) != (VERSION, sender, session):
        raise PeerError(f"a message is not of version {VERSION}, this session and party {sender}")
    return kind, index, data[HEADER_BYTES:]
