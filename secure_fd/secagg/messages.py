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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from secure_fd.crypto.primitives import (
    CIPHERTEXT_BYTES,
    EVERYONE,
    KEY_BYTES,
    PUBLIC_BYTES,
    SERVER,
    SIGNATURE_BYTES,
    TAG_BYTES,
    WORD,
    IdentityKey,
    Purpose,
    Sealer,
    SecretHolder,
    derive_key,
    fields,
)
from secure_fd.crypto.primitives import KEM_PUBLIC_BYTES as KEM_BYTES
from secure_fd.crypto.shamir import ELEMENT_BYTES
from secure_fd.errors import PeerError
from secure_fd.knowledge import WordArray
from secure_fd.secagg.session import (
    Group,
    MessageType,
    Place,
    RoundScope,
    Session,
    body_of,
    decode_set,
    frame,
    set_bytes,
)

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


# The secret that two clients of a session share: it seals messages and joins every mask key.


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


# The messages of a round, body by body. Frame and header are in wire.py.
#
#     PREPARE     client -> server  P
#     COHORT      server -> client  set of members 1 bit each; for every neighbour of the cohort,
#                                   ascending: round key 32, sealed shares 80
#     MASKED      client -> server  words, each u64 little-endian; cohort signature 64;
#                                   P of the next round
#     SURVIVORS   server -> client  set of members 1 bit each; where nobody is missing, S
#     CONSISTENT  client -> server  survivor signature 64
#     SIGNATURES  server -> client  S
#     UNMASK      client -> server  for itself and every neighbour of the cohort, ascending: share
# 32
#
# P is round key 32, commitment 32, vault 32 k + 16, and for every neighbour, ascending, sealed
# shares 80, where k is the number of neighbours. S is a list of (number u32, signature 64) of
# the committee, ascending, none to k + 1 of them. Every other length follows from what was agreed
# and from the message's own set of members.


SEALED_BYTES: Final = 2 * ELEMENT_BYTES + TAG_BYTES
_COMMITMENT_BYTES: Final = 32
_PEER: Final = struct.Struct(f">{PUBLIC_BYTES}s{SEALED_BYTES}s")
_SIGNED: Final = struct.Struct(f">I{SIGNATURE_BYTES}s")


@dataclass(frozen=True, slots=True)
class Prepare:
    """A client's part in a coming round, bound to its number and to nothing that is decided later.

    key: the round's X25519 key. commitment: to the self mask's seed. vault: the pair secrets,
    for whoever restores the root. sealed: shares for every neighbour, ascending, 80 bytes each.
    """

    key: bytes
    commitment: bytes
    vault: bytes = field(repr=False)
    sealed: bytes = field(repr=False)

    def encode(self) -> bytes:
        """The bytes P."""
        return b"".join((self.key, self.commitment, self.vault, self.sealed))


@dataclass(frozen=True, slots=True)
class Relayed:
    """What the server passes on of a neighbour's PREPARE."""

    key: bytes
    sealed: bytes = field(repr=False)


Signatures = Mapping[int, bytes]
"""By client, its signature."""


def prepare_bytes(neighbours: int) -> int:
    """Length of P."""
    vault = PAIR_SECRET_BYTES * neighbours + TAG_BYTES
    return PUBLIC_BYTES + _COMMITMENT_BYTES + vault + SEALED_BYTES * neighbours


def cohort_text(scope: RoundScope, client: int, group: Group, cohort: bytes) -> bytes:
    """What a client signs when it has masked for a cohort, an encoded set of members."""
    return scope.context(Purpose.COHORT, client, EVERYONE) + fields(group.view, cohort)


def survivor_text(
    scope: RoundScope, client: int, group: Group, cohort: bytes, survivors: bytes
) -> bytes:
    """What a client signs when not all of the cohort have sent an input; both are encoded sets."""
    label = scope.context(Purpose.SURVIVORS, client, EVERYONE)
    return label + fields(group.view, cohort, survivors)


def encode_prepare(prepare: Prepare, place: Place, client: int) -> bytes:
    """Prepare -> message."""
    return frame(MessageType.PREPARE, place, client, prepare.encode())


def decode_prepare(data: bytes, place: Place, sender: int, neighbours: int) -> Prepare:
    """Message -> prepare."""
    size = prepare_bytes(neighbours)
    return _prepare(body_of(data, place, sender, MessageType.PREPARE, size), neighbours)


def encode_cohort(cohort: bytes, relayed: bytes, place: Place) -> bytes:
    """The round's cohort, an encoded set, and what a client's neighbours in it prepared."""
    return frame(MessageType.COHORT, place, SERVER, cohort, relayed)


