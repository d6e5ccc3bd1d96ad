"""Field64 of the VDAF draft, on NumPy arrays: integers modulo p = 2^64 - 2^32 + 1.

Elements are uint64 below p, at every step. Since 2^64 = 2^32 - 1 and 2^96 = -1 modulo p, a product
of 128 bits is reduced without a division. p - 1 is a multiple of 2^32, so that there are roots of
unity of every order 2^k up to k = 32: polynomials are handled by their values there, and number-
theoretic transforms lead from values to coefficients and back.
"""

import threading
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from secure_fd.errors import LocalError, PeerError

FieldArray = NDArray[np.uint64]
"""Elements below `MODULUS`."""

MODULUS: Final = 2**64 - 2**32 + 1
ELEMENT_BYTES: Final = 8
_P: Final = np.uint64(MODULUS)
_LOW: Final = np.uint64(2**32 - 1)
"""The lower half of a word; also 2^64 modulo p."""
_HALF: Final = np.uint64(32)
_BLOCK: Final = 16384
"""Elements at a time in a product: its nine arrays then fit the cache of a core."""
_ORDER: Final = 2**32
_GENERATOR: Final = pow(7, (MODULUS - 1) // _ORDER, MODULUS)
"""Of the roots of unity of order 2^32 (draft-irtf-cfrg-vdaf-20, section 6.1.2)."""


def add(a: FieldArray, b: FieldArray) -> FieldArray:
    """a + b, elementwise.

    >>> add(np.array([MODULUS - 1], np.uint64), np.array([3], np.uint64))
    array([2], dtype=uint64)
    """
    total = a + b
    total += (total < b) * _LOW  # it wrapped, and 2^64 = 2^32 - 1; no second wrap can follow
    total -= (total >= _P) * _P
    return total


def sub(a: FieldArray, b: FieldArray) -> FieldArray:
    """a - b, elementwise.

    >>> sub(np.array([1], np.uint64), np.array([2], np.uint64)) == MODULUS - 1
    array([ True])
    """
    rest = a - b
    rest -= (a < b) * _LOW
    return rest


class _Scratch(threading.local):
    """Working memory of products, one of each thread."""

    def __init__(self) -> None:
        self.words = np.empty((6, _BLOCK), dtype=np.uint64)


_SCRATCH: Final = _Scratch()


def mul(a: FieldArray, b: FieldArray) -> FieldArray:
    """a b, elementwise, with NumPy's broadcasting.

    >>> mul(np.array([MODULUS - 1], np.uint64), np.array([MODULUS - 1], np.uint64))
    array([1], dtype=uint64)
    """
    shape = np.broadcast_shapes(a.shape, b.shape)
    left = np.ascontiguousarray(np.broadcast_to(a, shape)).reshape(-1)
    right = np.ascontiguousarray(np.broadcast_to(b, shape)).reshape(-1)
    product = np.empty(left.size, dtype=np.uint64)
    for start in range(0, left.size, _BLOCK):
        part = slice(start, start + _BLOCK)
        _product(left[part], right[part], product[part], _SCRATCH.words)
    return product.reshape(shape)


def _product(a: FieldArray, b: FieldArray, out: FieldArray, scratch: FieldArray) -> None:
    """The 128-bit product from halves of 32 bits, then its upper word h folded into the lower.

    Every step writes into scratch [6, block]: new memory would cost more than the arithmetic.
    """
    a0, a1, b0, b1, middle, high = scratch[:, : a.size]
    np.bitwise_and(a, _LOW, out=a0)
    np.right_shift(a, _HALF, out=a1)
    np.bitwise_and(b, _LOW, out=b0)
    np.right_shift(b, _HALF, out=b1)
    np.multiply(a1, b1, out=high)
    np.multiply(a0, b0, out=middle)
    np.right_shift(middle, _HALF, out=middle)
    np.multiply(a1, b0, out=a1)
    np.add(middle, a1, out=middle)  # at most (2^32 - 1)^2 + 2^32 - 1: it fits
    np.multiply(a0, b1, out=a0)
    np.bitwise_and(middle, _LOW, out=a1)
    np.add(a0, a1, out=a0)
    np.right_shift(middle, _HALF, out=middle)
    np.right_shift(a0, _HALF, out=a0)
    np.add(high, middle, out=high)
    np.add(high, a0, out=high)
    np.multiply(a, b, out=out)  # the lower word
    _fold(out, high, a0, a1)


def _fold(low: FieldArray, high: FieldArray, upper: FieldArray, spare: FieldArray) -> None:
    """low + 2^64 high, into low; with high = h1 2^32 + h0 it is low - h1 + (2^32 - 1) h0."""
    np.right_shift(high, _HALF, out=upper)
    np.multiply(low < upper, _LOW, out=spare)
    np.subtract(low, upper, out=low)
    np.subtract(low, spare, out=low)  # it borrowed 2^64
    np.bitwise_and(high, _LOW, out=high)
    np.multiply(high, _LOW, out=high)
    np.add(low, high, out=low)
    np.multiply(low < high, _LOW, out=spare)
    np.add(low, spare, out=low)  # it carried 2^64
    np.multiply(low >= _P, _P, out=spare)
    np.subtract(low, spare, out=low)


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


def element(value: int) -> np.uint64:
    """Any integer, modulo p.

    >>> int(element(-1)) == MODULUS - 1
    True
    """
    return np.uint64(value % MODULUS)


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


def ntt(values: FieldArray) -> FieldArray:
    """Values at the n roots of unity from coefficients, along the last axis but one [..., n, c].

    >>> ntt(np.array([[5], [0]], np.uint64)).tolist()
    [[5], [5]]
    """
    return _transform(values, inverse=False)


def inverse_ntt(values: FieldArray) -> FieldArray:
    """Coefficients from values at the n roots of unity, along the last axis but one [..., n, c].

    >>> inverse_ntt(np.array([[5], [5]], np.uint64)).tolist()
    [[5], [0]]
    """
    return _transform(values, inverse=True)


def _transform(values: FieldArray, *, inverse: bool) -> FieldArray:
    """Decimation in time (Cooley and Tukey 1965): pairs of halves, each twice as long as before."""
    *lead, n, columns = values.shape
    if n & (n - 1):
        raise LocalError(f"a transform has a power of two of values, not {n}")
    work, size = np.ascontiguousarray(values[..., _reversed(n), :]), 2
    while size <= n:
        pairs = work.reshape(*lead, n // size, 2, size // 2, columns)
        even, odd = pairs[..., 0, :, :], pairs[..., 1, :, :]
        if size > 2:
            odd = mul(odd, _twiddles(size, inverse)[:, None])
        work = np.stack((add(even, odd), sub(even, odd)), axis=-3)
        size *= 2
    work = work.reshape(values.shape)
    return mul(work, np.asarray(element(pow(n, -1, MODULUS)))) if inverse else work


@lru_cache(maxsize=64)
def _twiddles(size: int, inverse: bool) -> FieldArray:
    base = pow(root(size), -1, MODULUS) if inverse else root(size)
    return powers(np.asarray(element(base)), size // 2)


@lru_cache(maxsize=64)
def _reversed(n: int) -> NDArray[np.int64]:
    """[n] every index with its bits in reverse."""
    order = np.zeros(1, dtype=np.int64)
    while len(order) < n:
        order = np.concatenate([2 * order, 2 * order + 1])
    return order


def lagrange(points: FieldArray, n: int) -> FieldArray:
    """[..., n] weights that give a polynomial's value at each point from those at the n roots.

    f(t) = sum_m t^m (1/n) sum_k f(w^k) w^(-mk), so they are the inverse transform of t's powers:
    no division, and no point is special.

    >>> lagrange(np.array([1], np.uint64), 2).tolist()
    [[1, 0]]
    """
    return inverse_ntt(powers(points, n)[..., None])[..., 0]


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
