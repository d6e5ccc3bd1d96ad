"""Keys and what is made with them: contexts, keystreams, signatures, agreements, seals, capsules.

`context` is the only function that makes a domain-separation context. Every field is preceded
by its length, so two contexts are equal only if all their fields are. Randomness is an argument
of every function that needs it, `os.urandom` or another `RandomBytes`.
"""

import hashlib
import os
import struct
from collections.abc import Callable
from enum import StrEnum
from functools import cache, lru_cache
from typing import Final, NoReturn, Self, SupportsIndex

import numpy as np
from cryptography.exceptions import InvalidSignature, InvalidTag, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey, MLKEM768PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import CTR
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.hpke import (
    AEAD,
    KDF,
    KEM,
    MLKEM768X25519PrivateKey,
    MLKEM768X25519PublicKey,
    Suite,
)
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray

from secure_fd.errors import LocalError, MissingCapabilityError, PeerError

VERSION: Final = 4
"""Version of the whole protocol: messages and contexts change together."""
EVERYONE: Final = 2**32 - 1
SERVER: Final = 2**32 - 2
HELPER: Final = 2**32 - 3
"""Party numbers that are no client's; clients count from 0 to MAX_CLIENT."""
MAX_CLIENT: Final = 2**32 - 4

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
    GROUP = "group"
    CAPSULE_KEY = "capsule key"
    CAPSULE = "capsule"
    CHANNEL = "channel chain"
    RATCHET = "channel ratchet"
    ROUND_CHANNEL = "channel keys of a round"
    INPUT_MAC = "input authentication key"
    INPUT = "input signature"
    SHARES = "sealed shares"
    ROUND_KEY = "round key"
    VAULT = "vault key"
    SELF_COMMITMENT = "self mask commitment"
    PAIR_MASK = "pairwise mask key"
    SELF_MASK = "self mask key"
    COHORT = "cohort signature"
    SURVIVORS = "survivor signature"
    INSECURE_SEED = "insecure seed"


def fields(*parts: bytes) -> bytes:
    """Join the parts, each behind its length in four bytes: injective on tuples of bytes.

    >>> fields(b"ab", b"").hex()
    '00000002616200000000'
    """
    return b"".join(len(part).to_bytes(4, "big") + part for part in parts)


def context(purpose: StrEnum, *, session: bytes, terms: bytes, sender: int, receiver: int) -> bytes:
    """Domain separation by protocol version, session, round, purpose, sender and receiver.

    purpose: a `Purpose`, or a word of another protocol that no `Purpose` has.
    terms: what the parties agreed for the round, its number first (RoundTerms.encode); its number
    alone for what is made before the rest is known; empty in the set-up.
    """
    return _prefix(purpose, session, terms) + _PARTIES.pack(4, sender, 4, receiver)


@lru_cache(maxsize=256)
def _prefix(purpose: StrEnum, session: bytes, terms: bytes) -> bytes:
    """Return the label that all pairs of parties share; a round needs it thousands of times."""
    return fields(_LABEL, VERSION.to_bytes(2, "big"), session, terms, purpose.value.encode())


class SecretHolder:
    """Base of every object that holds a key or a private input: empty repr, no pickle, no copy.

    Subclasses declare __slots__, so that no __dict__ exists that a printer could walk.

    >>> Sealer(bytes(32))
    <Sealer: secret>
    """

    __slots__ = ()

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: secret>"

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        """Refuse pickle and copy alike: a copied round could be run twice on one key."""
        raise LocalError(f"{type(self).__name__} holds secrets and cannot be pickled or copied")


WORD: Final = np.dtype("<u8")
"""A mask word: eight bytes of keystream as a little-endian integer."""
BLOCK_WORDS: Final = 32_768
"""Words of a read; the block fits a core's cache."""
_BLOCK_BYTES: Final = BLOCK_WORDS * WORD.itemsize
_ZEROS: Final = memoryview(bytes(_BLOCK_BYTES))
# update_into wants one cipher block of room beyond the data, whatever the mode.
_SLACK_WORDS: Final = 2


def scratch_words(count: int = BLOCK_WORDS) -> NDArray[np.uint64]:
    """Return a buffer for reads of up to `count` words; one serves any number of streams in turn.

    A buffer no larger than needed comes from memory that is mapped already.
    """
    return np.empty(count + _SLACK_WORDS, dtype=WORD)


