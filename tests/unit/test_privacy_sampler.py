"""The samplers' exact arithmetic: the tables, and every comparison at 128 bits."""

import math
from bisect import bisect_right
from decimal import Decimal
from fractions import Fraction
from itertools import pairwise
from typing import Final

import numpy as np
import pytest

from secure_fd.errors import ConfigurationError
from secure_fd.privacy.samplers import (
    MAX_SIGMA,
    TOTAL_VARIATION,
    Random,
    SeededRandom,
    Table,
    _accepted,
    _below_exp,
    _proposal,
    _reach,
    _scaled_exp,
    _whole,
    discrete_gaussian,
    words,
)
from secure_fd.votes.codec import FloatArray

FULL: Final = 1 << 128


def edges_of(table: Table) -> list[int]:
    """Where the entries of a table begin and end, in units of 2^-128."""
    upper, lower = table.leading.tolist(), table.trailing.tolist()
    return [0, *(high << 64 | low for high, low in zip(upper, lower, strict=True)), FULL]


def law_of(table: Table) -> FloatArray:
    """[n] the probabilities that a table gives its entries."""
    return np.array([(b - a) / FULL for a, b in pairwise(edges_of(table))])


def low_word(value: int) -> Random:
    return lambda _: value.to_bytes(8, "little")


@pytest.mark.parametrize("sigma", [0.05, 0.4, 3.0, 15.99])
def test_one_table_is_the_distribution_of_a_small_sigma(sigma):
    x = np.arange(-_reach(sigma), _reach(sigma) + 1)
    ideal = np.exp(-(x**2) / (2 * sigma**2))
    np.testing.assert_allclose(law_of(_whole(sigma)), ideal / ideal.sum(), rtol=1e-10, atol=1e-35)


