"""The homomorphic sum: BFV ciphertexts of TenSEAL, as a row to compare the masks with.

    client -> server      subject, then the ciphertexts of its packed values and a tag
    server -> key holder  the set of survivors, then the sum of their ciphertexts
    key holder -> server  the summed slots, 8 bytes each; nothing where it refuses

Client k's tag, in its last slot, is h(v_k) + r_k modulo the plaintext prime: h is a polynomial hash
(Carter and Wegman 1981), r_k a number that k and the holders derive. Tags add up as values do, so
that a holder opens the sum of just the survivors that the server names. One holder opens one sum a
round: for two the server could name different survivors. A refusal aborts the sum and brings new
keys.

Only coefficients travel, each checked against its prime: TenSEAL's parser reads past a buffer that
overstates its length. They are added modulo each prime (Fan and Vercauteren 2012, section 4).
"""

import hashlib
import os
import struct
from collections.abc import Iterable, Mapping, Set
from functools import reduce
from typing import Final

import numpy as np

from secure_fd.crypto import keys as crypto
from secure_fd.errors import ConfigurationError, LocalError, MissingClientError, PeerError
from secure_fd.optional import extra
from secure_fd.secagg import session as wire
from secure_fd.secure_sum.base import SecureSum, SumClient, SumServer
from secure_fd.votes.codec import UnitArray, WordArray
from secure_fd.votes.packing import LaneLayout
from secure_fd.wire import Kind, Place, Stage, Sum, frame, read_header

with extra("he"):
    import tenseal

KEY_HOLDERS, MIN_CLIENTS, MAX_CLIENTS, MAX_CIPHERTEXTS = 3, 3, 1024, 1024
DEGREE, SLOT_BITS = 4096, 56
PRIME_BITS: Final = (40, 40, 26)
"""106 bits: all that the guidelines of Bossuat et al. (2024, eprint 2024/463) allow degree 4096 for
128 bits of security with ternary keys. The last prime serves encryption alone. A sum of 1,024 fresh
ciphertexts has 11 bits of noise budget left, and 5 in the worst case (measured)."""
PRIMES: Final = (1_099_511_390_209, 1_099_511_480_321)
PLAIN_MODULUS: Final = 144_115_188_075_814_913
"""The largest prime below 2**57 that is 1 modulo 2 * DEGREE, as batching needs."""
_COUNT: Final = 2 * len(PRIMES) * DEGREE
CIPHER_BYTES: Final = 5 * _COUNT
_LIMITS: Final = np.array(PRIMES, dtype=np.uint64)[:, np.newaxis]


class _Slots(LaneLayout):
    __slots__ = ()

    @property
    def lanes(self) -> int:
        if self.bits > SLOT_BITS:
            raise ConfigurationError("bound", self.bound, "keep n_clients * bound below 2**56")
        return SLOT_BITS // self.bits


class _Keys(crypto.SecretHolder):
    """A public and a secret key, and by client the key of its tags."""

    __slots__ = ("_context", "_start", "public", "tags")

    def __init__(self, n_clients: int) -> None:
        scheme = tenseal.SCHEME_TYPE.BFV  # which would start a thread for every core
        self._context = tenseal.context(scheme, DEGREE, PLAIN_MODULUS, [*PRIME_BITS], n_threads=1)
        # make_context_public() would keep the secret key: the public key is written and read back.
        public = self._context.serialize(save_galois_keys=False, save_relin_keys=False)
        self.public = tenseal.context_from(public, n_threads=1)
        names = (*range(n_clients), crypto.EVERYONE)
        self.tags = {k: os.urandom(crypto.KEY_BYTES) for k in names}
        version = tenseal.bfv_vector(self._context, [0] * DEGREE).serialize()[8:13]
        self._start = _start(version, self._context.seal_context().data.first_parms_id())
        ones = encrypt(self.public, np.ones(DEGREE, dtype=np.uint64))
        if (self.decrypt((ones + ones) % _LIMITS) != 2).any():
            version = tenseal.__version__
            raise ConfigurationError("tenseal", version, "use 0.3.18, whose ciphertexts are known")

    def decrypt(self, ciphertexts: WordArray) -> WordArray:
        streams = (self._start + row.astype("<u8").tobytes() for row in ciphertexts)
        opened = [tenseal.bfv_vector_from(self._context, one).decrypt() for one in streams]
        return (np.array(opened, dtype=np.int64) % PLAIN_MODULUS).astype(np.uint64).reshape(-1)


