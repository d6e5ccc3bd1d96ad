"""Contributions, their integers, the budget of votes, and the bytes of an ensemble."""

import math
import struct

import numpy as np
import pytest

from secure_fd.data.federated import federate
from secure_fd.data.image_sets import Sizes
from secure_fd.data.partition import parse_split
from secure_fd.data.sources import load
from secure_fd.errors import LocalError, PeerError
from secure_fd.methods.selective_fd import SelectiveFD
from secure_fd.secure_sum.masked import MaskedSum
from secure_fd.secure_sum.plain import PlainSum
from secure_fd.secure_sum.validated import Prio3Sum
from secure_fd.votes.codec import SOFT_LEVELS, Contribution, Ensemble, KnowledgeCodec, Released
from tests.refusals import refused
from tests.small_federation import federation

ROWS = np.array([[0.5, 0.3, 0.2], [0.0, 1.0, 0.0]])
NOT_A_NUMBER = ROWS + np.array([[0.0, 0.0, 0.0], [0.0, 0.0, np.nan]])


def test_rounding_is_by_largest_remainder_and_an_abstention_is_zeros():
    """10 units at (.55, .33, .12): floors 5, 3, 1 leave one unit, and .5 is the largest rest."""
    codec = KnowledgeCodec(3, 10)
    row = np.array([[0.55, 0.33, 0.12]])
    assert codec.encode(Released(np.ones(1), row)).tolist() == [6, 3, 1]
    # Weight .5: 5 units at (2.75, 1.65, 0.6); floors 2, 1, 0 leave two, to .75 and .65.
    assert codec.encode(Released(np.full(1, 0.5), row)).tolist() == [3, 2, 0]
    assert not KnowledgeCodec(3, SOFT_LEVELS).encode(Released(np.zeros(2), ROWS)).any()
    empty = codec.encode(Released(np.zeros(0), np.zeros((0, 3))))
    assert codec.decode(empty, 1).total.shape == (0, 3)


@pytest.mark.parametrize(
    ("weights", "rows"),
    [
        *(([1.0, bad], ROWS) for bad in (-1e-9, 1 + 1e-9, -1.0, 2.0, np.nan, np.inf, -np.inf)),
        ([1.0, 0.0], NOT_A_NUMBER),  # a later zero times NaN would be NaN
        *(([1.0] * 3, ROWS), ([[1.0], [1.0]], ROWS), ([1.0] * 3, ROWS[0])),
        *(([1.0, 1.0], np.array(logits)) for logits in ([[2, -1], [0.5, 0.5]], [[0.5, 0.9]] * 2)),
    ],
)
def test_a_contribution_that_cannot_be_is_refused(weights, rows):
    Contribution(np.array([0.0, 1.0]), ROWS)
    with pytest.raises(LocalError):
        Contribution(np.array(weights), rows)


def test_a_contribution_keeps_its_values_out_of_its_repr():
    shown = repr(Contribution(np.array([0.0, 0.123]), np.array([[0.5, 0.5], [0.877, 0.123]])))
    assert "0.123" not in shown
    assert "0.877" not in shown


def test_more_votes_than_contributors_abort_the_round():
    codec = KnowledgeCodec(3, 5)
    honest, stuffed = np.array([5, 5, 0, 1, 0, 0]), np.array([5, 5, 1, 1, 0, 0])
    assert codec.decode(honest.astype(np.uint64), 2).count.tolist() == [2.0, 0.2]
    with pytest.raises(PeerError, match="contributors"):
        codec.decode(stuffed.astype(np.uint64), 2)


# Ensembles.

CODEC = KnowledgeCodec(3, 10)
UNITS = np.array([[0, 20, 0], [1, 2, 3], [12, 4, 4]])
"""Summed integers of two contributors about three proxies."""
NAMED, FLOATS = np.eye(3)[[1, 2, 0]], np.array([[0.0, 1, 0], [0.2, 0.3, 0.5], [0.7, 0.2, 0.1]])


def written(rows: np.ndarray) -> tuple[Ensemble, bytes]:
    made = Ensemble(np.array([7, 300, 70_000]), rows, np.array([True, False, True]))
    return made, CODEC.write(made, made.indices, UNITS.reshape(-1), 2)