@pytest.mark.parametrize("sigma", [16.0, 20.3, 300.0])
def test_table_times_acceptance_is_the_distribution(sigma):
    """The law that the two steps give, worked out without sampling, against the definition."""
    proposal = _proposal(sigma)
    k = 1 << proposal.shift
    buckets = law_of(proposal.table)
    x = np.arange(len(buckets) * k)
    fine = x % k
    accepted = np.exp(-fine * (fine + 2 * (x - fine)) / (2 * sigma**2))
    ours = buckets[x // k] / k * accepted
    ours /= 2 * ours.sum() - ours[0]
    ideal = np.exp(-(x**2) / (2 * sigma**2))
    ideal /= 2 * ideal.sum() - ideal[0]
    np.testing.assert_allclose(ours, ideal, rtol=1e-10, atol=1e-35)


def given(*values: int) -> Random:
    """A generator that gives these 64-bit words, one a call, and then fails."""
    stream = iter(values)
    return lambda _: next(stream).to_bytes(8, "little")


@pytest.mark.parametrize(
    ("fine", "bucket"), [(0, 0), (1, 0), (3, 5), (31, 1), (31, 40), (0, 7), (17, 60)]
)
@pytest.mark.parametrize("negative", [False, True])
def test_a_proposal_is_accepted_with_what_its_exponent_lacks(fine, bucket, negative):
    """Chosen words for the three draws, with the last next to exp(-(x^2 - (kQ)^2) / 2 sigma^2)."""
    sigma, k = 300.0, 32
    proposal, x = _proposal(sigma), k * bucket + fine
    assert proposal.shift == 5
    edges = edges_of(proposal.table)
    inside = (edges[bucket] + edges[bucket + 1] >> 1) >> 64
    limit = math.exp(-(x**2 - (k * bucket) ** 2) / (2 * sigma**2)) * 2**64
    outcomes = []
    for last in (limit * (1 - 1e-9), limit * (1 + 1e-9)):
        last_word = min(int(last), 2**64 - 1)
        drawn = _accepted(proposal, 1, given(inside, fine | negative << 63, last_word, 0))
        outcomes.append(drawn.tolist())
    kept = [] if negative and x == 0 else [-x if negative else x]
    assert outcomes == [kept, [] if fine else kept]


@pytest.mark.parametrize("sigma", [16.0, 17.1, 1000.0, 2.0**19, MAX_SIGMA])
def test_the_table_stays_small_and_reaches_the_tail(sigma):
    proposal = _proposal(sigma)
    edges = edges_of(proposal.table)
    assert len(edges) <= 227
    assert (len(edges) - 1 << proposal.shift) > 13.9 * sigma
    assert edges == sorted(edges)


@pytest.mark.parametrize(
    "table", [_whole(3.0), _whole(15.99), _proposal(20.0).table, _proposal(2.0**26).table]
)
def test_a_tie_of_the_first_64_bits_is_settled_by_the_rest(table):
    """At every threshold: the number itself has reached it, the one below has not."""
    edges = edges_of(table)
    for threshold in edges[1:-1][:: 1 + len(edges) // 400]:
        upper, lower = np.array([threshold >> 64], dtype=np.uint64), threshold % 2**64
        for low in (lower, lower - 1) if lower else (lower,):
            reached = bisect_right(edges, (threshold >> 64 << 64) + low) - 1
            assert table.look_up(upper, low_word(low)) == [reached]


def test_thresholds_that_share_their_first_64_bits_are_told_apart():
    """Three entries of 2^-127 each after 0.3; only the lower halves of the thresholds differ."""
    tiny = Decimal(2) ** -127
    table = Table.of([Decimal("0.3"), tiny, tiny, tiny, Decimal("0.7") - 3 * tiny])
    assert len(set(table.leading.tolist())) == 1
    upper, first = table.leading[:1], int(table.trailing[0])
    reached = [table.look_up(upper, low_word(first + more)).item() for more in range(-1, 8)]
    assert reached == [0, 1, 1, 2, 2, 3, 3, 4, 4]


def test_a_uniform_next_to_the_exponential_is_settled_exactly():
    proposal = _proposal(500.0)
    for exponent in (1, 17, 4321, 99_999):
        exact = _scaled_exp(Decimal(-exponent), proposal.twice_variance)
        assert exact / FULL == pytest.approx(math.exp(-exponent / 500_000), rel=1e-14)
        leading, low = np.array([exact >> 64], dtype=np.uint64), exact % 2**64
        exponents = np.array([exponent])
        assert not _below_exp(leading, exponents, proposal, low_word(low))[0]
        assert _below_exp(leading, exponents, proposal, low_word(low - 1))[0]


def test_what_a_float_cannot_tell_apart_is_settled_exactly():
    """Words 300 / 2^64 from the threshold: floats there are 2^-53 apart, and would guess."""
    proposal, exponents = _proposal(500.0), np.arange(1, 400_000, 2000)
    exact = [_scaled_exp(-Decimal(int(e)), proposal.twice_variance) >> 64 for e in exponents]
    for offset, below in ((-300, True), (300, False)):
        leading = np.array([word + offset for word in exact], dtype=np.uint64)
        assert (_below_exp(leading, exponents, proposal, low_word(0)) == below).all()


def test_the_fast_comparison_agrees_with_the_exact_one():
    proposal, random = _proposal(2.0**19), SeededRandom(3)
    leading = words(random, 2000)
    exponents = (words(random, 2000) >> np.uint64(23)).astype(np.int64)
    fast = _below_exp(leading, exponents, proposal, random)
    exact = _below_exp(leading, exponents, proposal, random, doubt=1.0)
    assert (fast == exact).all()
    assert 100 < fast.sum() < 1900


def test_certain_acceptance_is_certain():
    top, none = np.array([2**64 - 1], dtype=np.uint64), np.array([0])
    assert _below_exp(top, none, _proposal(30.0), low_word(2**64 - 1))[0]


def test_no_noise_and_no_samples_draw_nothing():
    def forbidden(count: int) -> bytes:
        raise AssertionError(f"{count} bytes drawn")

    assert discrete_gaussian(0.0, 7, forbidden).tolist() == [0] * 7
    for parameter in (5.0, 500.0):
        assert discrete_gaussian(parameter, 0, forbidden).size == 0


@pytest.mark.parametrize("parameter", [7.0, 1e5])
def test_the_bytes_decide_everything(parameter):
    one, other = (discrete_gaussian(parameter, 1000, SeededRandom(4)) for _ in range(2))
    assert (one == other).all()
    assert (one != discrete_gaussian(parameter, 1000, SeededRandom(5))).any()
    assert one.dtype == np.int64


@pytest.mark.parametrize("tiny", [5e-324, 1e-160, 1e-9])
def test_noise_far_below_one_unit_is_none(tiny):
    assert not discrete_gaussian(tiny, 1000, SeededRandom(6)).any()


@pytest.mark.parametrize("parameter", [-1.0, math.nan, math.inf, MAX_SIGMA * 1.01])
def test_impossible_parameters_are_refused(parameter):
    with pytest.raises(ConfigurationError, match="sigma"):
        discrete_gaussian(parameter, 1, SeededRandom(0))


def test_the_stated_distance_covers_thresholds_and_tail():
    """n 2^-129 for the largest table that is drawn from, and its tail."""
    entries = len(_whole(15.999).leading) + 1
    assert Fraction(entries, 2**129) + Fraction(1, 2**139) < Fraction(TOTAL_VARIATION)
