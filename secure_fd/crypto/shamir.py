"""Shamir's secret sharing over a prime field, on plain integers (Shamir 1979).

A polynomial of degree below the threshold, its constant term the secret and every other
coefficient uniform, is evaluated at one point a holder: any `threshold` values determine it,
fewer are uniform and independent of the secret. Python's integers are not constant-time;
an attacker that can time a party's process is outside the model.
"""

import math
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate, zip_longest
from operator import mul
from typing import Final

from secure_fd.crypto.keys import RandomBytes, draw
from secure_fd.errors import LocalError

PRIME: Final = 2**255 - 19
"""Order of the field: 2^255 - 19, so a draw of 255 bits is rejected once in 2^250."""
ELEMENT_BYTES: Final = 32


def draw_element(random: RandomBytes) -> int:
    """Draw one element of the field, exactly uniform where the bytes of `random` are."""
    return _draw_elements(1, random)[0]


def encode(element: int) -> bytes:
    """Encode an element as 32 bytes, big-endian; LocalError for a number outside the field.

    >>> encode(7)[-1]
    7
    """
    _check_element(element)
    return element.to_bytes(ELEMENT_BYTES, "big")


def split(secret: int, points: Sequence[int], threshold: int, random: RandomBytes) -> list[int]:
    """One share of `secret` for each point, in the order of the points.

    points: distinct and non-zero modulo the prime; small ones are fastest. Any `threshold`
    shares restore the secret; fewer are independent of it. LocalError for a secret outside the
    field, such points, or a threshold not in 1..len(points).

    >>> import os
    >>> shares = split(42, points=[1, 2, 3], threshold=2, random=os.urandom)
    >>> combine(weights_at_zero([1, 3]), [shares[0], shares[2]])
    42
    """
    _check_element(secret)
    points = _canonical(points)
    if not 1 <= threshold <= len(points):
        raise LocalError(f"threshold: {threshold} of {len(points)} shares; 1 to all are allowed")
    # Highest power first, as Horner's rule reads them. A leading zero must stay possible:
    # excluding it would exclude one secret for a party with threshold - 1 shares.
    coefficients = [*_draw_elements(threshold - 1, random), secret]
    return [_evaluate(coefficients, point) % PRIME for point in points]


def weights_at_zero(points: Sequence[int]) -> tuple[int, ...]:
    """Lagrange's coefficients at zero: the secret is their inner product with the shares.

    They depend on the points alone, so one call serves every secret that the same holders
    share. LocalError for points that `split` refuses, or none.

    >>> weights_at_zero([1, 2, 3])[0]
    3
    """
    points = _canonical(points)
    if not points:
        raise LocalError("points: none; the weights at zero need at least one")
    # w_i = Π_{j≠i} x_j / (x_j - x_i) = Π_j x_j / (x_i Π_{j≠i} (x_j - x_i)).
    last, product = max(points), math.prod(points) % PRIME
    if last > 4 * len(points):
        divisors = [at * math.prod([x - at for x in points if x != at]) % PRIME for at in points]
        return tuple(product * inverse % PRIME for inverse in _inverses(divisors))
    # Few of 1..last are missing, as among holders: their factors are multiplied back.
    missing, inverse = sorted(set(range(1, last)).difference(points)), _dense_inverses(last)
    gaps = [math.prod([gap - at for gap in missing]) for at in points]
    return tuple(product * gap * inverse[at] % PRIME for at, gap in zip(points, gaps, strict=True))


@lru_cache(maxsize=64)
def _dense_inverses(last: int) -> list[int]:
    """1 / (x Π_{j≠x} (j - x)) for x up to `last`, with j over 1..last: ± 1 / (x! (last - x)!)."""
    factorials = _inverses(list(accumulate(range(1, last + 1), _product, initial=1)))
    pairs = zip(factorials, reversed(factorials), strict=True)
    return [(-1) ** (at + 1) * one * other % PRIME for at, (one, other) in enumerate(pairs)]


def combine(weights: Sequence[int], shares: Sequence[int]) -> int:
    """The secret whose shares, in the order of the weights' points, these are.

    Shares of different secrets, or fewer than the threshold, combine to some other element
    without a sign: check the result against what its owner published.

    >>> combine(weights_at_zero([1, 2]), [5, 6])  # the line 4 + x
    4
    """
    if len(weights) != len(shares):
        raise LocalError(f"shares: {len(shares)} for {len(weights)} weights; each needs one")
    total: int = sum(map(mul, weights, shares))
    return total % PRIME


