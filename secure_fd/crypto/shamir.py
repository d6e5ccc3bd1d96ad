"""Shamir's secret sharing over a prime field, on plain integers (Shamir 1979).

A polynomial of degree below the threshold, its constant term the secret and every other
coefficient uniform, is evaluated at one point a holder: any `threshold` values determine it,
fewer are uniform and independent of the secret. Python's integers are not constant-time;
whoever can time a party's process is outside the model.
"""

import math
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate
from operator import mul
from typing import Final

from secure_fd.crypto.keys import RandomBytes, draw
from secure_fd.errors import LocalError, PeerError

PRIME: Final = 2**255 - 19
"""Of the default field: 19 integers short of 255 bits, so a draw is rejected once in 2^250."""
ELEMENT_BYTES: Final = 32


def draw_element(random: RandomBytes, prime: int = PRIME) -> int:
    """Draw one element of the field, exactly uniform where the bytes of `random` are."""
    return _draw_elements(1, random, prime)[0]


def encode(element: int) -> bytes:
    """Encode an element of the default field as 32 bytes, big-endian; LocalError for another.

    >>> decode(encode(7))
    7
    """
    _check_element(element, PRIME)
    return element.to_bytes(ELEMENT_BYTES, "big")


def decode(data: bytes) -> int:
    """Decode what `encode` wrote; PeerError where no element of the field has this code."""
    if len(data) != ELEMENT_BYTES:
        raise PeerError(f"a field element has {ELEMENT_BYTES} bytes, not {len(data)}")
    element = int.from_bytes(data, "big")
    if element >= PRIME:
        raise PeerError("a field element is not below the prime of its field")
    return element


def split(
    secret: int, points: Sequence[int], threshold: int, random: RandomBytes, prime: int = PRIME
) -> list[int]:
    """One share of `secret` for each point, in the order of the points.

    points: distinct and non-zero modulo the prime; small ones are fastest. Any `threshold`
    shares restore the secret; fewer are independent of it. LocalError for a secret outside the
    field, such points, or a threshold not in 1..len(points).

    >>> import os
    >>> shares = split(42, points=[1, 2, 3], threshold=2, random=os.urandom)
    >>> combine(weights_at_zero([1, 3]), [shares[0], shares[2]])
    42
    """
    _check_element(secret, prime)
    points = _canonical(points, prime)
    if not 1 <= threshold <= len(points):
        raise LocalError(f"threshold: {threshold} of {len(points)} shares; 1 to all are allowed")
    # Highest power first, as Horner's rule reads them. A leading zero must stay possible:
    # excluding it would exclude one secret for whoever holds threshold - 1 shares.
    coefficients = [*_draw_elements(threshold - 1, random, prime), secret]
    return [_evaluate(coefficients, point) % prime for point in points]


def weights_at_zero(points: Sequence[int], prime: int = PRIME) -> tuple[int, ...]:
    """Lagrange's coefficients at zero: the secret is their inner product with the shares.

    They depend on the points alone, so one call serves every secret that the same holders
    share. LocalError for points that `split` refuses, or none.

    >>> weights_at_zero([1, 2, 3], prime=7)  # 3, -3 and 1
    (3, 4, 1)
    """
    points = _canonical(points, prime)
    if not points:
        raise LocalError("points: none; the weights at zero need at least one")
    # w_i = Π_{j≠i} x_j / (x_j - x_i) = Π_j x_j / d_i, d_i = x_i Π_{j≠i} (x_j - x_i).
    if max(points) <= _MOST_FACTORIALS:
        inverses = _inverse_products(points, prime)
    else:
        products = [at * math.prod([x - at for x in points if x != at]) % prime for at in points]
        inverses = _inverses(products, prime)
    product = math.prod(points) % prime
    return tuple(product * inverse % prime for inverse in inverses)


_MOST_FACTORIALS: Final = 2**16
"""Points up to here, which all holders' are, have their weights by factorials."""
_WIDEST_GAP: Final = 8


