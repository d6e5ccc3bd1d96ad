"""Who spoils a round where only its end shows it is named, and left out of the next."""

from dataclasses import replace

import pytest

from secure_fd.errors import GarbledSumError, PeerError
from secure_fd.secagg.server import ServerRound
from secure_fd.secagg.session import RoundTerms
from tests.drivers.cohort import (
    Cohort,
    flip,
    read_input,
    write_input,
)

TERMS = RoundTerms(1, 12, 4, b"told this")
NEXT = RoundTerms(2, 12, 4, b"told that")


def told_otherwise(cohort: Cohort, number: int) -> None:
    """A round in which one client speaks of another subject."""
    current = cohort.draw(TERMS)
    other = cohort.clients[number]
    other._rounds._last -= 1
    terms = replace(TERMS, subject=b"told something else")
    current.clients[number] = other.open_round(terms, current.values[number])
    inbound = current.deliver(current.masked())
    answers = current.answer({k: data for k, data in inbound.items() if k != number})
    with pytest.raises(GarbledSumError):
        current.deliver(answers)


def go_on(cohort: Cohort, without: int) -> None:
    """The next round, whose sum is exact and has everybody but one."""
    left = [k for k in cohort.clients if k != without]
    following = cohort.draw(NEXT, left)
    following.finish()
    following.assert_exact(left)


def test_a_client_under_other_terms_voids_one_round_and_is_named():
    cohort = Cohort(10)
    told_otherwise(cohort, 4)
    assert set(cohort.server.barred) == {4}
    assert "client 4's cohort does not verify" in cohort.server.barred[4]
    go_on(cohort, without=4)


def test_twin_that_looks_at_no_signature_names_nobody(monkeypatch):
    monkeypatch.setattr(ServerRound, "_name_others", lambda _: None)
    cohort = Cohort(10)
    told_otherwise(cohort, 4)
    assert not cohort.server.barred


def test_a_vault_that_does_not_open_names_its_owner():
    """Client 2 prepares it wrongly, with the input of round 1, and drops out of round 2."""
    cohort = Cohort(10)
    current = cohort.draw(TERMS)
    inputs = current.masked()
    masked = read_input(current.clients[2], inputs[2])
    assert masked.following is not None
    spoiled = replace(masked.following, vault=flip(masked.following.vault))
    inputs[2] = write_input(current.clients[2], replace(masked, following=spoiled))
    current.deliver(current.answer(current.deliver(inputs)))
    following = cohort.draw(NEXT)
    with pytest.raises(GarbledSumError, match="vault"):
        following.finish(without=[2])
    assert set(cohort.server.barred) == {2}


def test_a_complaint_of_a_client_outside_the_cohort_costs_its_sender():
    cohort = Cohort(6)
    current = cohort.draw(TERMS)
    del current.clients[5]
    inputs = current.masked()
    masked = replace(read_input(current.clients[0], inputs[0]), closed=(5,))
    with pytest.raises(PeerError, match="complains of clients that are not in the cohort"):
        current.server.receive(0, write_input(current.clients[0], masked))
    assert set(current.server.refused) == {0}
