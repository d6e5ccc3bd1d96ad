"""What a client sends that it should not costs itself: the round goes on, with the others' sum.

In every stage: garbage, nothing, too much, a message of another stage or client, and a second one.
Replays of other rounds and sessions are in test_replays.py.
"""

from collections.abc import Callable
from dataclasses import replace
from random import Random

import numpy as np
import pytest

from secure_fd.crypto.keys import AgreementKey
from secure_fd.errors import LocalError, PeerError
from secure_fd.secagg import masks as round_secrets
from secure_fd.secagg.machine import ServerState
from secure_fd.secagg.server import ServerRound
from secure_fd.wire import HEADER_BYTES, Place
from tests.drivers.cohort import TERMS, Cohort, flip, random_values, round_of
from tests.security.test_replays import STAGES, N, assert_goes_on, outbox

BAD = 2
"""Who sends it."""


def noise(size: int) -> bytes:
    return Random(size).randbytes(size)  # noqa: S311 - chooses a test, not a key


FAULTS: dict[str, Callable[[dict[int, bytes]], bytes]] = {
    "nothing": lambda _: b"",
    "a header alone": lambda outbound: outbound[BAD][:HEADER_BYTES],
    "noise": lambda outbound: noise(len(outbound[BAD])),
    "noise behind a header": lambda outbound: outbound[BAD][:HEADER_BYTES] + noise(17),
    "a byte too short": lambda outbound: outbound[BAD][:-1],
    "a byte too long": lambda outbound: outbound[BAD] + b"\0",
    "a mebibyte too long": lambda outbound: outbound[BAD] + bytes(1 << 20),
    "itself twice over": lambda outbound: outbound[BAD] * 2,
    "another client's": lambda outbound: outbound[3],
    "another version": lambda outbound: b"\0\2" + outbound[BAD][2:],
    "a type that does not exist": lambda outbound: outbound[BAD][:3] + b"\x7f" + outbound[BAD][4:],
    "a type of the server": lambda outbound: outbound[BAD][:3] + b"\7" + outbound[BAD][4:],
}


@pytest.mark.parametrize("at", range(4), ids=[stage.name for stage in STAGES])
def test_a_bad_message_costs_its_sender_and_the_sum_of_the_others_is_exact(at):
    for fault in FAULTS.values():
        current, outbound = outbox()[at]
        with pytest.raises(PeerError):
            current.server.receive(BAD, fault(outbound))
        assert current.server.state is STAGES[at]
        assert BAD not in current.server.waiting
        with pytest.raises(PeerError, match=f"client {BAD} was not asked"):
            current.server.receive(BAD, outbound[BAD])
        assert_goes_on(current, outbound, {BAD})


@pytest.mark.parametrize("at", range(4), ids=[stage.name for stage in STAGES])
def test_a_message_twice_counts_once_and_a_strangers_not_at_all(at):
    current, outbound = outbox()[at]
    with pytest.raises(PeerError, match="client 9 was not asked"):
        current.server.receive(9, outbound[BAD])
    current.server.receive(BAD, outbound[BAD])
    current.server.receive(BAD, outbound[BAD])
    for again in (flip(outbound[BAD]), noise(100), b""):
        with pytest.raises(PeerError, match=f"client {BAD} sent a second message"):
            current.server.receive(BAD, again)
    assert_goes_on(current, outbound, set())


def test_two_that_misbehave_in_different_stages_cost_two():
    current, outbound = outbox(8)[0]
    with pytest.raises(PeerError):
        current.server.receive(0, b"")
    current.clients = {k: current.clients[k] for k in range(8) if k != 0}
    inbound = current.deliver(outbound, without=(0,))
    inputs = current.answer(inbound)
    with pytest.raises(PeerError, match="the seal on its input"):
        current.server.receive(1, flip(inputs[1], -20))
    current.go_on(current.deliver(inputs, without=(1,)))
    current.assert_exact(range(2, 8))


def test_who_was_dropped_comes_back_in_the_next_round():
    """It is not barred: its connection may have been at fault."""
    cohort = Cohort(N)
    current = round_of(cohort)
    inputs = current.masked()
    with pytest.raises(PeerError):
        current.server.receive(BAD, inputs[BAD][:-1])
    current.go_on(current.deliver(inputs, without=(BAD,)))
    following = cohort.draw(replace(TERMS, index=TERMS.index + 1))
    following.finish()
    following.assert_exact()


