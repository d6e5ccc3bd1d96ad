"""An exact copy of an accepted message has no effect, in its own stage and in every later one.

A network may deliver a message twice. Every message of a set-up and of two rounds comes twice
here, and once more after every later stage: no client loses the round, and no sum changes. A second
message that differs is refused; see test_bad_messages.py and the vectors.
"""

from collections.abc import Iterable, Mapping

import pytest

from secure_fd.errors import PeerError, SecureFDError
from secure_fd.secagg.machine import Accepted, ClientState, ServerState
from secure_fd.secagg.session import RoundTerms
from tests.drivers.cohort import Cohort, flip, reach, round_of
from tests.drivers.lossy_network import World

HYBRID = [False, True]


class Repeating(World):
    """A network that repeats every message at every later stage."""

    def __init__(self, n: int, *, hybrid: bool) -> None:
        super().__init__(n, hybrid=hybrid)
        self.up: list[tuple[int, bytes]] = []
        self.down: list[tuple[int, bytes]] = []
        self.copies = 0

    def round(self, away: Iterable[int] = ()) -> tuple[int, ...]:
        self.up, self.down = [], []
        return super().round(away)

    def send(self, client: int, messages: Iterable[bytes]) -> None:
        self.up += [(client, data) for data in messages]
        super().send(client, messages)

    def deliver(self, relayed: Mapping[int, bytes]) -> None:
        super().deliver(relayed)
        self.down += relayed.items()
        for client, data in self.up:
            self.server.receive(client, data)
        for client, data in self.down:
            assert self.clients[client].receive(data) == []
        self.copies += len(self.up) + len(self.down)


@pytest.mark.parametrize("hybrid", HYBRID)
def test_a_network_that_repeats_every_message_costs_no_client_its_round(hybrid):
    """A round that opens as soon as the set-up ends receives copies of the set-up."""
    for set_up_first in (True, False):
        world = Repeating(3, hybrid=hybrid)
        if set_up_first:
            world.set_up()
        assert [world.round() for _ in range(2)] == [(0, 1, 2)] * 2
        assert world.copies > 60


@pytest.mark.parametrize("in_round", [False, True])
def test_mutant_that_recognises_no_copy_loses_a_client(in_round, monkeypatch):
    world = Repeating(3, hybrid=False)
    if in_round:
        world.set_up()
    monkeypatch.setattr(Accepted, "has", lambda *_: False)
    with pytest.raises(SecureFDError):
        world.round() if in_round else world.set_up()


def of_the_same_sender(self: Accepted, sender: int, _: bytes) -> bool:
    return any(sender == known for known, _ in self._digests)


def second_input(world: Cohort) -> None:
    """Client 1 sends two different messages in one stage."""
    current = round_of(world)
    message = current.start()[1]
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
    outbound = current.start()
    current.server.receive(1, outbound[1])
    with pytest.raises(PeerError):
        current.server.receive(2, outbound[1])
    assert set(current.server.refused) == {2}


def test_copies_after_the_end_of_a_round_have_no_effect_either():
    """Neither at a server that has its sum, nor at a client that gave its shares."""
    current = round_of(Cohort(3))
    outbound = current.start()
    sent = {k: [data] for k, data in outbound.items()}
    inbound = current.deliver(outbound)
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
    with pytest.raises(PeerError):
        second.clients[0].receive(message)
