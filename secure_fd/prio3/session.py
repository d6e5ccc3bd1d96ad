"""The agreement between all parties of a proven sum: members, contexts, and the form of a round.

Clients send votes; two aggregators that do not collude, the *leader* and the *helper*, add them up.
The helper is a party of its own, elected for the session, and casts no vote in it.
"""

import hashlib
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Final

from secure_fd.crypto import keys as crypto
from secure_fd.errors import ConfigurationError
from secure_fd.prio3.vdaf import DRAFT, Prio3
from secure_fd.prio3.votes import MAX_LANES, MAX_WEIGHT, vote_sum
from secure_fd.secagg.session import NO_NOISE, PinnedRoster, RoundTerms
from secure_fd.wire import Place

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


@dataclass(frozen=True)
class VoteSession:
    """A federation of pinned clients and the helper that it elected.

    roster: the voters. helper_key: the helper's X25519 key, 32 bytes. configuration, proxies: other
    agreed values. nonce: makes two sessions differ.
    """

    roster: PinnedRoster
    helper_key: bytes
    nonce: bytes
    configuration: bytes = b""
    proxies: bytes = b""

    def __post_init__(self) -> None:
        if len(self.helper_key) != crypto.PUBLIC_BYTES or crypto.low_order(self.helper_key):
            allowed = f"use an X25519 key of {crypto.PUBLIC_BYTES} bytes"
            raise ConfigurationError("helper_key", self.helper_key.hex(), allowed)
        if len(self.roster) < MIN_VOTES:
            raise ConfigurationError("n_clients", len(self.roster), f"use {MIN_VOTES} or more")

    @property
    def quorum(self) -> int:
        """The fewest votes of a sum: a majority of the roster, and three at least."""
        return max(MIN_VOTES, len(self.roster) // 2 + 1)

    @cached_property
    def id(self) -> bytes:
        """The hash of all that was agreed, with the draft's version."""
        everyone = crypto.EVERYONE
        label = Place(self.nonce).context(VotePurpose.SESSION, everyone, everyone)
        quorum, roster = self.quorum.to_bytes(4, "big"), self.roster.encode()
        agreed = (quorum, self.helper_key, roster, self.configuration, self.proxies)
        return hashlib.sha256(crypto.fields(label, DRAFT.encode(), *agreed)).digest()


@dataclass(frozen=True, slots=True)
class VoteRound:
    """A round of a session: the form of its votes, and the contexts that bind them to it."""

    session: VoteSession
    terms: RoundTerms

    def __post_init__(self) -> None:
        terms, row = self.terms, self.terms.limits.row
        if terms.noise != NO_NOISE:
            allowed = "votes prove their range without noise; use the masked sum for noise"
            raise ConfigurationError("noise", terms.noise, allowed)
        if terms.length % row or terms.length > MAX_LANES:
            allowed = f"use whole rows of {row}, up to {MAX_LANES} values"
            raise ConfigurationError("length", terms.length, allowed)
        if terms.bound > MAX_WEIGHT:
            allowed = f"values prove a range up to {MAX_WEIGHT}; sum larger ones under masks"
            raise ConfigurationError("bound", terms.bound, allowed)

    @property
    def place(self) -> Place:
        """Session and number of the round, for the header of a message."""
        return Place(self.session.id, self.terms.index)

    @property
    def budget(self) -> int:
        """The largest total of one client's values: what its rows allow, or less."""
        allowed = self.terms.length // self.terms.limits.row * self.terms.bound
        return min(allowed, self.terms.limits.budget or allowed)

    @property
    def prio3(self) -> Prio3:
        """The sum of such votes."""
        row = self.terms.limits.row
        return vote_sum(self.terms.length // row, row, self.terms.bound, self.budget)

    def context(self, purpose: VotePurpose, sender: int, receiver: int = crypto.EVERYONE) -> bytes:
        """The context of one purpose in this round, under all its terms and limits."""
        limits = (self.terms.limits.row.to_bytes(8, "big"), self.budget.to_bytes(8, "big"))
        terms = self.terms.encode() + crypto.fields(*limits)
        return crypto.context(
            purpose, session=self.session.id, terms=terms, sender=sender, receiver=receiver
        )

    def votes_of(self, client: int) -> bytes:
        """The application context of a client's shares and proof: it serves no other client."""
        return self.context(VotePurpose.VOTES, client)

    def verify_key(self, leader: bytes, helper: bytes) -> bytes:
        """32 bytes from the parts of both aggregators, neither of which can choose it."""
        label = self.context(VotePurpose.VERIFY_KEY, crypto.SERVER, crypto.HELPER)
        return hashlib.sha256(crypto.fields(label, leader, helper)).digest()

    def commitment(self, leader: bytes) -> bytes:
        """32 bytes that fix the leader's part before it sees the helper's."""
        label = self.context(VotePurpose.COMMITMENT, crypto.SERVER, crypto.HELPER)
        return hashlib.sha256(crypto.fields(label, leader)).digest()
