"""A message out of order, from an earlier round or from another session is refused: a client
answers nothing and leaves the round, a server drops its sender and goes on. So is a second message
of a stage that differs from the first. An exact copy has no effect; see test_exact_copies.py.
"""

import pytest

from secure_fd.errors import PeerError
from secure_fd.secagg.machine import ClientState, ServerState
from secure_fd.secagg.session import MessageType
from tests.drivers.cohort import (
    LATER,
    ROUND_STATES,
    SETUP_STATES,
    TERMS,
    Cohort,
    Round,
    SetUp,
    assert_dead,
    assert_setup_dead,
    complete_survivors,
    flip,
    inbox,
    reach,
    round_of,
)

DUE = {
    ClientState.PREPARED: {"COHORT"},
    ClientState.SENT: {"SURVIVORS", "COMPLETE SURVIVORS"},
    ClientState.SIGNED: {"SIGNATURES"},
}


BEFORE = {
    ClientState.SENT: {"COHORT"},
    ClientState.SIGNED: {"COHORT", "SURVIVORS"},
    ClientState.DONE: {"COHORT", "SURVIVORS", "SIGNATURES"},
}
"""What a client accepted before it came into a state."""


def of_this_round() -> dict[str, bytes]:
    """Cohorts of one seed have the same rounds byte for byte, so these are the round's own."""
    return inbox(Cohort(4)) | {"COMPLETE SURVIVORS": complete_survivors(Cohort(4))}


@pytest.mark.parametrize("state", ROUND_STATES)
def test_a_client_takes_a_message_in_its_turn_and_once(state):
    for name, message in of_this_round().items():
        machine = reach(state, Cohort(4))
        if name in DUE.get(state, ()):
            assert machine.receive(message)
        if name in DUE.get(state, set()) | BEFORE.get(state, set()):
            before = machine.state, machine._held
            assert machine.receive(message) == b""
            assert (machine.state, machine._held) == before
        with pytest.raises(PeerError, match="not allowed in state"):
            machine.receive(flip(message))
        assert_dead(machine)


@pytest.mark.parametrize("state", ROUND_STATES)
def test_a_client_takes_no_message_of_another_round_or_session(state):
    other = inbox(Cohort(4), LATER)
    foreign = [(message, "belongs to round 5, not round 3") for message in other.values()]
    for message in inbox(Cohort(4, nonce=b"other")).values():
        foreign.append((message, "belongs to another session"))
    for message, sentence in foreign:
        machine = reach(state, Cohort(4))
        with pytest.raises(PeerError, match=sentence):
            machine.receive(message)
        assert_dead(machine)
    for name in other:
        cohort = Cohort(4)
        earlier = inbox(cohort)[name]
        machine = reach(state, cohort, LATER)
        with pytest.raises(PeerError, match="belongs to round 3, not round 5"):
            machine.receive(earlier)
        assert_dead(machine)


# The server.


N = 7


def outbox(n: int = N) -> list[tuple[Round, dict[int, bytes]]]:
    """A round before each of its four stages, with what the clients are about to send in it.

    Client 6 falls silent before its input; of seven, five are enough.
    """
    found = []
    for stop in range(4):
        current = round_of(Cohort(n))
        outbound = current.start()
        for stage in range(stop):
            inbound = current.deliver(outbound, without=(6,) if stage == 1 else ())
            outbound = current.answer(inbound)
        found.append((current, outbound))
    return found


STAGES = [ServerState.PREPARE, ServerState.INPUT, ServerState.CONSISTENCY, ServerState.UNMASK]


def assert_goes_on(current: Round, outbound: dict[int, bytes], out: set[int]) -> None:
    """The rest of this stage and of the round, with the sum of whoever's input is in it."""
    assert current.server.refused.keys() == out
    arrived = set(current.server.survivors)
    for k in current.server.waiting:
        current.server.receive(k, outbound[k])
    current.go_on(current.server.advance())
    survivors = set(current.server.survivors)
    assert survivors == (arrived or set(current.clients) - out - {6} | (survivors & {6}))
    current.assert_exact(survivors)