def _inverse_products(points: Sequence[int], prime: int) -> list[int]:
    """1 / (x_i Π_{j≠i} (x_j - x_i)) for each point, in the order of the points.

    A product over a run of integers is a quotient of factorials. Holders' points are a few runs
    with small gaps, which are multiplied back.
    """
    factorial, inverse = _factorials(min(1 << max(points).bit_length(), prime), prime)
    runs, gaps = _runs(sorted([0, *points]))
    products = []
    for point in points:
        value = math.prod([gap - point for gap in gaps])
        for first, last in runs:
            if first > point:
                value = value * inverse[last - point] * factorial[first - point - 1] % prime
                continue
            below = min(last + 1, point) - first  # each of these gives a minus
            rest = inverse[last - point] if last >= point else factorial[point - last - 1]
            value = (-1) ** below * value * inverse[point - first] * rest % prime
        products.append(-value % prime)  # the run with 0 has given -x_i
    return products


def _runs(points: Sequence[int]) -> tuple[list[tuple[int, int]], list[int]]:
    """(first, last) of runs with gaps of a few integers at most, and the integers of the gaps."""
    runs = [(points[0], points[0])]
    gaps: list[int] = []
    for point in points[1:]:
        first, last = runs[-1]
        if point - last > _WIDEST_GAP:
            runs.append((point, point))
        else:
            runs[-1] = (first, point)
            gaps += range(last + 1, point)
    return runs, gaps


@lru_cache(maxsize=8)
def _factorials(size: int, prime: int) -> tuple[list[int], list[int]]:
    """[size] factorials from 0! on, and the inverse of each."""
    factorials = list(accumulate(range(1, size), lambda left, by: left * by % prime, initial=1))
    return factorials, _inverses(factorials, prime)


def combine(weights: Sequence[int], shares: Sequence[int], prime: int = PRIME) -> int:
    """The secret whose shares, in the order of the weights' points, these are.

    Shares of different secrets, or fewer than the threshold, combine to some other element
    without a sign: check the result against what its owner published.

    >>> combine((3, 4, 1), [5, 6, 0], prime=7)  # the line 4 + x
    4
    """
    if len(weights) != len(shares):
        raise LocalError(f"shares: {len(shares)} for {len(weights)} weights; each needs one")
    total: int = sum(map(mul, weights, shares))
    return total % prime


def correct(
    points: Sequence[int], shares: Sequence[int], threshold: int, prime: int = PRIME
) -> tuple[int, tuple[int, ...]] | None:
    """The secret, and which of its shares are wrong, by their places in the list.

    Up to half of the shares beyond the threshold may be wrong, whatever they are (Gao 2003: a
    Reed-Solomon code with n points and t coefficients); None where more are, mostly. Takes a tenth
    of a second for 300 shares. LocalError for points that `split` refuses.

    >>> correct([1, 2, 3, 4, 5], [5, 6, 0, 3, 2], threshold=2, prime=7)  # the line 4 + x, at 4
    (4, (3,))
    """
    points, n = _canonical(points, prime), len(shares)
    before = _vanishing(points, prime)
    remainder, cofactor, last = _interpolated(before, points, shares, prime), [1], [0]
    while 2 * (len(remainder) - 1) >= n + threshold:
        quotient, left = _divided(before, remainder, prime)
        before, remainder = remainder, left
        last, cofactor = cofactor, _less(last, _times(quotient, cofactor, prime), prime)
    polynomial, left = _divided(remainder, cofactor, prime)
    if any(left) or len(polynomial) > threshold:
        return None
    highest_first = polynomial[::-1]
    wrong = (
        at
        for at, (point, share) in enumerate(zip(points, shares, strict=True))
        if _evaluate(highest_first, point) % prime != share % prime
    )
    return (polynomial[0] if polynomial else 0), tuple(wrong)


# Polynomials: lists of coefficients, the lowest power first, no leading zero; [] is zero.


def _trimmed(coefficients: list[int]) -> list[int]:
    while coefficients and coefficients[-1] == 0:
        coefficients.pop()
    return coefficients


