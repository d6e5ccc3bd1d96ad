"""Field64 of the VDAF draft, on NumPy arrays: integers modulo p = 2^64 - 2^32 + 1.

Elements are uint64 below p, at every step. Since 2^64 = 2^32 - 1 and 2^96 = -1 modulo p, a product
of 128 bits is reduced without a division. p - 1 is a multiple of 2^32, so that there are roots of
unity of every order 2^k up to k = 32: polynomials are handled by their values there, and number-
theoretic transforms lead from values to coefficients and back.
"""

from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from secure_fd.errors import PeerError

FieldArray = NDArray[np.uint64]
"""Elements below `MODULUS`."""

MODULUS: Final = 2**64 - 2**32 + 1
ELEMENT_BYTES: Final = 8
_P: Final = np.uint64(MODULUS)
_LOW: Final = np.uint64(2**32 - 1)
"""The lower 32 bits of a word; also 2^64 modulo p."""
_HALF: Final = np.uint64(32)
_BLOCK: Final = 4096
"""Elements at a time in a product: its arrays then fit the cache of a core."""
_ORDER: Final = 2**32
_GENERATOR: Final = pow(7, (MODULUS - 1) // _ORDER, MODULUS)
"""Root of unity of order 2^32 (draft-irtf-cfrg-vdaf-20, section 6.1.2)."""


def add(a: FieldArray, b: FieldArray) -> FieldArray:
    """Return a + b, elementwise.

    >>> add(np.array([MODULUS - 1], np.uint64), np.array([3], np.uint64))
    array([2], dtype=uint64)
    """
    total = a + b
    total += (total < b) * _LOW  # it wrapped, and 2^64 = 2^32 - 1; no second wrap can follow
    total -= (total >= _P) * _P
    return total


def sub(a: FieldArray, b: FieldArray) -> FieldArray:
    """Return a - b, elementwise.

    >>> sub(np.array([1], np.uint64), np.array([2], np.uint64)) == MODULUS - 1
    array([ True])
    """
    rest = a - b
    rest -= (a < b) * _LOW
    return rest


def mul(a: FieldArray, b: FieldArray) -> FieldArray:
    """Return a b, elementwise, with NumPy's broadcasting.

    >>> mul(np.array([MODULUS - 1], np.uint64), np.array([MODULUS - 1], np.uint64))
    array([1], dtype=uint64)
    """
    shape = np.broadcast_shapes(a.shape, b.shape)
    left, right = (np.broadcast_to(factor, shape).reshape(-1) for factor in (a, b))
    product = np.empty(left.size, dtype=np.uint64)
    for start in range(0, left.size, _BLOCK):
        part = slice(start, start + _BLOCK)
        product[part] = _product(left[part], right[part])
    return product.reshape(shape)


def _product(a: FieldArray, b: FieldArray) -> FieldArray:
    """The product of 128 bits from factors of 32 bits, modulo p."""
    a0, a1, b0, b1 = a & _LOW, a >> _HALF, b & _LOW, b >> _HALF
    middle = a1 * b0 + (a0 * b0 >> _HALF)  # at most (2^32 - 1)^2 + 2^32 - 1: it fits
    carried = a0 * b1 + (middle & _LOW)
    high = a1 * b1 + (middle >> _HALF) + (carried >> _HALF)
    # low + 2^64 high = low - h1 + (2^32 - 1) h0, for high = h1 2^32 + h0
    found, h1 = a * b, high >> _HALF
    borrowed = found < h1
    found -= h1 + borrowed * _LOW
    # `found` may be p or more; the other summand is below 2^64 - 2^33, so `add` reduces it once.
    return add(found, (high & _LOW) * _LOW)


def total(values: FieldArray, axis: int = -1) -> FieldArray:
    """The sum along an axis of up to 2^31 elements.

    >>> int(total(np.full(4, MODULUS - 1, np.uint64)).item()) == MODULUS - 4
    True
    """
    low = (values & _LOW).sum(axis, dtype=np.uint64, keepdims=True)
    high = (values >> _HALF).sum(axis, dtype=np.uint64, keepdims=True)
    # high = h1 2^32 + h0 counts 2^32: h0 2^32 is below p as it stands, and h1 2^64 = h1 (2^32 - 1)
    upper = add((high & _LOW) << _HALF, (high >> _HALF) * _LOW)
    return np.asarray(add(upper, low).squeeze(axis))


def powers(base: FieldArray, count: int) -> FieldArray:
    """[..., count] of bases [...]: 1, base, ..., base^(count - 1).

    >>> powers(np.array([3], np.uint64), 4)
    array([[ 1,  3,  9, 27]], dtype=uint64)
    """
    found = np.ones((*base.shape, count), dtype=np.uint64)
    done, factor = 1, base[..., None]
    while done < count:
        more = min(done, count - done)
        found[..., done : done + more] = mul(found[..., :more], factor)
        done, factor = done + more, mul(factor, factor)
    return found


def element(value: int) -> FieldArray:
    """Any integer, modulo p, as an array without axes.

    >>> int(element(-1)) == MODULUS - 1
    True
    """
    return np.array(value % MODULUS, np.uint64)


def from_signed(values: NDArray[np.int64]) -> FieldArray:
    """Integers modulo p.

    >>> from_signed(np.array([-1])) == MODULUS - 1
    array([ True])
    """
    return values.view(np.uint64) - (values < 0) * _LOW


def root(order: int) -> int:
    """The root of unity of an order 2^k.

    >>> pow(root(8), 4, MODULUS) == MODULUS - 1
    True
    """
    return pow(_GENERATOR, _ORDER // order, MODULUS)


def ntt(values: FieldArray, *, inverse: bool = False) -> FieldArray:
    """Values at the n roots of unity from coefficients, along the last axis but one [..., n, c].

    Decimation in time, sorted on the way (Cooley and Tukey, 1965; Stockham, 1966). inverse:
    coefficients from values.

    >>> ntt(np.array([[5], [0]], np.uint64)).tolist()
    [[5], [5]]
    """
    *lead, n, columns = values.shape
    work = values.reshape(*lead, n, 1, columns)  # transforms of every n-th coefficient
    while work.shape[-3] > 1:
        even, odd = np.split(work, 2, axis=-3)
        if odd.shape[-2] > 1:
            odd = mul(odd, _twiddles(2 * odd.shape[-2], inverse)[:, None])
        work = np.concatenate([add(even, odd), sub(even, odd)], axis=-2)
    work = work.reshape(values.shape)
    return mul(work, element(pow(n, -1, MODULUS))) if inverse else work


@lru_cache(maxsize=64)
def _twiddles(size: int, inverse: bool) -> FieldArray:
    base = pow(root(size), -1, MODULUS) if inverse else root(size)
    return powers(element(base), size // 2)


def lagrange(points: FieldArray, n: int) -> FieldArray:
    """[..., n] weights that give a polynomial's value at each point from those at the n roots.

    f(t) = sum_m t^m (1/n) sum_k f(w^k) w^(-mk), so they are the inverse transform of t's powers:
    no division, and no point is special.

    >>> lagrange(np.array([1], np.uint64), 2).tolist()
    [[1, 0]]
    """
    return ntt(powers(points, n)[..., None], inverse=True)[..., 0]


def encode(values: FieldArray) -> bytes:
    """Eight bytes an element, little-endian.

    >>> encode(np.array([1], np.uint64)).hex()
    '0100000000000000'
    """
    return np.ascontiguousarray(values, dtype="<u8").tobytes()


def decode(data: bytes | memoryview, count: int) -> FieldArray:
    """[count] elements; PeerError for another length, or a number that is not below p.

    >>> decode(bytes(8), 1)
    array([0], dtype=uint64)
    """
    if len(data) != ELEMENT_BYTES * count:
        raise PeerError(f"{count} field elements have {len(data)} bytes")
    values = np.frombuffer(data, "<u8").astype(np.uint64)
    if (values >= _P).any():
        raise PeerError("a field element is not below the modulus")
    return values
