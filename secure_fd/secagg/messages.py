"""The messages of a set-up, body by body. Frame and header are in wire.py and session.py.

    JOIN      client -> server   public keys K, commitment 32, signature s
    MEMBERS   server -> client   set of the roster, 1 bit each; for each of these:
                                 SHA-256 of K 32, commitment 32
    REVEAL    client -> server   nonce 32, signature s
    AGREED    server -> client   set of the members that revealed, 1 bit each; for each of these:
                                 nonce 32, signature s; then for every neighbour, ascending: K
    CAPSULES  client -> server   for every neighbour of a higher number, ascending: capsule 1,168
              server -> client   set of the group whose capsules came, 1 bit each; for every
                                 neighbour of a lower number in it, ascending: capsule 1,168

s is 64 bytes, of Ed25519. K is an X25519 key, 32 bytes, and in a hybrid session an HPKE key, 1,216
bytes, behind it.
CAPSULES exist in hybrid sessions only. A client that is late with a message is out of the set-up.
"""

import hashlib
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from secure_fd.crypto.keys import (
    CAPSULE_BYTES,
    CAPSULE_PUBLIC_BYTES,
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
    capsule_public,
    fields,
    low_order,
)
from secure_fd.crypto.shamir import ELEMENT_BYTES
from secure_fd.errors import PeerError
from secure_fd.secagg.session import (
    Group,
    MessageType,
    RoundScope,
    Session,
    decode_set,
    encode_set,
    message_type,
    set_bytes,
)
from secure_fd.votes.codec import WordArray
from secure_fd.wire import HEADER_BYTES, Place, frame

NONCE_BYTES: Final = 32
_HASH_BYTES: Final = 32


class Body:
    """Reader of the body of one message: its parts one after the other, which are all of it.

    Raises:
        PeerError: a message of another header or type, or a part that is too short.
    """

    __slots__ = ("_kind", "_left", "_whole")

    def __init__(self, data: bytes, place: Place, sender: int, kind: MessageType) -> None:
        if data[:HEADER_BYTES] != frame(kind, place, sender):
            found = message_type(data, place, sender)  # raises if the header is wrong
            raise PeerError(f"a message is {found.name} where {kind.name} is due")
        self._kind, self._whole = kind, len(data) - HEADER_BYTES
        self._left = memoryview(data)[HEADER_BYTES:]

    def view(self, size: int) -> memoryview:
        """The next `size` bytes, not copied."""
        if len(self._left) < size:
            least = self._whole - len(self._left) + size
            raise PeerError(
                f"a {self._kind.name} body has {self._whole} bytes, not {least} or more"
            )
        part, self._left = self._left[:size], self._left[size:]
        return part

    def parts(self, *sizes: int) -> tuple[bytes, ...]:
        """The next bytes, in parts of these sizes."""
        return struct.unpack("".join([f"{size}s" for size in sizes]), self.view(sum(sizes)))

    def each(self, clients: Sequence[int], size: int) -> dict[int, bytes]:
        """The next `size` bytes for each of these clients, in their order."""
        return dict(zip(clients, self.parts(*[size] * len(clients)), strict=True))

    def chosen(self, listed: Sequence[int]) -> tuple[int, ...]:
        """A set of the listed clients."""
        return decode_set(self.view(set_bytes(listed)), listed)

    def lines(self, listed: Sequence[int], size: int) -> dict[int, bytes]:
        """A set of the listed clients, and `size` bytes for each of the set."""
        return self.each(self.chosen(listed), size)

    def end(self) -> None:
        """Return if nothing is left; PeerError for a body that goes on."""
        if self._left:
            size = self._whole - len(self._left)
            raise PeerError(f"a {self._kind.name} body has {self._whole} bytes, not {size}")


def read(
    data: bytes, place: Place, sender: int, kind: MessageType, *sizes: int
) -> tuple[bytes, ...]:
    """Read a message whose body has parts of these sizes."""
    body = Body(data, place, sender, kind)
    parts = body.parts(*sizes)
    body.end()
    return parts


def encode_lines(lines: Mapping[int, bytes], listed: Sequence[int]) -> bytes:
    """A set of the listed clients, and the bytes for each of it: what `Body.lines` reads."""
    return encode_set(lines, listed) + b"".join(lines[k] for k in listed if k in lines)


