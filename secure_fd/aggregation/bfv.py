"""BFV ciphertexts from TenSEAL, which this file alone imports, and only once a key is made.

TenSEAL encrypts and decrypts. Only a ciphertext's coefficients travel, of one fixed length and
each checked against its prime, because TenSEAL's own parser is not fit for untrusted bytes: a
message that overstates its length makes it read past the end of its buffer, and damaged bytes
can end the process. Adding ciphertexts is adding coefficients modulo each prime (Fan and
Vercauteren 2012, section 4), which needs neither a key nor TenSEAL.

Randomness for keys and encryption is SEAL's own generator, seeded by the operating system;
TenSEAL takes no other, and so there is no seed option.
"""

import struct
from types import ModuleType
from typing import Final, Protocol, Self

import numpy as np

from secure_fd.crypto.primitives import SecretHolder
from secure_fd.errors import LocalError, MissingCapabilityError, PeerError
from secure_fd.knowledge import WordArray

DEGREE: Final = 4096
"""Slots of a ciphertext. With SEAL's default primes of 36, 36 and 37 bits (BFVDefault) it meets
128-bit security: the Homomorphic Encryption Standard (Albrecht et al. 2018, table 1) allows 109
bits at this degree. Degree 8192 needs 218 bits and two and a half times the bytes for a slot."""
PRIMES: Final = (68_719_403_009, 68_719_230_977)
"""Of a ciphertext; the 37-bit prime serves key generation and encryption only."""
PLAIN_MODULUS: Final = 562_949_953_216_513
"""The largest prime below 2**49 that is 1 modulo 2 * DEGREE, as batching needs."""
SLOT_BITS: Final = 48
"""Any integer below 2**48 fits a slot; more would leave too little room for noise."""
MAX_CLIENTS: Final = 1024
"""A fresh ciphertext has 15 bits of noise budget or more (measured); adding 2**10 uses ten, so
that an honest sum never decrypts wrongly and no failure tells of the key (Cheon et al. 2024)."""
CIPHER_BYTES: Final = 2 * len(PRIMES) * DEGREE * 36 // 8

_SHAPE: Final = (2, len(PRIMES), DEGREE)
_LIMITS: Final = np.array(PRIMES, dtype=np.uint64)[:, np.newaxis]
_LOW: Final = np.dtype("<u4")
_LOW_BYTES: Final = CIPHER_BYTES * 8 // 9


def encode(ciphertexts: WordArray) -> bytes:
    """Coefficients [c, 2, primes, DEGREE] -> CIPHER_BYTES each: low 32 bits, then high 4 bits."""
    flat = ciphertexts.reshape(len(ciphertexts), -1)
    high = (flat >> np.uint64(32)).astype(np.uint8)
    nibbles = high[:, 0::2] | high[:, 1::2] << 4
    return np.hstack([flat.astype(_LOW).view(np.uint8), nibbles]).tobytes()


def decode(data: bytes | memoryview, count: int) -> WordArray:
    """Bytes -> coefficients [count, 2, primes, DEGREE].

    PeerError for another length, or a coefficient that its prime does not exceed.
    """
    if len(data) != count * CIPHER_BYTES:
        raise PeerError(f"{count} ciphertexts have {count * CIPHER_BYTES} bytes, not {len(data)}")
    rows = np.frombuffer(data, dtype=np.uint8).reshape(count, CIPHER_BYTES)
    flat = np.ascontiguousarray(rows[:, :_LOW_BYTES]).view(_LOW).astype(np.uint64)
    nibbles = rows[:, _LOW_BYTES:]
    flat[:, 0::2] |= (nibbles & 15).astype(np.uint64) << np.uint64(32)
    flat[:, 1::2] |= (nibbles >> 4).astype(np.uint64) << np.uint64(32)
    ciphertexts = flat.reshape(count, *_SHAPE)
    if (ciphertexts >= _LIMITS).any():
        raise PeerError("a coefficient of a ciphertext is not below its prime")
    return ciphertexts


def add(total: WordArray, ciphertexts: WordArray) -> None:
    """Add ciphertexts to a running total, in place; the plaintexts add modulo PLAIN_MODULUS."""
    total += ciphertexts
    total %= _LIMITS


class _Ciphertext(Protocol):
    def __getitem__(self, index: int) -> int: ...


class _Vector(Protocol):
    def ciphertext(self) -> list[_Ciphertext]: ...
    def serialize(self) -> bytes: ...
    def decrypt(self) -> list[int]: ...


