"""ML-KEM-768 (FIPS 203), for secrets that a future quantum computer must not open.

It needs `cryptography` 48 or newer on a back end that offers it; ask `available()` first.
"""

from functools import cache
from typing import TYPE_CHECKING, Final, Self

from cryptography.exceptions import UnsupportedAlgorithm

from secure_fd.crypto.randomness import RandomBytes, draw
from secure_fd.crypto.secrecy import SecretHolder
from secure_fd.errors import MissingCapabilityError, PeerError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey

PUBLIC_BYTES: Final = 1184
CIPHERTEXT_BYTES: Final = 1088
SECRET_BYTES: Final = 32
_SEED_BYTES: Final = 64


@cache
def available() -> bool:
    """Whether the installed `cryptography` and its back end offer ML-KEM-768."""
    try:
        from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey

        MLKEM768PrivateKey.generate()
    except (ImportError, UnsupportedAlgorithm):
        return False
    return True


def encapsulate(public: bytes) -> tuple[bytes, bytes]:
    """A fresh 32-byte secret, and the ciphertext that brings it to the key's owner.

    PeerError for bytes that are no public key, MissingCapabilityError without ML-KEM-768.
    """
    _require()
    from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PublicKey

    try:
        key = MLKEM768PublicKey.from_public_bytes(public)
    except ValueError:
        raise PeerError(f"a KEM key is not {PUBLIC_BYTES} bytes of reduced coefficients") from None
    # The library takes no randomness for this step, so these 32 bytes are the operating
    # system's: a seeded `random` does not make a run with capsules repeatable.
    return key.encapsulate()


class KemKey(SecretHolder):
    """An ML-KEM-768 key pair. public: 1,184 bytes."""

    __slots__ = ("_key", "public")

    def __init__(self, key: "MLKEM768PrivateKey") -> None:
        self._key = key
        self.public = key.public_key().public_bytes_raw()

    @classmethod
    def generate(cls, random: RandomBytes) -> Self:
        """A new key pair from 64 bytes of `random` (the seed d || z of FIPS 203, 7.1)."""
        _require()
        from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey

        return cls(MLKEM768PrivateKey.from_seed_bytes(draw(random, _SEED_BYTES)))

    def decapsulate(self, ciphertext: bytes) -> bytes:
        """The 32-byte secret; PeerError for a ciphertext of another length.

        A forged ciphertext gives a secret that nobody else has, without a sign (implicit
        rejection, FIPS 203, 6.3): only what is keyed with the secret can tell.
        """
        if len(ciphertext) != CIPHERTEXT_BYTES:
            raise PeerError(f"a KEM ciphertext has {CIPHERTEXT_BYTES} bytes, not {len(ciphertext)}")
        return self._key.decapsulate(ciphertext)


def _require() -> None:
    if not available():
        raise MissingCapabilityError(
            "ML-KEM-768 is missing: it needs cryptography 48 or newer with a back end that has it"
        )
