"""One client that sends rubbish, breaks the bound or refuses costs itself, and not the run.

Each fault is put into a real federation, in every stage. The mutant's server does not drop the
sender of a bad message, so that the same fault ends the run.
"""

from collections.abc import Callable, Sequence
from unittest.mock import patch

import numpy as np
import pytest

from secure_fd.errors import BudgetError, LocalError, PeerError
from secure_fd.protocol.server import Server
from secure_fd.secagg.session import RoundTerms
from secure_fd.secure_sum.masked import MaskedSum
from secure_fd.secure_sum.plain import PlainSum
from secure_fd.votes.packing import LaneLayout
from secure_fd.wire import HEADER_BYTES, Kind, Place, Stage, frame
from tests.small_federation import alike, faults, federation, run

Fault = Callable[[bytes], Sequence[bytes]]
BAD, CLIENTS = 3, 7
LIMIT = 1 << 16
"""Bytes of a message at most, in these tests."""


@pytest.fixture(scope="module")
def seven():
    return alike(CLIENTS, 20, 10)


FAULTS = {
    "cut": lambda data: [data[:-1]],
    "empty": lambda _: [b""],
    "garbage": lambda data: [data[:HEADER_BYTES] + b"\xff" * (len(data) - HEADER_BYTES + 8)],
    "overlong": lambda data: [data + bytes(LIMIT)],
    "headless": lambda data: [b"\xff" * len(data)],
    "of another": lambda data: [data[:4] + (BAD + 1).to_bytes(4, "big") + data[8:]],
}


def misbehave(made, stage, fault, client=BAD):
    """From now on the client spoils what it sends in a stage."""
    bad = made.clients[client]
    receive_message = bad.receive

    def receive(data):
        at, sent = made.server.sums.stage, receive_message(data)
        return [m for reply in sent for m in (fault(reply) if at is stage else [reply])]

    bad.receive = receive


def summed(masks):
    return MaskedSum(CLIENTS, public_seed=0) if masks else PlainSum(CLIENTS)


def of_seven(data, sums, stage):
    """The consistency stage comes only where a client is missing."""
    gone = {1: {0: Stage.INPUT}} if stage is Stage.CONSISTENCY else {}
    return run(federation(data, aggregation=sums, dropouts=faults(gone)), rounds=0)


MASKED = [stage for stage in Stage if stage is not Stage.PREPARE]


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
@pytest.mark.parametrize("stage", [None, *MASKED])
def test_a_bad_message_costs_its_sender_the_round(seven, monkeypatch, stage, fault):
    """In clear (no stage), and in each stage under masks; it is back in the next round."""
    monkeypatch.setattr("secure_fd.protocol.server.LIMIT", LIMIT)
    at = stage or Stage.INPUT
    made = of_seven(seven, summed(stage is not None), at)
    made.fit(1)
    honest = made.clients[BAD].receive
    misbehave(made, at, fault)
    [report] = made.fit(1)
    assert not report.aborted
    assert [k for k, why in report.refused if why] == [BAD]
    assert dict(report.missing)[BAD] is at
    assert (BAD in report.survivors) is (at in (Stage.CONSISTENCY, Stage.UNMASK))
    made.clients[BAD].receive = honest
    [healed] = made.fit(1)
    assert (healed.survivors, healed.refused) == (tuple(range(CLIENTS)), ())


def test_rubbish_in_the_first_stage_of_all_costs_its_sender_the_round(seven):
    """PREPARE is a message of its own in a session's first round."""
    made = of_seven(seven, MaskedSum(CLIENTS, public_seed=0), Stage.PREPARE)
    misbehave(made, Stage.PREPARE, FAULTS["garbage"])
    [report, healed] = made.fit(2)
    assert [k for k, _ in report.refused] == [BAD]
    assert report.survivors == healed.survivors == (0, 1, 2, 4, 5, 6)
    assert not healed.aborted


def test_a_second_message_costs_its_sender_what_follows_and_not_its_input(seven):
    made = of_seven(seven, PlainSum(CLIENTS), Stage.INPUT)
    misbehave(made, Stage.INPUT, lambda data: [data, data])
    [report] = made.fit(1)
    assert report.survivors == tuple(range(CLIENTS))
    assert [k for k, _ in report.refused] == [BAD]


def test_a_server_that_drops_no_client_is_ended_by_one_bad_message(seven, monkeypatch):
    """Mutant."""

    def receive(self, sender, data):
        self.sums.receive(sender, data)

    monkeypatch.setattr(Server, "receive", receive)
    made = of_seven(seven, PlainSum(CLIENTS), Stage.INPUT)
    misbehave(made, Stage.INPUT, FAULTS["cut"])
    with pytest.raises(PeerError):
        made.fit(1)


