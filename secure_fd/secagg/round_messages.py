"""The messages of a round, body by body. Frame and header are in wire.py.

    PREPARE     client -> server  P
    COHORT      server -> client  set of members 1 bit each; for every neighbour of the cohort,
                                  ascending: round key 32, sealed shares 80
    MASKED      client -> server  words, each u64 little-endian; cohort signature 64;
                                  P of the next round
    SURVIVORS   server -> client  set of members 1 bit each; where nobody is missing, S
    CONSISTENT  client -> server  survivor signature 64
    SIGNATURES  server -> client  S
    UNMASK      client -> server  for itself and every neighbour of the cohort, ascending: share 32

P is round key 32, commitment 32, vault 32 k + 16, and for every neighbour, ascending, sealed
shares 80, where k is the number of neighbours. S is a list of (number u32, signature 64) of
the committee, ascending, none to k + 1 of them. Every other length follows from what was agreed
and from the message's own set of members.
"""

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from secure_fd.crypto.aead import TAG_BYTES
from secure_fd.crypto.context import EVERYONE, SERVER, Purpose, fields
from secure_fd.crypto.keys import PUBLIC_BYTES, SIGNATURE_BYTES
from secure_fd.crypto.prg import WORD
from secure_fd.crypto.shamir import ELEMENT_BYTES
from secure_fd.errors import PeerError
from secure_fd.knowledge import WordArray
from secure_fd.secagg.channel import PAIR_SECRET_BYTES
from secure_fd.secagg.group import Group
from secure_fd.secagg.session import RoundScope
from secure_fd.secagg.wire import (
    MessageType,
    Place,
    body_of,
    decode_set,
    frame,
    set_bytes,
)

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
