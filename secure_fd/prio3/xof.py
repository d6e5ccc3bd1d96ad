"""XofTurboShake128 of the VDAF draft: seeds and field elements from a seed, a tag and a binder.

The stream is TurboSHAKE128(len(dst) || dst || len(seed) || seed || binder) with domain byte 1
(draft-irtf-cfrg-vdaf-20, section 6.2.1; RFC 9861), from pycryptodome.
"""

from typing import TYPE_CHECKING, Final

import numpy as np

from secure_fd.optional import extra
from secure_fd.prio3.field import ELEMENT_BYTES, MODULUS, FieldArray

if TYPE_CHECKING:
    from Crypto.Hash import TurboSHAKE128

SEED_BYTES: Final = 32


def _stream(seed: bytes, tag: bytes, *binder: bytes) -> "TurboSHAKE128.TurboSHAKE":
    with extra("prio3"):
        from Crypto.Hash import TurboSHAKE128
    absorbed = TurboSHAKE128.new(domain=1)
    absorbed.update(len(tag).to_bytes(2, "little") + tag + bytes([len(seed)]) + seed)
    for part in binder:
        absorbed.update(part)
    return absorbed


def derive_seed(seed: bytes, tag: bytes, *binder: bytes) -> bytes:
    """Return 32 bytes. tag: domain separation. binder: other inputs of the seed, joined.

    >>> len(derive_seed(bytes(32), b"tag", b"binder"))
    32
    """
    return _stream(seed, tag, *binder).read(SEED_BYTES)


def expand(count: int, seed: bytes, tag: bytes, *binder: bytes) -> FieldArray:
    """[count] uniform elements: words of the stream that are not below the modulus are skipped.

    >>> expand(3, bytes(32), b"tag").shape
    (3,)
    """
    stream = _stream(seed, tag, *binder)
    found = np.zeros(0, dtype=np.uint64)
    while (missing := count - len(found)) > 0:
        read = stream.read(ELEMENT_BYTES * missing)
        words = np.frombuffer(read, "<u8").astype(np.uint64)
        found = np.concatenate([found, words[words < np.uint64(MODULUS)]])
    return found