def test_the_halves_of_a_sum_count_the_sender_as_missing():
    """A second try is left unread."""
    cohort = Cohort(N)
    server, values = cohort.server, random_values(cohort)
    server.open(TERMS)
    machines = cohort.open_clients(TERMS, values)
    outbound = {k: machine.start() for k, machine in machines.items()}
    while server.busy:
        for k, message in outbound.items():
            assert message is not None
            if k == BAD and server.stage.name == "INPUT":
                with pytest.raises(PeerError):
                    server.receive(k, flip(message))
            server.receive(k, message)
        outbound = {k: machines[k].receive(data) for k, data in server.advance().items()}
    assert server.result is not None
    assert {k: stage.name for k, stage in server.missing.items()} == {BAD: "INPUT"}
    assert set(server.result.survivors) == set(range(N)) - {BAD}
    expected = np.sum([values[k] for k in range(N) if k != BAD], axis=0)
    assert server.result.total.tolist() == expected.tolist()


def test_a_round_key_of_low_order_costs_whoever_prepares_it(monkeypatch):
    """In a PREPARE, and in what an input brings of the next round. Nobody could mask with it."""
    sound = round_secrets.round_key

    def corrupt(place: Place, client: int, root: int) -> AgreementKey:
        key = sound(place, client, root)
        if client == BAD and place.index == index:
            key.public = (1).to_bytes(32, "little")
        return key

    monkeypatch.setattr(round_secrets, "round_key", corrupt)
    for index in (TERMS.index, TERMS.index + 1):
        current = round_of(Cohort(N))
        with monkeypatch.context() as sender:  # which does not check what it sends
            sender.setattr("secure_fd.secagg.messages.low_order", lambda _: False)
            outbound = current.start()
            if index > TERMS.index:
                outbound = current.answer(current.deliver(outbound))
        with pytest.raises(PeerError, match="a round key is a point of low order"):
            current.server.receive(BAD, outbound[BAD])
        current.go_on(current.deliver(outbound, without=(BAD,)))
        current.assert_exact(set(range(N)) - {BAD})


def test_twin_that_takes_low_order_keys_loses_every_client(monkeypatch):
    sound = round_secrets.round_key

    def corrupt(place: Place, client: int, root: int) -> AgreementKey:
        key = sound(place, client, root)
        key.public = bytes(32) if client == BAD else key.public
        return key

    monkeypatch.setattr(round_secrets, "round_key", corrupt)
    monkeypatch.setattr("secure_fd.secagg.messages.low_order", lambda _: False)
    current = round_of(Cohort(N))
    inbound = current.prepare()
    for k in set(range(N)) - {BAD}:
        with pytest.raises(PeerError, match="high-order"):
            current.clients[k].receive(inbound[k])


RECEIVE = ServerRound.receive


def ends_the_round(server: ServerRound, sender: int, data: bytes) -> None:
    """ServerRound.receive of version 2."""
    try:
        RECEIVE(server, sender, data)
    except PeerError:
        server._ended = ServerState.ABORTED
        raise


@pytest.mark.parametrize("at", range(4), ids=[stage.name for stage in STAGES])
def test_twin_whose_round_ends_with_a_bad_message_is_caught(at, monkeypatch):
    monkeypatch.setattr(ServerRound, "receive", ends_the_round)
    current, outbound = outbox()[at]
    with pytest.raises(PeerError):
        current.server.receive(BAD, b"")
    with pytest.raises((LocalError, PeerError), match="ABORTED"):
        assert_goes_on(current, outbound, {BAD})


def test_twin_that_keeps_half_of_a_bad_input_is_caught(monkeypatch):
    """What the sender is out for must not be in the sum: words are added after every check."""
    take = ServerRound._take

    def hasty(server: ServerRound, sender: int, data: bytes) -> None:
        take(server, sender, data)
        if sender == BAD:
            raise PeerError("too late")

    current, outbound = outbox()[1]
    monkeypatch.setattr(ServerRound, "_take", hasty)
    with pytest.raises(PeerError, match="too late"):
        current.server.receive(BAD, outbound[BAD])
    with pytest.raises((AssertionError, PeerError)):
        assert_goes_on(current, outbound, {BAD})
