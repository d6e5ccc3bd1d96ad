"""What the parties of an encrypted sum agree on: session, round, quorum, packing, signatures."""

import hashlib
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

import numpy as np

from secure_fd.aggregation.bfv import scheme
from secure_fd.aggregation.bfv.tags import DATA_SLOTS
from secure_fd.crypto.primitives import EVERYONE, VERSION, IdentityKey, fields
from secure_fd.errors import ConfigurationError, PeerError
from secure_fd.knowledge import WordArray
from secure_fd.secagg.packing import LaneLayout
from secure_fd.secagg.session import NO_NOISE, Roster, RoundTerms

MIN_SURVIVORS: Final = 3
MAX_CIPHERTEXTS: Final = 1024
"""72 MiB a message."""

_LABEL: Final = b"secure-fd homomorphic sum"


class Purpose(StrEnum):
    """What a context of this protocol is for."""

    SESSION = "session id"
    PAD_KEY = "pad key"
    PADS = "pads"
    WEIGHTS = "weights"
    INPUT = "input signature"
    CONSENT = "consent signature"
    TOTAL = "total signature"


def context(purpose: Purpose, session: bytes, terms: bytes, party: int) -> bytes:
    """What every key, signature and hash of this protocol is bound to; the label is its own."""
    version = VERSION.to_bytes(2, "big")
    return fields(_LABEL, version, session, terms, purpose.value.encode(), party.to_bytes(4, "big"))


class SlotLayout(LaneLayout):
    """Lanes of a 48-bit slot, held in a 64-bit word whose upper bits stay zero."""

    __slots__ = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.bits > scheme.SLOT_BITS:
            allowed = f"n_clients * bound must be below 2**48 for {self.n_clients} clients"
            raise ConfigurationError("bound", self.bound, allowed)

    @property
    def lanes(self) -> int:
        """Lanes of a slot."""
        return scheme.SLOT_BITS // self.bits


@dataclass(frozen=True, slots=True)
class Session:
    """Pinned clients that share a key; id: a hash of all that they agreed on, and a nonce."""

    roster: Roster
    configuration: bytes
    proxies: bytes
    nonce: bytes
    id: bytes = field(init=False)

    def __post_init__(self) -> None:
        numbers = (scheme.DEGREE, scheme.PLAIN_MODULUS, *scheme.PRIMES)
        agreed = fields(
            context(Purpose.SESSION, self.nonce, b"", EVERYONE),
            *(number.to_bytes(8, "big") for number in numbers),
            self.roster.encode(),
            self.configuration,
            self.proxies,
        )
        object.__setattr__(self, "id", hashlib.sha256(agreed).digest())

    @property
    def quorum(self) -> int:
        """The fewest survivors and signatures of a sum.

        A majority: two lists of one round would share a signer, and a client signs one list.
        """
        return max(MIN_SURVIVORS, len(self.roster) // 2 + 1)


@dataclass(frozen=True, slots=True)
class Scope:
    """A round of a session: everything that its keys, signatures and messages are bound to."""

    session: Session
    terms: RoundTerms
    layout: SlotLayout = field(init=False)

    def __post_init__(self) -> None:
        if self.terms.noise != NO_NOISE:
            allowed = "an encrypted sum carries none; use the masked sum"
            raise ConfigurationError("noise", self.terms.noise, allowed)
        layout = SlotLayout(len(self.session.roster), self.terms.bound)
        object.__setattr__(self, "layout", layout)
        if self.ciphertexts > MAX_CIPHERTEXTS:
            room = MAX_CIPHERTEXTS * DATA_SLOTS * layout.lanes
            raise ConfigurationError("length", self.terms.length, f"sum up to {room} values")

    @property
    def slots(self) -> int:
        """Slots that the values of one client need."""
        return self.layout.words(self.terms.length)

    @property
    def ciphertexts(self) -> int:
        """Ciphertexts of one client."""
        return -(-self.slots // DATA_SLOTS)

    @property
    def clients(self) -> tuple[int, ...]:
        """The cohort."""
        return tuple(self.session.roster)

    def unpack(self, slots: WordArray, survivors: tuple[int, ...]) -> WordArray:
        """Summed slots -> values [length]; PeerError for one that these survivors cannot reach."""
        values = self.layout.unpack(slots, self.terms.length)
        limit = len(survivors) * self.terms.bound
        if int(values.max()) > limit:
            raise PeerError(f"a summed value exceeds {limit}, survivors times bound")
        return values.astype(np.uint64, copy=False)

    def context(self, purpose: Purpose, party: int) -> bytes:
        """The context of one purpose and party in this round, under all its terms."""
        return context(purpose, self.session.id, self.terms.encode(), party)

    def sign(self, purpose: Purpose, client: int, what: bytes, identity: IdentityKey) -> bytes:
        """The client's signature on `what`, for this purpose in this round alone."""
        return identity.sign(self._text(purpose, client, what))

    def verify(self, purpose: Purpose, client: int, what: bytes, signature: bytes) -> None:
        """PeerError unless it is that client's signature, for this purpose and round."""
        named = f"client {client}'s {purpose.value} for round {self.terms.index}"
        text = self._text(purpose, client, what)
        self.session.roster[client].verify(signature, text, named)

    def _text(self, purpose: Purpose, client: int, what: bytes) -> bytes:
        return fields(self.context(purpose, client), hashlib.sha256(what).digest())
