"""A bad message costs its sender: a client that receives one leaves, a server drops the sender.

The checks of single fields are in vectors/refused.py, and other garbage in fuzz/machines.py. Exact
copies have no effect: tests/model delivers every message twice.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest

from secure_fd.errors import GarbledSumError, LocalError, PeerError
from secure_fd.secagg import client as client_module
from secure_fd.secagg import masks as round_secrets
from secure_fd.secagg.channel import Channel
from secure_fd.secagg.machine import Accepted, ServerState
from secure_fd.secagg.masks import NO_SHARES, pair_stream
from secure_fd.secagg.messages import Relayed
from secure_fd.secagg.server import ServerRound
from secure_fd.secagg.session import RoundTerms
from tests.drivers.cohort import (
    SERVER_KEY,
    Clients,
    Cohort,
    SetUp,
    Stage,
    Stages,
    closed_in,
    flip,
    read_input,
    round_of,
    write_input,
)

BAD, N = 2, 7
"""Sender of the bad message, and number of clients."""
STAGES = [
    *("JOINS", "REVEALS", "CAPSULES"),
    *("PREPARE", "INPUT", "CONSISTENCY", "UNMASK"),
]


def before(stage: str) -> tuple[Stages, dict[int, bytes]]:
    """Machines before a stage, and what the clients are about to send; client 6 sends no input."""
    state, cohort = ServerState[stage], Cohort(N, hybrid=True, enrolled=False)
    machines = cohort.open_setup()
    if STAGES.index(stage) > 2:
        cohort = Cohort(N)
        machines = round_of(cohort)
    outbound = machines.start()
    while machines.server.state is not state:
        lost = (6,) if machines.server.state is ServerState.INPUT else ()
        outbound = machines.answer(machines.deliver(outbound, without=lost))
    return machines, outbound


def assert_goes_on(machines: Stages, outbound: Mapping[int, bytes]) -> None:
    """The rest of the stage and of all that follows, without the sender."""
    assert machines.server.refused.keys() == {BAD}
    machines.clients.pop(BAD)
    there = {k: message for k, message in outbound.items() if machines.server.waits_for(k)}
    machines.go_on(machines.deliver(there))
    if isinstance(machines, SetUp):
        assert machines.server.present == tuple(k for k in range(N) if k != BAD)
    else:
        machines.assert_exact(machines.server.survivors)
        assert set(machines.server.survivors) >= set(range(6)) - {BAD}


@pytest.mark.parametrize("stage", STAGES)
def test_a_bad_message_costs_its_sender_and_the_others_go_on(stage):
    machines, outbound = before(stage)
    with pytest.raises(PeerError):
        machines.server.receive(BAD, b"")
    with pytest.raises(PeerError, match=f"client {BAD} was not asked"):
        machines.server.receive(BAD, outbound[BAD])
    assert_goes_on(machines, outbound)


def of_the_same_sender(self: Accepted, sender: int, _: bytes) -> bool:
    return any(sender == known for known, _ in self._digests)


def test_mutant_that_takes_every_second_message_for_a_copy_swallows_the_error(monkeypatch):
    machines, outbound = before("INPUT")
    machines.server.receive(BAD, outbound[BAD])
    monkeypatch.setattr(Accepted, "has", of_the_same_sender)
    machines.server.receive(BAD, flip(outbound[BAD]))
    monkeypatch.undo()
    with pytest.raises(PeerError, match=f"client {BAD} sent a second message"):
        machines.server.receive(BAD, flip(outbound[BAD]))


RECEIVE = ServerRound.receive


def ends_the_round(server: ServerRound, sender: int, data: bytes) -> None:
    """ServerRound.receive of version 2."""
    try:
        RECEIVE(server, sender, data)
    except PeerError:
        server._ended = ServerState.ABORTED
        raise


@pytest.mark.parametrize("stage", STAGES[3:])
def test_mutant_whose_round_ends_with_a_bad_message_is_caught(stage, monkeypatch):
    monkeypatch.setattr(ServerRound, "receive", ends_the_round)
    machines, outbound = before(stage)
    with pytest.raises(PeerError):
        machines.server.receive(BAD, b"")
    with pytest.raises((LocalError, PeerError), match="ABORTED"):
        assert_goes_on(machines, outbound)


def test_mutant_that_keeps_half_of_a_bad_input_is_caught(monkeypatch):
    """The sender's refused input must not be in the sum: words are added after every check."""
    take = ServerRound._take

    def hasty(server: ServerRound, sender: int, data: bytes) -> None:
        take(server, sender, data)
        if sender == BAD:
            raise PeerError("too late")

    machines, outbound = before("INPUT")
    monkeypatch.setattr(ServerRound, "_take", hasty)
    with pytest.raises(PeerError, match="too late"):
        machines.server.receive(BAD, outbound[BAD])
    with pytest.raises((AssertionError, PeerError)):
        assert_goes_on(machines, outbound)