@pytest.mark.parametrize(
    ("rows", "form", "size"),
    [
        (NAMED, 0, 2 * 1),
        (UNITS / UNITS.sum(axis=1, keepdims=True), 1, 2 * 3),
        (FLOATS, 2, 2 * 3 * 4),
    ],
)
def test_an_ensemble_reads_back_in_its_shortest_exact_form(rows, form, size):
    """Classes, summed integers, or float32; only kept proxies have rows."""
    sent, message = written(rows)
    assert message[0] == form
    assert len(message) == 1 + 4 + 1 + size
    read = CODEC.read(message, sent.indices)
    assert read.kept.tolist() == [True, False, True]
    wanted = rows[sent.kept]
    exact = wanted.astype(np.float32) if form == 2 else wanted
    assert np.array_equal(read.predictions[sent.kept], exact)
    assert not read.predictions[1].any()


def test_a_broken_ensemble_is_refused():
    made, message = written(FLOATS)
    classes = written(NAMED)[1]
    for broken in (
        *(b"", message[:-1], message + b"x", bytes([9]) + message[1:]),
        *(classes[:-1] + beyond for beyond in (b"\x03", b"\x07")),
        message[:-4] + struct.pack("<f", math.inf),
    ):
        with pytest.raises(PeerError):
            CODEC.read(broken, made.indices)


# The budget of a client's votes.

M, CLASSES, LEVELS = 40, 10, 3
VOTES = KnowledgeCodec(CLASSES, LEVELS)


def votes(weights: list[int]) -> np.ndarray:
    rows = np.zeros((len(weights), CLASSES), dtype=np.uint64)
    rows[np.arange(len(weights)), np.arange(len(weights)) % CLASSES] = weights
    return rows.reshape(-1)


@pytest.mark.parametrize("seed", range(20))
def test_votes_within_a_budget_are_the_heaviest_whole_rows(seed):
    rng = np.random.default_rng(seed)
    weights = rng.integers(0, LEVELS + 1, M).tolist()
    budget, place = int(rng.integers(1, M * LEVELS)), float(rng.random())
    left = VOTES.within(votes(weights), budget, place).reshape(M, -1).sum(axis=1)
    assert left.sum() <= budget
    pairs = list(zip(left.tolist(), weights, strict=True))
    assert all(now in (0, then) for now, then in pairs)
    dropped = [then for now, then in pairs if now != then]
    assert not dropped or left.sum() > budget - LEVELS
    assert max(dropped, default=0) <= min(left[left > 0].tolist(), default=LEVELS)


def test_clients_that_know_everything_share_the_round_between_them():
    """Ten that know all proxies: each keeps its own tenth, and every proxy is answered."""
    everything = votes([LEVELS] * M)
    kept = [VOTES.within(everything, M * LEVELS // 10, k / 10).reshape(M, -1) for k in range(10)]
    assert np.sum(kept, axis=(0, 2)).tolist() == [LEVELS] * M


def test_a_budget_is_one_that_binds_a_client():
    assert VOTES.budget(1.0, 256, 10) == 26 * 3
    assert VOTES.budget(None, 256, 10) is VOTES.budget(10.0, 256, 10) is None
    for wrong in (0.5, math.inf, math.nan):
        with refused("budget"):
            SelectiveFD("hard", budget=wrong)


@pytest.mark.parametrize("slack", [None, 1.2])
def test_the_same_run_by_three_sums_is_the_same_to_the_last_bit(slack):
    sizes = Sizes(proxies=10, test=5, held_out=1, local=10)
    data = federate(load("digits"), parse_split("iid"), 4, seed=3, sizes=sizes)
    totals = []
    for sums in (PlainSum(4), MaskedSum(4, public_seed=5), Prio3Sum(4)):
        made = federation(data, SelectiveFD("hard", budget=slack), aggregation=sums, seed=5)
        assert not any(report.aborted or report.refused for report in made.fit(2))
        totals.append([seen.total.tolist() for seen in made.transcript.distillation])
    assert totals[0] == totals[1] == totals[2]
    if slack is not None:
        assert max(sum(total) for total in totals[0]) <= 4 * (VOTES.budget(slack, 32, 4) or 0)
