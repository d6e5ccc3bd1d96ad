"""What all parties of a proven sum agree on: who they are, contexts, and the form of a round.

Clients send votes; two aggregators that do not collude, the *leader* and the *helper*, add them up.
The helper is a party of its own, elected for the session, and casts no vote in it.
"""

import hashlib
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from secure_fd.crypto.keys import (
    EVERYONE,
    MAX_CLIENT,
    PUBLIC_BYTES,
    SERVER,
    context,
    fields,
    low_order,
)
from secure_fd.errors import ConfigurationError
from secure_fd.prio3.vdaf import DRAFT, Prio3
from secure_fd.prio3.votes import MAX_LANES, MAX_WEIGHT, vote_sum
from secure_fd.secagg.session import NO_NOISE, Roster, RoundTerms
from secure_fd.votes.codec import UnitArray

MIN_VOTES: Final = 3
"""The fewest votes that a sum may have: of two, each client reads the other's."""
LEADER_SHARE, HELPER_SHARE = 0, 1
"""The aggregators' numbers in the VDAF draft."""


class VotePurpose(StrEnum):
    """Everything in a proven sum that needs a context of its own."""

    SESSION = "proven session id"
    VOTES = "proven votes"
    SEAL = "helper share seal"
    SIGNATURE = "report signature"
    COMMITMENT = "verify key commitment"
    VERIFY_KEY = "verify key"


@dataclass(frozen=True, slots=True)
class VoteSession:
    """A federation of pinned clients and the helper that it elected.

    roster: those who vote. helper: its party number, which is no voter's. helper_key: its X25519
    key, 32 bytes. configuration, proxies: what else was agreed. nonce: makes two sessions differ.
    quorum: the fewest votes of a sum; by default a majority of the roster, and three at least.
    id: the hash of all of it, with the draft's version.
    """

    roster: Roster
    helper: int
    helper_key: bytes
    nonce: bytes
    configuration: bytes = b""
    proxies: bytes = b""
    quorum: int = 0
    id: bytes = field(init=False)

    def __post_init__(self) -> None:
        if not 0 <= self.helper <= MAX_CLIENT or self.helper in self.roster:
            allowed = "the helper casts no vote: give it a number that no client of the roster has"
            raise ConfigurationError("helper", self.helper, allowed)
        if len(self.helper_key) != PUBLIC_BYTES or low_order(self.helper_key):
            allowed = f"use an X25519 key of {PUBLIC_BYTES} bytes"
            raise ConfigurationError("helper_key", self.helper_key.hex(), allowed)
        quorum = self.quorum or max(MIN_VOTES, len(self.roster) // 2 + 1)
        if not MIN_VOTES <= quorum <= len(self.roster):
            allowed = f"use {MIN_VOTES} to the {len(self.roster)} clients of the roster"
            raise ConfigurationError("quorum", quorum, allowed)
        object.__setattr__(self, "quorum", quorum)
        purpose, all_of_them = VotePurpose.SESSION, EVERYONE
        label = context(
            purpose, session=self.nonce, terms=b"", sender=all_of_them, receiver=all_of_them
        )
        numbers = (self.helper.to_bytes(4, "big"), quorum.to_bytes(4, "big"))
        agreed = (self.helper_key, self.roster.encode(), self.configuration, self.proxies)
        digest = hashlib.sha256(fields(label, DRAFT.encode(), *numbers, *agreed)).digest()
        object.__setattr__(self, "id", digest)


@dataclass(frozen=True, slots=True)
class VoteRound:
    """A round of a session: the form of its votes, and the contexts that bind them to it."""

    session: VoteSession
    terms: RoundTerms
    prio3: Prio3[UnitArray] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        terms, limits = self.terms, self.terms.limits
        if terms.noise != NO_NOISE:
            allowed = "votes prove their range without noise; use the masked sum for noise"
            raise ConfigurationError("noise", terms.noise, allowed)
        if terms.length % limits.row or terms.length > MAX_LANES:
            allowed = f"use whole rows of {limits.row}, up to {MAX_LANES} values"
            raise ConfigurationError("length", terms.length, allowed)
        if terms.bound > MAX_WEIGHT:
            allowed = f"values prove a range up to {MAX_WEIGHT}; sum larger ones under masks"
            raise ConfigurationError("bound", terms.bound, allowed)
        rows = terms.length // limits.row
        form = (rows, limits.row, terms.bound, min(self.budget, rows * terms.bound))
        object.__setattr__(self, "prio3", vote_sum(*form))

    @property
    def budget(self) -> int:
        """Most of all of one client's values together."""
        rows = self.terms.length // self.terms.limits.row
        chosen = self.terms.limits.budget
        return rows * self.terms.bound if chosen is None else chosen

    def encode(self) -> bytes:
        """Injective: the terms of the round, its number first, with its limits."""
        limits = (self.terms.limits.row, self.budget)
        return self.terms.encode() + fields(*(number.to_bytes(8, "big") for number in limits))

    def context(self, purpose: VotePurpose, sender: int, receiver: int = EVERYONE) -> bytes:
        """The context of one purpose in this round, under all its terms."""
        return context(
            purpose,
            session=self.session.id,
            terms=self.encode(),
            sender=sender,
            receiver=receiver,
        )

    def votes_of(self, client: int) -> bytes:
        """The application context of a client's shares and proof: it serves no other client."""
        return self.context(VotePurpose.VOTES, client)

    def verify_key(self, leader: bytes, helper: bytes) -> bytes:
        """32 bytes from the parts of both aggregators, neither of which can choose it."""
        label = self.context(VotePurpose.VERIFY_KEY, SERVER, self.session.helper)
        return hashlib.sha256(fields(label, leader, helper)).digest()

    def commitment(self, leader: bytes) -> bytes:
        """32 bytes that fix the leader's part before it sees the helper's."""
        label = self.context(VotePurpose.COMMITMENT, SERVER, self.session.helper)
        return hashlib.sha256(fields(label, leader)).digest()
