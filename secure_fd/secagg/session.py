"""What all parties agree on before the first message: roster, session, and terms of a round."""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from secure_fd.crypto.context import EVERYONE, MAX_CLIENT, SERVER, Purpose, context, fields
from secure_fd.crypto.keys import IdentityPublic
from secure_fd.errors import ConfigurationError, LocalError
from secure_fd.secagg.packing import MODULUS_BITS, LaneLayout

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
class RoundTerms:
    """What one round sums, fixed by every party for itself and bound into every key.

    index: the round, never repeated in a session. length: values of a vector. bound: the
    largest value. subject: a hash of what the values are about (the round's proxy indices).
    """

    index: int
    length: int
    bound: int
    subject: bytes = b""

    def __post_init__(self) -> None:
        if not 0 <= self.index < 2**63:
            raise ConfigurationError("index", self.index, "use a round from 0 to 2**63 - 1")
        if self.length < 1:
            raise ConfigurationError("length", self.length, "sum 1 value or more")
        if not 1 <= self.bound < 2**64:
            raise ConfigurationError("bound", self.bound, "use 1 to 2**64 - 1")

    def encode(self) -> bytes:
        """Injective: the part of a context that stands for the round."""
        numbers = (self.index, self.length, self.bound)
        return fields(*(number.to_bytes(8, "big") for number in numbers), self.subject)


@dataclass(frozen=True, slots=True)
class Session:
    """A federation of pinned clients that will run many rounds.

    configuration: whatever else the parties agreed on, encoded. proxies: a commitment to the
    proxy set. nonce: makes two sessions of one roster differ, so that adverts of one are void
    in the other. id: the hash of all of it, with modulus and protocol version.
    """

    roster: Roster
    configuration: bytes
    proxies: bytes
    nonce: bytes
    id: bytes = field(init=False)

    def __post_init__(self) -> None:
        label = context(
            Purpose.SESSION, session=self.nonce, terms=b"", sender=EVERYONE, receiver=EVERYONE
        )
        agreed = fields(
            label,
            MODULUS_BITS.to_bytes(2, "big"),
            self.roster.encode(),
            self.configuration,
            self.proxies,
        )
        object.__setattr__(self, "id", hashlib.sha256(agreed).digest())


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
    """A round of a session: all that a message, a signature or a key of it is bound to."""

    session: Session
    terms: RoundTerms
    layout: LaneLayout = field(init=False)
    _terms: bytes = field(init=False, repr=False)

    def __post_init__(self) -> None:
        layout = LaneLayout(len(self.session.roster), self.terms.bound)
        if layout.words(self.terms.length) > MAX_WORDS:
            raise ConfigurationError("length", self.terms.length, f"pack into {MAX_WORDS} words")
        object.__setattr__(self, "layout", layout)
        object.__setattr__(self, "_terms", self.terms.encode())

    @property
    def words(self) -> int:
        """Words of one masked input."""
        return self.layout.words(self.terms.length)

    def context(self, purpose: Purpose, sender: int, receiver: int = SERVER) -> bytes:
        """The context of one purpose between two parties of this round."""
        return context(
            purpose,
            session=self.session.id,
            terms=self._terms,
            sender=sender,
            receiver=receiver,
        )