@dataclass(frozen=True, slots=True)
class SignedJoin:
    """A client's wish to take part: its channel's public keys, and a nonce that it will reveal."""

    client: int
    keys: bytes
    commitment: bytes
    signature: bytes

    @classmethod
    def signed(
        cls, session: Session, client: int, keys: bytes, nonce: bytes, identity: IdentityKey
    ) -> "SignedJoin":
        """Sign the keys and the commitment for this session."""
        commitment = commit(session, client, nonce)
        return cls(
            client, keys, commitment, identity.sign(_join_text(session, client, keys, commitment))
        )

    def verify(self, session: Session) -> None:
        """PeerError unless the pinned identity signed it, and its keys are such as can be used."""
        if low_order(self.keys[:PUBLIC_BYTES]):
            raise PeerError(f"client {self.client} joins with a key of low order")
        if session.hybrid:
            capsule_public(self.keys[PUBLIC_BYTES:])
        text = _join_text(session, self.client, self.keys, self.commitment)
        session.roster[self.client].verify(self.signature, text, f"client {self.client}'s join")

    @property
    def line(self) -> bytes:
        """Its line in the member list: SHA-256 of its public keys, and the commitment."""
        return hashlib.sha256(self.keys).digest() + self.commitment


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

    def verify(self, session: Session, client: int, line: bytes, view: bytes) -> None:
        """PeerError unless the client of this line signed this view, and committed to the nonce."""
        text, what = _reveal_text(session, client, view, self.nonce), f"client {client}'s"
        session.roster[client].verify(self.signature, text, f"{what} member list")
        if commit(session, client, self.nonce) != line[_HASH_BYTES:]:
            raise PeerError(f"client {client} reveals a nonce that it did not commit to")


def commit(session: Session, client: int, nonce: bytes) -> bytes:
    """The commitment to a nonce: 32 bytes that hide it and bind its client."""
    label = session.place.context(Purpose.NONCE, client, EVERYONE)
    return hashlib.sha256(label + nonce).digest()


def view_of(session: Session, members: Mapping[int, bytes]) -> bytes:
    """The hash of a member list. members: the line of each."""
    label = session.place.context(Purpose.VIEW, SERVER, EVERYONE)
    return hashlib.sha256(label + encode_lines(members, tuple(session.roster))).digest()


def keys_bytes(session: Session) -> int:
    """Length of a client's public keys."""
    return PUBLIC_BYTES + (CAPSULE_PUBLIC_BYTES if session.hybrid else 0)


def decode_join(data: bytes, session: Session, sender: int) -> SignedJoin:
    """Message -> join; its signature is not checked here."""
    sizes = keys_bytes(session), _HASH_BYTES, SIGNATURE_BYTES
    return SignedJoin(sender, *read(data, session.place, sender, MessageType.JOIN, *sizes))


def encode_members(members: Mapping[int, bytes], session: Session) -> bytes:
    """Member list -> message."""
    lines = encode_lines(members, tuple(session.roster))
    return frame(MessageType.MEMBERS, session.place, SERVER, lines)


def invitation(session: Session) -> bytes:
    """Return the message that asks clients to join a set-up: an empty MEMBERS.

    It is not signed: a set-up without need costs time, as a round that is aborted does.
    """
    return encode_members({}, session)


def decode_members(data: bytes, session: Session) -> dict[int, bytes]:
    """Message -> member list, ascending and of the pinned roster: the line of each."""
    body = Body(data, session.place, SERVER, MessageType.MEMBERS)
    members = body.lines(tuple(session.roster), 2 * _HASH_BYTES)
    body.end()
    return members


def decode_reveal(data: bytes, session: Session, sender: int) -> Reveal:
    """Message -> reveal; nothing is checked here."""
    sizes = NONCE_BYTES, SIGNATURE_BYTES
    return Reveal(*read(data, session.place, sender, MessageType.REVEAL, *sizes))


def encode_agreed(
    reveals: Mapping[int, Reveal], listed: Sequence[int], keys: Sequence[bytes], session: Session
) -> bytes:
    """Reveals, of some of the listed members, and the neighbours' public keys -> message."""
    lines = {client: reveal.nonce + reveal.signature for client, reveal in reveals.items()}
    body = encode_lines(lines, listed)
    return frame(MessageType.AGREED, session.place, SERVER, body, *keys)


def decode_agreed(
    data: bytes, session: Session, listed: Sequence[int]
) -> tuple[dict[int, Reveal], tuple[bytes, ...]]:
    """Message -> reveals, by member that revealed, and the neighbours' public keys.

    Nothing is checked here but lengths.
    """
    body = Body(data, session.place, SERVER, MessageType.AGREED)
    lines = body.lines(listed, NONCE_BYTES + SIGNATURE_BYTES)
    degree = session.degree_of(len(lines)) if lines else 0
    keys = body.parts(*[keys_bytes(session)] * degree)
    body.end()
    nonces = {k: Reveal(line[:NONCE_BYTES], line[NONCE_BYTES:]) for k, line in lines.items()}
    return nonces, keys


