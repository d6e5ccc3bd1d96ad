"""The one function that says what a key, a signature or a hash is for.

Two contexts are equal only if every field is: each field is preceded by its length, so no
choice of contents moves a byte from one field into the next.
"""

import struct
from enum import StrEnum
from functools import lru_cache
from typing import Final

VERSION: Final = 2
"""Of the whole protocol: messages and contexts change together."""
EVERYONE: Final = 2**32 - 1
SERVER: Final = 2**32 - 2
"""Party numbers that are no client's; clients count from 0 to MAX_CLIENT."""
MAX_CLIENT: Final = 2**32 - 3

_LABEL: Final = b"secure-fd secure aggregation"
_PARTIES: Final = struct.Struct(">IIII")
"""Sender and receiver as two more fields, each behind its length."""


class Purpose(StrEnum):
    """Everything that needs a context of its own."""

    SESSION = "session id"
    JOIN = "join signature"
    NONCE = "nonce commitment"
    VIEW = "member list"
    REVEAL = "reveal signature"
    CHANNEL = "channel keys"
    SHARES = "sealed shares"
    ROUND_KEY = "round key"
    VAULT = "vault key"
    SELF_COMMITMENT = "self mask commitment"
    PAIR_SECRET = "pair secret"  # noqa: S105 - names a purpose, holds no secret
    PAIR_MASK = "pairwise mask key"
    SELF_MASK = "self mask key"
    COHORT = "cohort signature"
    SURVIVORS = "survivor signature"
    INSECURE_SEED = "insecure seed"


def fields(*parts: bytes) -> bytes:
    """The parts, each behind its length in four bytes: injective on tuples of byte strings."""
    return b"".join(len(part).to_bytes(4, "big") + part for part in parts)


def context(purpose: Purpose, *, session: bytes, terms: bytes, sender: int, receiver: int) -> bytes:
    """Domain separation by protocol version, session, round, purpose, sender and receiver.

    terms: what the parties agreed for the round, its number first (RoundTerms.encode); its number
    alone for what is made before the rest is known; empty in the set-up.
    """
    return _prefix(purpose, session, terms) + _PARTIES.pack(4, sender, 4, receiver)


@lru_cache(maxsize=256)
def _prefix(purpose: Purpose, session: bytes, terms: bytes) -> bytes:
    """What all pairs of parties have in common; a round asks for it thousands of times."""
    return fields(_LABEL, VERSION.to_bytes(2, "big"), session, terms, purpose.value.encode())