def test_a_sum_in_clear_refuses_a_message_that_is_not_the_one_input_of_its_round():
    sums = PlainSum(2)
    server, terms = sums.server(), RoundTerms(0, 2, 3, b"s" * 32)
    with pytest.raises(LocalError):
        server.advance()
    server.open(terms)
    place = Place(sums.session, 0)
    for message in (
        frame(Kind.RESULT, place, 0, b""),
        frame(Kind.INPUT, place, 0, terms.subject, b"1"),
        frame(Kind.INPUT, place, 0, b"t" * 32, bytes(8)),
    ):
        with pytest.raises(PeerError):
            server.receive(0, message)
    assert server.waiting == {0, 1}


# A lane out of range: in clear it names its sender, under masks it shows in the sum alone.


def unchecked(self, values):
    return self._spread(values.view(np.uint64))


class Beyond:
    """Client of the sum that subtracts five votes everywhere, out of the bound."""

    gave = False

    def __init__(self, inner):
        self.start, self.receive, self.inner = inner.start, inner.receive, inner

    def load(self, terms, values):
        with patch.object(LaneLayout, "pack", unchecked):
            return self.inner.load(terms, values - np.uint64(5))


@pytest.mark.parametrize("masks", [False, True])
def test_a_value_beyond_the_bound_does_not_end_the_run(seven, masks):
    made = federation(seven, aggregation=summed(masks))
    liar = made.clients[BAD]
    honest, liar._sum = liar._sum, Beyond(liar._sum)
    [report] = made.fit(1)
    liar._sum = honest
    [healed] = made.fit(1)
    assert report.aborted is masks
    if masks:
        assert report.why
    else:
        assert [k for k, _ in report.refused] == [BAD]
        assert BAD not in report.survivors
    assert healed.survivors == tuple(range(CLIENTS))


# A client that refuses.


class Refusing:
    """Role of a client that refuses from one round on with a given error."""

    def __init__(self, role, error, after):
        self.role, self.error, self.left = role, error, after

    def begin(self):
        if self.left < 0:
            raise self.error
        yield from self.role.begin()

    def __getattr__(self, name):
        return getattr(self.role, name)

    def round(self, announcement):
        if self.left == 0:
            raise self.error
        self.left -= 1
        yield from self.role.round(announcement)


def refuse(made, clients, error, after=1):
    for k in clients:
        made.clients[k].role = Refusing(made.clients[k].role, error, after)


ERRORS = [BudgetError("epsilon 4 is spent"), LocalError("no"), PeerError("the server lies")]


@pytest.mark.parametrize("error", ERRORS, ids=["budget", "local", "peer"])
@pytest.mark.parametrize("masks", [False, True])
def test_a_client_that_refuses_in_mid_run_is_missing_from_then_on(seven, masks, error):
    made = federation(seven, aggregation=summed(masks))
    refuse(made, [BAD], error)
    first, *later = made.fit(3)
    assert (first.refused, first.missing) == ((), ())
    for report in later:
        assert report.refused == ((BAD, str(error)),)
        assert report.survivors == (0, 1, 2, 4, 5, 6)
        assert dict(report.missing).keys() == {BAD}


@pytest.mark.parametrize(("masks", "least"), [(False, 0), (True, 0), (True, 4)])
def test_where_too_few_are_left_rounds_are_aborted_and_the_run_returns(seven, masks, least):
    made = federation(seven, aggregation=summed(masks))
    refuse(made, range(least, CLIENTS), ERRORS[0])
    first, *later = made.fit(3)
    assert not first.aborted
    assert [r.aborted for r in later] == [True, True]
    assert all(r.why for r in later)
    assert all([k for k, _ in r.refused] == list(range(least, CLIENTS)) for r in later)


def test_a_run_that_no_client_can_begin_raises_the_refusal(seven):
    some, none = federation(seven), federation(seven)
    refuse(some, range(1, CLIENTS), ERRORS[0], after=-1)
    assert len(some.fit(1)) == 1
    refuse(none, range(CLIENTS), ERRORS[0], after=-1)
    with pytest.raises(BudgetError):
        none.fit(1)


def test_an_error_that_is_no_refusal_is_not_hidden(seven):
    made = federation(seven)
    refuse(made, [BAD], ZeroDivisionError("a mistake of ours"))
    with pytest.raises(ZeroDivisionError):
        made.fit(2)


# A sum that no honest clients give.


def test_a_sum_that_the_method_cannot_read_aborts_the_round(seven, monkeypatch):
    made = federation(seven)
    made.fit(1)
    honest = made.server.role.round

    def lied_to(index):
        turn = honest(index)
        yield next(turn)
        raise PeerError("a class has more records than its clients")

    with monkeypatch.context() as patched:
        patched.setattr(made.server.role, "round", lied_to)
        [report] = made.fit(1)
    assert (report.aborted, report.why) == (True, "a class has more records than its clients")
    assert not made.fit(1)[0].aborted