def decode_cohort(
    data: bytes, group: Group, place: Place, client: int
) -> tuple[tuple[int, ...], dict[int, Relayed]]:
    """Message -> the cohort, and by neighbour of `client` in it what it prepared."""
    body, head = body_of(data, place, SERVER, MessageType.COHORT), set_bytes(group.members)
    cohort = decode_set(body[:head], group.members)
    present = set(cohort)
    peers = [peer for peer in group.neighbours(client) if peer in present]
    if len(body) != head + _PEER.size * len(peers):
        raise PeerError(f"a COHORT body of {len(body)} bytes does not fit {len(peers)} neighbours")
    relayed = (Relayed(*peer) for peer in _PEER.iter_unpack(body[head:]))
    return cohort, dict(zip(peers, relayed, strict=True))


def encode_masked(
    words: WordArray, signature: bytes, following: Prepare, scope: RoundScope, client: int
) -> bytes:
    """Masked words, the cohort's signature and the next round's P -> message."""
    little = words.astype(WORD, copy=False)
    parts = (little.data.cast("B"), signature, following.encode())
    return frame(MessageType.MASKED, scope.place, client, *parts)


def decode_masked(
    data: bytes, scope: RoundScope, sender: int, neighbours: int
) -> tuple[WordArray, bytes, Prepare]:
    """Message -> masked words, a read-only view of it; cohort signature; next round's prepare."""
    size = scope.words * WORD.itemsize
    total = size + SIGNATURE_BYTES + prepare_bytes(neighbours)
    body = body_of(data, scope.place, sender, MessageType.MASKED, total)
    words = np.frombuffer(body[:size], dtype=WORD).astype(np.uint64, copy=False)
    tail = body[size + SIGNATURE_BYTES :]
    return words, bytes(body[size : size + SIGNATURE_BYTES]), _prepare(tail, neighbours)


def encode_survivors(survivors: bytes, signatures: bytes, place: Place) -> bytes:
    """The survivors, an encoded set, and where they are the whole cohort its signatures."""
    return frame(MessageType.SURVIVORS, place, SERVER, survivors, signatures)


def decode_survivors(data: bytes, group: Group, place: Place) -> tuple[tuple[int, ...], Signatures]:
    """Message -> survivors, and signatures of the committee; none is checked here."""
    body, head = body_of(data, place, SERVER, MessageType.SURVIVORS), set_bytes(group.members)
    return decode_set(body[:head], group.members), _signatures(body[head:], group)


def encode_consistent(signature: bytes, place: Place, client: int) -> bytes:
    """Survivor signature -> message."""
    return frame(MessageType.CONSISTENT, place, client, signature)


def decode_consistent(data: bytes, place: Place, sender: int) -> bytes:
    """Message -> survivor signature; it is not checked here."""
    return bytes(body_of(data, place, sender, MessageType.CONSISTENT, SIGNATURE_BYTES))


def signature_entry(client: int, signature: bytes) -> bytes:
    """One line of a list of signatures; the lines ascend by client."""
    return _SIGNED.pack(client, signature)


def encode_signatures(signatures: bytes, place: Place) -> bytes:
    """A list of signatures -> message."""
    return frame(MessageType.SIGNATURES, place, SERVER, signatures)


def decode_signatures(data: bytes, group: Group, place: Place) -> Signatures:
    """Message -> signatures of the committee; none is checked here."""
    body = body_of(data, place, SERVER, MessageType.SIGNATURES)
    return _signatures(body, group)


def encode_unmask(shares: Sequence[bytes], place: Place, client: int) -> bytes:
    """One share for each secret asked for, in the order of their owners -> message."""
    return frame(MessageType.UNMASK, place, client, *shares)


def decode_unmask(data: bytes, place: Place, sender: int, owners: int) -> bytes:
    """Message -> encoded shares of the secrets of so many owners, in their order."""
    size = ELEMENT_BYTES * owners
    return bytes(body_of(data, place, sender, MessageType.UNMASK, size))


def _prepare(body: memoryview, neighbours: int) -> Prepare:
    key, rest = bytes(body[:PUBLIC_BYTES]), bytes(body[PUBLIC_BYTES:])
    vault_end = _COMMITMENT_BYTES + PAIR_SECRET_BYTES * neighbours + TAG_BYTES
    return Prepare(
        key=key,
        commitment=rest[:_COMMITMENT_BYTES],
        vault=rest[_COMMITMENT_BYTES:vault_end],
        sealed=rest[vault_end:],
    )


def _signatures(body: memoryview, group: Group) -> Signatures:
    signers = group.committee
    if len(body) % _SIGNED.size or len(body) > _SIGNED.size * len(signers):
        raise PeerError(f"a signature list of {len(body)} bytes is not of {len(signers)} signers")
    entries = list(_SIGNED.iter_unpack(body))
    named = [signer for signer, _ in entries]
    if named != sorted(set(named)) or not set(named) <= set(signers):
        raise PeerError(
            f"a signature list names clients {named}, not an ascending part of the committee"
        )
    return dict(entries)
