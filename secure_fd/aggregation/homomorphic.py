"""The homomorphic sum: real BFV ciphertexts of TenSEAL, as a row to compare the masks with.

    client -> server      subject, then the ciphertexts of its packed values
    server -> key holder  the set of survivors, then the sum of their ciphertexts
    key holder -> server  the summed slots, each u64 little-endian

Every length is fixed before a message arrives; anything else is a PeerError. No message is signed
and nothing proves which inputs a sum contains: see `HomomorphicSum.guarantee`.
"""

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Final

import numpy as np

from secure_fd.aggregation import bfv
from secure_fd.aggregation.base import Stage, Traffic
from secure_fd.crypto.primitives import SERVER, WORD, RandomBytes, SecretHolder, draw, fields
from secure_fd.errors import ConfigurationError, LocalError, MissingClientError, PeerError
from secure_fd.exchange import Kind, Sum, read_header
from secure_fd.knowledge import LaneLayout, UnitArray, WordArray
from secure_fd.secagg.session import (
    NO_NOISE,
    Place,
    RoundCounter,
    RoundTerms,
    decode_set,
    encode_set,
    frame,
    set_bytes,
)

MIN_SURVIVORS: Final = 3
KEY_HOLDERS: Final = 3
"""Clients 0, 1 and 2: more holders survive more dropouts, and more clients could read everybody."""
MAX_CIPHERTEXTS: Final = 1024
"""72 MiB a message."""
_LABEL: Final = b"secure-fd homomorphic sum"
_NONCE_BYTES: Final = 32


class SlotLayout(LaneLayout):
    """Lanes of a 48-bit slot, held in a 64-bit word whose upper bits stay zero.

    >>> SlotLayout(10, 1).lanes  # ten clients' votes of 0 or 1: sums of 4 bits
    12
    """

    __slots__ = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.bits > bfv.SLOT_BITS:
            allowed = f"n_clients * bound must be below 2**48 for {self.n_clients} clients"
            raise ConfigurationError("bound", self.bound, allowed)

    @property
    def lanes(self) -> int:
        """Lanes of a slot."""
        return bfv.SLOT_BITS // self.bits