def decode_capsules(data: bytes, session: Session, sender: int, count: int) -> tuple[bytes, ...]:
    """Message -> `count` capsules."""
    return read(data, session.place, sender, MessageType.CAPSULES, *[CAPSULE_BYTES] * count)


def decode_relayed(
    data: bytes, group: Group, client: int
) -> tuple[tuple[int, ...], dict[int, bytes]]:
    """Message -> whose capsules came, and by lower neighbour among them its capsule."""
    body = Body(data, group.session.place, SERVER, MessageType.CAPSULES)
    present = body.chosen(group.members)
    peers = [peer for peer in group.neighbours(client) if peer < client and peer in present]
    capsules = body.each(peers, CAPSULE_BYTES)
    body.end()
    return present, capsules


def _join_text(session: Session, client: int, keys: bytes, commitment: bytes) -> bytes:
    return session.place.context(Purpose.JOIN, client, EVERYONE) + keys + commitment


def _reveal_text(session: Session, client: int, view: bytes, nonce: bytes) -> bytes:
    return session.place.context(Purpose.REVEAL, client, EVERYONE) + view + nonce


# The messages of a round, body by body. Frame and header are in wire.py and session.py.
#
#     PREPARE     client -> server  P
#     COHORT      server -> client  set of members 1 bit each; for every neighbour of the cohort,
#                                   ascending: round key 32, sealed shares 80
#     MASKED      client -> server  words, each u64 little-endian; set of neighbours whose seals
#                                   did not open, 1 bit each; cohort signature s; input
#                                   signature s; P of the next round; tag 16
#     SURVIVORS   server -> client  set of members 1 bit each; S, empty where a client is missing
#     CONSISTENT  client -> server  survivor signature s
#     SIGNATURES  server -> client  S
#     UNMASK      client -> server  for itself and every neighbour of the cohort, ascending: share
#                                   32, zeros where its seal did not open
#
# P is round key 32, commitment 32, vault 32 k + 16, and for every neighbour, ascending, sealed
# shares 80, where k is the number of neighbours. S is a set of the committee, 1 bit each, and for
# each of these, ascending: signature s. Every length follows from what was agreed and from the
# message's own sets.


SEALED_BYTES: Final = 2 * ELEMENT_BYTES + TAG_BYTES


@dataclass(frozen=True, slots=True)
class Prepare:
    """A client's part in a coming round, bound to its number and to nothing that is decided later.

    key: the round's X25519 key. commitment: to the self mask's seed. vault: the pair secrets,
    sealed under the root. sealed: shares for every neighbour, ascending, 80 bytes each.

    Raises:
        PeerError: a key of low order, with which no neighbour could mask.
    """

    key: bytes
    commitment: bytes
    vault: bytes = field(repr=False)
    sealed: bytes = field(repr=False)

    def __post_init__(self) -> None:
        if low_order(self.key):
            raise PeerError("a round key is a point of low order")

    def encode(self) -> bytes:
        """The bytes P."""
        return b"".join((self.key, self.commitment, self.vault, self.sealed))


def _prepare_sizes(neighbours: int) -> tuple[int, int, int, int]:
    """Lengths of the parts of P."""
    vault = KEY_BYTES * neighbours + TAG_BYTES
    return PUBLIC_BYTES, _HASH_BYTES, vault, SEALED_BYTES * neighbours


@dataclass(frozen=True, slots=True)
class Relayed:
    """Parts of a neighbour's PREPARE that the server forwards."""

    key: bytes
    sealed: bytes = field(repr=False)


def cohort_text(scope: RoundScope, client: int, group: Group, cohort: bytes) -> bytes:
    """Return the bytes that a client signs once it has masked for a cohort, an encoded set."""
    return scope.context(Purpose.COHORT, client, EVERYONE) + fields(group.view, cohort)


def survivor_text(
    scope: RoundScope, client: int, group: Group, cohort: bytes, survivors: bytes
) -> bytes:
    """Return the bytes that a client signs if inputs of the cohort are missing."""
    label = scope.context(Purpose.SURVIVORS, client, EVERYONE)
    return label + fields(group.view, cohort, survivors)


def decode_prepare(data: bytes, place: Place, sender: int, neighbours: int) -> Prepare:
    """Message -> prepare."""
    sizes = _prepare_sizes(neighbours)
    return Prepare(*read(data, place, sender, MessageType.PREPARE, *sizes))


