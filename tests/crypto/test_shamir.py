"""Any threshold of shares restores the secret; fewer say nothing, checked share by share.

Secrecy is exact, not sampled: over a small field every choice of coefficients is fed in once,
and what threshold - 1 holders see must then be as frequent for one secret as for another.
"""

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import combinations, product
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secure_fd.crypto import shamir
from secure_fd.crypto.keys import RandomBytes, insecure_bytes
from secure_fd.crypto.shamir import (
    ELEMENT_BYTES,
    PRIME,
    combine,
    correct,
    draw_element,
    encode,
    split,
    weights_at_zero,
)
from secure_fd.errors import LocalError

DRAW_ELEMENTS = shamir._draw_elements
SMALL_FIELDS = [(5, 2, (1, 2, 3, 4)), (5, 3, (1, 2, 3, 4)), (7, 3, (1, 3, 6)), (5, 4, (4, 1, 2, 3))]
"""(prime, threshold, points)"""


def feeding(data: bytes) -> RandomBytes:
    """A source that gives these bytes front to back."""
    stream = iter(data)
    return lambda size: bytes(next(stream) for _ in range(size))


@contextmanager
def field_of(prime: int) -> Iterator[None]:
    """The field of another prime, in the place of the one that shares are in."""
    shamir._dense_inverses.cache_clear()
    with patch.object(shamir, "PRIME", prime):
        yield
    shamir._dense_inverses.cache_clear()


# Correctness


@settings(max_examples=150, deadline=None)
@given(
    secret=st.integers(0, PRIME - 1) | st.sampled_from([0, 1, PRIME - 1]),
    points=st.lists(st.integers(1, 2000) | st.integers(1, PRIME - 1), min_size=1, unique=True),
    data=st.data(),
)
def test_any_threshold_of_shares_restores(secret, points, data):
    threshold = data.draw(st.integers(1, len(points)))
    shares = dict(zip(points, split(secret, points, threshold, os.urandom), strict=True))
    held = data.draw(st.permutations(points))[: data.draw(st.integers(threshold, len(points)))]
    weights = weights_at_zero(held)
    assert combine(weights, [shares[point] for point in held]) == secret
    assert all(0 <= share < PRIME for share in shares.values())


def test_shares_of_a_published_example():
    # f(x) = 1234 + 166 x + 94 x^2 over GF(1613), the example of many texts on the scheme.
    coefficients = feeding((94).to_bytes(2, "big") + (166).to_bytes(2, "big"))
    with field_of(1613):
        shares = split(1234, range(1, 7), 3, coefficients)
        assert shares == [1494, 329, 965, 176, 1188, 775]
        assert combine(weights_at_zero([2, 4, 5]), [329, 176, 1188]) == 1234


# Secrecy


def all_coefficients(prime: int, threshold: int) -> Iterator[bytes]:
    """All values of the threshold - 1 coefficients, each of them once."""
    return map(bytes, product(range(prime), repeat=threshold - 1))


def split_with(coefficients: bytes, secret: int, points: tuple[int, ...], prime: int) -> list[int]:
    with field_of(prime):
        return shamir.split(secret, points, len(coefficients) + 1, feeding(coefficients))


def seen(
    prime: int, threshold: int, points: tuple[int, ...], secret: int
) -> list[Counter[tuple[int, ...]]]:
    """For each threshold - 1 holders, how often each tuple of shares occurs, over all draws."""
    shares = [
        split_with(coefficients, secret, points, prime)
        for coefficients in all_coefficients(prime, threshold)
    ]
    holders = combinations(range(len(points)), threshold - 1)
    return [Counter(tuple(row[at] for at in held) for row in shares) for held in holders]


def hides(prime: int, threshold: int, points: tuple[int, ...]) -> bool:
    """Check that every tuple of threshold - 1 shares is equally frequent for each secret."""
    every = dict.fromkeys(product(range(prime), repeat=threshold - 1), 1)
    return all(
        counts == every
        for secret in range(prime)
        for counts in seen(prime, threshold, points, secret)
    )


@pytest.mark.parametrize(("prime", "threshold", "points"), SMALL_FIELDS)
def test_fewer_shares_than_the_threshold_are_uniform_whatever_the_secret(prime, threshold, points):
    assert hides(prime, threshold, points)


def leading_never_zero(elements: list[int]) -> list[int]:
    return [max(1, elements[0]), *elements[1:]]


def last_is_zero(elements: list[int]) -> list[int]:
    return [*elements[:-1], 0]


def one_value_short(elements: list[int]) -> list[int]:
    return [min(element, shamir.PRIME - 2) for element in elements]


def all_the_same(elements: list[int]) -> list[int]:
    return elements[:1] * len(elements)


@pytest.mark.parametrize(
    "broken", [leading_never_zero, last_is_zero, one_value_short, all_the_same]
)
@pytest.mark.parametrize(("prime", "threshold", "points"), SMALL_FIELDS[1:])
def test_coefficients_short_of_uniform_are_caught(broken, prime, threshold, points, monkeypatch):
    def draws(count: int, random: RandomBytes) -> list[int]:
        return broken(DRAW_ELEMENTS(count, random))

    monkeypatch.setattr(shamir, "_draw_elements", draws)
    assert not hides(prime, threshold, points)


