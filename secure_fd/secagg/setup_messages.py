"""The messages of a set-up, body by body. Frame and header are in wire.py.

    JOIN      client -> server   public keys K, commitment 32, signature 64
    MEMBERS   server -> client   for every member, ascending:
                                 number u32, SHA-256 of K 32, commitment 32
    REVEAL    client -> server   nonce 32, signature 64
    AGREED    server -> client   for every member: nonce 32, signature 64;
                                 then for every neighbour, ascending: K
    CAPSULES  client -> server   for every neighbour of a higher number, ascending: ciphertext 1,088
              server -> client   for every neighbour of a lower number, ascending: ciphertext 1,088

K is an X25519 key, 32 bytes, and in a hybrid session an ML-KEM-768 key, 1,184 bytes, behind it.
CAPSULES exist in hybrid sessions only.
"""

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from secure_fd.crypto.context import EVERYONE, SERVER, Purpose
from secure_fd.crypto.kem import CIPHERTEXT_BYTES
from secure_fd.crypto.kem import PUBLIC_BYTES as KEM_BYTES
from secure_fd.crypto.keys import PUBLIC_BYTES, SIGNATURE_BYTES, IdentityKey
from secure_fd.errors import PeerError
from secure_fd.secagg.session import Session
from secure_fd.secagg.wire import MessageType, body_of, frame

NONCE_BYTES: Final = 32
_HASH_BYTES: Final = 32
_MEMBER: Final = struct.Struct(f">I{_HASH_BYTES}s{_HASH_BYTES}s")
_REVEAL: Final = struct.Struct(f">{NONCE_BYTES}s{SIGNATURE_BYTES}s")


@dataclass(frozen=True, slots=True)
class Join:
    """A client's wish to take part: its channel's public keys, and a nonce that it will reveal."""

    client: int
    keys: bytes
    commitment: bytes
    signature: bytes

    @classmethod
    def signed(
        cls, session: Session, client: int, keys: bytes, nonce: bytes, identity: IdentityKey
    ) -> "Join":
        """Sign the keys and the commitment for this session."""
        commitment = commit(session, client, nonce)
        return cls(
            client, keys, commitment, identity.sign(_join_text(session, client, keys, commitment))
        )

    def verify(self, session: Session) -> None:
        """PeerError unless the pinned identity signed it."""
        text = _join_text(session, self.client, self.keys, self.commitment)
        session.roster[self.client].verify(self.signature, text, f"client {self.client}'s join")

    @property
    def member(self) -> "Member":
        """Its line in the member list."""
        return Member(self.client, hashlib.sha256(self.keys).digest(), self.commitment)


@dataclass(frozen=True, slots=True)
class Member:
    """A line of the member list. digest: SHA-256 of the client's public keys."""

    client: int
    digest: bytes
    commitment: bytes


@dataclass(frozen=True, slots=True)
class Reveal:
    """The nonce behind a commitment, signed together with the member list that its client saw."""

    nonce: bytes
    signature: bytes

    @classmethod
    def signed(
        cls, session: Session, client: int, view: bytes, nonce: bytes, identity: IdentityKey
    ) -> "Reveal":
        """Sign for the list whose hash is `view`."""
        return cls(nonce, identity.sign(_reveal_text(session, client, view, nonce)))

    def verify(self, session: Session, member: Member, view: bytes) -> None:
        """PeerError unless the member signed this view, and the nonce is what it committed to."""
        text = _reveal_text(session, member.client, view, self.nonce)
        what = f"client {member.client}'s member list"
        session.roster[member.client].verify(self.signature, text, what)
        if commit(session, member.client, self.nonce) != member.commitment:
            raise PeerError(f"client {member.client} reveals a nonce that it did not commit to")


def commit(session: Session, client: int, nonce: bytes) -> bytes:
    """The commitment to a nonce: 32 bytes that hide it and bind its client."""
    label = session.place.context(Purpose.NONCE, client, EVERYONE)
    return hashlib.sha256(label + nonce).digest()


def view_of(session: Session, members: Sequence[Member]) -> bytes:
    """The hash of a member list."""
    label = session.place.context(Purpose.VIEW, SERVER, EVERYONE)
    return hashlib.sha256(label + _member_list(members)).digest()