@dataclass(frozen=True, slots=True)
class _Session:
    """What all parties of a sum agree on. id: a hash of it all, and of a nonce."""

    n_clients: int
    configuration: bytes
    proxies: bytes
    nonce: bytes
    id: bytes = field(init=False)

    def __post_init__(self) -> None:
        numbers = (bfv.DEGREE, bfv.PLAIN_MODULUS, *bfv.PRIMES, self.n_clients)
        coded = (number.to_bytes(8, "big") for number in numbers)
        agreed = fields(_LABEL, self.nonce, *coded, self.configuration, self.proxies)
        object.__setattr__(self, "id", hashlib.sha256(agreed).digest())

    @property
    def cohort(self) -> tuple[int, ...]:
        """The clients' numbers."""
        return tuple(range(self.n_clients))

    @property
    def quorum(self) -> int:
        """The fewest inputs of a sum: three, or a majority of the cohort."""
        return max(MIN_SURVIVORS, self.n_clients // 2 + 1)


@dataclass(frozen=True, slots=True)
class _Scope:
    """One round of a session: its packing, and the form of its messages."""

    session: _Session
    terms: RoundTerms
    layout: SlotLayout = field(init=False)

    def __post_init__(self) -> None:
        if self.terms.noise != NO_NOISE:
            allowed = "an encrypted sum carries none; use the masked sum"
            raise ConfigurationError("noise", self.terms.noise, allowed)
        layout = SlotLayout(self.session.n_clients, self.terms.bound)
        object.__setattr__(self, "layout", layout)
        if self.ciphertexts > MAX_CIPHERTEXTS:
            room = MAX_CIPHERTEXTS * bfv.DEGREE * layout.lanes
            raise ConfigurationError("length", self.terms.length, f"sum up to {room} values")

    @property
    def slots(self) -> int:
        """Slots that the values of one client need."""
        return self.layout.words(self.terms.length)

    @property
    def ciphertexts(self) -> int:
        """Ciphertexts of one client."""
        return -(-self.slots // bfv.DEGREE)

    def unpack(self, slots: WordArray, survivors: tuple[int, ...]) -> WordArray:
        """Summed slots -> values [length]; PeerError for one that these survivors cannot reach."""
        values = self.layout.unpack(slots, self.terms.length)
        limit = len(survivors) * self.terms.bound
        if int(values.max()) > limit:
            raise PeerError(f"a summed value exceeds {limit}, survivors times bound")
        return values.astype(np.uint64, copy=False)

    def message(self, sender: int, *body: bytes) -> bytes:
        """A message of this round."""
        return frame(Kind.CIPHER, Place(self.session.id, self.terms.index), sender, *body)

    def body(self, data: bytes, sender: int, size: int) -> bytes:
        """What a message of this round and sender holds; PeerError for another, or another size."""
        kind, index, body = read_header(data, self.session.id, sender)
        if (kind, index) != (Kind.CIPHER, self.terms.index):
            raise PeerError(f"party {sender} sent something else than this sum asks for")
        if len(body) != size:
            raise PeerError(f"party {sender}'s message has {len(body)} bytes, not {size}")
        return body


class EncryptedClient(SecretHolder):
    """A client's half: it encrypts its values; a key holder also decrypts one sum a round.

    key: the secret key, of a key holder alone.
    """

    __slots__ = ("_counter", "_encryptor", "_key", "_number", "_scope", "_session")

    def __init__(
        self,
        number: int,
        session: _Session,
        encryptor: bfv.Encryptor,
        key: bfv.DecryptionKey | None,
    ) -> None:
        self._number, self._session = number, session
        self._encryptor, self._key = encryptor, key
        self._counter = RoundCounter()
        self._scope: _Scope | None = None

    def start(self) -> list[bytes]:
        """Keys were handed out before."""
        return []

    def load(self, terms: RoundTerms, values: UnitArray) -> list[bytes]:
        """Encrypt [length] values; LocalError for one above the bound, or a round that is spent."""
        scope = _Scope(self._session, terms)
        self._counter.spend(terms.index)
        if values.shape != (terms.length,):
            raise LocalError(f"the round sums {terms.length} values, not {values.shape}")
        slots = np.zeros(scope.ciphertexts * bfv.DEGREE, dtype=np.uint64)
        slots[: scope.slots] = scope.layout.pack(values)
        ciphertexts = self._encryptor.encrypt(slots.reshape(-1, bfv.DEGREE))
        self._scope = scope
        return [scope.message(self._number, terms.subject, bfv.encode(ciphertexts))]

    def receive(self, data: bytes) -> list[bytes]:
        """Decrypt what the server says is the sum, once a round; PeerError for too few inputs."""
        if self._scope is None:
            raise PeerError("a message of a sum came where none is open")
        if self._key is None:
            raise PeerError(f"client {self._number} holds no decryption key")
        scope, width = self._scope, set_bytes(self._session.cohort)
        body = scope.body(data, SERVER, width + scope.ciphertexts * bfv.CIPHER_BYTES)
        survivors = decode_set(body[:width], self._session.cohort)
        if len(survivors) < self._session.quorum:
            needed = self._session.quorum
            raise PeerError(f"{len(survivors)} survivors are too few; {needed} are needed")
        ciphertexts = bfv.decode(body[width:], scope.ciphertexts)
        self._scope = None
        slots = self._key.decrypt(ciphertexts).reshape(-1)[: scope.slots]
        scope.unpack(slots, survivors)  # values that no honest survivors reach stay here
        return [scope.message(self._number, slots.astype(WORD).tobytes())]


class EncryptedServer:
    """The server's half: it adds ciphertexts, and asks one key holder after another."""

    readable = False

    def __init__(self, session: _Session) -> None:
        self._session, self._counter = session, RoundCounter()
        self.busy, self.stage = False, Stage.INPUT
        self.result: Sum | None = None
        self.payloads: dict[int, WordArray] = {}
        self.missing: dict[int, Stage] = {}
        self._scope: _Scope | None = None
        self._total: WordArray | None = None
        self._came: set[int] = set()
        self._expected: set[int] = set()
        self._survivors: tuple[int, ...] = ()
        self._holders: list[int] = []

    @property
    def waiting(self) -> set[int]:
        """The clients whose message of this stage has not come."""
        return self._expected - self._came

    def open(self, terms: RoundTerms) -> Mapping[int, bytes]:
        """Wait for inputs; LocalError unless the round's number has grown."""
        scope = _Scope(self._session, terms)
        self._counter.spend(terms.index)
        self._scope, self._total, self.result = scope, None, None
        self.busy, self.stage = True, Stage.INPUT
        self._came, self._expected = set(), set(self._session.cohort)
        return {}

    def receive(self, sender: int, data: bytes) -> None:
        """Take an input or the sum, whichever this stage asks for; PeerError for anything else."""
        scope = self._open()
        if sender not in self.waiting:
            raise PeerError(f"client {sender} was not asked in this stage")
        if self.stage is Stage.INPUT:
            self._add(scope, sender, data)
        else:
            body = scope.body(data, sender, scope.slots * WORD.itemsize)
            slots = np.frombuffer(body, dtype=WORD).astype(np.uint64)
            self.result = Sum(scope.unpack(slots, self._survivors), self._survivors)
        self._came.add(sender)

    def advance(self) -> Mapping[int, bytes]:
        """Close the stage: ask a key holder; MissingClientError with too few inputs or holders."""
        scope = self._open()
        self.busy = False  # where it fails, this sum is over
        if self.result is not None:
            return {}
        if self.stage is Stage.INPUT:
            self._close_inputs()
        if not self._holders or self._total is None:
            raise MissingClientError("no key holder is left to decrypt the sum")
        holder = self._holders.pop(0)
        self._came, self._expected = set(), {holder}
        self.busy = True
        listed = encode_set(self._survivors, self._session.cohort)
        return {holder: scope.message(SERVER, listed, bfv.encode(self._total))}

    def _add(self, scope: _Scope, sender: int, data: bytes) -> None:
        told = len(scope.terms.subject)
        body = scope.body(data, sender, told + scope.ciphertexts * bfv.CIPHER_BYTES)
        if body[:told] != scope.terms.subject:
            raise PeerError(f"client {sender} was told something else")
        ciphertexts = bfv.decode(body[told:], scope.ciphertexts)
        if self._total is None:
            self._total = ciphertexts
        else:
            bfv.add(self._total, ciphertexts)

    def _close_inputs(self) -> None:
        quorum = self._session.quorum
        if len(self._came) < quorum:
            raise MissingClientError(f"{len(self._came)} inputs arrived and {quorum} are needed")
        self._survivors = tuple(sorted(self._came))
        self._holders = [k for k in self._survivors if k < KEY_HOLDERS]
        self.stage = Stage.UNMASK

    def _open(self) -> _Scope:
        if self._scope is None:
            raise LocalError("no sum was opened")
        return self._scope


class HomomorphicSum(SecretHolder):
    """Sums under BFV encryption: the server adds ciphertexts, and a key holder reads the sum.

    n_clients: the cohort, numbered from 0, of 3 to 1024; clients 0, 1 and 2 hold the key.
    random: the source of the session's nonce; keys and encryption draw from SEAL's own generator.
    configuration, proxies: what the session id commits to.

    Raises MissingCapabilityError where tenseal is not installed. A key holder can study the noise
    of the summed ciphertext, which is not flooded.

    >>> HomomorphicSum.hides
    True
    """

    __slots__ = ("_clients", "_server", "_session", "caveats", "n_clients")

    name: ClassVar[str] = "he"
    hides: ClassVar[bool] = True
    guarantee: ClassVar[str] = (
        "Clients 0, 1 and 2 hold one secret key, handed to them where the server cannot read: a "
        "server that follows the protocol, alone or pooling what it knows with any of the other "
        "clients, learns the sum and no more about the rest than that gives away. Nothing holds "
        "against a server that lies, or whoever can alter messages: none is signed, so it can "
        "have a key holder decrypt one client's ciphertext as the sum, leave inputs out or count "
        "them twice, and nothing detects it. TenSEAL has no threshold decryption: the server "
        "with any one key holder, or a key holder that overhears the others' connections, reads "
        "everybody's input, and that the key holder returns the sum it decrypted is trusted."
    )

    def __init__(
        self,
        n_clients: int,
        *,
        random: RandomBytes = os.urandom,
        configuration: bytes = b"",
        proxies: bytes = b"",
    ) -> None:
        if not MIN_SURVIVORS <= n_clients <= bfv.MAX_CLIENTS:
            allowed = f"use {MIN_SURVIVORS} to {bfv.MAX_CLIENTS}"
            raise ConfigurationError("n_clients", n_clients, allowed)
        self.n_clients = n_clients
        self.caveats: tuple[str, ...] = ()
        if random is not os.urandom:
            self.caveats = (
                "the session's nonce comes from a caller's randomness, for which this package "
                "cannot vouch",
            )
        nonce = draw(random, _NONCE_BYTES)
        self._session = _Session(n_clients, configuration, proxies, nonce)
        key = bfv.DecryptionKey.generate()
        self._server = EncryptedServer(self._session)
        self._clients = {
            k: EncryptedClient(k, self._session, key.encryptor, key if k < KEY_HOLDERS else None)
            for k in self._session.cohort
        }

    @property
    def session(self) -> bytes:
        """The id of the session, which commits to proxies and configuration."""
        return self._session.id

    @property
    def seed(self) -> None:
        """None: the clients draw nothing together."""

    def client(self, number: int) -> EncryptedClient:
        """The half of client `number`."""
        return self._clients[number]

    def server(self) -> EncryptedServer:
        """The server's half."""
        return self._server

    def setup_traffic(self) -> Traffic:
        """Nothing: keys are handed out where the server cannot read."""
        return Traffic({}, {}, 0)