def _start(version: bytes, parms: list[int]) -> bytes:
    """Return the bytes before the coefficients of a serialised BFVVector.

    BFVVectorProto (sizes = 1, ciphertexts = 2) around Ciphertext.save_members of SEAL 4: header
    without compression, parameters, NTT flag, polynomials, degree, primes, scale, correction
    factor, and the array behind a header and a length of its own.
    """
    array = version + struct.pack("<3xQQ", 24 + 8 * _COUNT, _COUNT)
    form = struct.pack("<4Q?3QdQ", *parms, False, 2, DEGREE, len(PRIMES), 1.0, 1)
    size = 16 + len(form + array) + 8 * _COUNT
    varint = bytes((size & 127 | 128, size >> 7 & 127 | 128, size >> 14))
    return b"\x0a\x02\x80\x20\x12" + varint + version + struct.pack("<3xQ", size) + form + array


def encrypt(public: object, slots: WordArray) -> WordArray:
    """Slots [c * DEGREE] below PLAIN_MODULUS -> coefficients [c, 2, primes, DEGREE]."""
    signed = slots.reshape(-1, DEGREE).astype(np.int64)
    signed[signed > PLAIN_MODULUS // 2] -= PLAIN_MODULUS  # SEAL's batching is centred
    made = (tenseal.bfv_vector(public, row).ciphertext()[0] for row in signed.tolist())
    read = [[one[at] for at in range(_COUNT)] for one in made]
    return np.array(read, dtype=np.uint64).reshape(-1, 2, len(PRIMES), DEGREE)


def encode(ciphertexts: WordArray) -> bytes:
    """Coefficients [c, 2, primes, DEGREE] -> CIPHER_BYTES each: low 32 bits, then high bytes."""
    flat = ciphertexts.reshape(-1, _COUNT)
    high = (flat >> np.uint64(32)).astype(np.uint8)
    return np.hstack([flat.astype("<u4").view(np.uint8), high]).tobytes()


def decode(data: bytes) -> WordArray:
    """Whole ciphertexts -> coefficients; PeerError for one that is not below its prime."""
    rows = np.frombuffer(data, dtype=np.uint8).reshape(-1, CIPHER_BYTES)
    low = np.ascontiguousarray(rows[:, : 4 * _COUNT]).view("<u4").astype(np.uint64)
    flat = low | rows[:, 4 * _COUNT :].astype(np.uint64) << np.uint64(32)
    ciphertexts = flat.reshape(-1, 2, len(PRIMES), DEGREE)
    if (ciphertexts >= _LIMITS).any():
        raise PeerError("a coefficient of a ciphertext is not below its prime")
    return ciphertexts


class _Round:
    """Packing, form of messages, tags and holder, which follow from the terms of a round."""

    def __init__(self, session: bytes, n_clients: int, terms: wire.RoundTerms) -> None:
        if terms.noise.room:
            allowed = "an encrypted sum carries none; use the masked sum"
            raise ConfigurationError("noise", terms.noise, allowed)
        self.terms, self.cohort, self._session = terms, range(n_clients), session
        self.layout = _Slots(n_clients, terms.bound)
        self.slots = self.layout.words(terms.length)
        self.ciphertexts = self.slots // DEGREE + 1  # the last slot is the tag's
        if self.ciphertexts > MAX_CIPHERTEXTS:
            room = (MAX_CIPHERTEXTS * DEGREE - 1) * self.layout.lanes
            raise ConfigurationError("length", terms.length, f"sum up to {room} values")
        self.quorum = max(MIN_CLIENTS, n_clients // 2 + 1, terms.noise.survivors)
        self.holder = terms.index % KEY_HOLDERS

    def message(self, sender: int, *body: bytes) -> bytes:
        place = Place(self._session, self.terms.index)
        return frame(Kind.CIPHER, place, sender, *body)

    def body(self, data: bytes, sender: int, *sizes: int) -> bytes:
        kind, index, body = read_header(data, self._session, sender)
        if (kind, index) != (Kind.CIPHER, self.terms.index) or len(body) not in sizes:
            raise PeerError(f"party {sender} sent {len(body)} bytes that this sum does not ask for")
        return body

    def tag(self, slots: WordArray, keys: Mapping[int, bytes], clients: Iterable[int]) -> int:
        """Return the sum of these clients' tags if their slots add up to `slots`."""
        point, prime, used = self._number(keys[crypto.EVERYONE]), PLAIN_MODULUS, slots[: self.slots]
        hashed = reduce(lambda total, slot: (total + slot) * point % prime, used.tolist(), 0)
        return (hashed + sum(self._number(keys[k]) for k in clients)) % prime

    def read(self, slots: WordArray, survivors: tuple[int, ...]) -> UnitArray:
        """Summed values; PeerError where a lane holds more than these survivors could give."""
        limit = len(survivors) * self.terms.bound
        return self.layout.unpack(slots[: self.slots], self.terms.length, limit)

    def _number(self, key: bytes) -> int:
        derived = crypto.derive_key(key, salt=self._session, info=self.terms.encode())
        return int.from_bytes(derived, "big") % PLAIN_MODULUS


class EncryptedClient(SumClient, crypto.SecretHolder):
    """Client role: it encrypts its values; a key holder opens the sum when its turn comes."""

    __slots__ = ("_counter", "_number", "_open", "_sums", "gave")

    gave: bool

    def __init__(self, number: int, sums: "HomomorphicSum") -> None:
        self._number, self._sums, self._counter = number, sums, wire.RoundCounter()
        self._open: tuple[_Round, _Keys] | None = None
        self.gave = False

    def load(self, terms: wire.RoundTerms, values: UnitArray) -> list[bytes]:
        """Encrypt [length] values; LocalError for one above the bound, or a round that is spent."""
        opened, self.gave = _Round(self._sums.session, self._sums.n_clients, terms), False
        self._counter.spend(terms.index)
        if values.shape != (terms.length,):
            raise LocalError(f"the round sums {terms.length} values, not {values.shape}")
        slots = np.zeros(opened.ciphertexts * DEGREE, dtype=np.uint64)
        slots[: opened.slots] = opened.layout.pack(values)
        public, tags, keys = self._sums.share(self._number)
        slots[-1] = opened.tag(slots, tags, (self._number,))
        self._open = None if keys is None else (opened, keys)
        return [opened.message(self._number, terms.subject, encode(encrypt(public, slots)))]

    def receive(self, data: bytes) -> list[bytes]:
        """Open the sum that the server sends, once; PeerError for a bad message."""
        if self._open is None or self._open[0].holder != self._number:
            raise PeerError(f"client {self._number} has no sum to open")
        opened, keys = self._open
        width = wire.set_bytes(opened.cohort)
        body = opened.body(data, crypto.SERVER, width + opened.ciphertexts * CIPHER_BYTES)
        survivors = wire.decode_set(body[:width], opened.cohort)
        if len(survivors) < opened.quorum:
            raise PeerError(f"{len(survivors)} survivors are too few; {opened.quorum} are needed")
        ciphertexts, self._open = decode(body[width:]), None
        slots = keys.decrypt(ciphertexts)
        try:
            opened.read(slots, survivors)
            honest = int(slots[-1]) == opened.tag(slots, keys.tags, survivors)
        except PeerError:
            honest = False
        if not honest:
            self._sums.rekey()  # a refusal reveals something of the noise under these keys
        self.gave = honest
        given = slots[: opened.slots] if honest else slots[:0]
        return [opened.message(self._number, given.astype("<u8").tobytes())]


class EncryptedServer(SumServer):
    """Server role: it adds ciphertexts, and has the holder whose turn it is open the sum."""

    busy = False
    stage = Stage.INPUT
    result: Sum | None = None
    waiting: Set[int] = frozenset()

    def __init__(self, session: bytes, n_clients: int) -> None:
        self._session, self._n_clients = session, n_clients
        self._survivors: tuple[int, ...] = ()

    @property
    def opened(self) -> bool:
        """True once a holder was asked to open the sum."""
        return self.stage is Stage.UNMASK

    def open(self, terms: wire.RoundTerms) -> Mapping[int, bytes]:
        """Wait for inputs."""
        self._round = _Round(self._session, self._n_clients, terms)
        self._total = np.zeros((1, 1, len(PRIMES), 1), dtype=np.uint64)
        self.waiting, self.result = set(self._round.cohort), None
        self.busy, self.stage = True, Stage.INPUT
        return {}

    def receive(self, sender: int, data: bytes) -> None:
        """Take an input or the sum, whichever this stage asks for; PeerError for anything else."""
        if sender not in self.waiting:
            raise PeerError(f"client {sender} was not asked in this stage")
        opened, subject = self._round, self._round.terms.subject
        if self.stage is Stage.INPUT:
            body = opened.body(data, sender, len(subject) + opened.ciphertexts * CIPHER_BYTES)
            if body[: len(subject)] != subject:
                raise PeerError(f"client {sender} received another announcement")
            self._total = (self._total + decode(body[len(subject) :])) % _LIMITS
        elif body := opened.body(data, sender, 0, 8 * opened.slots):
            slots = np.frombuffer(body, dtype="<u8").astype(np.uint64)
            self.result = Sum(opened.read(slots, self._survivors), self._survivors)
        self.waiting = self.waiting - {sender}

    def advance(self) -> Mapping[int, bytes]:
        """Close the stage; MissingClientError for too few inputs, or a holder that opened none."""
        opened, self.busy = self._round, False  # where it fails, this sum is over
        if self.stage is Stage.INPUT:
            self._survivors = tuple(k for k in opened.cohort if k not in self.waiting)
            if len(self._survivors) < opened.quorum:
                came = f"{len(self._survivors)} inputs arrived"
                raise MissingClientError(f"{came} and {opened.quorum} are needed")
            self.busy, self.stage, self.waiting = True, Stage.UNMASK, {opened.holder}
            listed = wire.encode_set(self._survivors, opened.cohort)
            return {opened.holder: opened.message(crypto.SERVER, listed, encode(self._total))}
        if self.result is None:
            raise MissingClientError(f"key holder {opened.holder} opened no sum")
        return {}


class HomomorphicSum(SecureSum, crypto.SecretHolder):
    """Sums under BFV encryption: the server adds ciphertexts, a key holder opens the sum.

    n_clients: the cohort, numbered from 0, of 3 to 1024; clients 0, 1 and 2 hold the key.
    configuration, proxies: what the session id commits to. BFV draws from SEAL's own generator.

    >>> HomomorphicSum.hides
    True
    """

    __slots__ = (
        *("_clients", "_keys", "_server"),
        *("corrupt", "n_clients", "session"),
    )

    name = "he"
    hides = True
    guarantee = (
        "Clients 0, 1 and 2 hold the keys, handed to all where the server cannot read, and open "
        "one sum a round in turn. A server, even one that lies, with any of the other clients, "
        "learns sums of at least a majority and no more about any one input than they give away; "
        "it can test a guess about one at the price of an aborted round. The server with any one "
        "holder, or a holder that overhears the others' connections, reads all inputs, and the "
        "holder is trusted to return the sum that it opened. The rounds of an absent "
        "holder abort; any client can abort those that it takes part in, and no later ones."
    )

    def __init__(self, n_clients: int, *, configuration: bytes = b"", proxies: bytes = b"") -> None:
        if not MIN_CLIENTS <= n_clients <= MAX_CLIENTS:
            raise ConfigurationError("n_clients", n_clients, f"use {MIN_CLIENTS} to {MAX_CLIENTS}")
        self.n_clients = n_clients
        self.corrupt = n_clients - KEY_HOLDERS  # all clients but these
        parameters = repr((DEGREE, PRIMES, PLAIN_MODULUS, n_clients)).encode()
        nonce = os.urandom(wire.SESSION_BYTES)
        agreed = crypto.fields(b"secure-fd he", nonce, parameters, configuration, proxies)
        self.session = hashlib.sha256(agreed).digest()
        self.rekey()
        self._clients = [EncryptedClient(k, self) for k in range(n_clients)]
        self._server = EncryptedServer(self.session, n_clients)

    def rekey(self) -> None:
        """Hand out new keys for the next round, as after a refusal."""
        self._keys = _Keys(self.n_clients)

    def share(self, number: int) -> tuple[object, Mapping[int, bytes], _Keys | None]:
        """Return a client's part: public key, keys of its tags, and for a holder all keys."""
        if number < KEY_HOLDERS:
            return self._keys.public, self._keys.tags, self._keys
        own = {k: self._keys.tags[k] for k in (number, crypto.EVERYONE)}
        return self._keys.public, own, None
