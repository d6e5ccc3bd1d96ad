"""The label unit: exact randomised response, its statistics, and one answer for each pair."""

import copy
import itertools
import math
import os
import pickle
from collections import defaultdict
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secure_fd.crypto.keys import insecure_bytes
from secure_fd.data.federated import FederatedData
from secure_fd.errors import BudgetError, ConfigurationError, LocalError, PeerError
from secure_fd.methods.fkd import FKD
from secure_fd.methods.independent import Independent
from secure_fd.methods.selective_fd import SelectiveFD, WeighedVotes
from secure_fd.privacy.base import Answer, NoProtection
from secure_fd.privacy.guarantee import PrivacyUnit
from secure_fd.privacy.label import LabelUnit, NoisyLabels, RandomizedResponse, sample_symbols
from secure_fd.privacy.samplers import Random, SeededRandom, words
from secure_fd.secure_sum.masked import MaskedSum
from secure_fd.simulation.federation import Federation
from secure_fd.votes.codec import Contribution, IntArray, Released, Sums, one_hot
from secure_fd.wire import Stage
from tests.refusals import refused
from tests.small_federation import all_proxies, faults, federation, run

WORD = 1 << 64


def fixed(*values: int) -> Random:
    """A generator that gives these 64-bit words, in order, and then fails."""
    stream = iter(values)
    return lambda count: b"".join(next(stream).to_bytes(8, "little") for _ in range(count // 8))


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
    """The mutation that rounds towards less noise: two words fewer for each other symbol."""
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


def test_an_answer_of_one_symbol_is_randomised_response_word_by_word():
    """Known answers: 3 of 11 at epsilon 4, by the rule u // Q, for any sampler."""
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
    unit = LabelUnit(1.5, 1e-5)
    unit.agree(2, 4)
    named = np.rint(expected)
    shown = unit.debias(Sums(named.sum(axis=1), named), range(clients)).total
    np.testing.assert_array_equal(shown, mechanism.debias(named, clients).clip(0))
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


def test_a_symbol_has_the_chance_of_its_weight_and_prediction():
    """Words at both ends of each interval: weight a half, classes of a quarter and the rest."""
    soft = Contribution(np.full(6, 0.5), np.tile([0.25, 0.75], (6, 1)))
    ends = fixed(0, WORD // 8 - 1, WORD // 8, WORD // 2 - 1, WORD // 2, WORD - 1)
    assert sample_symbols(soft, ends).tolist() == [0, 0, 1, 1, 2, 2]


def test_bad_settings_and_symbols_are_refused():
    with refused("epsilon"):
        LabelUnit(math.inf, 1e-5)
    for epsilon, size in [(0.0, 11), (-1.0, 11), (math.nan, 11), (1e-19, 11), (1.0, 1)]:
        with pytest.raises(ConfigurationError):
            RandomizedResponse(epsilon, size)
    mechanism = RandomizedResponse(1.0, 3)
    for symbol in (3, -1):
        with pytest.raises(LocalError, match="outside the alphabet"):
            mechanism.respond_rows(np.array([symbol]), os.urandom)
    with pytest.raises(LocalError, match="gave 7 bytes"):
        words(lambda count: bytes(count - 1), 1)


def guard_of(random: Random, epsilon: float = 0.5) -> NoisyLabels:
    return NoisyLabels(RandomizedResponse(epsilon, 11), 50, 1e-5, random)


def test_a_pair_is_answered_once_and_seeded_noise_has_no_epsilon():
    drawn = []
    random = SeededRandom(1)
    guard = guard_of(lambda count: drawn.append(count) or random(count))
    first = guard.named(np.arange(30), np.zeros(30, dtype=np.int64))
    assert (guard.named(np.arange(30), np.full(30, 9)) == first).all()
    answers = guard.named(np.array([40, 3, 41, 3, 40]), np.array([1, 2, 3, 4, 5]))
    assert drawn == [240, 16]
    assert (answers[[1, 3]] == first[3]).all()
    assert (answers[0] == answers[4]).all()
    assert guard.released == 32
    seeded = guard_of(SeededRandom(0))
    seeded.named(np.arange(1), np.zeros(1, dtype=np.int64))
    assert not seeded.guarantee().holds


def test_a_failed_release_leaves_no_trace_and_a_guard_has_no_copy():
    guard = guard_of(os.urandom)
    for attempt in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(LocalError, match="cannot be pickled or copied"):
            attempt(guard)
    for indices, symbols in [([50], [0]), ([-1], [0]), ([0], [11]), ([0, 1], [0])]:
        with pytest.raises(LocalError):
            guard.named(np.array(indices), np.array(symbols))
    broken = guard_of(lambda _: b"")
    with pytest.raises(LocalError):
        broken.named(np.array([0]), np.array([0]))
    assert guard.released == broken.released == 0


# The label unit in a federation.


class Recording(LabelUnit):
    """Keeps every answer that leaves, whether or not the upload arrives."""

    def __init__(self) -> None:
        super().__init__(1.0, 1e-5, random=SeededRandom(0))
        self.sent: dict[tuple[int, int], set[bytes]] = defaultdict(set)

    def _part(self, number: int) -> NoisyLabels:
        guard = super()._part(number)
        release = guard.release

        def recorded(indices: IntArray, answer: Answer) -> Released:
            given = release(indices, answer)
            votes = given.weights[:, None] * given.predictions
            for index, row in zip(indices.tolist(), votes, strict=True):
                self.sent[number, index].add(row.tobytes())
            self.afterwards(guard)
            return given

        guard.release = recorded
        return guard

    def afterwards(self, guard: NoisyLabels) -> None:
        """Keep what was answered."""


class Forgetting(Recording):
    """Broken on purpose: forgets a pair as soon as it has answered it."""

    def afterwards(self, guard: NoisyLabels) -> None:
        guard._answered[:] = False


def always_nine(indices: IntArray) -> Contribution:
    return Contribution(np.ones(len(indices)), one_hot(np.full(len(indices), 9), 10))


def most_answers_to_a_pair(unit: Recording, data: FederatedData) -> int:
    """Over lost uploads, an aborted round, two runs, another order, repeats and another network."""
    lost = faults(
        {
            0: {0: Stage.INPUT},
            1: {0: Stage.INPUT, 3: Stage.INPUT},
            2: {2: Stage.UNMASK},
            3: {1: Stage.PREPARE},
        }
    )
    made = federation(
        data,
        aggregation=MaskedSum(4, random=insecure_bytes(1), hybrid=False),
        protection=unit,
        schedule=all_proxies(data),
        dropouts=lost,
    )
    run(run(made), rounds=2)
    assert made.transcript.aborted_rounds == 1
    everyone = np.arange(len(data.proxies))
    for asked in (everyone[::-1], np.repeat(everyone[:20], 3), everyone[7:8]):
        unit.parts[2].release(asked, always_nine)
    assert set(unit.sent) == set(itertools.product(range(4), everyone.tolist()))
    return max(map(len, unit.sent.values()))


def test_no_fault_and_no_order_gets_a_second_answer(digits):
    assert most_answers_to_a_pair(Recording(), digits) == 1
    assert most_answers_to_a_pair(Forgetting(), digits) > 1


# The label unit in a federation without faults.


def uploads(made: Federation) -> IntArray:
    """[K, m, C] what every client released in the first round."""
    seen = made.transcript.distillation[0]
    return np.stack([seen.uploads[k].reshape(-1, 10) for k in range(4)]).astype(np.int64)


def test_released_symbols_are_whole_votes_of_any_class(digits):
    """A soft answer becomes a symbol: fractions would carry what the noise does not cover."""
    unit = LabelUnit(0.1, 1e-5, SeededRandom(5))
    method, schedule = SelectiveFD("soft"), all_proxies(digits)
    made = run(federation(digits, method, protection=unit, schedule=schedule), rounds=1)
    seen = uploads(made)
    assert made.transcript.distillation[0].levels == 1
    assert set(np.unique(seen)) == {0, 1}
    assert seen.sum(axis=2).max() == 1
    named = [set(np.flatnonzero(rows.any(axis=0))) for rows in seen]
    # At epsilon 0.1 every symbol has a chance of 9 % and more: 200 answers miss one with 1e-8.
    assert named == [set(range(10))] * 4


def test_a_unit_serves_one_federation_and_its_guarantee_counts_every_answer(digits):
    """The client that answered most speaks for all; a second federation would be uncounted."""
    unit = LabelUnit(4.0, 1e-5)
    assert unit.guarantee() is None
    made = run(federation(digits, protection=unit, dropouts=faults({1: {2: Stage.PREPARE}})))
    asked = np.concatenate([seen.result.indices for seen in made.transcript.distillation])
    counts = [part.released for part in unit.parts.values()]
    assert counts[2] < counts[0] == counts[1] == counts[3] == len(np.unique(asked)) < len(asked)
    claim = made.guarantee()
    assert claim == unit.guarantee() == unit.parts[0].guarantee() != unit.parts[2].guarantee()
    assert (claim.unit, claim.epsilon, claim.delta) == (PrivacyUnit.LABEL, 4.0, 0.0)
    assert f"over {counts[0]} answers" in claim.accountant
    assert {c.unit for c in claim.composes_to} == {PrivacyUnit.RECORD, PrivacyUnit.CLIENT}
    assert all(4.0 < c.epsilon <= 4.0 * len(asked) and c.delta == 1e-5 for c in claim.composes_to)
    with pytest.raises(BudgetError):
        unit.client(2)
    with pytest.raises(BudgetError):
        run(federation(digits, protection=unit), rounds=1)


@pytest.mark.parametrize("method", [FKD(), Independent()])
def test_a_protection_that_nothing_would_use_is_refused(digits, method):
    with pytest.raises(ConfigurationError, match="'label unit' is not allowed"):
        federation(digits, method, protection=LabelUnit(4.0, 1e-5))


@pytest.mark.parametrize("protected", [True, False])
def test_under_the_label_unit_no_answer_steers_a_later_one(digits, monkeypatch, protected):
    """Trust comes from earlier answers: one changed answer would reach every later weight."""
    trusted: list[float] = []
    contribution = WeighedVotes.contribution

    def spied(self: WeighedVotes, *given: object) -> Contribution:
        trusted.append(given[-1])
        return contribution(self, *given)

    monkeypatch.setattr(WeighedVotes, "contribution", spied)
    unit = LabelUnit(4.0, 1e-5) if protected else NoProtection()
    every = all_proxies(digits)
    run(federation(digits, SelectiveFD("hard"), protection=unit, schedule=every), rounds=3)
    assert len(trusted) == 12
    assert (max(trusted) == 0.0) is protected
