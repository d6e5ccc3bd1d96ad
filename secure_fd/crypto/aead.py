"""AES-256-GCM over one direction of one channel (NIST SP 800-38D), never a nonce twice."""

from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from secure_fd.crypto.secrecy import SecretHolder
from secure_fd.errors import LocalError, PeerError

KEY_BYTES: Final = 32
TAG_BYTES: Final = 16
_NONCE_BYTES: Final = 12


class Sealer(SecretHolder):
    """Seals one party's messages to another, or opens them at the other end.

    key: 32 bytes that serve one sender and one receiver in this direction only: with one key
    for both directions, message c of each would share a nonce, which gives away both texts
    and the authentication key.
    """

    __slots__ = ("_cipher", "_last")

    def __init__(self, key: bytes) -> None:
        if len(key) != KEY_BYTES:
            raise LocalError(f"a sealing key has {KEY_BYTES} bytes, not {len(key)}")
        self._cipher = AESGCM(key)
        self._last = -1

    def seal(self, counter: int, plaintext: bytes, context: bytes) -> bytes:
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

    def open(self, counter: int, sealed: bytes, context: bytes, what: str) -> bytes:
        """The plaintext; PeerError, naming `what`, unless key, counter and context are its own.

        Opening keeps no state: that a message arrives once is for the caller to see to.
        """
        try:
            return self._cipher.decrypt(_nonce(counter), sealed, context)
        except InvalidTag:
            raise PeerError(f"the seal on {what} does not open") from None


def _nonce(counter: int) -> bytes:
    if not 0 <= counter < 1 << 8 * _NONCE_BYTES:
        raise LocalError(f"counter: {counter}; a nonce has room for 0 to 2^96 - 1")
    return counter.to_bytes(_NONCE_BYTES, "big")
