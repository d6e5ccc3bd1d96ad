"""Many secrets restored at once: Shamir's inner products in 16-bit limbs, exact in float64.

A product of two limbs is below 2^32, and a coefficient adds at most 16 t of them: below 2^48 for
t up to 2^12, where float64 is exact. So a whole round's secrets take one matrix product instead
of a Python integer a share.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from secure_fd.crypto.shamir import ELEMENT_BYTES, PRIME, combine
from secure_fd.errors import LocalError, PeerError
from secure_fd.knowledge import FloatArray

Bytes = NDArray[np.uint8]
LIMBS: Final = ELEMENT_BYTES // 2
_COEFFICIENTS: Final = 2 * LIMBS - 1
_MAX_SHARES: Final = 2**12
_WORTH_LIMBS: Final = 512 * ELEMENT_BYTES
"""Bytes of shares from which on arrays cost less than integers."""
_HEAD: Final = np.uint64(PRIME >> 192)
_TAIL: Final = np.uint64(PRIME & (2**64 - 1))
_ONES: Final = np.uint64(2**64 - 1)
_LIMB: Final = np.uint64(2**16 - 1)
_SHIFTS: Final = np.array([0, 16, 32], dtype=np.uint64)


def combine_many(weights: Sequence[tuple[int, ...]], shares: Bytes) -> list[int]:
    """[o] the secrets whose encoded shares [o, t, 32] these are.

    weights: the [t] weights at zero of each secret, or of the first for all of them. PeerError
    where a share encodes no element of the field.
    """
    if shares.size < _WORTH_LIMBS:
        return _one_by_one(weights, shares)
    if shares.shape[1] > _MAX_SHARES:
        raise LocalError(f"shares: {shares.shape[1]} a secret; at most {_MAX_SHARES} add exactly")
    _check_elements(shares)
    own = shares.view(">u2").astype(np.float64).transpose(0, 2, 1)
    products = np.matmul(own, np.stack([_limbs(row) for row in weights]))
    # Rows padded by one more than their length and read again without the padding are shifted
    # against each other, so that column sums add limbs of one significance.
    padded = np.zeros((len(shares), LIMBS, 2 * LIMBS))
    padded[:, :, :LIMBS] = products
    shifted = padded.reshape(len(shares), -1)[:, : LIMBS * _COEFFICIENTS]
    sums = shifted.reshape(-1, LIMBS, _COEFFICIENTS).sum(axis=1).astype(np.uint64)
    # A coefficient has 48 bits at most: three numbers whose limbs do not overlap.
    parts = (sums[:, None] >> _SHIFTS[:, None]) & _LIMB
    raw = parts.astype(">u2").tobytes()
    size = 2 * _COEFFICIENTS
    low, middle, high = (
        [int.from_bytes(raw[at : at + size], "big") for at in range(first, len(raw), 3 * size)]
        for first in (0, size, 2 * size)
    )
    return [(a + (b << 16) + (c << 32)) % PRIME for a, b, c in zip(low, middle, high, strict=True)]


def _one_by_one(weights: Sequence[tuple[int, ...]], shares: Bytes) -> list[int]:
    """The same in Python's integers: what a handful of secrets costs least with."""
    raw = shares.tobytes()
    starts = range(0, len(raw), ELEMENT_BYTES)
    elements = [int.from_bytes(raw[at : at + ELEMENT_BYTES], "big") for at in starts]
    if elements and max(elements) >= PRIME:
        raise PeerError("a share is not below the prime of its field")
    each = [weights[0]] * len(shares) if len(weights) == 1 else weights
    t = shares.shape[1]
    return [combine(row, elements[at * t : (at + 1) * t]) for at, row in enumerate(each)]


@lru_cache(maxsize=256)
def _limbs(elements: tuple[int, ...]) -> FloatArray:
    """[t, LIMBS] the field elements' limbs, highest first."""
    raw = b"".join(element.to_bytes(ELEMENT_BYTES, "big") for element in elements)
    return np.frombuffer(raw, dtype=">u2").reshape(-1, LIMBS).astype(np.float64)


def _check_elements(shares: Bytes) -> None:
    words = shares.view(">u8")
    head, tail = words[..., 0], words[..., 3]
    level = (head == _HEAD) & (words[..., 1] == _ONES) & (words[..., 2] == _ONES)
    if ((head > _HEAD) | (level & (tail >= _TAIL))).any():
        raise PeerError("a share is not below the prime of its field")
