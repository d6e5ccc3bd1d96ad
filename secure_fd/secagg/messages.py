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
CAPSULES exist in hybrid sessions only. Whoever is late with a message is out of the set-up.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
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
    Authenticator,
    IdentityKey,
    Purpose,
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
    body_of,
    decode_set,
    encode_set,
    set_bytes,
)
from secure_fd.votes.codec import WordArray
from secure_fd.wire import HEADER_BYTES, Place, frame

NONCE_BYTES: Final = 32
_HASH_BYTES: Final = 32
_MEMBER: Final = 2 * _HASH_BYTES
_REVEAL: Final = NONCE_BYTES + SIGNATURE_BYTES


def _split(body: bytes | memoryview, *sizes: int) -> tuple[bytes, ...]:
    """Cut a body into parts of these sizes, which are all of it."""
    ends = list(accumulate(sizes))
    return tuple(bytes(body[end - size : end]) for size, end in zip(sizes, ends, strict=True))


def _read(
    data: bytes, place: Place, sender: int, kind: MessageType, *sizes: int
) -> tuple[bytes, ...]:
    """Read a message whose body has parts of these sizes; PeerError for another length."""
    return _split(body_of(data, place, sender, kind, sum(sizes)), *sizes)


def _read_lines(
    body: memoryview, listed: Sequence[int], size: int, kind: MessageType
) -> tuple[dict[int, bytes], memoryview]:
    """Read a set of the listed, then `size` bytes for each of it; return them, and what follows."""
    head = set_bytes(listed)
    chosen = decode_set(body[:head], listed)
    end = head + size * len(chosen)
    if len(body) < end:
        raise PeerError(f"a {kind.name} body of {len(body)} bytes does not fit {len(chosen)} lines")
    lines = _split(body[head:end], *[size] * len(chosen))
    return dict(zip(chosen, lines, strict=True)), body[end:]


def _read_rest(
    rest: memoryview, peers: Sequence[int], size: int, kind: MessageType
) -> dict[int, bytes]:
    """Read `size` bytes for each of the peers, which are the end of a body."""
    if len(rest) != size * len(peers):
        raise PeerError(
            f"the end of a {kind.name} body, {len(rest)} bytes, does not fit {len(peers)} peers"
        )
    return dict(zip(peers, _split(rest, *[size] * len(peers)), strict=True))


def _write_lines(lines: Mapping[int, bytes], listed: Sequence[int]) -> bytes:
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
    return hashlib.sha256(label + _member_list(session, members)).digest()


def keys_bytes(session: Session) -> int:
    """Length of a client's public keys."""
    return PUBLIC_BYTES + (CAPSULE_PUBLIC_BYTES if session.hybrid else 0)


def decode_join(data: bytes, session: Session, sender: int) -> SignedJoin:
    """Message -> join; its signature is not checked here."""
    sizes = keys_bytes(session), _HASH_BYTES, SIGNATURE_BYTES
    return SignedJoin(sender, *_read(data, session.place, sender, MessageType.JOIN, *sizes))


def encode_members(members: Sequence[Member], session: Session) -> bytes:
    """Member list -> message."""
    return frame(MessageType.MEMBERS, session.place, SERVER, _member_list(session, members))


def invitation(session: Session) -> bytes:
    """Return the message that asks clients to join a set-up: MEMBERS of nobody.

    It is not signed: a set-up without need costs time, as a round that is aborted does.
    """
    return encode_members((), session)


def decode_members(data: bytes, session: Session) -> tuple[Member, ...]:
    """Message -> member list, ascending and of the pinned roster."""
    body, kind = body_of(data, session.place, SERVER, MessageType.MEMBERS), MessageType.MEMBERS
    lines, rest = _read_lines(body, tuple(session.roster), _MEMBER, kind)
    _read_rest(rest, (), 0, kind)
    return tuple(Member(k, *_split(line, _HASH_BYTES, _HASH_BYTES)) for k, line in lines.items())


def decode_reveal(data: bytes, session: Session, sender: int) -> Reveal:
    """Message -> reveal; nothing is checked here."""
    sizes = NONCE_BYTES, SIGNATURE_BYTES
    return Reveal(*_read(data, session.place, sender, MessageType.REVEAL, *sizes))


