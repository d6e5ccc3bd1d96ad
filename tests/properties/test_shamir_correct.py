"""Wrong shares are corrected up to half of those beyond the threshold, and found exactly."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secure_fd.crypto.keys import insecure_bytes
from secure_fd.crypto.shamir import PRIME, correct, split
from secure_fd.errors import LocalError
from tests.properties.test_shamir import field_of

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
def test_with_more_the_answer_is_none_or_fits_all_but_so_many(word):
    """It cannot know better; whoever asks checks the secret against what its owner published."""
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


def test_the_order_of_the_shares_and_what_they_are_modulo_the_prime_do_not_matter():
    points = [9, 2, 7, 4, 1]
    shares = split(42, points, 3, insecure_bytes(1))
    shares[3] += 5
    assert correct(points, shares, 3) == (42, (3,))
    assert correct(points[::-1], shares[::-1], 3) == (42, (1,))
    assert correct(points, [share + PRIME for share in shares], 3) == (42, (3,))


def test_secrets_and_shares_of_zero_are_corrected():
    assert correct([1, 2, 3, 4, 5], [0] * 5, 3) == (0, ())
    assert correct([1, 2, 3, 4, 5], [0, 0, 7, 0, 0], 3) == (0, (2,))
    assert correct([1], [5], 1) == (5, ())


@pytest.mark.parametrize("points", [[1, 1, 2], [0, 1, 2], [PRIME, 1, 2]])
def test_points_that_no_share_has_are_refused(points):
    with pytest.raises(LocalError, match="points"):
        correct(points, [1, 2, 3], 2)


def test_a_twin_that_takes_the_first_shares_is_caught_by_one_wrong_one():
    """What a server did that corrected nothing."""
    points = list(range(1, 8))
    shares = split(42, points, 3, insecure_bytes(2))
    shares[0] += 1
    assert correct(points[:3], shares[:3], 3) != (42, (0,))
    assert correct(points, shares, 3) == (42, (0,))
