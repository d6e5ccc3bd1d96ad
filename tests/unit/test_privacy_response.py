"""Alphabets, randomised response and the ledger: everything about them that is not statistical."""

import copy
import itertools
import math
import os
import pickle
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from secure_fd.errors import ConfigurationError, LocalError, PeerError
from secure_fd.knowledge import IntArray, one_hot
from secure_fd.privacy.alphabet import Alphabet, declaring
from secure_fd.privacy.entropy import Random, SeededRandom, words
from secure_fd.privacy.ledger import LabelLedger
from secure_fd.privacy.randomized_response import RandomizedResponse, sample_symbols

WORD = 1 << 64


def fixed(*values: int) -> Random:
    """A generator that gives these 64-bit words, in order, and then fails."""
    stream = iter(values)
    return lambda count: b"".join(next(stream).to_bytes(8, "little") for _ in range(count // 8))


def forbidden(count: int) -> bytes:
    raise AssertionError(f"{count} random bytes were drawn where none may be")


def exact_distribution(
    mechanism: RandomizedResponse, truth: int, alphabet: Alphabet
) -> dict[int, Fraction]:
    """Exact probability of every answer, by asking at both ends of each interval of words."""
    wrong = mechanism._wrong
    edges = [i * wrong for i in range(mechanism.alphabet_size)] + [WORD]
    answers: dict[int, Fraction] = {}
    for low, high in itertools.pairwise(edges):
        first, last = mechanism.respond_within(
            np.array([truth, truth]), alphabet, fixed(low, high - 1)
        )
        assert first == last
        answers[int(first)] = answers.get(int(first), Fraction(0)) + Fraction(high - low, WORD)
    return answers


@given(
    epsilon=st.floats(0.01, 44),
    spare=st.integers(0, 4),
    declared=st.sets(st.integers(0, 5), min_size=1),
)
def test_no_answer_is_ever_more_telling_than_epsilon(
    epsilon: float, spare: int, declared: set[int]
) -> None:
    """Exact rational arithmetic over all words: no tolerance."""
    alphabet = Alphabet(6, tuple(sorted(declared)))
    mechanism = RandomizedResponse(epsilon, alphabet.size + spare)
    worlds = [exact_distribution(mechanism, truth, alphabet) for truth in range(7)]
    with localcontext() as context:
        context.prec = 60
        limit = Fraction(Decimal(epsilon).exp())
    for one, other in itertools.permutations(worlds, 2):
        assert one.keys() == other.keys() == {*declared, 6}
        assert all(one[s] <= limit * other[s] for s in one)


def test_probabilities_are_the_textbook_ones() -> None:
    mechanism = RandomizedResponse(4.0, 11)
    assert mechanism.p == pytest.approx(math.exp(4) / (math.exp(4) + 10), rel=1e-15)
    assert mechanism.q == pytest.approx(1 / (math.exp(4) + 10), rel=1e-15)
    world = exact_distribution(mechanism, 3, Alphabet.full(10))
    assert float(world[3]) == mechanism.p
    assert {float(world[s]) for s in world if s != 3} == {mechanism.q}


def test_a_very_large_epsilon_still_leaves_one_word_of_doubt() -> None:
    for epsilon in (50.0, 1e9):
        assert RandomizedResponse(epsilon, 11).q == 2.0**-64


def test_a_declared_class_keeps_the_common_p_and_q() -> None:
    small, large = Alphabet(10, (3,)), Alphabet(10, (0, 3, 7))
    mechanism = RandomizedResponse.over(2.0, [small, large])
    assert mechanism.alphabet_size == 4
    for alphabet in (small, large):
        assert float(exact_distribution(mechanism, 3, alphabet)[3]) == mechanism.p
        assert float(exact_distribution(mechanism, 10, alphabet)[3]) == mechanism.q
    undeclared = exact_distribution(mechanism, 5, small)
    assert undeclared == exact_distribution(mechanism, small.abstain, small)
    assert declaring([small, large]).tolist() == [1, 0, 0, 2, 0, 0, 0, 1, 0, 0]


def test_infinite_epsilon_is_the_identity_and_draws_nothing() -> None:
    symbols, sums = np.arange(11), np.linspace(0, 3, 10)[None, :]
    mechanism = RandomizedResponse(math.inf, 11)
    assert (mechanism.respond(symbols, forbidden) == symbols).all()
    ledger = LabelLedger(mechanism, Alphabet(10, (1,)), 11)
    for answers in (symbols, symbols[::-1]):
        assert (ledger.release(symbols, answers, forbidden) == answers).all()
    assert ledger.released == 11
    assert mechanism.debias(sums, 3).tobytes() == sums.tobytes()


def test_debias_inverts_the_expected_sums() -> None:
    mechanism = RandomizedResponse(1.5, 5)
    clients = np.array([7, 3, 0, 9])
    true = np.array([[2.0, 3.0, 0.0, 1.0], [0.0, 0.0, 0.0, 9.0]])
    expected = true * mechanism.p + (clients - true) * mechanism.q
    np.testing.assert_allclose(mechanism.debias(expected, clients), true, atol=1e-12)
    with pytest.raises(PeerError, match="more votes than clients"):
        mechanism.debias(np.array([[0.0, 0.0, 1.0, 0.0]]), clients)
    with pytest.raises(PeerError):
        mechanism.debias(np.array([[-1.0, 0.0, 0.0, 0.0]]), clients)
    with pytest.raises(LocalError, match="one number a class"):
        mechanism.debias(true, np.array([1, 2]))


@given(st.lists(st.integers(0, 4), min_size=1, max_size=20))
def test_a_hard_label_is_never_left_to_chance(classes: list[int]) -> None:
    symbols = sample_symbols(np.ones(len(classes)), one_hot(classes, 5), os.urandom)
    assert symbols.tolist() == classes
    for word in (0, WORD - 1):
        extreme, again = (fixed(*[word] * len(classes)) for _ in range(2))
        rows = one_hot(classes, 5)
        assert sample_symbols(np.ones(len(classes)), rows, extreme).tolist() == classes
        assert (sample_symbols(np.zeros(len(classes)), rows, again) == 5).all()


def test_float32_softmax_rows_of_weight_one_never_abstain() -> None:
    rows = np.random.default_rng(0).dirichlet(np.ones(10), 200).astype(np.float32)
    symbols = sample_symbols(np.ones(200), rows.astype(np.float64), fixed(*[WORD - 1] * 200))
    assert (symbols == 9).all()


@pytest.mark.parametrize(
    ("weight", "row"),
    [(1.1, [0.5, 0.5]), (-0.1, [1.0, 0.0]), (1.0, [0.5, 0.4]), (1.0, [1.5, -0.5]),
     (math.nan, [1.0, 0.0]), (1.0, [math.nan, 1.0])],
)  # fmt: skip
def test_what_is_no_probability_is_refused(weight: float, row: list[float]) -> None:
    with pytest.raises(LocalError, match="outside"):
        sample_symbols(np.array([weight]), np.array([row]), os.urandom)


def test_bad_settings_and_symbols_are_refused() -> None:
    for epsilon, size in [(0.0, 11), (-1.0, 11), (math.nan, 11), (1e-19, 11), (1.0, 1)]:
        with pytest.raises(ConfigurationError):
            RandomizedResponse(epsilon, size)
    for classes in [(), (10,), (-1,), (2, 1), (1, 1)]:
        with pytest.raises(ConfigurationError, match="classes"):
            Alphabet(10, classes)
    mechanism = RandomizedResponse(1.0, 3)
    with pytest.raises(LocalError, match="outside the alphabet"):
        mechanism.respond(np.array([3]), os.urandom)
    with pytest.raises(LocalError, match="exceeds the agreed 3"):
        mechanism.respond_within(np.array([0]), Alphabet.full(3), os.urandom)
    with pytest.raises(LocalError, match=r"outside \[0, 2\]"):
        mechanism.respond_within(np.array([-1]), Alphabet.full(2), os.urandom)
    with pytest.raises(LocalError, match="gave 7 bytes"):
        words(lambda count: bytes(count - 1), 1)


def fresh_ledger(epsilon: float = 0.5, n_proxies: int = 50) -> LabelLedger:
    return LabelLedger(RandomizedResponse(epsilon, 11), Alphabet.full(10), n_proxies)


def test_a_pair_is_answered_once_and_for_good() -> None:
    ledger, random = fresh_ledger(), SeededRandom(1)
    first = ledger.release(np.arange(30), np.zeros(30, dtype=np.int64), random)
    assert ledger.released == 30
    again = ledger.release(np.arange(30), np.full(30, 9), forbidden)
    assert (again == first).all()
    drawn: list[int] = []

    def counting(count: int) -> bytes:
        drawn.append(count)
        return random(count)

    mixed: IntArray = np.array([40, 3, 41, 3, 40])
    answers = ledger.release(mixed, np.array([1, 2, 3, 4, 5]), counting)
    assert drawn == [16]
    assert answers[1] == answers[3] == first[3]
    assert answers[0] == answers[4]
    assert ledger.released == 32


def test_a_failed_release_leaves_no_trace() -> None:
    ledger = fresh_ledger()
    for indices, symbols in [([50], [0]), ([-1], [0]), ([0], [11]), ([0, 1], [0])]:
        with pytest.raises(LocalError):
            ledger.release(np.array(indices), np.array(symbols), os.urandom)
    with pytest.raises(LocalError):
        ledger.release(np.array([0]), np.array([0]), lambda _: b"")
    assert ledger.released == 0


def test_the_ledger_shows_nothing_and_cannot_be_copied() -> None:
    ledger = fresh_ledger()
    ledger.release(np.arange(5), np.full(5, 7), os.urandom)
    assert repr(ledger) == "LabelLedger(n_proxies=50, released=5)"
    for attempt in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(LocalError, match="cannot be pickled or copied"):
            attempt(ledger)


def test_the_ledger_composes_over_what_it_released_and_knows_seeded_noise() -> None:
    ledger = fresh_ledger(epsilon=4.0)
    ledger.release(np.arange(20), np.zeros(20, dtype=np.int64), os.urandom)
    claim = ledger.guarantee(1e-5)
    assert claim.epsilon == 4
    assert "20 answers" in claim.accountant
    assert all(40 < c.epsilon < 80 for c in claim.composes_to)
    ledger.release(np.arange(20), np.zeros(20, dtype=np.int64), SeededRandom(0))
    assert ledger.guarantee(1e-5) == claim
    ledger.release(np.arange(20, 21), np.zeros(1, dtype=np.int64), SeededRandom(0))
    assert ledger.guarantee(1e-5).unmet == ("the noise was drawn from a seeded generator",)
