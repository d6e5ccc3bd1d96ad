"""A (client, proxy) pair is released once, for good: the ledger, and the label unit with faults."""

import copy
import itertools
import os
import pickle
from collections import defaultdict

import numpy as np
import pytest

from secure_fd.data.federated import FederatedData
from secure_fd.errors import LocalError
from secure_fd.privacy.base import Answer
from secure_fd.privacy.label import (
    BoolArray,
    LabelGuard,
    LabelLedger,
    LabelUnit,
    RandomizedResponse,
)
from secure_fd.privacy.samplers import Random, SeededRandom
from secure_fd.secure_sum.masked import MaskedSum
from secure_fd.votes.codec import Contribution, IntArray, Released, one_hot
from secure_fd.wire import Stage
from tests.small_federation import all_proxies, faults, federation, run


def forbidden(count: int) -> bytes:
    raise AssertionError(f"{count} random bytes were drawn where none may be")


def fresh_ledger(epsilon: float = 0.5, n_proxies: int = 50) -> LabelLedger:
    return LabelLedger(RandomizedResponse(epsilon, 11), n_proxies)


class ForgetfulLedger(LabelLedger):
    """Broken on purpose: forgets a pair as soon as it has answered it."""

    def release(self, indices: IntArray, symbols: IntArray, random: Random) -> BoolArray:
        answers = super().release(indices, symbols, random)
        self._released[:] = False
        return answers


def second_answers(ledger: LabelLedger) -> int:
    """Pairs that answer otherwise when asked again: at once, in another order, in part, twice."""
    random, everyone = SeededRandom(1), np.arange(50)
    first = ledger.release(everyone, np.zeros(50, dtype=np.int64), random)
    changed = np.zeros(50, dtype=np.bool_)
    for asked in (everyone, everyone[::-1], everyone[::7], np.repeat(everyone, 2)):
        again = ledger.release(asked, np.full(len(asked), 9), random)
        np.logical_or.at(changed, asked, (again != first[asked]).any(axis=1))
    return int(changed.sum())


def test_a_pair_has_one_answer_in_any_order_and_a_forgetful_ledger_is_caught():
    assert second_answers(fresh_ledger()) == 0
    bent = ForgetfulLedger(RandomizedResponse(0.5, 11), 50)
    assert second_answers(bent) > 40


def test_a_pair_is_answered_once_and_for_good():
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
    assert (answers[[1, 3]] == first[3]).all()
    assert (answers[0] == answers[4]).all()
    assert ledger.released == 32


def test_a_failed_release_leaves_no_trace():
    ledger = fresh_ledger()
    for indices, symbols in [([50], [0]), ([-1], [0]), ([0], [11]), ([0, 1], [0])]:
        with pytest.raises(LocalError):
            ledger.release(np.array(indices), np.array(symbols), os.urandom)
    with pytest.raises(LocalError):
        ledger.release(np.array([0]), np.array([0]), lambda _: b"")
    assert ledger.released == 0


def test_the_ledger_shows_nothing_and_cannot_be_copied():
    ledger = fresh_ledger()
    ledger.release(np.arange(5), np.full(5, 7), os.urandom)
    assert repr(ledger) == "LabelLedger(n_proxies=50, released=5)"
    for attempt in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(LocalError, match="cannot be pickled or copied"):
            attempt(ledger)


def test_the_ledger_composes_over_what_it_released_and_knows_seeded_noise():
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


# The label unit in a federation.


class Recording(LabelUnit):
    """Keeps every answer that leaves, whether or not the upload arrives."""

    def __init__(self) -> None:
        super().__init__(1.0, 1e-5, random=SeededRandom(0))
        self.said: dict[tuple[int, int], set[bytes]] = defaultdict(set)

    def _part(self, number: int) -> LabelGuard:
        guard = super()._part(number)
        release = guard.release

        def recorded(indices: IntArray, answer: Answer) -> Released:
            given = release(indices, answer)
            votes = given.weights[:, None] * given.predictions
            for index, row in zip(indices.tolist(), votes, strict=True):
                self.said[number, index].add(row.tobytes())
            self.afterwards(guard.ledger)
            return given

        guard.release = recorded
        return guard

    def afterwards(self, ledger: LabelLedger) -> None:
        """It remembers."""


class Forgetting(Recording):
    """Broken on purpose: forgets a pair as soon as it has answered it."""

    def afterwards(self, ledger: LabelLedger) -> None:
        ledger._released[:] = False


def always_nine(indices: IntArray) -> Contribution:
    return Contribution(np.ones(len(indices)), one_hot(np.full(len(indices), 9), 10))


def most_answers_to_a_pair(unit: Recording, data: FederatedData) -> int:
    """Over lost uploads, a void round, two runs, another order, repeats and another network."""
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
        aggregation=MaskedSum(4, insecure_seed=1),
        protection=unit,
        schedule=all_proxies(data),
        dropouts=lost,
    )
    run(run(made), rounds=2)
    assert made.transcript.void_rounds == 1
    everyone = np.arange(len(data.proxies))
    for asked in (everyone[::-1], np.repeat(everyone[:20], 3), everyone[7:8]):
        unit.parts[2].release(asked, always_nine)
    assert set(unit.said) == set(itertools.product(range(4), everyone.tolist()))
    return max(map(len, unit.said.values()))


def test_no_fault_and_no_order_gets_a_second_answer(digits):
    assert most_answers_to_a_pair(Recording(), digits) == 1
    assert most_answers_to_a_pair(Forgetting(), digits) > 1
