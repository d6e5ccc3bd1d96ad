"""Mask words: the AES-256-CTR keystream, read as little-endian 64-bit integers.

A cipher set-up costs as much as the keystream of a few thousand words, so a Keystream makes
one and is then read block by block; the block fits a core's cache.
"""

from typing import Final

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import CTR
from numpy.typing import NDArray

from secure_fd.crypto.secrecy import SecretHolder
from secure_fd.errors import LocalError

WORD: Final = np.dtype("<u8")
BLOCK_WORDS: Final = 32_768
_BLOCK_BYTES: Final = BLOCK_WORDS * WORD.itemsize
_ZEROS: Final = memoryview(bytes(_BLOCK_BYTES))
# update_into wants one cipher block of room beyond the data, whatever the mode.
_SLACK_WORDS: Final = 2


def scratch_words() -> NDArray[np.uint64]:
    """A buffer for Keystream.read_words; one serves any number of streams in turn."""
    return np.empty(BLOCK_WORDS + _SLACK_WORDS, dtype=WORD)


class Keystream(SecretHolder):
    """The keystream of one key, read front to back, never twice.

    key: 32 bytes that serve this one stream. counter: the first counter block; zero is right
    for a key used once.
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