def encode_agreed(
    revealed: bytes, reveals: Sequence[Reveal], keys: Sequence[bytes], session: Session
) -> bytes:
    """Who revealed, an encoded set; their reveals; the neighbours' public keys -> message."""
    told = (reveal.nonce + reveal.signature for reveal in reveals)
    return frame(MessageType.AGREED, session.place, SERVER, revealed, *told, *keys)


def decode_agreed(
    data: bytes, session: Session, listed: Sequence[int]
) -> tuple[tuple[int, ...], tuple[Reveal, ...], tuple[bytes, ...]]:
    """Message -> who of the listed members revealed, their reveals, the neighbours' public keys.

    Nothing is checked here but lengths.
    """
    kind = MessageType.AGREED
    body = body_of(data, session.place, SERVER, kind)
    lines, rest = _read_lines(body, listed, _REVEAL, kind)
    degree = session.degree_of(len(lines)) if lines else 0
    keys = _read_rest(rest, range(degree), keys_bytes(session), kind)
    reveals = (Reveal(*_split(line, NONCE_BYTES, SIGNATURE_BYTES)) for line in lines.values())
    return tuple(lines), tuple(reveals), tuple(keys.values())


def decode_capsules(data: bytes, session: Session, sender: int, count: int) -> tuple[bytes, ...]:
    """Message -> `count` capsules."""
    return _read(data, session.place, sender, MessageType.CAPSULES, *[CAPSULE_BYTES] * count)


def decode_relayed(
    data: bytes, group: Group, client: int
) -> tuple[tuple[int, ...], dict[int, bytes]]:
    """Message -> whose capsules came, and by lower neighbour among them its capsule."""
    kind = MessageType.CAPSULES
    body = body_of(data, group.session.place, SERVER, kind)
    present, rest = _read_lines(body, group.members, 0, kind)
    peers = [peer for peer in group.neighbours(client) if peer < client and peer in present]
    return tuple(present), _read_rest(rest, peers, CAPSULE_BYTES, kind)


def _member_list(session: Session, members: Sequence[Member]) -> bytes:
    lines = {member.client: member.digest + member.commitment for member in members}
    return _write_lines(lines, tuple(session.roster))


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
#     SURVIVORS   server -> client  set of members 1 bit each; S, empty where somebody is missing
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


def _prepare_sizes(neighbours: int) -> tuple[int, int, int, int]:
    """Lengths of the parts of P."""
    vault = KEY_BYTES * neighbours + TAG_BYTES
    return PUBLIC_BYTES, _HASH_BYTES, vault, SEALED_BYTES * neighbours


def cohort_text(scope: RoundScope, client: int, group: Group, cohort: bytes) -> bytes:
    """What a client signs when it has masked for a cohort, an encoded set of members."""
    return scope.context(Purpose.COHORT, client, EVERYONE) + fields(group.view, cohort)


def survivor_text(
    scope: RoundScope, client: int, group: Group, cohort: bytes, survivors: bytes
) -> bytes:
    """What a client signs when not all of the cohort have sent an input; both are encoded sets."""
    label = scope.context(Purpose.SURVIVORS, client, EVERYONE)
    return label + fields(group.view, cohort, survivors)


def decode_prepare(data: bytes, place: Place, sender: int, neighbours: int) -> Prepare:
    """Message -> prepare."""
    size = sum(_prepare_sizes(neighbours))
    return _prepare(body_of(data, place, sender, MessageType.PREPARE, size), neighbours)


def decode_cohort(
    data: bytes, group: Group, place: Place, client: int
) -> tuple[tuple[int, ...], dict[int, Relayed]]:
    """Message -> the cohort, and by neighbour of `client` in it what it prepared."""
    kind = MessageType.COHORT
    cohort, rest = _read_lines(body_of(data, place, SERVER, kind), group.members, 0, kind)
    peers = [peer for peer in group.neighbours(client) if peer in cohort]
    lines = _read_rest(rest, peers, PUBLIC_BYTES + SEALED_BYTES, kind)
    relayed = {k: Relayed(*_split(each, PUBLIC_BYTES, SEALED_BYTES)) for k, each in lines.items()}
    return tuple(cohort), relayed


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
    """What a client signs of its masked words, for the cohort that it masked them for."""
    digest = hashlib.sha256(words.astype(WORD, copy=False).data.cast("B")).digest()
    return scope.context(Purpose.INPUT, client, EVERYONE) + fields(group.view, cohort, digest)


