"""Votes as claims: what a sum alone says of its authors, and who said what last."""

import numpy as np

from attacks.base import ABSTAIN, NEVER, FloatArray
from attacks.scoring import right_by_group
from attacks.votes import allot, named, newest
from secure_fd.knowledge import IntArray, one_hot

K, C, P = 4, 3, 30
ALL = tuple(range(K))


def units(classes: IntArray) -> FloatArray:
    return one_hot(np.maximum(classes, 0), C) * (classes >= 0)[:, None]


def random_votes(rng: np.random.Generator) -> dict[int, IntArray]:
    return {k: rng.integers(ABSTAIN, C, P) for k in ALL}


def test_a_row_without_votes_names_nothing() -> None:
    assert named(np.array([[0.0, 0.0], [0.2, 0.7]])).tolist() == [ABSTAIN, 1]


def test_an_allotment_gives_every_vote_once_and_no_client_two() -> None:
    rng = np.random.default_rng(0)
    said = random_votes(rng)
    total = sum(units(classes) for classes in said.values())
    given = allot(np.asarray(total), ALL, rng)
    np.testing.assert_array_equal(sum(units(c) for c in given.values()), total)


def test_what_is_known_leaves_its_part_of_an_allotment_to_nobody_else() -> None:
    rng = np.random.default_rng(0)
    said = random_votes(rng)
    total = np.asarray(sum(units(classes) for classes in said.values()))
    known = {**dict.fromkeys(ALL, np.full(P, NEVER)), **{k: said[k] for k in ALL[1:]}}
    given = allot(total, ALL, rng, known)
    for k in ALL:  # all but one are known, so that the last one is
        np.testing.assert_array_equal(given[k], said[k])


def test_the_last_word_counts_and_absence_is_not_abstention() -> None:
    first, last = np.array([0, 1]), np.array([1, 2])
    table = newest([(first, {0: np.array([1, 1])}), (last, {0: np.array([ABSTAIN, 2])})], (2, 4))
    assert table.tolist() == [[1, ABSTAIN, 2, NEVER], [NEVER] * 4]


def test_clients_that_never_voted_are_in_no_average() -> None:
    truth = np.array([[1, 2], [ABSTAIN, NEVER]])
    assert right_by_group(np.array([[1, 1], [ABSTAIN, 0]]), truth).tolist() == [0.5]
    assert right_by_group(truth, np.full((2, 2), ABSTAIN)).tolist() == [0.0]
