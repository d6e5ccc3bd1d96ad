"""Ed25519 identities and X25519 key agreement, on raw 32-byte keys."""

from typing import Final, Self

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from secure_fd.crypto.randomness import RandomBytes, draw
from secure_fd.crypto.secrecy import SecretHolder
from secure_fd.errors import LocalError, PeerError

PUBLIC_BYTES: Final = 32
SIGNATURE_BYTES: Final = 64
_SEED_BYTES: Final = 32


class IdentityKey(SecretHolder):
    """A client's long-lived Ed25519 key; it signs and does nothing else."""

    __slots__ = ("_key", "public")

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key
        self.public = IdentityPublic(key.public_key().public_bytes_raw())

    @classmethod
    def generate(cls, random: RandomBytes) -> Self:
        """A new identity from 32 bytes of `random`."""
        return cls(Ed25519PrivateKey.from_private_bytes(draw(random, _SEED_BYTES)))

    def sign(self, message: bytes) -> bytes:
        """A 64-byte signature."""
        return self._key.sign(message)


class IdentityPublic:
    """The public half of an identity: what a roster pins. raw: 32 bytes."""

    __slots__ = ("_key", "raw")

    def __init__(self, raw: bytes) -> None:
        if len(raw) != PUBLIC_BYTES:
            raise LocalError(f"an identity key has {PUBLIC_BYTES} bytes, not {len(raw)}")
        self.raw = raw
        self._key = Ed25519PublicKey.from_public_bytes(raw)

    def __repr__(self) -> str:
        return f"IdentityPublic({self.raw.hex()})"

    def verify(self, signature: bytes, message: bytes, what: str) -> None:
        """Return if the signature is this identity's; PeerError, naming `what`, if not."""
        try:
            self._key.verify(signature, message)
        except InvalidSignature:
            raise PeerError(f"the signature on {what} does not verify") from None


class AgreementKey(SecretHolder):
    """An X25519 key pair: of a channel for a session, or of the masks for one round.

    public: 32 bytes.
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
        """The key pair of 32 secret bytes: the same for whoever knows them."""
        return cls(X25519PrivateKey.from_private_bytes(seed))

    def exchange(self, peer: bytes) -> bytes:
        """The 32-byte shared secret with the peer's public key.

        PeerError for a point of low order: its secret is zero whatever our key (RFC 7748, 6.1).
        """
        try:
            return self._key.exchange(X25519PublicKey.from_public_bytes(peer))
        except ValueError:
            raise PeerError("a key-agreement key is not 32 bytes of a high-order point") from None