def encode_masked(
    masked: Masked, scope: RoundScope, client: int, group: Group, authenticator: Authenticator
) -> bytes:
    """Masked input -> message, tagged for the server."""
    words = masked.words.astype(WORD, copy=False).data.cast("B")
    prepared = b"" if masked.following is None else masked.following.encode()
    closed = encode_set(masked.closed, group.neighbours(client))
    rest = closed + masked.cohort + masked.proof + prepared
    message = frame(MessageType.MASKED, scope.place, client, words, rest)
    return message + authenticator.tag(scope.terms.index, message)


def _input_sizes(scope: RoundScope, degree: int) -> tuple[int, ...]:
    """Lengths of the parts of an input behind its words.

    There is no P in the last round of an epoch, whose successor needs a set-up.
    """
    last = (scope.terms.index + 1) % scope.session.epoch == 0
    prepare = 0 if last else sum(_prepare_sizes(degree))
    return -(-degree // 8), SIGNATURE_BYTES, SIGNATURE_BYTES, prepare, TAG_BYTES


def decode_masked(
    data: bytes, scope: RoundScope, sender: int, group: Group, authenticator: Authenticator
) -> Masked:
    """Message -> masked input, its words a read-only view; PeerError for a wrong tag."""
    width, sizes = scope.words * WORD.itemsize, _input_sizes(scope, group.degree)
    body = body_of(data, scope.place, sender, MessageType.MASKED, width + sum(sizes))
    closed, cohort, proof, following, tag = _split(body[width:], *sizes)
    authenticator.check(scope.terms.index, tag, memoryview(data)[:-TAG_BYTES], "its input")
    return Masked(
        words=np.frombuffer(data, WORD, scope.words, HEADER_BYTES),
        closed=decode_set(closed, group.neighbours(sender)) if any(closed) else (),
        cohort=cohort,
        proof=proof,
        following=_prepare(following, group.degree) if following else None,
    )


def encode_survivors(
    survivors: Iterable[int], signatures: Signatures, group: Group, place: Place
) -> bytes:
    """The survivors, and where they are the whole cohort its signatures -> message."""
    body = encode_set(survivors, group.members) + _write_lines(signatures, group.committee)
    return frame(MessageType.SURVIVORS, place, SERVER, body)


def decode_survivors(data: bytes, group: Group, place: Place) -> tuple[tuple[int, ...], Signatures]:
    """Message -> survivors, and signatures of the committee; none is checked here."""
    kind = MessageType.SURVIVORS
    survivors, rest = _read_lines(body_of(data, place, SERVER, kind), group.members, 0, kind)
    return tuple(survivors), _signatures(rest, group, kind)


def decode_consistent(data: bytes, place: Place, sender: int) -> bytes:
    """Message -> survivor signature; it is not checked here."""
    return _read(data, place, sender, MessageType.CONSISTENT, SIGNATURE_BYTES)[0]


def encode_signatures(signatures: Signatures, group: Group, place: Place) -> bytes:
    """Signatures of the committee, for everybody the same -> message."""
    body = _write_lines(signatures, group.committee)
    return frame(MessageType.SIGNATURES, place, SERVER, body)


def decode_signatures(data: bytes, group: Group, place: Place) -> Signatures:
    """Message -> signatures of the committee; none is checked here."""
    kind = MessageType.SIGNATURES
    return _signatures(body_of(data, place, SERVER, kind), group, kind)


def _signatures(body: memoryview, group: Group, kind: MessageType) -> Signatures:
    signatures, rest = _read_lines(body, group.committee, SIGNATURE_BYTES, kind)
    _read_rest(rest, (), 0, kind)
    return signatures


def decode_unmask(data: bytes, place: Place, sender: int, owners: int) -> bytes:
    """Message -> encoded shares of the secrets of so many owners, in their order."""
    return _read(data, place, sender, MessageType.UNMASK, ELEMENT_BYTES * owners)[0]


def _prepare(body: bytes | memoryview, neighbours: int) -> Prepare:
    """PeerError for a round key of low order, with which no neighbour could mask."""
    prepare = Prepare(*_split(body, *_prepare_sizes(neighbours)))
    if low_order(prepare.key):
        raise PeerError("a round key is a point of low order")
    return prepare
