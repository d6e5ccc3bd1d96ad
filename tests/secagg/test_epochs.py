"""Rounds of a new epoch begin with a set-up, by themselves, through the two halves of a sum."""

import numpy as np
import pytest

from secure_fd.crypto.keys import insecure_bytes
from secure_fd.errors import LocalError
from secure_fd.secagg.session import RoundTerms
from secure_fd.secure_sum.masked import MaskedSum
from secure_fd.votes.codec import WordArray
from tests.drivers.cohort import Cohort, open_round
from tests.drivers.summing import Summed, summed, total_of

N, BOUND = 5, 4


def vectors_of(index: int, without: tuple[int, ...] = ()) -> dict[int, WordArray]:
    rng = np.random.default_rng(index)
    drawn = rng.integers(0, BOUND + 1, (N, 6), np.uint64)
    return {k: drawn[k] for k in range(N) if k not in without}


def exact(result: Summed, index: int, who: tuple[int, ...]) -> bool:
    return result.survivors == who and result.total.tolist() == total_of(vectors_of(index), who)


def views(method: MaskedSum) -> set[bytes]:
    """Views of the set-ups that the clients and the server use."""
    found = {client._enrolment.group.view for client in method._clients if client.enrolled}
    return found | {method._server.group.view}


ALL = tuple(range(N))


@pytest.mark.parametrize("hybrid", [False, True])
def test_six_rounds_of_epochs_of_two_sum_exactly_with_a_client_away(hybrid):
    """Client 4 misses the set-up of the second epoch: it is back in the third."""
    method = MaskedSum(N, epoch=2, hybrid=hybrid)
    seen = []
    for index in range(6):
        away = (4,) if index == 2 else ()
        result = summed(method, index, vectors_of(index, away), BOUND)
        who = ALL[:4] if index in (2, 3) else ALL
        assert exact(result, index, who)
        assert set(result.missing) == set()
        seen.append(method._server.group.view)
    assert [seen[at] == seen[at + 1] for at in range(5)] == [True, False, True, False, True]
    assert len(views(method)) == 1


def test_too_few_at_a_set_up_abort_the_round_and_the_next_one_sets_up_again():
    method = MaskedSum(N, epoch=2, random=insecure_bytes(2), hybrid=False)
    assert exact(summed(method, 1, vectors_of(1), BOUND), 1, ALL)
    second = summed(method, 2, vectors_of(2, (0, 1, 2)), BOUND)
    assert second.aborted
    assert second.server.result is None
    assert exact(summed(method, 3, vectors_of(3), BOUND), 3, ALL)


def test_rounds_of_an_epochs_end_bring_nothing_of_the_next():
    """The prepared message would be under channels that are gone by then."""
    method = MaskedSum(N, epoch=2, random=insecure_bytes(4), hybrid=False)
    sent = [summed(method, index, vectors_of(index), BOUND).up[0] for index in range(2)]
    prepare = 32 + 32 + (32 * 4 + 16) + 80 * 4
    assert sent[0] - sent[1] == (48 + prepare) + prepare
    assert all(client._enrolment.prepared is None for client in method._clients)


def test_no_party_opens_a_round_of_another_epoch():
    cohort = Cohort(4, epoch=2)
    assert (cohort.open(RoundTerms(1, 4, 4)).finish() == 0).all()
    for party in (cohort.clients[0], cohort.server):
        assert not party.serves(2)
        with pytest.raises(LocalError, match="no set-up to open round 2 in"):
            open_round(party, RoundTerms(2, 4, 4))
    cohort.enrol()
    assert (cohort.open(RoundTerms(2, 4, 4)).finish() == 0).all()


def test_a_set_up_serves_the_first_epoch_that_it_is_used_in():
    cohort = Cohort(4, epoch=2)
    assert all(client.serves(index) for client in cohort.clients.values() for index in (0, 5, 900))
    assert (cohort.open(RoundTerms(5, 4, 4)).finish() == 0).all()
    assert [cohort.clients[0].serves(index) for index in (3, 4, 5, 6)] == [False, True, True, False]