@pytest.mark.parametrize("at", range(4), ids=[stage.name for stage in STAGES])
def test_the_server_takes_a_stages_message_in_that_stage_only(at):
    for other in range(4):
        if other == at:
            continue
        current, due = outbox()[at]
        _, outbound = outbox()[other]
        with pytest.raises(PeerError, match=f"not allowed in state {STAGES[at].name}"):
            current.server.receive(0, flip(outbound[0]))
        assert_goes_on(current, due, {0})


def test_the_server_takes_no_message_of_another_round_or_session():
    for at in range(4):
        for cohort, sentence in (
            (Cohort(N, nonce=b"other"), "another session"),
            (Cohort(N), "belongs to round 5, not round 3"),
        ):
            current, outbound = outbox()[at]
            terms = LATER if "round" in sentence else TERMS
            foreign = round_of(cohort, terms).clients[0].start()
            assert foreign is not None
            message = foreign[:48] + outbound[0][48:]
            with pytest.raises(PeerError, match=sentence):
                current.server.receive(0, message)
            assert_goes_on(current, outbound, {0})


# Set-up.


def setup_in(state: ClientState, setup: SetUp) -> dict[str, bytes]:
    """Bring client 0 into the state; every message to it so far and the next."""
    said: dict[str, bytes] = {}
    if state is ClientState.READY:
        return said
    inbound = setup.deliver(setup.start())
    names = iter(("MEMBERS", "AGREED", "CAPSULES"))
    while inbound:
        said[next(names)] = inbound[0]
        if setup.clients[0].state is state:
            break
        outbound = setup.answer(inbound)
        inbound = setup.deliver(outbound) if outbound else {}
    return said


@pytest.mark.parametrize("state", SETUP_STATES)
def test_a_set_up_takes_a_message_in_its_turn_and_once(state):
    due = {ClientState.JOINED: "MEMBERS", ClientState.REVEALED: "AGREED",
           ClientState.SENT_CAPSULES: "CAPSULES"}  # fmt: skip
    for kind in (MessageType.MEMBERS, MessageType.AGREED, MessageType.CAPSULES):
        setup = Cohort(3, hybrid=True, enrolled=False).open_setup()
        said = setup_in(state, setup)
        machine = setup.clients[0]
        assert machine.state is state
        complete = Cohort(3, hybrid=True, enrolled=False).open_setup()
        message = (setup_in(ClientState.DONE, complete) | said)[kind.name]
        if due.get(state) == kind.name:
            machine.receive(message)
        if kind.name in said:
            before = machine.state, machine._held
            assert machine.receive(message) == b""
            assert (machine.state, machine._held) == before
        with pytest.raises(PeerError, match="not allowed in state"):
            machine.receive(flip(message))
        assert_setup_dead(machine)


@pytest.mark.parametrize("state", [ClientState.JOINED, ClientState.REVEALED])
def test_a_set_up_takes_no_message_of_an_earlier_one_or_of_another_session(state):
    name = "MEMBERS" if state is ClientState.JOINED else "AGREED"
    cohort = Cohort(3, enrolled=False)
    earlier = setup_in(ClientState.DONE, cohort.open_setup())[name]
    foreign = setup_in(ClientState.DONE, Cohort(3, nonce=b"other", enrolled=False).open_setup())
    for message, sentence in (
        (earlier, "leaves out or alters client 0|member list does not verify"),
        (foreign[name], "another session"),
    ):
        setup = cohort.open_setup()
        setup_in(state, setup)
        assert setup.clients[0].state is state
        with pytest.raises(PeerError, match=sentence):
            setup.clients[0].receive(message)
        assert_setup_dead(setup.clients[0])