def keys_bytes(session: Session) -> int:
    """Length of a client's public keys."""
    return PUBLIC_BYTES + (KEM_BYTES if session.hybrid else 0)


def encode_join(join: Join, session: Session) -> bytes:
    """Join -> message."""
    body = (join.keys, join.commitment, join.signature)
    return frame(MessageType.JOIN, session.place, join.client, *body)


def decode_join(data: bytes, session: Session, sender: int) -> Join:
    """Message -> join; its signature is not checked here."""
    keys = keys_bytes(session)
    size = keys + _HASH_BYTES + SIGNATURE_BYTES
    body = bytes(body_of(data, session.place, sender, MessageType.JOIN, size))
    return Join(sender, body[:keys], body[keys : keys + _HASH_BYTES], body[-SIGNATURE_BYTES:])


def encode_members(members: Sequence[Member], session: Session) -> bytes:
    """Member list -> message."""
    return frame(MessageType.MEMBERS, session.place, SERVER, _member_list(members))


def decode_members(data: bytes, session: Session) -> tuple[Member, ...]:
    """Message -> member list; PeerError unless it ascends and is of the pinned roster."""
    body = body_of(data, session.place, SERVER, MessageType.MEMBERS)
    if len(body) % _MEMBER.size or len(body) > _MEMBER.size * len(session.roster):
        raise PeerError(f"a member list of {len(body)} bytes is not of {len(session.roster)} lines")
    members = tuple(Member(*line) for line in _MEMBER.iter_unpack(body))
    named = [member.client for member in members]
    if named != sorted(set(named)) or any(client not in session.roster for client in named):
        raise PeerError(f"a member list names clients {named}, not an ascending part of the roster")
    return members


def encode_reveal(reveal: Reveal, session: Session, client: int) -> bytes:
    """Reveal -> message."""
    return frame(MessageType.REVEAL, session.place, client, reveal.nonce, reveal.signature)


def decode_reveal(data: bytes, session: Session, sender: int) -> Reveal:
    """Message -> reveal; nothing is checked here."""
    body = body_of(data, session.place, sender, MessageType.REVEAL, _REVEAL.size)
    return Reveal(*_REVEAL.unpack(body))


def encode_agreed(reveals: Sequence[Reveal], keys: Sequence[bytes], session: Session) -> bytes:
    """Every member's reveal and the neighbours' public keys -> message."""
    told = (_REVEAL.pack(reveal.nonce, reveal.signature) for reveal in reveals)
    return frame(MessageType.AGREED, session.place, SERVER, *told, *keys)


def decode_agreed(
    data: bytes, session: Session, members: int, neighbours: int
) -> tuple[tuple[Reveal, ...], tuple[bytes, ...]]:
    """Message -> every member's reveal, every neighbour's public keys; nothing is checked here."""
    size, told = keys_bytes(session), members * _REVEAL.size
    total = told + neighbours * size
    body = bytes(body_of(data, session.place, SERVER, MessageType.AGREED, total))
    reveals = tuple(Reveal(*line) for line in _REVEAL.iter_unpack(body[:told]))
    return reveals, _pieces(body[told:], size)


def encode_capsules(ciphertexts: Sequence[bytes], session: Session, sender: int) -> bytes:
    """ML-KEM ciphertexts -> message."""
    return frame(MessageType.CAPSULES, session.place, sender, *ciphertexts)


def decode_capsules(data: bytes, session: Session, sender: int, count: int) -> tuple[bytes, ...]:
    """Message -> `count` ciphertexts."""
    size = count * CIPHERTEXT_BYTES
    body = bytes(body_of(data, session.place, sender, MessageType.CAPSULES, size))
    return _pieces(body, CIPHERTEXT_BYTES)


def _member_list(members: Sequence[Member]) -> bytes:
    return b"".join(_MEMBER.pack(m.client, m.digest, m.commitment) for m in members)


def _pieces(body: bytes, size: int) -> tuple[bytes, ...]:
    return tuple(body[at : at + size] for at in range(0, len(body), size))


def _join_text(session: Session, client: int, keys: bytes, commitment: bytes) -> bytes:
    return session.place.context(Purpose.JOIN, client, EVERYONE) + keys + commitment


def _reveal_text(session: Session, client: int, view: bytes, nonce: bytes) -> bytes:
    return session.place.context(Purpose.REVEAL, client, EVERYONE) + view + nonce