class Encryptor:
    """The public key; it cannot decrypt."""

    __slots__ = ("_context",)

    def __init__(self, context: object) -> None:
        self._context = context

    def encrypt(self, slots: WordArray) -> WordArray:
        """Slots [c, DEGREE] below PLAIN_MODULUS -> coefficients [c, 2, primes, DEGREE]."""
        if slots.ndim != 2 or slots.shape[1] != DEGREE or int(slots.max()) >= PLAIN_MODULUS:
            raise LocalError(f"slots must be [c, {DEGREE}] and below {PLAIN_MODULUS}")
        return np.stack([_coefficients(self._encrypt(row)) for row in slots])

    def _encrypt(self, slots: WordArray) -> _Vector:
        signed = slots.astype(np.int64)
        signed[signed > PLAIN_MODULUS // 2] -= PLAIN_MODULUS  # SEAL's batching is centred
        vector: _Vector = _tenseal().bfv_vector(self._context, signed.tolist())
        return vector


class DecryptionKey(SecretHolder):
    """The secret key, with the public key that goes with it.

    One key serves a whole group: TenSEAL has no threshold decryption.
    """

    __slots__ = ("_context", "_preamble", "encryptor")

    def __init__(self, context: object, encryptor: Encryptor, preamble: bytes) -> None:
        self._context = context
        self._preamble = preamble
        self.encryptor = encryptor

    @classmethod
    def generate(cls) -> Self:
        """A new key; MissingCapabilityError without TenSEAL, or with one that differs in format."""
        tenseal = _tenseal()
        scheme = tenseal.SCHEME_TYPE.BFV
        # TenSEAL starts a thread for every core unless it is told not to.
        context = tenseal.context(scheme, DEGREE, PLAIN_MODULUS, n_threads=1)
        # make_context_public() would drop the key and keep its decryptor, so the public half is
        # written out, without the keys for products and rotations, and read back.
        public = context.serialize(save_galois_keys=False, save_relin_keys=False)
        encryptor = Encryptor(tenseal.context_from(public, n_threads=1))
        sample = tenseal.bfv_vector(context, [0] * DEGREE).serialize()
        parms = context.seal_context().data.first_parms_id()
        key = cls(context, encryptor, _preamble(_seal_version(sample), parms))
        key._check_format()
        return key

    def decrypt(self, ciphertexts: WordArray) -> WordArray:
        """Coefficients [c, 2, primes, DEGREE] -> slots [c, DEGREE] below PLAIN_MODULUS."""
        slots = np.array([self._load(row).decrypt() for row in ciphertexts], dtype=np.int64)
        return (slots % PLAIN_MODULUS).astype(np.uint64)

    def _load(self, coefficients: WordArray) -> _Vector:
        stream = self._preamble + coefficients.astype("<u8").tobytes()
        vector: _Vector = _tenseal().bfv_vector_from(self._context, stream)
        return vector

    def _check_format(self) -> None:
        slots = np.arange(DEGREE, dtype=np.uint64)[np.newaxis]
        total = self.encryptor.encrypt(slots)
        try:
            add(total, self.encryptor.encrypt(slots))
            exact = np.array_equal(self.decrypt(decode(encode(total), 1)), 2 * slots)
        except (PeerError, ValueError, RuntimeError):
            exact = False
        if not exact:
            raise MissingCapabilityError(
                "this tenseal writes ciphertexts in another format than tenseal 0.3.18"
            )


def _coefficients(vector: _Vector) -> WordArray:
    (ciphertext,) = vector.ciphertext()
    size = int(np.prod(_SHAPE))
    read = map(ciphertext.__getitem__, range(size))
    return np.fromiter(read, dtype=np.uint64, count=size).reshape(_SHAPE)


def _seal_version(sample: bytes) -> bytes:
    """Mark, header length and version that open every SEAL stream: behind the sample's sizes."""
    return sample[8:13]


def _preamble(version: bytes, parms: list[int]) -> bytes:
    """Everything of a serialised BFVVector that comes before its coefficients.

    BFVVectorProto (sizes = 1, ciphertexts = 2) around Ciphertext.save_members of SEAL 4: header
    without compression, parameters, NTT flag, polynomials, degree, primes, scale, correction
    factor, and the array behind a header and a length of its own.
    """
    count = int(np.prod(_SHAPE))
    array = _header(version, 8 + 8 * count) + struct.pack("<Q", count)
    form = struct.pack("<QQQdQ", 2, DEGREE, len(PRIMES), 1.0, 1)
    members = struct.pack("<4Q?", *parms, False) + form + array
    body = _header(version, len(members) + 8 * count) + members
    sizes = _varint(DEGREE)
    proto = b"\x0a" + _varint(len(sizes)) + sizes + b"\x12" + _varint(len(body) + 8 * count)
    return proto + body


def _header(version: bytes, size: int) -> bytes:
    return version + bytes(3) + struct.pack("<Q", 16 + size)


def _varint(number: int) -> bytes:
    digits = [number >> shift & 127 for shift in range(0, number.bit_length(), 7)]
    return bytes(digit | 128 for digit in digits[:-1]) + bytes(digits[-1:])


def _tenseal() -> ModuleType:
    try:
        import tenseal
    except ImportError:
        raise MissingCapabilityError(
            "homomorphic sums need the package tenseal, which is not installed"
        ) from None
    module: ModuleType = tenseal
    return module
