"""The messages, byte by byte; what is not exactly one of them is a PeerError.

Header, 48 bytes, big-endian: version u16, type u16, sender u32, round u64, session id 32 bytes.
Every body has one length, fixed by the roster and the round's terms, never by the message.

    ADVERT  client -> server   key-agreement key 32, signature 64
    ROSTER  server -> client   for every client, ascending: client u32, key 32, signature 64
    MASKED  client -> server   words, each u64 little-endian

The header's 48 bytes keep the words aligned.
"""

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

import numpy as np

from secure_fd.crypto.context import EVERYONE, SERVER, VERSION, Purpose
from secure_fd.crypto.keys import PUBLIC_BYTES, SIGNATURE_BYTES, IdentityKey
from secure_fd.crypto.prg import WORD
from secure_fd.errors import PeerError
from secure_fd.knowledge import WordArray
from secure_fd.secagg.session import RoundScope

_HEADER: Final = struct.Struct(">HHIQ32s")
_ENTRY: Final = struct.Struct(f">I{PUBLIC_BYTES}s{SIGNATURE_BYTES}s")
_ADVERT_BYTES: Final = PUBLIC_BYTES + SIGNATURE_BYTES
HEADER_BYTES: Final = _HEADER.size


class MessageType(IntEnum):
    """Every message there is."""

    ADVERT = 1
    ROSTER = 2
    MASKED = 3


_TYPES: Final = {kind.value: kind for kind in MessageType}


@dataclass(frozen=True, slots=True)
class Advert:
    """A client's key-agreement key for one round, under its identity's signature."""

    client: int
    key: bytes
    signature: bytes

    @classmethod
    def signed(cls, scope: RoundScope, client: int, key: bytes, identity: IdentityKey) -> "Advert":
        """An advert for this session, round and terms."""
        return cls(client, key, identity.sign(_advert_text(scope, client, key)))

    def verify(self, scope: RoundScope) -> None:
        """PeerError unless the pinned identity signed this key for this session and round."""
        text = _advert_text(scope, self.client, self.key)
        what = f"client {self.client}'s advert for round {scope.terms.index}"
        scope.session.roster[self.client].verify(self.signature, text, what)


def _advert_text(scope: RoundScope, client: int, key: bytes) -> bytes:
    return scope.context(Purpose.ADVERT, sender=client, receiver=EVERYONE) + key


def message_type(data: bytes, scope: RoundScope, sender: int) -> MessageType:
    """The type of a message, once its header is this version, session, round and sender."""
    if len(data) < HEADER_BYTES:
        raise PeerError(f"a message of {len(data)} bytes is shorter than a header")
    version, kind, claimed, index, session = _HEADER.unpack_from(data)
    if version != VERSION:
        raise PeerError(f"version {version} is not spoken here; use {VERSION}")
    if kind not in _TYPES:
        raise PeerError(f"message type {kind} does not exist in version {VERSION}")
    if session != scope.session.id:
        raise PeerError("a message belongs to another session")
    if index != scope.terms.index:
        raise PeerError(f"a message belongs to round {index}, not {scope.terms.index}")
    if claimed != sender:
        raise PeerError(f"a message from party {sender} names party {claimed} as its sender")
    return _TYPES[kind]


def encode_advert(advert: Advert, scope: RoundScope) -> bytes:
    """Advert -> message."""
    header = _header(MessageType.ADVERT, scope, advert.client)
    return header + advert.key + advert.signature


def decode_advert(data: bytes, scope: RoundScope, sender: int) -> Advert:
    """Message -> advert; its signature is not checked here."""
    body = _body(data, scope, sender, MessageType.ADVERT, _ADVERT_BYTES)
    return Advert(sender, bytes(body[:PUBLIC_BYTES]), bytes(body[PUBLIC_BYTES:]))


def encode_roster(adverts: list[Advert], scope: RoundScope) -> bytes:
    """Every client's advert, in ascending order -> message."""
    entries = (_ENTRY.pack(a.client, a.key, a.signature) for a in adverts)
    return _header(MessageType.ROSTER, scope, SERVER) + b"".join(entries)


def decode_roster(data: bytes, scope: RoundScope) -> list[Advert]:
    """Message -> adverts of exactly the pinned clients; signatures are not checked here."""
    size = _ENTRY.size * len(scope.session.roster)
    body = _body(data, scope, SERVER, MessageType.ROSTER, size)
    adverts = [Advert(*entry) for entry in _ENTRY.iter_unpack(body)]
    named = [advert.client for advert in adverts]
    if named != list(scope.session.roster):
        raise PeerError(f"a roster names clients {named}, not the pinned {[*scope.session.roster]}")
    return adverts


def encode_masked(words: WordArray, scope: RoundScope, client: int) -> bytes:
    """Masked words -> message."""
    little = words.astype(WORD, copy=False)
    return b"".join((_header(MessageType.MASKED, scope, client), little.data))


def decode_masked(data: bytes, scope: RoundScope, sender: int) -> WordArray:
    """Message -> masked words, a read-only view of it."""
    body = _body(data, scope, sender, MessageType.MASKED, scope.words * WORD.itemsize)
    return np.frombuffer(body, dtype=WORD).astype(np.uint64, copy=False)


def _header(kind: MessageType, scope: RoundScope, sender: int) -> bytes:
    return _HEADER.pack(VERSION, kind, sender, scope.terms.index, scope.session.id)


def _body(
    data: bytes, scope: RoundScope, sender: int, expected: MessageType, size: int
) -> memoryview:
    kind = message_type(data, scope, sender)
    if kind is not expected:
        raise PeerError(f"a message is {kind.name} where {expected.name} is due")
    if len(data) != HEADER_BYTES + size:
        raise PeerError(f"a {kind.name} body has {len(data) - HEADER_BYTES} bytes, not {size}")
    return memoryview(data)[HEADER_BYTES:]
