"""The frame around every message; what is not exactly one of them is a PeerError.

Header, 48 bytes, big-endian: version u16, type u16, sender u32, round u64, session id 32 bytes.
The round of a set-up message is SETUP. 48 bytes keep the words of a masked input aligned.
"""

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

import numpy as np

from secure_fd.crypto.context import VERSION, Purpose, context
from secure_fd.errors import PeerError

_HEADER: Final = struct.Struct(">HHIQ32s")
HEADER_BYTES: Final = _HEADER.size
SETUP: Final = 2**64 - 1
"""Stands where a round's number would; no round has it."""


class MessageType(IntEnum):
    """Every message there is."""

    JOIN = 1
    MEMBERS = 2
    REVEAL = 3
    AGREED = 4
    CAPSULES = 5
    PREPARE = 6
    COHORT = 7
    MASKED = 8
    SURVIVORS = 9
    CONSISTENT = 10
    SIGNATURES = 11
    UNMASK = 12


_TYPES: Final = {kind.value: kind for kind in MessageType}


@dataclass(frozen=True, slots=True)
class Place:
    """Where a message belongs: a session, and a round of it or its set-up."""

    session: bytes
    index: int = SETUP

    def context(self, purpose: Purpose, sender: int, receiver: int) -> bytes:
        """The context of what is made before, or without, the terms of a round."""
        terms = b"" if self.index == SETUP else self.index.to_bytes(8, "big")
        return context(purpose, session=self.session, terms=terms, sender=sender, receiver=receiver)


def frame(kind: IntEnum, place: Place, sender: int, *body: bytes | memoryview) -> bytes:
    """One message of this protocol or another: the header, then the parts of its body."""
    return b"".join((_HEADER.pack(VERSION, kind, sender, place.index, place.session), *body))


def message_type(data: bytes, place: Place, sender: int) -> MessageType:
    """The type of a message, once its header is this version, session, round and sender."""
    if len(data) < HEADER_BYTES:
        raise PeerError(f"a message of {len(data)} bytes is shorter than a header")
    version, kind, claimed, index, session = _HEADER.unpack_from(data)
    if version != VERSION:
        raise PeerError(f"version {version} is not spoken here; use {VERSION}")
    if kind not in _TYPES:
        raise PeerError(f"message type {kind} does not exist in version {VERSION}")
    if session != place.session:
        raise PeerError("a message belongs to another session")
    if index != place.index:
        raise PeerError(f"a message belongs to {_named(index)}, not {_named(place.index)}")
    if claimed != sender:
        raise PeerError(f"a message from party {sender} names party {claimed} as its sender")
    return _TYPES[kind]


def body_of(
    data: bytes, place: Place, sender: int, expected: MessageType, size: int | None = None
) -> memoryview:
    """The body, a view; PeerError for another type, or another size where one is given."""
    if data[:HEADER_BYTES] != frame(expected, place, sender):
        kind = message_type(data, place, sender)  # says what is wrong with it
        raise PeerError(f"a message is {kind.name} where {expected.name} is due")
    body = memoryview(data)[HEADER_BYTES:]
    if size is not None and len(body) != size:
        raise PeerError(f"a {expected.name} body has {len(body)} bytes, not {size}")
    return body


def encode_set(chosen: Iterable[int], members: Sequence[int]) -> bytes:
    """One bit a member, in order, the first in the lowest bit of the first byte."""
    wanted = set(chosen)
    bits = np.fromiter((member in wanted for member in members), dtype=np.bool_)
    return np.packbits(bits, bitorder="little").tobytes()


def set_bytes(members: Sequence[int]) -> int:
    """Length of an encoded set."""
    return -(-len(members) // 8)


def decode_set(data: bytes | memoryview, members: Sequence[int]) -> tuple[int, ...]:
    """The members whose bit is set, in order; PeerError for a bit that is nobody's."""
    if len(data) != set_bytes(members):
        raise PeerError(f"a set of {len(members)} members has {len(data)} bytes")
    bits = np.unpackbits(np.frombuffer(data, dtype=np.uint8), bitorder="little")
    if bits[len(members) :].any():
        raise PeerError("a set names a member that does not exist")
    return tuple(members[at] for at in np.flatnonzero(bits).tolist())


def _named(index: int) -> str:
    return "the set-up" if index == SETUP else f"round {index}"
