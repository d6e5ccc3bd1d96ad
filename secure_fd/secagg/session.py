"""Types of messages, and what all parties agree on: roster, session, terms of a round, group.

Bytes that are not exactly one message of the type that is due are a PeerError.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import lru_cache
from typing import Final

import numpy as np

from secure_fd.crypto.keys import (
    EVERYONE,
    MAX_CLIENT,
    PUBLIC_BYTES,
    SERVER,
    VERSION,
    IdentityPublic,
    Purpose,
    check_capsules,
    context,
    fields,
    low_order,
)
from secure_fd.errors import ConfigurationError, LocalError, PeerError
from secure_fd.secagg import graph
from secure_fd.votes.packing import NO_LIMITS, LaneLayout, Limits
from secure_fd.wire import HEADER, HEADER_BYTES, SETUP, Place


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


def message_type(data: bytes, place: Place, sender: int) -> MessageType:
    """The type of a message, once its header is this version, session, round and sender."""
    if len(data) < HEADER_BYTES:
        raise PeerError(f"a message of {len(data)} bytes is shorter than a header")
    version, kind, claimed, index, session = HEADER.unpack_from(data)
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


def is_elsewhere(data: bytes, place: Place) -> bool:
    """Return whether a message is late: of another round of this session, or of its set-up."""
    index = place.index.to_bytes(8, "big")
    return data[16:HEADER_BYTES] == place.session and data[8:16] != index


def encode_set(chosen: Iterable[int], members: Sequence[int]) -> bytes:
    """One bit a member, in order, the first in the lowest bit of the first byte."""
    wanted = set(chosen)
    bits = np.fromiter((member in wanted for member in members), dtype=np.bool_)
    return np.packbits(bits, bitorder="little").tobytes()


def set_bytes(members: Sequence[int]) -> int:
    """Length of an encoded set."""
    return -(-len(members) // 8)


def decode_set(data: bytes | memoryview, members: Sequence[int]) -> tuple[int, ...]:
    """Return the members whose bit is set, in order; PeerError for a bit of no member."""
    if len(data) != set_bytes(members):
        size = set_bytes(members)
        raise PeerError(f"a set of {len(members)} members has {len(data)} bytes, not {size}")
    bits = np.unpackbits(np.frombuffer(data, dtype=np.uint8), bitorder="little")
    if bits[len(members) :].any():
        raise PeerError("a set names a member that does not exist")
    return tuple(members[at] for at in np.flatnonzero(bits).tolist())


def _named(index: int) -> str:
    return "the set-up" if index == SETUP else f"round {index}"


# What all parties agree on before the first message: roster, session, and terms of a round.


SESSION_BYTES: Final = 32
MAX_WORDS: Final = 2**28
"""2 GiB a message: the longest masked input that a party will build or read."""


class PinnedRoster(dict[int, IdentityPublic]):
    """The pinned identities: client number -> public key, in ascending order."""

    def __init__(self, members: Mapping[int, bytes]) -> None:
        for client in members:
            if not 0 <= client <= MAX_CLIENT:
                raise ConfigurationError("client", client, f"use 0 to {MAX_CLIENT}")
        if len(set(members.values())) != len(members):
            raise ConfigurationError("roster", len(members), "every client needs its own identity")
        super().__init__((client, IdentityPublic(members[client])) for client in sorted(members))

    def encode(self) -> bytes:
        """Every number and key, for the session id."""
        return b"".join(k.to_bytes(4, "big") + key.raw for k, key in self.items())


@dataclass(frozen=True, slots=True)
class NoiseTerms:
    """Requirements on a sum by the noise in clients' vectors; by default there is none.

    room: how far noise may carry a value, or a sum, below 0 and above what it could be without.
    survivors: the fewest inputs that a sum may have; the noise of fewer would be too little.
    """

    room: int = 0
    survivors: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.room < 2**63:
            raise ConfigurationError("room", self.room, "use 0 to 2**63 - 1")
        if not 0 <= self.survivors <= MAX_CLIENT:
            raise ConfigurationError("survivors", self.survivors, f"use 0 to {MAX_CLIENT}")

    def of_members(self, members: int) -> "NoiseTerms":
        """Return the same terms for a sum of at least `members` inputs."""
        return NoiseTerms(self.room, max(self.survivors, members))


NO_NOISE: Final = NoiseTerms()


@dataclass(frozen=True, slots=True)
class RoundTerms:
    """Terms of one round's sum, fixed by every party for itself and bound into every mask key.

    index: the round, never repeated in a session. length: values of a vector. bound: the
    largest value. subject: a hash of what the values are about (the round's proxy indices).
    noise: what is added to the values, and how many inputs it takes. limits: what else holds for
    the values of a client; masks can neither check nor bind it.
    """

    index: int
    length: int
    bound: int
    subject: bytes = b""
    noise: NoiseTerms = NO_NOISE
    limits: Limits = NO_LIMITS

    def __post_init__(self) -> None:
        if not 0 <= self.index < 2**63:
            raise ConfigurationError("index", self.index, "use a round from 0 to 2**63 - 1")
        if self.length < 1:
            raise ConfigurationError("length", self.length, "sum 1 value or more")
        if not 1 <= self.bound < 2**64:
            raise ConfigurationError("bound", self.bound, "use 1 to 2**64 - 1")

    def encode(self) -> bytes:
        """Injective: the part of a context that stands for the round."""
        noise = self.noise
        numbers = (self.index, self.length, self.bound, noise.room, noise.survivors)
        return fields(*(number.to_bytes(8, "big") for number in numbers), self.subject)


MIN_CLIENTS: Final = 3
EPOCH_ROUNDS: Final = 1024
"""Rounds that one set-up serves by default."""


@dataclass(frozen=True, slots=True)
class Session:
    """A federation of pinned clients that will run many rounds.

    Attributes:
        configuration: What else the parties agreed on, encoded.
        proxies: A commitment to the proxy set.
        nonce: Makes the ids of two sessions differ.
        server: The server's X25519 key, under which inputs are authenticated to it.
        hybrid: Whether channels add HPKE with ML-KEM-768 to X25519; MissingCapabilityError where
            the library does not offer it.
        epoch: Rounds that one set-up serves, those of equal index // epoch.
        id: The hash of all of it, with the protocol version.
    """

    roster: PinnedRoster
    configuration: bytes
    proxies: bytes
    nonce: bytes
    server: bytes
    hybrid: bool = False
    epoch: int = EPOCH_ROUNDS
    id: bytes = field(init=False)

    def __post_init__(self) -> None:
        if len(self.roster) < MIN_CLIENTS:
            allowed = f"use {MIN_CLIENTS} clients or more, since the sum of fewer shows the inputs"
            raise ConfigurationError("roster", len(self.roster), allowed)
        if self.epoch < 1:
            raise ConfigurationError("epoch", self.epoch, "use 1 round or more")
        if self.hybrid:
            check_capsules()
        if len(self.server) != PUBLIC_BYTES or low_order(self.server):
            allowed = f"use an X25519 key of {PUBLIC_BYTES} bytes"
            raise ConfigurationError("server", self.server.hex(), allowed)
        label = context(
            Purpose.SESSION, session=self.nonce, terms=b"", sender=EVERYONE, receiver=EVERYONE
        )
        agreed = fields(
            label,
            *(number.to_bytes(8, "big") for number in (int(self.hybrid), self.epoch)),
            self.roster.encode(),
            self.configuration,
            self.proxies,
            self.server,
        )
        object.__setattr__(self, "id", hashlib.sha256(agreed).digest())

    @property
    def place(self) -> Place:
        """Place of set-up messages."""
        return Place(self.id)

    @property
    def least_members(self) -> int:
        """Fewest clients of the roster that may form a group: a threshold of it."""
        return graph.threshold(len(self.roster))

    def degree_of(self, members: int) -> int:
        """Return the number of neighbours of each client in a group.

        An odd number of members has no regular graph of odd degree: the next even one is taken.
        """
        wanted = graph.default_degree(members, len(self.roster))
        return min(wanted + (wanted * members) % 2, members - 1)

    @property
    def complete(self) -> bool:
        """True if all members of every group are neighbours, so that no seed decides anything."""
        return self.degree_of(len(self.roster)) == len(self.roster) - 1

    def basis_of(self, members: int) -> int:
        """Return the number of holders of a secret, of which a threshold is a part.

        In a complete graph the whole roster, however few of it are members: a server that leaves
        honest clients out must not make its corrupt ones a greater part of those who decide.
        """
        degree = self.degree_of(members)
        return len(self.roster) if degree == members - 1 else degree + 1

    def threshold_of(self, members: int) -> int:
        """Return the number of shares that open a secret in a group of `members` members."""
        return graph.threshold(self.basis_of(members))


class RoundCounter:
    """The rounds that a party has begun in a session."""

    __slots__ = ("_last",)

    def __init__(self, last: int = -1) -> None:
        self._last = last

    @property
    def last(self) -> int:
        """The newest round that began, -1 before any."""
        return self._last

    def spend(self, index: int) -> None:
        """Begin a round; LocalError unless its number is above that of every earlier one."""
        if index <= self._last:
            raise LocalError(f"round {index} is spent; use a round above {self._last}")
        self._last = index


@dataclass(frozen=True, slots=True)
class RoundScope:
    """A round of a session: all that a mask, a signature or a key of it is bound to.

    words: of one masked input.
    """

    session: Session
    terms: RoundTerms
    layout: LaneLayout = field(init=False)
    place: Place = field(init=False)
    words: int = field(init=False)
    _terms: bytes = field(init=False, repr=False)

    def __post_init__(self) -> None:
        clients, noise = len(self.session.roster), self.terms.noise
        if noise.survivors > clients:
            raise ConfigurationError("survivors", noise.survivors, f"use up to {clients} clients")
        layout = LaneLayout(clients, self.terms.bound, noise.room)
        words = layout.words(self.terms.length)
        if words > MAX_WORDS:
            raise ConfigurationError("length", self.terms.length, f"pack into {MAX_WORDS} words")
        object.__setattr__(self, "layout", layout)
        object.__setattr__(self, "place", Place(self.session.id, self.terms.index))
        object.__setattr__(self, "words", words)
        object.__setattr__(self, "_terms", self.terms.encode())

    def context(self, purpose: Purpose, sender: int, receiver: int = SERVER) -> bytes:
        """The context of one purpose between two parties of this round, under all its terms."""
        return context(
            purpose,
            session=self.session.id,
            terms=self._terms,
            sender=sender,
            receiver=receiver,
        )


# The public result of a set-up: members, graph, thresholds, joint seed.


class Group:
    """Result of a set-up that all parties know.

    Attributes:
        members: Clients that joined, ascending.
        view: A hash of the list of those that joined, which all of them signed, of which of these
            went on, and of the seed: it makes one set-up another than any before.
        seed: 32 bytes that all of them drew together, public once the set-up is over.
        degree: Neighbours of every member.
        complete: Whether these are all other members.
        threshold: Shares that open a secret of a member; it and its neighbours hold one each.
        quorum: The fewest members that any sum may have.
        committee: Members of which `threshold` signatures fix the cohort and the survivors.
    """

    def __init__(
        self, session: Session, members: tuple[int, ...], view: bytes, seed: bytes
    ) -> None:
        self.session, self.members, self.view, self.seed = session, members, view, seed
        n = len(members)
        self.degree, self.threshold = session.degree_of(n), session.threshold_of(n)
        self.complete = self.degree == n - 1
        self.quorum = self.threshold if self.complete else graph.threshold(n)
        self.committee = graph.committee(members, self.degree + 1, seed)
        self._neighbours = _graph(members, self.degree, seed)

    def neighbours(self, client: int) -> tuple[int, ...]:
        """Whom `client` masks with, ascending."""
        return self._neighbours[client]

    def holders(self, client: int) -> tuple[int, ...]:
        """Return the holders of `client`'s secrets: itself and its neighbours, ascending."""
        if self.complete:
            return self.members
        return tuple(sorted((client, *self._neighbours[client])))

    @property
    def tolerated(self) -> int:
        """Holders of a secret that may be corrupt: with one more, both its secrets could open."""
        return max(0, 2 * self.threshold - self.degree - 2)

    @property
    def corrupt(self) -> int:
        """Corrupt clients that its sums stand; a complete graph leaves two honest ones in each."""
        if self.complete:
            return max(0, min(self.tolerated, self.quorum - 2))
        return -(-len(self.session.roster) // graph.ONE_IN)

    def reaches(self, present: Sequence[int]) -> bool:
        """Return whether these clients are enough to open a sum.

        They are a quorum, each of them has a threshold of its holders among them, and so has the
        committee.
        """
        there = set(present)
        if len(there) < self.quorum or len(there.intersection(self.committee)) < self.threshold:
            return False
        return self.complete or all(
            len(there.intersection(self.holders(client))) >= self.threshold for client in there
        )


@lru_cache(maxsize=4)
def _graph(members: tuple[int, ...], degree: int, seed: bytes) -> Mapping[int, tuple[int, ...]]:
    return graph.neighbours(members, degree, seed)
