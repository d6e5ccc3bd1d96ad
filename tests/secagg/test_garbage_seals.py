"""A client that seals garbage costs itself: its victims stay, and it is in no later cohort.

A client whose shares do not open names the sealer and gives no share of it. The round goes on while
enough others hold shares, and is void otherwise. A complaint that is a lie bars nobody: it takes
more of them than may be corrupt, or than the shares that a secret has to spare.
"""

from collections.abc import Collection
from dataclasses import replace

import pytest

from secure_fd.errors import MissingClientError, PeerError
from secure_fd.secagg.client import ClientRound
from secure_fd.secagg.machine import ClientState
from secure_fd.secagg.messages import SEALED_BYTES
from secure_fd.secagg.server import ServerRound
from secure_fd.secagg.session import RoundTerms
from secure_fd.wire import HEADER_BYTES
from tests.drivers.cohort import Cohort, Round, read_input, write_input

SEALER = 1


def terms(index: int) -> RoundTerms:
    return RoundTerms(index, 8, 4)


def seal_garbage(cohort: Cohort, message: bytes, victims: Collection[int]) -> bytes:
    """The sealer's PREPARE, with zeros in the place of what it seals for these."""
    k, near = cohort.group.degree, cohort.group.neighbours(SEALER)
    changed = bytearray(message)
    start = HEADER_BYTES + 64 + 32 * k + 16
    for victim in victims:
        at = start + SEALED_BYTES * near.index(victim)
        changed[at : at + SEALED_BYTES] = bytes(SEALED_BYTES)
    return bytes(changed)


def attacked(cohort: Cohort, victims: Collection[int], index: int = 1) -> Round:
    """A round whose inputs are in: the sealer has sealed garbage to these."""
    current = cohort.draw(terms(index))
    outbound = current.start()
    outbound[SEALER] = seal_garbage(cohort, outbound[SEALER], victims)
    for k, message in current.answer(current.deliver(outbound)).items():
        current.server.receive(k, message)
    return current


def others(n: int) -> list[int]:
    return [k for k in range(n) if k != SEALER]


@pytest.mark.parametrize(("n", "count"), [(4, 1), (7, 1), (7, 2), (10, 3), (30, 9)])
def test_the_round_goes_on_while_enough_shares_are_left(n, count):
    cohort = Cohort(n)
    victims = others(n)[:count]
    current = attacked(cohort, victims)
    current.go_on(current.server.advance())
    current.assert_exact()
    assert {machine.state for machine in current.clients.values()} == {ClientState.DONE}
    assert not cohort.server.barred


@pytest.mark.parametrize(("n", "count"), [(4, 2), (4, 3), (7, 3), (7, 6), (10, 4), (30, 10)])
def test_else_it_is_void_and_the_next_goes_on_without_the_sealer(n, count):
    cohort = Cohort(n)
    current = attacked(cohort, others(n)[-count:])
    with pytest.raises(MissingClientError, match="opened at fewer"):
        current.server.advance()
    assert set(cohort.server.barred) == {SEALER}
    assert {machine.state for machine in current.clients.values()} == {ClientState.SENT}
    following = cohort.draw(terms(2))
    outbound = following.start()  # the same again: it ended badly
    with pytest.raises(PeerError, match=f"client {SEALER} was not asked"):
        following.server.receive(SEALER, outbound[SEALER])
    inbound = following.deliver(outbound, without=[SEALER])
    assert sorted(inbound) == others(n)
    following.go_on(inbound)
    following.assert_exact(others(n))


def test_twin_whose_clients_abort_loses_every_victim(monkeypatch):
    """What one client could do: knock out whom it chose."""

    def aborting(machine: ClientRound, *given: object) -> bytes:
        closed = OPEN_ALL(machine, *given)
        if any(closed):
            raise PeerError("a seal does not open")
        return closed

    monkeypatch.setattr(ClientRound, "_open_all", aborting)
    with pytest.raises(PeerError, match="a seal does not open"):
        attacked(Cohort(7), [0, 2])


OPEN_ALL = ClientRound._open_all


def test_twin_that_judges_no_seal_is_void_round_after_round(monkeypatch):
    monkeypatch.setattr(ServerRound, "_judge_seals", lambda *_: None)
    cohort = Cohort(7)
    for index in (1, 3, 5):
        current = attacked(cohort, others(7)[:3], index)
        with pytest.raises(MissingClientError):
            current.go_on(current.server.advance())
    assert not cohort.server.barred


# Complaints that are not true.


def complaining(cohort: Cohort, liars: Collection[int], about: Collection[int]) -> Round:
    """A round in which these say of those that their seals did not open."""
    current = cohort.draw(terms(1))
    inputs = current.masked()
    for liar in liars:
        near = cohort.group.neighbours(liar)
        closed = tuple(k for k in near if k in about)
        masked = replace(read_input(current.clients[liar], inputs[liar]), closed=closed)
        inputs[liar] = write_input(current.clients[liar], masked)
    for k, message in inputs.items():
        current.server.receive(k, message)
    return current


@pytest.mark.parametrize(
    ("n", "liars", "about"),
    [
        (4, [0], [1, 2]),
        (7, [0], [1, 2]),
        (7, [0, 6], [1, 2]),
        (10, [3, 4, 5], [1, 2]),
        (10, [0], range(10)),
    ],
)
def test_false_complaints_of_a_few_bar_nobody(n, liars, about):
    cohort = Cohort(n)
    current = complaining(cohort, liars, about)
    current.go_on(current.server.advance())
    current.assert_exact()
    assert not cohort.server.barred


def test_of_three_one_complaint_voids_the_round_and_bars_nobody():
    """Every share is needed there, and it is one word against another."""
    cohort = Cohort(3)
    current = complaining(cohort, [0], about=[1])
    with pytest.raises(MissingClientError, match="opened at fewer"):
        current.server.advance()
    assert not cohort.server.barred


def test_twin_that_believes_one_complaint_is_caught(monkeypatch):
    def credulous(current: ServerRound, survivors: tuple[int, ...]) -> None:
        for k in survivors:
            for owner in current._closed[k]:
                current._enrolment.barred[owner] = "somebody said so"

    monkeypatch.setattr(ServerRound, "_judge_seals", credulous)
    cohort = Cohort(10)
    complaining(cohort, [0], about=range(10)).server.advance()
    assert len(cohort.server.barred) == 9
