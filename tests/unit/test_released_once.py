"""A (client, proxy) pair is released once, for good: the guard, and the label unit with faults."""

import copy
import itertools
import os
import pickle
from collections import defaultdict

import numpy as np
import pytest

from secure_fd.crypto.keys import insecure_bytes
from secure_fd.data.federated import FederatedData
from secure_fd.errors import LocalError
from secure_fd.privacy.base import Answer
from secure_fd.privacy.label import (
    BoolArray,
    LabelUnit,
    NoisyLabels,
    RandomizedResponse,
)
from secure_fd.privacy.samplers import Random, SeededRandom
from secure_fd.secure_sum.masked import MaskedSum
from secure_fd.votes.codec import Contribution, IntArray, Released, one_hot
from secure_fd.wire import Stage
from tests.small_federation import all_proxies, faults, federation, run


def guard_of(
    random: Random, epsilon: float = 0.5, kind: type[NoisyLabels] = NoisyLabels
) -> NoisyLabels:
    return kind(RandomizedResponse(epsilon, 11), 50, 1e-5, random)


class ForgetfulGuard(NoisyLabels):
    """Broken on purpose: forgets a pair as soon as it has answered it."""

    def named(self, indices: IntArray, symbols: IntArray) -> BoolArray:
        answers = super().named(indices, symbols)
        self._answered[:] = False
        return answers


def second_answers(guard: NoisyLabels) -> int:
    """Pairs that answer otherwise when asked again: at once, in another order, in part, twice."""
    everyone = np.arange(50)
    first = guard.named(everyone, np.zeros(50, dtype=np.int64))
    changed = np.zeros(50, dtype=np.bool_)
    for asked in (everyone, everyone[::-1], everyone[::7], np.repeat(everyone, 2)):
        again = guard.named(asked, np.full(len(asked), 9))
        np.logical_or.at(changed, asked, (again != first[asked]).any(axis=1))
    return int(changed.sum())


def test_a_pair_has_one_answer_in_any_order_and_a_forgetful_guard_is_caught():
    assert second_answers(guard_of(SeededRandom(1))) == 0
    assert second_answers(guard_of(SeededRandom(1), kind=ForgetfulGuard)) > 40


def test_a_pair_is_answered_once_and_for_good():
    random = SeededRandom(1)
    drawn: list[int] = []

    def counting(count: int) -> bytes:
        drawn.append(count)
        return random(count)

    guard = guard_of(counting)
    first = guard.named(np.arange(30), np.zeros(30, dtype=np.int64))
    assert guard.released == 30
    assert drawn == [240]
    again = guard.named(np.arange(30), np.full(30, 9))
    assert (again == first).all()
    assert drawn == [240]
    mixed: IntArray = np.array([40, 3, 41, 3, 40])
    answers = guard.named(mixed, np.array([1, 2, 3, 4, 5]))
    assert drawn == [240, 16]
    assert (answers[[1, 3]] == first[3]).all()
    assert (answers[0] == answers[4]).all()
    assert guard.released == 32


def test_a_failed_release_leaves_no_trace():
    guard = guard_of(os.urandom)
    for indices, symbols in [([50], [0]), ([-1], [0]), ([0], [11]), ([0, 1], [0])]:
        with pytest.raises(LocalError):
            guard.named(np.array(indices), np.array(symbols))
    broken = guard_of(lambda _: b"")
    with pytest.raises(LocalError):
        broken.named(np.array([0]), np.array([0]))
    assert guard.released == broken.released == 0


def test_a_guard_cannot_be_copied():
    guard = guard_of(os.urandom)
    guard.named(np.arange(5), np.full(5, 7))
    for attempt in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(LocalError, match="cannot be pickled or copied"):
            attempt(guard)


def test_a_guard_composes_over_what_it_released_and_refuses_seeded_noise():
    guard, seeded = (guard_of(random, epsilon=4.0) for random in (os.urandom, SeededRandom(0)))
    guard.named(np.arange(20), np.zeros(20, dtype=np.int64))
    claim = guard.guarantee()
    assert claim.epsilon == 4
    assert "20 answers" in claim.accountant
    assert all(40 < c.epsilon < 80 for c in claim.composes_to)
    guard.named(np.arange(20), np.zeros(20, dtype=np.int64))
    assert guard.guarantee() == claim
    seeded.named(np.arange(1), np.zeros(1, dtype=np.int64))
    assert seeded.guarantee().unmet == ("the noise was drawn from a seeded generator",)


# The label unit in a federation.


class Recording(LabelUnit):
    """Keeps every answer that leaves, whether or not the upload arrives."""

    def __init__(self) -> None:
        super().__init__(1.0, 1e-5, random=SeededRandom(0))
        self.said: dict[tuple[int, int], set[bytes]] = defaultdict(set)

    def _part(self, number: int) -> NoisyLabels:
        guard = super()._part(number)
        release = guard.release

        def recorded(indices: IntArray, answer: Answer) -> Released:
            given = release(indices, answer)
            votes = given.weights[:, None] * given.predictions
            for index, row in zip(indices.tolist(), votes, strict=True):
                self.said[number, index].add(row.tobytes())
            self.afterwards(guard)
            return given

        guard.release = recorded
        return guard

    def afterwards(self, guard: NoisyLabels) -> None:
        """It remembers."""


class Forgetting(Recording):
    """Broken on purpose: forgets a pair as soon as it has answered it."""

    def afterwards(self, guard: NoisyLabels) -> None:
        guard._answered[:] = False


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
    assert set(unit.said) == set(itertools.product(range(4), everyone.tolist()))
    return max(map(len, unit.said.values()))


def test_no_fault_and_no_order_gets_a_second_answer(digits):
    assert most_answers_to_a_pair(Recording(), digits) == 1
    assert most_answers_to_a_pair(Forgetting(), digits) > 1
