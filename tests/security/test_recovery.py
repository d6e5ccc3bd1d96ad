"""Secrets that come back wrong void the round, too few answers end it, and the next one goes on.

Four clients, and three shares open a secret: with all of them there is one to spare, with one lost
there is none. What spare shares correct is in test_wrong_shares.py.
"""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from secure_fd.crypto import shamir
from secure_fd.errors import GarbledSumError, LocalError, MissingClientError
from secure_fd.secagg import messages
from secure_fd.secagg.machine import ServerState
from secure_fd.secagg.session import MessageType
from secure_fd.wire import frame
from tests.drivers.cohort import (
    LATER,
    TERMS,
    Cohort,
    Round,
    flip,
    read_input,
    round_of,
    write_input,
)

UNMASK_HEAD, SHARE = 48, shamir.ELEMENT_BYTES


def unmasking(cohort: Cohort, lost: tuple[int, ...]) -> tuple[Round, dict[int, bytes]]:
    """A round whose clients are about to give their shares; the inputs of `lost` do not come."""
    current = round_of(cohort)
    inbound = current.deliver(current.masked(), without=lost)
    while current.server.state is not ServerState.UNMASK:
        inbound = current.deliver(current.answer(inbound))
    return current, current.answer(inbound)


def assert_void(current: Round, cohort: Cohort) -> None:
    """No sum, and the next round has one."""
    assert current.server.state is ServerState.ABORTED
    with pytest.raises(LocalError, match="no sum in state ABORTED"):
        _ = current.server.total
    cohort.server.barred.clear()
    following = cohort.draw(LATER)
    following.finish()
    following.assert_exact()


def another_share(message: bytes, at: int) -> bytes:
    """A corrupt holder gives another element of the field."""
    start = UNMASK_HEAD + SHARE * at
    share = int.from_bytes(message[start : start + SHARE], "big")
    forged = shamir.encode((share + 1) % shamir.PRIME)
    return message[:start] + forged + message[start + SHARE :]


@pytest.mark.parametrize("owner", [0, 1, 2, 3])
def test_a_wrong_share_voids_the_round_where_none_is_to_spare(owner):
    """Of a seed, or of the root of client 3, whose input is lost."""
    cohort = Cohort(4)
    current, shares = unmasking(cohort, (3,))
    shares[0] = another_share(shares[0], owner)
    with pytest.raises(GarbledSumError, match=f"client {owner}'s secret restore another one"):
        current.deliver(shares)
    assert_void(current, cohort)


@pytest.mark.parametrize("owner", [0, 1, 2])
def test_a_wrong_share_of_a_seed_is_left_out_where_one_is_to_spare(owner):
    cohort = Cohort(4)
    current, shares = unmasking(cohort, ())
    shares[0] = another_share(shares[0], owner)
    current.deliver(shares)
    current.assert_exact()


def test_a_share_that_is_no_field_element_is_a_wrong_one():
    for lost in ((), (3,)):
        cohort = Cohort(4)
        current, shares = unmasking(cohort, lost)
        shares[1] = shares[1][:UNMASK_HEAD] + b"\xff" * SHARE + shares[1][UNMASK_HEAD + SHARE :]
        if lost:
            with pytest.raises(GarbledSumError, match="client 0's secret restore another one"):
                current.deliver(shares)
            assert_void(current, cohort)
        else:
            current.deliver(shares)
            current.assert_exact()


def test_shares_of_roots_where_seeds_are_due_are_wrong_ones():
    """A holder that opens the root of a survivor restores nothing with the others' seeds."""
    cohort = Cohort(4)
    current = round_of(cohort)
    inbound = current.deliver(current.masked())
    held = current.clients[1]._held
    assert held is not None
    roots = [held.shares[owner].root for owner in sorted(held.shares)]
    shares = current.answer(inbound)
    shares[1] = frame(MessageType.UNMASK, current.server.scope.place, 1, *roots)
    with pytest.raises(GarbledSumError, match="client 0's secret restore another one"):
        current.deliver(shares, without=(3,))
    assert_void(current, cohort)


# What a client publishes in PREPARE is checked against what is restored.


@pytest.mark.parametrize(
    ("client", "at", "sentence"),
    [
        (3, 0, "client 3's secret restore another one"),  # the round key
        (0, 32, "client 0's secret restore another one"),  # the commitment
        (3, 64, "client 3's vault does not open"),
        (3, 64 + 3 * 32 + 15, "client 3's vault does not open"),  # the end of its tag
    ],
)
def test_what_was_published_and_what_is_restored_must_fit(client, at, sentence):
    cohort = Cohort(4)
    current = round_of(cohort)
    inbound = current.prepare()
    sent = current.server._prepared[client]
    body, ends = flip(sent.encode(), at), (0, 32, 64, 64 + 3 * 32 + 16, None)
    parts = [body[start:end] for start, end in pairwise(ends)]
    current.server._prepared[client] = messages.Prepare(*parts)
    inbound = current.deliver(current.answer(inbound), without=(3,))
    shares = current.answer(current.deliver(current.answer(inbound)))
    with pytest.raises(GarbledSumError, match=sentence):
        current.deliver(shares)
    assert_void(current, cohort)


# Too few.


@pytest.mark.parametrize(
    ("stage", "sentence"),
    [
        (0, r"clients \[2, 3\] did not answer in round 3; the 3 that are left are too few"),
        (1, r"clients \[2, 3\] did not answer in round 3; the 3 that are left are too few"),
        (2, r"clients \[2, 3\] did not answer in round 3; the 2 that are left are too few"),
        (3, r"2 shares of client 0's secret came in; 4 open it"),
    ],
)
def test_below_the_quorum_nothing_is_unmasked_and_the_next_round_goes_on(stage, sentence):
    cohort = Cohort(5)
    current = round_of(cohort)
    outbound = current.start()
    for at in range(stage):
        lost = (4,) if at == 1 else ()  # a slow round, unless it ends before
        outbound = current.answer(current.deliver(outbound, without=lost))
    with pytest.raises(MissingClientError, match=sentence):
        current.deliver(outbound, without=(2, 3))
    assert_void(current, cohort)


def test_the_sum_is_over_whoever_sent_its_input():
    cohort = Cohort(5)
    current = cohort.draw(TERMS)
    current.finish(without=(2,))
    current.assert_exact((0, 1, 3, 4))


def test_a_sum_that_no_honest_cohort_can_reach_is_void():
    """The bound is 4 and three clients survive: 12 is the most, 13 somebody's lie."""
    cohort = Cohort(4)
    current = cohort.open(TERMS)
    sent = current.masked()
    masked = read_input(current.clients[2], sent[2])
    lie = masked.words + np.uint64(13)
    sent[2] = write_input(current.clients[2], replace(masked, words=lie))
    inbound = current.deliver(sent, without=(3,))
    shares = current.answer(current.deliver(current.answer(inbound)))
    with pytest.raises(GarbledSumError, match=r"the round is void: .* exceeds 12"):
        current.deliver(shares)
    assert_void(current, cohort)
