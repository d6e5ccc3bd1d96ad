"""What a budget leaves of a client's votes, and which part of the round it leaves to whom."""

import numpy as np
import pytest

from secure_fd.data.federated import federate
from secure_fd.data.image_sets import Sizes
from secure_fd.data.partition import parse_split
from secure_fd.data.sources import load
from secure_fd.errors import ConfigurationError
from secure_fd.methods.selective_fd import SelectiveFD
from secure_fd.secure_sum.masked import MaskedSum
from secure_fd.secure_sum.plain import PlainSum
from secure_fd.secure_sum.validated import Prio3Sum
from secure_fd.simulation.federation import Federation
from secure_fd.votes.codec import KnowledgeCodec
from tests.small_federation import BRIEF, CPU, participants

M, CLASSES, LEVELS = 40, 10, 3
CODEC = KnowledgeCodec(CLASSES, LEVELS)


def votes(weights: list[int]) -> np.ndarray:
    rows = np.zeros((len(weights), CLASSES), dtype=np.uint64)
    rows[np.arange(len(weights)), np.arange(len(weights)) % CLASSES] = weights
    return rows.reshape(-1)


@pytest.mark.parametrize("seed", range(20))
def test_what_is_left_is_within_the_budget_and_whole_rows_heaviest_first(seed):
    rng = np.random.default_rng(seed)
    weights = rng.integers(0, LEVELS + 1, M).tolist()
    budget, place = int(rng.integers(1, M * LEVELS)), float(rng.random())
    said = votes(weights)
    kept = CODEC.within(said, budget, place)
    left = kept.reshape(M, -1).sum(axis=1)
    assert left.sum() <= budget
    assert set(np.flatnonzero(left)) <= set(np.flatnonzero(weights))
    assert all(now in (0, then) for now, then in zip(left.tolist(), weights, strict=True))
    dropped = [then for now, then in zip(left.tolist(), weights, strict=True) if now != then]
    assert not dropped or left.sum() > budget - LEVELS
    assert max(dropped, default=0) <= min(left[left > 0].tolist(), default=LEVELS)


def test_clients_that_know_everything_share_the_round_between_them():
    """Ten that know all proxies: each keeps its own tenth, and every proxy is answered."""
    everything = votes([LEVELS] * M)
    kept = [CODEC.within(everything, M * LEVELS // 10, k / 10).reshape(M, -1) for k in range(10)]
    assert np.sum(kept, axis=(0, 2)).tolist() == [LEVELS] * M


def test_a_budget_is_one_that_binds_somebody():
    assert CODEC.budget(1.0, 256, 10) == 26 * 3
    for slack in (None, 10.0):
        assert CODEC.budget(slack, 256, 10) is None
    for wrong in (0.5, float("inf"), float("nan")):
        with pytest.raises(ConfigurationError, match="budget"):
            SelectiveFD("hard", budget=wrong)


@pytest.mark.parametrize("slack", [None, 1.2])
def test_the_same_run_by_three_sums_is_the_same_to_the_last_bit(slack):
    sizes = Sizes(proxies=10, test=5, held_out=1, local=10)
    data = federate(load("digits"), parse_split("iid"), 4, seed=3, sizes=sizes)
    totals = []
    for sums in (PlainSum(4), MaskedSum(4, public_seed=5), Prio3Sum(4)):
        made = Federation(
            *participants(data),
            data.proxies.pixels,
            SelectiveFD("hard", budget=slack),
            aggregation=sums,
            schedule=BRIEF,
            device=CPU,
            seed=5,
        )
        assert not any(report.aborted or report.refused for report in made.fit(2))
        totals.append([told.total.tolist() for told in made.transcript.distillation])
        if slack is not None:
            most = CODEC.budget(slack, 32, 4)
            assert max(sum(total) for total in totals[-1]) <= 4 * (most or 0)
    assert totals[0] == totals[1] == totals[2]
