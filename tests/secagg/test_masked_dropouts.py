"""Masked sums when clients fall silent: exact over the survivors, or void, and never else.

The expectation is a model of the stages in a few lines, independent of the machines: who has
prepared, whose input arrives, who signs, who gives shares; each must be a quorum.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secure_fd.crypto.keys import insecure_bytes
from secure_fd.secagg.client import MaskingClient
from secure_fd.secagg.server import MaskingServer
from secure_fd.secure_sum.masked import MaskedSum
from secure_fd.votes.codec import WordArray
from secure_fd.wire import Stage
from tests.drivers.cohort import Cohort
from tests.drivers.summing import ORDER, summed, total_of

Plan = Mapping[int, Stage]
BOUND, LENGTH = 5, 7


@dataclass(frozen=True)
class Outcome:
    """survivors: whose inputs are in the sum, None where there is none. stages: that answered."""

    survivors: tuple[int, ...] | None
    missing: dict[int, Stage]
    stages: int


def predict(n: int, plan: Plan, ready: set[int], quorum: int) -> Outcome:
    """ready: clients whose PREPARE came with the last round's input, so they are in the cohort."""
    missing: dict[int, Stage] = {}
    stages = 0

    def close(asked: list[int], stage: Stage) -> list[int]:
        nonlocal stages
        left = [k for k in asked if k not in plan or ORDER.index(stage) < ORDER.index(plan[k])]
        if stage is Stage.PREPARE:
            stages += bool(set(left) - ready)
            left = sorted({*left, *ready})
        else:
            stages += bool(left)
        missing.update({k: stage for k in asked if k not in left})
        return left

    cohort = close(list(range(n)), Stage.PREPARE)
    if len(cohort) < quorum:
        return Outcome(None, missing, stages)
    survivors = present = close(cohort, Stage.INPUT)
    if len(present) >= quorum and survivors != cohort:
        present = close(present, Stage.CONSISTENCY)
    if len(present) >= quorum:
        present = close(present, Stage.UNMASK)
    arrived = tuple(survivors) if len(present) >= quorum else None
    return Outcome(arrived, missing, stages)


def vectors_of(n: int, seed: int) -> dict[int, WordArray]:
    rng = np.random.default_rng(seed)
    return {k: rng.integers(0, BOUND, LENGTH, np.uint64, endpoint=True) for k in range(n)}


def check_round(
    method: MaskedSum,
    index: int,
    plan: Plan,
    ready: set[int],
    quorum: int,
    left_out: frozenset[int] = frozenset(),
) -> set[int]:
    """Run a round against the model; who is ready for the next. left_out: have no vector."""
    n = method.n_clients
    everyone = vectors_of(n, index)
    vectors = {k: v for k, v in everyone.items() if k not in left_out}
    expected = predict(n, {**plan, **dict.fromkeys(left_out, Stage.PREPARE)}, ready, quorum)
    result = summed(method, index, vectors, BOUND, dropouts=plan)
    assert result.missing == expected.missing
    assert result.stages == expected.stages
    assert bool(result.aborted) is (expected.survivors is None)
    if expected.survivors is not None:
        assert result.total.tolist() == total_of(everyone, expected.survivors)
        assert result.survivors == expected.survivors
        assert set(result.payloads) == set(result.survivors)
    early = {k for k, stage in expected.missing.items() if stage in (Stage.PREPARE, Stage.INPUT)}
    void_at_start = sum(s is Stage.PREPARE for s in expected.missing.values()) > n - quorum
    return set() if void_at_start else set(range(n)) - early


def every_plan(n: int) -> Iterator[Plan]:
    for stages in product([None, *Stage], repeat=n):
        yield {k: stage for k, stage in enumerate(stages) if stage is not None}


def fresh(n: int, **settings_: int) -> MaskedSum:
    return MaskedSum(n, random=insecure_bytes(n), hybrid=False, **settings_)


def test_every_schedule_of_four_clients_that_start_afresh():
    """All 625, in rounds of a gap, so that nothing has been prepared: 17 sums, 608 void."""
    method, sums = fresh(4, epoch=2000), 0
    for at, plan in enumerate(every_plan(4)):
        check_round(method, 2 * at + 2, plan, set(), quorum=3)
        sums += predict(4, plan, set(), 3).survivors is not None
    assert sums == 1 + 4 * 4


def test_every_schedule_of_up_to_two_of_four_right_after_a_complete_round():
    """113 of them, where the PREPAREs came with the input of the round before."""
    method = fresh(4)
    plans_of_two = [plan for plan in every_plan(4) if len(plan) <= 2]
    assert len(plans_of_two) == 1 + 4 * 4 + 6 * 16
    for at, plan in enumerate(plans_of_two):
        ready = check_round(method, 3 * at + 2, {}, set(), quorum=3)
        assert ready == {0, 1, 2, 3}
        check_round(method, 3 * at + 3, plan, ready, quorum=3)


plans = st.dictionaries(st.integers(0, 6), st.sampled_from(ORDER), max_size=3)


@given(st.lists(st.tuples(plans, st.frozensets(st.integers(0, 6), max_size=2)), max_size=5))
@settings(max_examples=40, deadline=None, derandomize=True)
def test_seven_clients_over_rounds_in_a_row(rounds):
    """Quorum 5 of 7: a client that was away comes back, whatever happened to it or the round."""
    method = fresh(7)
    ready: set[int] = set()
    for index, (plan, left_out) in enumerate(rounds, start=1):
        ready = check_round(method, index, plan, ready, 5, left_out)
    check_round(method, len(rounds) + 1, {}, ready, 5)


@dataclass(frozen=True)
class Sparse:
    """The halves of a sum whose clients accept fewer neighbours than they should."""

    cohort: Cohort
    n_clients: int = 40

    def client(self, number: int) -> MaskingClient:
        return self.cohort.clients[number]

    def server(self) -> MaskingServer:
        return self.cohort.server


def test_a_sparse_graph_recovers_every_client_in_every_stage():
    """Forty clients that do not all mask with each other: four fall silent in every round."""
    n = 40
    method = Sparse(Cohort(n, seed=3, degree=20))
    assert method.cohort.group.degree == 20
    for index, stage in enumerate(Stage):
        vectors = vectors_of(n, index)
        drop = dict.fromkeys(range(4 * index, 4 * index + 4), stage)
        result = summed(method, 2 * index, vectors, BOUND, dropouts=drop)
        kept = [k for k in range(n) if stage in (Stage.CONSISTENCY, Stage.UNMASK) or k not in drop]
        assert result.survivors == tuple(kept)
        assert result.total.tolist() == total_of(vectors, kept)
        assert set(result.missing) == set(drop)


def test_a_plan_that_the_model_calls_void_would_be_noticed_as_a_sum():
    """The check itself must fail where model and machines disagree."""
    for ready, quorum in ((set[int](), 5), ({0, 1, 2, 3}, 3)):
        with pytest.raises(AssertionError):
            check_round(fresh(4), 1, {}, ready, quorum)