def correct(
    points: Sequence[int], shares: Sequence[int], threshold: int
) -> tuple[int, tuple[int, ...]] | None:
    """The secret, and which of its shares are wrong, by their places in the list.

    Up to half of the shares beyond the threshold may be wrong, whatever they are: a Reed-Solomon
    code with n points and t coefficients, decoded by the recurrence of its syndromes (Massey 1969).
    None where more are, mostly. LocalError for points that `split` refuses.

    >>> correct([1, 2, 3, 4, 5], [5, 6, 0, 8, 9], threshold=2)  # the line 4 + x, at 3
    (4, (2,))
    """
    points, spare = _canonical(points), len(shares) - threshold
    # With w the weights at zero, Σ_i w_i x_i^(k+1) f(x_i) is zero for k below n - t and every f of
    # degree below t: what these sums are comes of the wrong shares alone.
    terms = list(map(mul, weights_at_zero(points), shares))
    syndromes = []
    for _ in range(spare):
        terms = [term * point % PRIME for term, point in zip(terms, points, strict=True)]
        syndromes.append(sum(terms) % PRIME)
    locator = _recurrence(syndromes)
    wrong = [at for at, point in enumerate(points) if _evaluate(locator, point) % PRIME == 0]
    if len(wrong) != len(locator) - 1 or 2 * len(wrong) > spare:
        return None
    right = [at for at in range(len(points)) if at not in wrong][:threshold]
    weights = weights_at_zero([points[at] for at in right])
    return combine(weights, [shares[at] for at in right]), tuple(wrong)


def _recurrence(sequence: Sequence[int]) -> list[int]:
    """[L + 1] coefficients of the shortest linear recurrence, 1 before the newest element."""
    current, before = [1], [1]
    length, shift, divisor = 0, 1, 1
    for at in range(len(sequence)):
        gap = sum(one * sequence[at - by] for by, one in enumerate(current)) % PRIME
        if gap:
            factor = gap * pow(divisor, -1, PRIME)
            moved = [0] * shift + [factor * one for one in before]
            pairs = zip_longest(current, moved, fillvalue=0)
            changed = [(one - other) % PRIME for one, other in pairs]
            if 2 * length <= at:
                length, before, divisor, shift = at + 1 - length, current, gap, 0
            current = changed
        shift += 1
    return current + [0] * (length + 1 - len(current))


def _check_element(element: int) -> None:
    # The sentence leaves the value out: it may be a secret.
    if not 0 <= element < PRIME:
        raise LocalError("a field element must be from 0 to below the prime of its field")


def _draw_elements(count: int, random: RandomBytes) -> list[int]:
    """Uniform elements by rejection: one call of `random` unless one is rejected."""
    size = (PRIME.bit_length() + 7) // 8
    mask = (1 << PRIME.bit_length()) - 1
    elements: list[int] = []
    while missing := count - len(elements):
        data = draw(random, missing * size)
        starts = range(0, len(data), size)
        drawn = (int.from_bytes(data[at : at + size], "big") & mask for at in starts)
        elements += [element for element in drawn if element < PRIME]
    return elements


def _canonical(points: Sequence[int]) -> list[int]:
    reduced = [point % PRIME for point in points]
    if 0 in reduced or len(set(reduced)) < len(reduced):
        raise LocalError("points: they must be distinct and non-zero modulo the prime")
    return reduced


def _evaluate(coefficients: Sequence[int], point: int) -> int:
    # Unreduced: a small point adds a few bits a step, which costs less than a division.
    value = 0
    for coefficient in coefficients:
        value = value * point + coefficient
    return value


def _product(one: int, other: int) -> int:
    return one * other % PRIME


def _inverses(values: Sequence[int]) -> list[int]:
    """The inverse of each value at the price of one inversion (Montgomery's trick)."""
    prefixes = list(accumulate(values, _product, initial=1))
    suffix_inverse = pow(prefixes.pop(), -1, PRIME)
    inverses = []
    for value, prefix in zip(reversed(values), reversed(prefixes), strict=True):
        inverses.append(suffix_inverse * prefix % PRIME)
        suffix_inverse = suffix_inverse * value % PRIME
    return inverses[::-1]
