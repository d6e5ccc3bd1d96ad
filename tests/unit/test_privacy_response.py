"""Randomised response and the ledger: everything about them that is not statistical."""

import copy
import itertools
import math
import os
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secure_fd.errors import ConfigurationError, LocalError, PeerError
from secure_fd.privacy.accountants import divergence
from secure_fd.privacy.events import Response
from secure_fd.privacy.label import RandomizedResponse, sample_symbols
from secure_fd.privacy.samplers import Random, words
from secure_fd.votes.codec import Contribution, one_hot

WORD = 1 << 64


def fixed(*values: int) -> Random:
    """A generator that gives these 64-bit words, in order, and then fails."""
    stream = iter(values)
    return lambda count: b"".join(next(stream).to_bytes(8, "little") for _ in range(count // 8))


def forbidden(count: int) -> bytes:
    raise AssertionError(f"{count} random bytes were drawn where none may be")


def exact_distribution(mechanism: RandomizedResponse, truth: int) -> dict[frozenset[int], Fraction]:
    """Exact probability of every answer, by asking at both ends of each interval of words."""
    edges = [i * mechanism._wrong for i in range(mechanism.alphabet_size)]
    answers: dict[frozenset[int], Fraction] = {}
    for low, high in itertools.pairwise([*edges, WORD]):
        if low < high:
            rows = mechanism.respond_rows(np.array([truth, truth]), fixed(low, high - 1))
            first, last = (frozenset(np.flatnonzero(row).tolist()) for row in rows)
            assert first == last
            answers[first] = answers.get(first, Fraction(0)) + Fraction(high - low, WORD)
    assert sum(answers.values()) == 1
    return answers


def e_to(epsilon: float) -> Fraction:
    with localcontext() as context:
        context.prec = 60
        return Fraction(Decimal(epsilon).exp())


@settings(deadline=None)
@given(epsilon=st.floats(0.01, 44), classes=st.integers(1, 6))
def test_no_answer_is_ever_more_telling_than_epsilon(epsilon, classes):
    """Exact rational arithmetic over all words: no tolerance."""
    mechanism = RandomizedResponse(epsilon, classes + 1)
    worlds = [exact_distribution(mechanism, truth) for truth in range(classes + 1)]
    limit = e_to(epsilon)
    for one, other in itertools.permutations(worlds, 2):
        assert one.keys() == other.keys()
        assert all(one[s] <= limit * other[s] for s in one)
    assert worlds[0].keys() == {frozenset(), *(frozenset({c}) for c in range(classes))}


def generous(mechanism: RandomizedResponse) -> RandomizedResponse:
    """The twin that rounds towards less noise: two words fewer for each other symbol."""
    bent = copy.copy(mechanism)
    object.__setattr__(bent, "_wrong", mechanism._wrong - 2)
    return bent


@pytest.mark.parametrize("size", [11, 4])
def test_two_words_less_of_2_to_the_64_are_caught(size):
    mechanism = RandomizedResponse(1.0, size)

    def keeps(made: RandomizedResponse) -> bool:
        one, other = (exact_distribution(made, truth) for truth in (0, size - 1))
        return all(one[s] <= e_to(1.0) * other[s] for s in one)

    assert keeps(mechanism)
    assert not keeps(generous(mechanism))


@pytest.mark.parametrize("size", [11, 5, 2])
def test_p_and_q_are_the_chances_of_the_words(size):
    """Within the rounding of one division, for every class and every truth."""
    mechanism = RandomizedResponse(0.7, size)
    for truth in range(size):
        world = exact_distribution(mechanism, truth)
        for c in range(size - 1):
            chance = sum(p for answer, p in world.items() if c in answer)
            assert float(chance) == (mechanism.p if c == truth else mechanism.q)


def test_probabilities_are_the_textbook_ones():
    mechanism = RandomizedResponse(4.0, 11)
    assert mechanism.p == pytest.approx(math.exp(4) / (math.exp(4) + 10), rel=1e-15)
    assert mechanism.q == pytest.approx(1 / (math.exp(4) + 10), rel=1e-15)


@pytest.mark.parametrize("size", [11, 7])
def test_the_accountant_s_curve_is_that_of_the_words(size):
    """The Renyi divergence of exact worlds; that of another alphabet is not it."""
    mechanism = RandomizedResponse(1.0, size)
    one, other = (exact_distribution(mechanism, truth) for truth in (2, size - 1))
    orders = np.array([1.5, 2.0, 8.0, 64.0])
    ratios = np.array([float(one[s] / other[s]) for s in one])
    moments = np.array([np.dot(ratios**a, [float(other[s]) for s in one]) for a in orders])
    exact = np.log(moments) / (orders - 1)
    np.testing.assert_allclose(divergence(mechanism.event(), orders), exact, rtol=1e-10)
    wrong = divergence(Response(1.0, 2 * size), orders)
    assert abs(wrong[1] / exact[1] - 1) > 0.1


def test_an_answer_of_one_symbol_is_randomised_response_word_by_word():
    """Known answers: 3 of 11 at epsilon 4, by the rule u // Q, whoever wrote the sampler."""
    q = math.floor(WORD / (math.exp(4) + 10)) // 10**6 * 10**6  # double precision, rounded down
    words_ = [0, q // 2, q + 10**9, 3 * q - 10**9, 3 * q + 10**9, 9 * q + 10**9, WORD - 1]
    answers = RandomizedResponse(4.0, 11).respond(np.full(7, 3), fixed(*words_))
    assert answers.tolist() == [0, 0, 1, 2, 4, 10, 3]


def test_a_very_large_epsilon_still_leaves_one_word_of_doubt():
    for epsilon in (50.0, 1e9):
        assert RandomizedResponse(epsilon, 11).q == 2.0**-64


def test_debias_inverts_the_expected_sums():
    mechanism = RandomizedResponse(1.5, 5)
    clients = 9
    true = np.array([[2.0, 3.0, 0.0, 1.0], [0.0, 0.0, 0.0, 9.0]])
    expected = true * mechanism.p + (clients - true) * mechanism.q
    np.testing.assert_allclose(mechanism.debias(expected, clients), true, atol=1e-12)
    with pytest.raises(PeerError, match="more votes than clients"):
        mechanism.debias(np.array([[0.0, 0.0, 10.0, 0.0]]), clients)
    with pytest.raises(PeerError):
        mechanism.debias(np.array([[-1.0, 0.0, 0.0, 0.0]]), clients)


@given(st.lists(st.integers(0, 4), min_size=1, max_size=20))
def test_a_hard_label_is_never_left_to_chance(classes):
    sure = Contribution(np.ones(len(classes)), one_hot(classes, 5))
    assert sample_symbols(sure, os.urandom).tolist() == classes
    for word in (0, WORD - 1):
        extreme, again = (fixed(*[word] * len(classes)) for _ in range(2))
        assert sample_symbols(sure, extreme).tolist() == classes
        abstaining = Contribution(np.zeros(len(classes)), sure.predictions)
        assert (sample_symbols(abstaining, again) == 5).all()


def test_float32_softmax_rows_of_weight_one_never_abstain():
    rows = np.random.default_rng(0).dirichlet(np.ones(10), 200).astype(np.float32)
    sure = Contribution(np.ones(200), rows.astype(np.float64))
    assert (sample_symbols(sure, fixed(*[WORD - 1] * 200)) == 9).all()


def test_bad_settings_and_symbols_are_refused():
    for epsilon, size in [(0.0, 11), (-1.0, 11), (math.nan, 11), (1e-19, 11), (1.0, 1)]:
        with pytest.raises(ConfigurationError):
            RandomizedResponse(epsilon, size)
    mechanism = RandomizedResponse(1.0, 3)
    for symbol in (3, -1):
        with pytest.raises(LocalError, match="outside the alphabet"):
            mechanism.respond_rows(np.array([symbol]), os.urandom)
    with pytest.raises(LocalError, match="gave 7 bytes"):
        words(lambda count: bytes(count - 1), 1)
