"""An exact copy of an accepted message has no effect, in its own stage and in every later one.

A network may deliver a message twice. Every message of a set-up and of two rounds comes twice
here, and once more after every later stage: no client loses the round, and no sum changes. A second
message that differs is refused; see test_replays.py, test_round_faults.py and the vectors.
"""

import numpy as np
import pytest

from secure_fd.aggregation.masked import MaskedClient, MaskedServer
from secure_fd.crypto.primitives import quantum_safe_available
from secure_fd.errors import PeerError, SecureFDError
from secure_fd.secagg.client import ClientState
from secure_fd.secagg.server import ServerState
from secure_fd.secagg.session import Accepted, RoundTerms
from tests.secagg_cohort import Cohort, flip, random_values, reach, round_of

HYBRID = [False, pytest.param(True, marks=pytest.mark.skipif(
    not quantum_safe_available(), reason="no HPKE with ML-KEM-768 here"))]  # fmt: skip


class Repeating:
    """The parties of a sum over a network that repeats every message at every later stage."""

    def __init__(self, n: int, *, hybrid: bool) -> None:
        self.cohort = Cohort(n, hybrid=hybrid, enrolled=False)
        self.server = MaskedServer(self.cohort.server)
        self.clients = {k: MaskedClient(client) for k, client in self.cohort.clients.items()}
        self.up: list[tuple[int, bytes]] = []
        self.down: list[tuple[int, bytes]] = []
        self.copies = 0

    def set_up(self) -> None:
        for k, client in self.clients.items():
            self.send(k, client.start())
        self.until_idle()

    def round(self, terms: RoundTerms) -> tuple[int, ...]:
        values = random_values(self.cohort, terms, terms.index)
        self.up, self.down = [], []
        opening = self.server.open(terms)
        for k, client in self.clients.items():
            self.send(k, client.load(terms, values[k]))
        self.hand(opening)
        self.until_idle()
        assert self.server.result is not None
        expected = np.sum([values[k] for k in self.server.result.survivors], axis=0)
        assert self.server.result.total.tolist() == expected.tolist()
        return self.server.result.survivors

    def send(self, client: int, messages: list[bytes]) -> None:
        for data in messages:
            self.server.receive(client, data)
            self.up.append((client, data))

    def hand(self, relayed: dict[int, bytes]) -> None:
        for k, data in relayed.items():
            self.send(k, self.clients[k].receive(data))
            self.down.append((k, data))
        for client, data in self.up:
            self.server.receive(client, data)
        for client, data in self.down:
            assert self.clients[client].receive(data) == []
        self.copies += len(self.up) + len(self.down)

    def until_idle(self) -> None:
        while self.server.busy:
            self.hand(dict(self.server.advance()))


@pytest.mark.parametrize("hybrid", HYBRID)
def test_a_network_that_repeats_every_message_costs_no_client_its_round(hybrid):
    world = Repeating(3, hybrid=hybrid)
    world.set_up()
    assert [world.round(RoundTerms(index, 8, 4)) for index in range(2)] == [(0, 1, 2)] * 2
    assert world.copies > 60


def test_copies_of_a_set_up_within_an_epochs_first_round_cost_no_client_the_round():
    """The round opens as soon as the set-up ends: copies of the set-up meet an open round."""
    world = Repeating(4, hybrid=False)
    world.server.busy = False
    assert [world.round(RoundTerms(index, 8, 4)) for index in range(2)] == [(0, 1, 2, 3)] * 2


@pytest.mark.parametrize("in_round", [False, True])
def test_mutant_that_recognises_no_copy_loses_a_client(in_round, monkeypatch):
    world = Repeating(3, hybrid=False)
    if in_round:
        world.set_up()
    monkeypatch.setattr(Accepted, "has", lambda *_: False)
    with pytest.raises(SecureFDError):
        world.round(RoundTerms(0, 8, 4)) if in_round else world.set_up()


def of_the_same_sender(self: Accepted, sender: int, _: bytes) -> bool:
    return any(sender == known for known, _ in self._digests)


def second_input(world: Cohort) -> None:
    """Client 1 sends two different messages in one stage."""
    current = round_of(world)
    message = current.clients[1].start()
    assert message is not None
    current.server.receive(1, message)
    current.server.receive(1, flip(message))


def test_mutant_that_takes_every_second_message_for_a_copy_swallows_the_error(monkeypatch):
    worlds = [Cohort(3), Cohort(3)]
    with pytest.raises(PeerError, match="second message"):
        second_input(worlds[0])
    monkeypatch.setattr(Accepted, "has", of_the_same_sender)
    second_input(worlds[1])


def test_a_copy_in_the_name_of_another_is_no_copy():
    current = round_of(Cohort(3))
    outbound = {k: machine.start() for k, machine in current.clients.items()}
    assert outbound[1] is not None
    current.server.receive(1, outbound[1])
    with pytest.raises(PeerError, match="party 2 names party 1"):
        current.server.receive(2, outbound[1])
    assert set(current.server.refused) == {2}


def test_copies_after_the_end_of_a_round_have_no_effect_either():
    """Neither at a server that has its sum, nor at a client that gave its shares."""
    current = round_of(Cohort(3))
    outbound = {k: machine.start() for k, machine in current.clients.items()}
    sent = {k: [data] for k, data in outbound.items() if data is not None}
    inbound = current.deliver({k: each[0] for k, each in sent.items()})
    received: dict[int, list[bytes]] = {k: [] for k in sent}
    while not current.server.finished:
        for k, data in inbound.items():
            received[k].append(data)
        answers = current.answer(inbound)
        for k, data in answers.items():
            sent[k].append(data)
        inbound = current.deliver(answers)
    total = current.server.total.tolist()
    for k, uploads in sent.items():
        for data in uploads:
            current.server.receive(k, data)
        for data in received[k]:
            assert current.clients[k].receive(data) == b""
        assert current.clients[k].state is ClientState.DONE
    assert current.server.state is ServerState.DONE
    assert current.server.total.tolist() == total


def test_a_copy_of_another_round_is_no_copy_of_this_one():
    """The memory of accepted messages ends with its round."""
    machine, later = reach(ClientState.SENT, Cohort(4)), Cohort(4)
    first = round_of(later)
    message = first.prepare()[0]
    assert machine.receive(message) == b""  # cohorts of one seed have the same rounds
    second = round_of(later, RoundTerms(9, 40, 4))
    second.clients[0].start()
    with pytest.raises(PeerError, match="belongs to round 3, not round 9"):
        second.clients[0].receive(message)