def decode_cohort(
    data: bytes, group: Group, place: Place, client: int
) -> tuple[tuple[int, ...], dict[int, Relayed]]:
    """Message -> the cohort, and by neighbour of `client` in it what it prepared."""
    body = Body(data, place, SERVER, MessageType.COHORT)
    cohort = body.chosen(group.members)
    there = set(cohort)
    peers = [peer for peer in group.neighbours(client) if peer in there]
    lines = body.each(peers, PUBLIC_BYTES + SEALED_BYTES)
    body.end()
    relayed = {k: Relayed(line[:PUBLIC_BYTES], line[PUBLIC_BYTES:]) for k, line in lines.items()}
    return cohort, relayed


@dataclass(frozen=True, slots=True)
class Masked:
    """A client's input, as it goes over the wire.

    words: masked. closed: the neighbours whose sealed shares it could not open.
    cohort: its signature of the cohort; proof: its signature of the words, which is kept and
    verified only in a dispute. following: its part in the next round, None in an epoch's last.
    """

    words: WordArray = field(repr=False)
    closed: tuple[int, ...]
    cohort: bytes
    proof: bytes
    following: Prepare | None


def input_text(
    scope: RoundScope, client: int, group: Group, words: WordArray, cohort: bytes
) -> bytes:
    """Return the bytes that a client signs for its masked words and their cohort."""
    digest = hashlib.sha256(words.astype(WORD, copy=False).data.cast("B")).digest()
    return scope.context(Purpose.INPUT, client, EVERYONE) + fields(group.view, cohort, digest)


def encode_masked(
    masked: Masked, scope: RoundScope, client: int, group: Group, authenticator: Sealer
) -> bytes:
    """Masked input -> message, tagged for the server."""
    words = masked.words.astype(WORD, copy=False).data.cast("B")
    prepared = b"" if masked.following is None else masked.following.encode()
    closed = encode_set(masked.closed, group.neighbours(client))
    rest = closed + masked.cohort + masked.proof + prepared
    message = frame(MessageType.MASKED, scope.place, client, words, rest)
    return message + authenticator.seal(scope.terms.index, b"", message)


def decode_masked(
    data: bytes, scope: RoundScope, sender: int, group: Group, authenticator: Sealer
) -> Masked:
    """Message -> masked input, its words a read-only view; PeerError for a wrong tag.

    There is no P in the last round of an epoch, whose successor needs a set-up.
    """
    peers, last = group.neighbours(sender), (scope.terms.index + 1) % scope.session.epoch == 0
    body = Body(data, scope.place, sender, MessageType.MASKED)
    words = body.view(scope.words * WORD.itemsize)
    sizes = () if last else _prepare_sizes(len(peers))
    closed, cohort, proof, *following, tag = body.parts(
        set_bytes(peers), SIGNATURE_BYTES, SIGNATURE_BYTES, *sizes, TAG_BYTES
    )
    body.end()
    authenticator.open(scope.terms.index, tag, memoryview(data)[:-TAG_BYTES], "its input")
    return Masked(
        words=np.frombuffer(words, WORD),
        closed=decode_set(closed, peers) if any(closed) else (),
        cohort=cohort,
        proof=proof,
        following=Prepare(*following) if following else None,
    )


def encode_survivors(
    survivors: Iterable[int], signatures: Mapping[int, bytes], group: Group, place: Place
) -> bytes:
    """The survivors, and where they are the whole cohort its signatures -> message."""
    body = encode_set(survivors, group.members) + encode_lines(signatures, group.committee)
    return frame(MessageType.SURVIVORS, place, SERVER, body)


def decode_survivors(
    data: bytes, group: Group, place: Place
) -> tuple[tuple[int, ...], dict[int, bytes]]:
    """Message -> survivors, and signatures of the committee; none is checked here."""
    body = Body(data, place, SERVER, MessageType.SURVIVORS)
    survivors = body.chosen(group.members)
    signatures = body.lines(group.committee, SIGNATURE_BYTES)
    body.end()
    return survivors, signatures


def encode_signatures(signatures: Mapping[int, bytes], group: Group, place: Place) -> bytes:
    """Encode the signatures of the committee, the same message for all clients."""
    lines = encode_lines(signatures, group.committee)
    return frame(MessageType.SIGNATURES, place, SERVER, lines)


def decode_signatures(data: bytes, group: Group, place: Place) -> dict[int, bytes]:
    """Message -> signatures of the committee; none is checked here."""
    body = Body(data, place, SERVER, MessageType.SIGNATURES)
    signatures = body.lines(group.committee, SIGNATURE_BYTES)
    body.end()
    return signatures
