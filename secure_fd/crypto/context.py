"""The one function that says what a key, a signature or a hash is for.

Two contexts are equal only if every field is: each field is preceded by its length, so no
choice of contents moves a byte from one field into the next.
"""

from enum import StrEnum
from typing import Final

VERSION: Final = 1
"""Of the whole protocol: messages and contexts change together."""
EVERYONE: Final = 2**32 - 1
SERVER: Final = 2**32 - 2
"""Party numbers that are no client's; clients count from 0 to MAX_CLIENT."""
MAX_CLIENT: Final = 2**32 - 3

_LABEL: Final = b"secure-fd secure aggregation"


class Purpose(StrEnum):
    """Everything that needs a context of its own."""

    SESSION = "session id"
    ADVERT = "advert signature"
    PAIR_MASK = "pairwise mask key"
    INSECURE_SEED = "insecure seed"


def fields(*parts: bytes) -> bytes:
    """The parts, each behind its length in four bytes: injective on tuples of byte strings."""
    return b"".join(len(part).to_bytes(4, "big") + part for part in parts)


def context(purpose: Purpose, *, session: bytes, terms: bytes, sender: int, receiver: int) -> bytes:
    """Domain separation by protocol version, session, round, purpose, sender and receiver.

    terms: what the parties agreed for the round, its number first (RoundTerms.encode).
    """
    return fields(
        _LABEL,
        VERSION.to_bytes(2, "big"),
        session,
        terms,
        purpose.value.encode(),
        sender.to_bytes(4, "big"),
        receiver.to_bytes(4, "big"),
    )
