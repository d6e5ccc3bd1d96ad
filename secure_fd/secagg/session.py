"""What all parties agree on before the first message: roster, session, and terms of a round."""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from secure_fd.crypto.context import EVERYONE, MAX_CLIENT, SERVER, Purpose, context, fields
from secure_fd.crypto.keys import IdentityPublic
from secure_fd.errors import ConfigurationError, LocalError
from secure_fd.secagg.graph import default_degree
from secure_fd.secagg.graph import threshold as least_threshold
from secure_fd.secagg.packing import MODULUS_BITS, LaneLayout
from secure_fd.secagg.wire import Place

SESSION_BYTES: Final = 32
MAX_WORDS: Final = 2**28
"""2 GiB a message: the longest masked input that a party will build or read."""


class Roster:
    """The pinned identities: client number -> Ed25519 public key, in ascending order."""

    __slots__ = ("_members",)

    def __init__(self, members: Mapping[int, bytes]) -> None:
        for client in members:
            if not 0 <= client <= MAX_CLIENT:
                raise ConfigurationError("client", client, f"use 0 to {MAX_CLIENT}")
        if len(set(members.values())) != len(members):
            raise ConfigurationError("roster", len(members), "every client needs its own identity")
        self._members = {client: IdentityPublic(members[client]) for client in sorted(members)}

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[int]:
        return iter(self._members)

    def __contains__(self, client: object) -> bool:
        return client in self._members

    def __getitem__(self, client: int) -> IdentityPublic:
        return self._members[client]

    def encode(self) -> bytes:
        """Every number and key, for the session id."""
        return b"".join(k.to_bytes(4, "big") + key.raw for k, key in self._members.items())


@dataclass(frozen=True, slots=True)
class NoiseTerms:
    """What noise that clients put into their vectors asks of a sum; by default there is none.

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


NO_NOISE: Final = NoiseTerms()


@dataclass(frozen=True, slots=True)
class RoundTerms:
    """What one round sums, fixed by every party for itself and bound into every mask key.

    index: the round, never repeated in a session. length: values of a vector. bound: the
    largest value. subject: a hash of what the values are about (the round's proxy indices).
    noise: what is added to the values, and how many inputs it takes.
    """

    index: int
    length: int
    bound: int
    subject: bytes = b""
    noise: NoiseTerms = NO_NOISE

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


@dataclass(frozen=True, slots=True)
class Session:
    """A federation of pinned clients that will run many rounds.

    configuration: whatever else the parties agreed on, encoded. proxies: a commitment to the
    proxy set. nonce: makes the ids of two sessions differ. degree: neighbours of a client; by
    default what the roster's size needs. threshold: shares that open a secret; by default what
    a lying server calls for. hybrid: whether channels add ML-KEM-768 to X25519.
    id: the hash of all of it, with modulus and protocol version.
    """

    roster: Roster
    configuration: bytes
    proxies: bytes
    nonce: bytes
    degree: int | None = None
    threshold: int | None = None
    hybrid: bool = False
    modulus_bits: int = MODULUS_BITS
    id: bytes = field(init=False)

    def __post_init__(self) -> None:
        for name in ("degree", "threshold"):
            value = getattr(self, name)
            if value is not None and not 1 <= value <= MAX_CLIENT:
                raise ConfigurationError(name, value, f"use 1 to {MAX_CLIENT}")
        label = context(
            Purpose.SESSION, session=self.nonce, terms=b"", sender=EVERYONE, receiver=EVERYONE
        )
        numbers = (self.degree or 0, self.threshold or 0, int(self.hybrid), self.modulus_bits)
        agreed = fields(
            label,
            *(number.to_bytes(8, "big") for number in numbers),
            self.roster.encode(),
            self.configuration,
            self.proxies,
        )
        object.__setattr__(self, "id", hashlib.sha256(agreed).digest())

    @property
    def place(self) -> Place:
        """Where set-up messages belong."""
        return Place(self.id)

    def degree_of(self, members: int) -> int:
        """Neighbours of each client in a group of so many members: an odd number of members
        has no regular graph of odd degree, so the next even one is taken.
        """
        wanted = self.degree
        if wanted is None:
            wanted = default_degree(members, len(self.roster))
        return min(wanted + (wanted * members) % 2, members - 1)

    def basis_of(self, members: int) -> int:
        """Of how many clients a threshold is a part: the holders of a secret.

        In a complete graph the whole roster, however few of it are members: a server that leaves
        honest clients out must not make its corrupt ones a greater part of those who decide.
        """
        degree = self.degree_of(members)
        return len(self.roster) if degree == members - 1 else degree + 1

    def threshold_of(self, members: int) -> int:
        """Shares that open a secret in a group of so many members."""
        least = least_threshold(self.basis_of(members))
        return least if self.threshold is None else self.threshold


class RoundCounter:
    """The rounds that a party has begun in a session."""

    __slots__ = ("_last",)

    def __init__(self) -> None:
        self._last = -1

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
