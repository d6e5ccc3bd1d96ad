"""The figures that the masked sum's guarantee prints, and what it says that one client can do."""

import re

import numpy as np
import pytest

from secure_fd.errors import GarbledSumError
from secure_fd.secagg.session import Group, PinnedRoster, Session
from secure_fd.secure_sum.masked import masked_guarantee
from tests.drivers.cohort import TERMS, Cohort

SERVER = bytes([9]) + bytes(31)


def group_of(members: int, roster: int, **session: int | bool) -> Group:
    listed = PinnedRoster({k: (k + 1).to_bytes(32, "little") for k in range(roster)})
    made = Session(listed, b"", b"", b"", SERVER, **session)
    return Group(made, tuple(range(members)), b"", bytes(32))


@pytest.mark.parametrize(
    ("members", "roster", "corrupt"), [(3, 3, 1), (4, 4, 1), (10, 10, 3), (100, 100, 33)]
)
def test_it_names_the_corrupt_clients_that_a_complete_graph_stands(members, roster, corrupt):
    group = group_of(members, roster)
    assert corrupt == min(2 * group.threshold - members - 1, group.quorum - 2)
    said = masked_guarantee(group, None)
    assert f"up to {corrupt} of the {members} clients" in said
    assert "neighbours" not in said


def test_it_names_what_corruption_after_the_draw_does_to_a_sparse_graph():
    """A tenth, rounded up as the degree's bounds have it; the attack is a test of its own."""
    group = group_of(301, 301)
    said = masked_guarantee(group, None)
    assert "up to 31 of the 301 clients" in said
    named = re.search(r"corrupts (\d+) of one client's neighbours", said)
    assert named is not None
    assert int(named[1]) == 2 * group.threshold - group.degree - 1 < group.degree


def test_it_names_key_agreement_epoch_and_public_seed():
    plain = masked_guarantee(group_of(3, 3, epoch=7), 5)
    assert "every 7 rounds" in plain
    assert "public seed 5" in plain
    assert "ML-KEM" not in plain
    assert "ML-KEM" in masked_guarantee(group_of(3, 3, hybrid=True), None)


@pytest.mark.parametrize("upward", [True, False])
def test_one_client_moves_a_sum_by_as_much_as_it_says(upward):
    """Against others that all vote least, or most; one step more, and the round is void."""
    for beyond in (0, 1):
        cohort = Cohort(4)
        others, bound = 0 if upward else TERMS.bound, TERMS.bound
        values = {k: np.full(TERMS.length, others, np.uint64) for k in cohort.clients}
        current = cohort.open(TERMS, values)
        liar = current.clients[2]
        assert liar._held is not None
        assert liar._held.words is not None
        step = 4 * bound + beyond if upward else -3 * bound - beyond
        liar._held.words[:] = liar._held.words * 0 + np.uint64(step % 2**64)
        if beyond:
            with pytest.raises(GarbledSumError):
                current.finish()
            continue
        total = current.finish()
        assert total[0] == (4 * bound if upward else 0)