# What the server relays. A key or shares that a neighbour did not seal are named to the server:
# the client holds no share of that neighbour, and only the ends of the channel know their mask.

Relay = dict[int, Relayed]
CHANGES: dict[str, Callable[[Stage, Relay], Relayed]] = {
    "the server's key": lambda _, relayed: replace(relayed[1], key=SERVER_KEY.public),
    "another client's key": lambda _, relayed: replace(relayed[1], key=relayed[2].key),
    "shares altered": lambda _, relayed: replace(relayed[1], sealed=flip(relayed[1].sealed, 0)),
    "shares for another": lambda stage, _: stage.relayed(client=2)[1],
    "its own shares": lambda stage, _: stage.relayed(client=1)[0],
    "another session": lambda _, __: Stage.opened(Cohort(4, nonce=b"other")).relayed()[1],
    "another client's line": lambda _, relayed: relayed[2],
}
"""Replacements for client 1's line that the server relays, by name."""


def named(stage: Stage, change: str) -> Clients:
    """Whom client 0 names."""
    relayed = stage.relayed()
    relayed[1] = CHANGES[change](stage, relayed)
    return closed_in(stage.machines[0], stage.tell(relayed))


@pytest.mark.parametrize("change", CHANGES)
def test_a_client_names_the_neighbour_whose_seal_does_not_open(change):
    stage = Stage.opened()
    assert named(stage, change) == (1,)
    shares = stage.machines[0]._held.shares
    assert [k for k in range(4) if shares[k] == NO_SHARES] == [1]


def test_a_seal_that_does_not_bind_the_round_key_lets_the_server_swap_it(monkeypatch):
    bound = round_secrets._label
    monkeypatch.setattr(round_secrets, "_label", lambda *place, **_: bound(*place[:3], b""))
    assert named(Stage.opened(), "the server's key") == ()


def mask_that_the_server_knows(stage: Stage) -> bool:
    """Return True if client 0 masks with client 1 under a secret of the server's key alone."""
    machine, seen = stage.machines[0], []
    public = machine._held.prepared.secrets.key.public
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            client_module,
            "pair_stream",
            lambda *given: seen.append(pair_stream(*given).read(32)) or pair_stream(*given),
        )
        named(stage, "the server's key")
    guess = pair_stream(machine.scope, 0, 1, SERVER_KEY, public, bytes(32))
    return guess.read(32) in seen


def test_a_mask_under_a_key_of_the_server_still_needs_the_channel(monkeypatch):
    """The mutant's channels add nothing, and the server reads the mask."""
    assert not mask_that_the_server_knows(Stage.opened())
    monkeypatch.setattr(Channel, "pair_secret", lambda *_: bytes(32))
    assert mask_that_the_server_knows(Stage.opened())


# Faults that only the end of a round shows: who made them is in no later cohort.

AGREED, NEXT = RoundTerms(1, 12, 4, b"this"), RoundTerms(2, 12, 4, b"that")


def other_subject(cohort: Cohort, number: int) -> None:
    """A round in which one client speaks of another subject."""
    current, other = cohort.draw(AGREED), cohort.clients[number]
    other._rounds._last -= 1
    terms = replace(AGREED, subject=b"something else")
    current.clients[number] = other.open_round(terms, current.values[number])
    inbound = current.deliver(current.masked())
    answers = current.answer({k: data for k, data in inbound.items() if k != number})
    with pytest.raises(GarbledSumError):
        current.deliver(answers)


def test_a_client_under_other_terms_aborts_one_round_and_is_named():
    cohort = Cohort(10)
    other_subject(cohort, 4)
    assert set(cohort.server.barred) == {4}
    left = [k for k in range(10) if k != 4]
    following = cohort.draw(NEXT, left)
    following.finish()
    following.assert_exact(left)


def test_mutant_that_looks_at_no_signature_names_no_client(monkeypatch):
    monkeypatch.setattr(ServerRound, "_name_others", lambda _: None)
    cohort = Cohort(10)
    other_subject(cohort, 4)
    assert not cohort.server.barred


def test_a_vault_that_does_not_open_names_its_owner():
    """Client 2 prepares it wrongly, with the input of round 1, and drops out of round 2."""
    cohort = Cohort(10)
    current = cohort.draw(AGREED)
    inputs = current.masked()
    masked = read_input(current.clients[2], inputs[2])
    spoiled = replace(masked.following, vault=flip(masked.following.vault))
    inputs[2] = write_input(current.clients[2], replace(masked, following=spoiled))
    current.go_on(current.deliver(inputs))
    with pytest.raises(GarbledSumError, match="vault"):
        cohort.draw(NEXT).finish(without=[2])
    assert set(cohort.server.barred) == {2}