def _times(one: Sequence[int], other: Sequence[int], prime: int) -> list[int]:
    product = [0] * max(0, len(one) + len(other) - 1)
    for at, left in enumerate(one):
        for by, right in enumerate(other):
            product[at + by] += left * right
    return _trimmed([value % prime for value in product])


def _less(one: Sequence[int], other: Sequence[int], prime: int) -> list[int]:
    size = max(len(one), len(other))
    ends = ([*one, *[0] * (size - len(one))], [*other, *[0] * (size - len(other))])
    return _trimmed([(left - right) % prime for left, right in zip(*ends, strict=True)])


def _divided(
    dividend: Sequence[int], divisor: Sequence[int], prime: int
) -> tuple[list[int], list[int]]:
    """Quotient and remainder."""
    left, size = list(dividend), len(divisor)
    quotient = [0] * max(0, len(left) - size + 1)
    inverse = pow(divisor[-1], -1, prime)
    for at in range(len(quotient) - 1, -1, -1):
        factor = left[at + size - 1] * inverse % prime
        quotient[at] = factor
        if factor:
            for by in range(size):
                left[at + by] = (left[at + by] - factor * divisor[by]) % prime
    return _trimmed(quotient), _trimmed(left[: size - 1] if len(dividend) >= size else left)


def _vanishing(points: Sequence[int], prime: int) -> list[int]:
    """The polynomial that is zero at the points and nowhere else."""
    product = [1]
    for point in points:
        product = _times(product, [-point % prime, 1], prime)
    return product


def _interpolated(
    whole: Sequence[int], points: Sequence[int], values: Sequence[int], prime: int
) -> list[int]:
    """Lagrange's polynomial through the points. whole: what vanishes at all of them."""
    total = [0] * len(points)
    parts = [_divided(whole, [-point % prime, 1], prime)[0] for point in points]
    at = [_evaluate(part[::-1], point) % prime for part, point in zip(parts, points, strict=True)]
    for part, value, inverse in zip(parts, values, _inverses(at, prime), strict=True):
        weight = value * inverse % prime
        for power, coefficient in enumerate(part):
            total[power] += weight * coefficient
    return _trimmed([value % prime for value in total])


def _check_element(element: int, prime: int) -> None:
    # The sentence leaves the value out: it may be a secret.
    if not 0 <= element < prime:
        raise LocalError("a field element must be from 0 to below the prime of its field")


def _draw_elements(count: int, random: RandomBytes, prime: int) -> list[int]:
    """Uniform elements by rejection: one call of `random` unless one is rejected."""
    size = (prime.bit_length() + 7) // 8
    mask = (1 << prime.bit_length()) - 1
    elements: list[int] = []
    while missing := count - len(elements):
        data = draw(random, missing * size)
        starts = range(0, len(data), size)
        drawn = (int.from_bytes(data[at : at + size], "big") & mask for at in starts)
        elements += [element for element in drawn if element < prime]
    return elements


def _canonical(points: Sequence[int], prime: int) -> list[int]:
    reduced = [point % prime for point in points]
    if 0 in reduced or len(set(reduced)) < len(reduced):
        raise LocalError("points: they must be distinct and non-zero modulo the prime")
    return reduced


def _evaluate(coefficients: Sequence[int], point: int) -> int:
    # Unreduced: a small point adds a few bits a step, which costs less than a division.
    value = 0
    for coefficient in coefficients:
        value = value * point + coefficient
    return value


def _inverses(values: Sequence[int], prime: int) -> list[int]:
    """The inverse of each value at the price of one inversion (Montgomery's trick)."""
    prefixes = list(accumulate(values, lambda left, right: left * right % prime, initial=1))
    suffix_inverse = pow(prefixes.pop(), -1, prime)
    inverses = []
    for value, prefix in zip(reversed(values), reversed(prefixes), strict=True):
        inverses.append(suffix_inverse * prefix % prime)
        suffix_inverse = suffix_inverse * value % prime
    return inverses[::-1]