def test_a_threshold_one_too_low_is_caught(monkeypatch):
    def lower(secret: int, points: Sequence[int], threshold: int, random: RandomBytes) -> list[int]:
        return split(secret, points, threshold - 1, random)

    monkeypatch.setattr(shamir, "split", lower)
    assert not hides(5, 3, (1, 2, 3, 4))


# Randomness


class RejectedError(Exception):
    """The source was asked a second time."""


def first_draws(draw_one: Callable[[RandomBytes], int]) -> Counter[int]:
    """Count each element over all 256 first bytes that are not rejected."""

    def source(first: int) -> RandomBytes:
        left = [bytes([first])]

        def random(_size: int) -> bytes:
            if not left:
                raise RejectedError
            return left.pop()

        return random

    results: Counter[int] = Counter()
    for first in range(256):
        with suppress(RejectedError):
            results[draw_one(source(first))] += 1
    return results


@pytest.mark.parametrize("prime", [2, 3, 5, 7, 13, 251])
def test_an_element_is_exactly_uniform(prime):
    with field_of(prime):
        counts = first_draws(draw_element)
    assert set(counts) == set(range(prime))
    assert len(set(counts.values())) == 1


def test_a_rejected_element_is_drawn_anew():
    rejected = [b"\xff" * ELEMENT_BYTES, PRIME.to_bytes(ELEMENT_BYTES, "big")]
    assert draw_element(feeding(b"".join([*rejected, encode(PRIME - 1)]))) == PRIME - 1
    # Of the two coefficients of a split, only the rejected one is drawn again: f = 1 + x + 2x^2.
    random = feeding(encode(2) + rejected[1] + encode(1))
    assert split(1, [1, 2, 3], 3, random) == [4, 11, 22]


# Refusals


@pytest.mark.parametrize("secret", [-1, PRIME, 2**256])
def test_a_secret_outside_the_field_is_refused_and_not_named(secret):
    for refused in (lambda: encode(secret), lambda: split(secret, [1, 2], 2, os.urandom)):
        with pytest.raises(LocalError) as error:
            refused()
        assert str(secret) not in str(error.value)


@pytest.mark.parametrize("points", [[0, 1], [1, 1], [PRIME, 1], [1, PRIME + 1]])
def test_points_that_share_a_place_or_show_the_secret_are_refused(points):
    for refused in (
        lambda: split(1, points, 2, os.urandom),
        lambda: weights_at_zero(points),
        lambda: correct(points, [1] * len(points), 2),
    ):
        with pytest.raises(LocalError, match="points"):
            refused()


def test_thresholds_shares_and_weights_that_do_not_fit_are_refused():
    for threshold in (-1, 0, 4):
        with pytest.raises(LocalError, match="threshold"):
            split(1, [1, 2, 3], threshold, os.urandom)
    with pytest.raises(LocalError, match="points"):
        weights_at_zero([])
    with pytest.raises(LocalError, match="shares"):
        combine(weights_at_zero([1, 2, 3]), [1, 2])


# Correction of wrong shares, up to half of those beyond the threshold.


PRIMES = [PRIME, 101, 2**31 - 1]


@st.composite
def codewords(draw: st.DrawFn, most: str) -> tuple[int, list[int], list[int], set[int], int, int]:
    """Secret, points, shares of which some are wrong, which these are, threshold, prime."""
    prime = draw(st.sampled_from(PRIMES))
    n = draw(st.integers(1, 24))
    threshold = draw(st.integers(1, n))
    points = draw(st.lists(st.integers(1, prime - 1), min_size=n, max_size=n, unique=True))
    secret = draw(st.integers(0, prime - 1))
    with field_of(prime):
        random = insecure_bytes(draw(st.integers(0, 2**32)))
        shares = split(secret, points, threshold, random)
    spare = n - threshold
    least, largest = (0, spare // 2) if most == "half" else (spare // 2 + 1, n)
    count = draw(st.integers(min(least, n), max(least, largest)))
    wrong = set(draw(st.permutations(range(n)))[: min(count, n)])
    for at in wrong:
        shares[at] = (shares[at] + draw(st.integers(1, prime - 1))) % prime
    return secret, points, shares, wrong, threshold, prime


@given(codewords("half"))
@settings(max_examples=200, deadline=None, derandomize=True)
def test_up_to_half_of_the_spare_shares_may_be_anything(word):
    secret, points, shares, wrong, threshold, prime = word
    with field_of(prime):
        assert correct(points, shares, threshold) == (secret, tuple(sorted(wrong)))


@given(codewords("more"))
@settings(max_examples=200, deadline=None, derandomize=True)
def test_with_more_the_answer_is_none_or_fits_enough_shares(word):
    """The caller checks the secret against the value that its owner published."""
    _, points, shares, _, threshold, prime = word
    with field_of(prime):
        found = correct(points, shares, threshold)
    if found is not None:
        secret, named = found
        assert len(named) <= (len(points) - threshold) // 2
        kept = [at for at in range(len(points)) if at not in named]
        with field_of(prime):
            again = correct([points[at] for at in kept], [shares[at] for at in kept], threshold)
        assert again == (secret, ())