class Keystream(SecretHolder):
    """The AES-256-CTR keystream of one key, read front to back, never twice.

    key: 32 bytes that serve this one stream. counter: the first counter block; zero is right
    for a key used once. A cipher set-up costs as much as the keystream of a few thousand words,
    so one object serves a whole stream.

    >>> Keystream(bytes(32)).read(4).hex()
    'dc95c078'
    """

    __slots__ = ("_cipher",)

    def __init__(self, key: bytes, counter: bytes = bytes(16)) -> None:
        self._cipher: CipherContext = Cipher(AES256(key), CTR(counter)).encryptor()

    def read(self, size: int) -> bytes:
        """The next `size` bytes."""
        return self._cipher.update(bytes(size))

    def read_words(self, count: int, scratch: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """The next `count` words, at most BLOCK_WORDS, as a view of `scratch`."""
        if not 0 <= count <= BLOCK_WORDS:
            raise LocalError(f"count: {count} words; a read gives 0 to {BLOCK_WORDS}")
        self._cipher.update_into(_ZEROS[: count * WORD.itemsize], scratch.view(np.uint8).data)
        return scratch[:count]


RandomBytes = Callable[[int], bytes]
"""size -> that many bytes, which no other party can predict; os.urandom is one."""


def draw(random: RandomBytes, size: int) -> bytes:
    """Take `size` bytes of `random`; LocalError where it gave another number.

    >>> import os
    >>> len(draw(os.urandom, 32))
    32
    """
    data = random(size)
    if len(data) != size:
        raise LocalError(f"the randomness source gave {len(data)} bytes where {size} were asked")
    return data


def insecure_bytes(seed: int) -> RandomBytes:
    """Make a source of bytes that the seed determines: for tests and reproductions only.

    >>> insecure_bytes(1)(4) == insecure_bytes(1)(4)
    True
    """
    label = context(Purpose.INSECURE_SEED, session=b"", terms=b"", sender=0, receiver=0)
    stream = Keystream(hashlib.sha256(label + str(seed).encode()).digest())
    return stream.read


KEY_BYTES: Final = 32


def derive_key(secret: bytes, *, salt: bytes, info: bytes, length: int = KEY_BYTES) -> bytes:
    """Derive `length` key bytes from `secret` by HKDF-SHA256 (RFC 5869).

    salt: the session id. info: the context of the key. LocalError where one is empty: such a
    key would be bound to no session, round, peer or purpose.

    >>> len(derive_key(b"secret", salt=b"session", info=b"context"))
    32
    """
    if not (secret and salt and info):
        raise LocalError("a key needs a secret, a salt and an info; none of them may be empty")
    return HKDF(algorithm=SHA256(), length=length, salt=salt, info=info).derive(secret)


PUBLIC_BYTES: Final = 32
SIGNATURE_BYTES: Final = 64
_SEED_BYTES: Final = 32


class IdentityKey(SecretHolder):
    """A client's long-lived key of Ed25519; it signs and does nothing else.

    >>> import os
    >>> identity = IdentityKey.generate(os.urandom)
    >>> identity.public.verify(identity.sign(b"text"), b"text", "the text")
    """

    __slots__ = ("_key", "public")

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key
        self.public = IdentityPublic(key.public_key().public_bytes_raw())

    @classmethod
    def generate(cls, random: RandomBytes) -> Self:
        """A new identity from 32 bytes of `random`."""
        return cls(Ed25519PrivateKey.from_private_bytes(draw(random, _SEED_BYTES)))

    def sign(self, message: bytes) -> bytes:
        """A signature of SIGNATURE_BYTES."""
        return self._key.sign(message)


class IdentityPublic:
    """The public half of an identity: what a roster pins.

    raw: 32 bytes of Ed25519.
    """

    __slots__ = ("_key", "raw")

    def __init__(self, raw: bytes) -> None:
        if len(raw) != PUBLIC_BYTES:
            raise LocalError(f"an identity key has {PUBLIC_BYTES} bytes, not {len(raw)}")
        self.raw = raw
        self._key = Ed25519PublicKey.from_public_bytes(raw)

    def __repr__(self) -> str:
        return f"IdentityPublic({self.raw[:PUBLIC_BYTES].hex()})"

    def verify(self, signature: bytes, message: bytes, what: str) -> None:
        """Return if the signature is this identity's; PeerError, naming `what`, if not."""
        try:
            self._key.verify(signature, message)
        except InvalidSignature:
            raise PeerError(f"the signature on {what} does not verify") from None


class AgreementKey(SecretHolder):
    """An X25519 key pair: of a channel for a session, or of the masks for one round.

    public: 32 bytes.

    >>> one, other = AgreementKey.derive(bytes(32)), AgreementKey.derive(bytes(31) + b"1")
    >>> one.exchange(other.public) == other.exchange(one.public)
    True
    """

    __slots__ = ("_key", "public")

    def __init__(self, key: X25519PrivateKey) -> None:
        self._key = key
        self.public = key.public_key().public_bytes_raw()

    @classmethod
    def generate(cls, random: RandomBytes) -> Self:
        """A new key pair from 32 bytes of `random`."""
        return cls.derive(draw(random, _SEED_BYTES))

    @classmethod
    def derive(cls, seed: bytes) -> Self:
        """The key pair that 32 secret bytes determine."""
        return cls(X25519PrivateKey.from_private_bytes(seed))

    def exchange(self, peer: bytes) -> bytes:
        """The 32-byte shared secret with the peer's public key.

        PeerError for a point of low order: its secret is zero whatever our key (RFC 7748, 6.1).
        """
        try:
            return self._key.exchange(X25519PublicKey.from_public_bytes(peer))
        except ValueError:
            raise PeerError("a key-agreement key is not 32 bytes of a high-order point") from None


_FIELD: Final = 2**255 - 19
_LOW_ORDER: Final = frozenset(
    {
        *(0, 1, _FIELD - 1, _FIELD, _FIELD + 1),
        0x00B8495F16056286FDB1329CEB8D09DA6AC49FF1FAE35616AEB8413B7C7AEBE0,
        0x57119FD0DD4E22D8868E1C58C45C44045BEF839C55B1D0B1248C50A3BC959C5F,
    }
)
"""Points with which every X25519 exchange gives zero: their order is 1, 2, 4 or 8."""


def low_order(public: bytes) -> bool:
    """Return whether a key of 32 bytes is a point of low order, which no honest party sends.

    >>> low_order(bytes(32)), low_order(AgreementKey.derive(bytes(32)).public)
    (True, False)
    """
    return int.from_bytes(public, "little") & (2**255 - 1) in _LOW_ORDER


TAG_BYTES: Final = 16
_NONCE_BYTES: Final = 12


class Sealer(SecretHolder):
    """Seals one party's messages to another, or opens them at the other end, by AES-256-GCM.

    A seal on an empty text is a tag: it shows that its context is the sender's, bit for bit.

    key: 32 bytes that serve one sender and one receiver in this direction only: with one key
    for both directions, message c of each would share a nonce, which reveals both texts and the
    authentication key (NIST SP 800-38D, 8).

    >>> sealed = Sealer(bytes(32)).seal(0, b"a share", b"round 1")
    >>> Sealer(bytes(32)).open(0, sealed, b"round 1", "the share")
    b'a share'
    """

    __slots__ = ("_cipher", "_last", "key")

    def __init__(self, key: bytes) -> None:
        if len(key) != KEY_BYTES:
            raise LocalError(f"a sealing key has {KEY_BYTES} bytes, not {len(key)}")
        self.key, self._cipher = key, AESGCM(key)
        self._last = -1

    def seal(self, counter: int, plaintext: bytes, context: bytes | memoryview) -> bytes:
        """The ciphertext, TAG_BYTES longer than `plaintext`; it opens under this context alone.

        counter: from 0 and above every counter sealed before, else LocalError.
        """
        if counter <= self._last:
            raise LocalError(
                f"counter: {counter} after {self._last}; a message must be sealed above the last"
            )
        nonce = _nonce(counter)
        self._last = counter
        return self._cipher.encrypt(nonce, plaintext, context)

    def open(self, counter: int, sealed: bytes, context: bytes | memoryview, what: str) -> bytes:
        """The plaintext; PeerError, naming `what`, unless key, counter and context are its own.

        Opening keeps no state: the caller checks that a message arrives once.
        """
        try:
            return self._cipher.decrypt(_nonce(counter), sealed, context)
        except InvalidTag:
            raise PeerError(f"the seal on {what} does not open") from None


def _nonce(counter: int) -> bytes:
    if not 0 <= counter < 1 << 8 * _NONCE_BYTES:
        raise LocalError(f"counter: {counter}; a nonce has room for 0 to 2^96 - 1")
    return counter.to_bytes(_NONCE_BYTES, "big")


CAPSULE_SECRET_BYTES: Final = 32
CAPSULE_PUBLIC_BYTES: Final = 1184 + PUBLIC_BYTES
CAPSULE_BYTES: Final = 1088 + PUBLIC_BYTES + CAPSULE_SECRET_BYTES + TAG_BYTES
"""HPKE: an ML-KEM-768 ciphertext, an X25519 key, the sealed secret and its tag."""
_KEM_SEED_BYTES: Final = 64


@cache
def check_capsules() -> None:
    """Raise MissingCapabilityError unless `cryptography` offers HPKE with ML-KEM-768 and X25519."""
    try:
        CapsuleKey.generate(os.urandom)
    except UnsupportedAlgorithm:
        raise MissingCapabilityError(
            "masked sums need HPKE with ML-KEM-768, which this installation of cryptography lacks: "
            "install version 48 or newer with a back end that has it"
        ) from None


class CapsuleKey(SecretHolder):
    """Key pair of HPKE (RFC 9180) with MLKEM768-X25519.

    What is sealed to it stays closed while either of the two holds, against quantum computers too.

    public: 1,216 bytes, the ML-KEM key before the X25519 one.
    """

    __slots__ = ("_key", "public")

    def __init__(self, kem_seed: bytes, agreement_seed: bytes) -> None:
        kem = MLKEM768PrivateKey.from_seed_bytes(kem_seed)
        agreement = X25519PrivateKey.from_private_bytes(agreement_seed)
        self._key = MLKEM768X25519PrivateKey(kem, agreement)
        self.public: bytes = (
            kem.public_key().public_bytes_raw() + agreement.public_key().public_bytes_raw()
        )

    @classmethod
    def generate(cls, random: RandomBytes) -> Self:
        """A new key pair from 64 bytes of `random` (d || z of FIPS 203, 7.1) and 32 more."""
        return cls(draw(random, _KEM_SEED_BYTES), draw(random, _SEED_BYTES))

    def open(self, capsule: bytes, info: bytes, what: str) -> bytes:
        """The secret in a capsule; PeerError, naming `what`, unless it was sealed to this key."""
        try:
            return _suite().decrypt(capsule, self._key, info=info)
        except InvalidTag:
            raise PeerError(f"{what} does not open") from None


SealCapsule = Callable[[bytes, bytes, bytes], bytes]
"""Seals a secret to a public capsule key under an info; tests give a repeatable one."""


def seal_capsule(public: bytes, secret: bytes, info: bytes) -> bytes:
    """Seal a secret of 32 bytes to a CapsuleKey. info: the context, which must fit to open it.

    PeerError for bytes that are no public key. The library takes no randomness for this step: it is
    the operating system's, and a seeded `random` does not make a run with capsules repeatable.
    """
    key = capsule_public(public)
    return _suite().encrypt(secret, key, info=info)


def capsule_public(public: bytes) -> MLKEM768X25519PublicKey:
    """The library's key of 1,216 public bytes; PeerError for bytes that are none."""
    kem, agreement = public[:-PUBLIC_BYTES], public[-PUBLIC_BYTES:]
    try:
        parts = (
            MLKEM768PublicKey.from_public_bytes(kem),
            X25519PublicKey.from_public_bytes(agreement),
        )
    except ValueError:
        parts = None
    if parts is None or low_order(agreement):
        raise PeerError(
            f"a capsule key is not {CAPSULE_PUBLIC_BYTES} bytes of reduced coefficients "
            f"and a high-order point"
        )
    return MLKEM768X25519PublicKey(*parts)


def _suite() -> Suite:
    return Suite(KEM.MLKEM768_X25519, KDF.HKDF_SHA256, AEAD.AES_256_GCM)
