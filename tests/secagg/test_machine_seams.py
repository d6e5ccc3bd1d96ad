"""Seams for tests of every schedule: a copy of a party, a digest of its state, given keys."""

import pytest

from secure_fd.secagg.machine import digest, snapshot
from secure_fd.secure_sum.masked import MaskedClient, MaskedServer
from tests.drivers.cohort import TERMS, Cohort, random_values
from tests.drivers.lossy_network import World


def opened(stage: str) -> tuple[MaskedServer, dict[int, MaskedClient], dict[int, bytes]]:
    """Parties of a first round up to this stage, and what the server sends to each there."""
    cohort = Cohort(4)
    values, server, clients = random_values(cohort), cohort.server, cohort.clients
    relayed = server.open(TERMS)
    for k, client in clients.items():
        for data in client.load(TERMS, values[k]):
            server.receive(k, data)
    relayed = server.advance()
    while server.stage != stage:
        for k, data in relayed.items():
            for answer in clients[k].receive(data):
                server.receive(k, answer)
        relayed = server.advance()
    return server, clients, relayed


@pytest.mark.parametrize("stage", ["input", "unmask"])
def test_two_copies_of_a_client_give_the_same_answer_and_leave_it_as_it_was(stage):
    """The input of a copied round is the same twice only because its secrets are the same."""
    _, clients, relayed = opened(stage)
    before = digest(clients[1])
    one, other = snapshot(clients[1]), snapshot(clients[1])
    assert digest(one) == digest(other) == before
    one._random = other._random = bytes  # the next round's secrets, which each draws for itself
    answers = [copied.receive(relayed[1]) for copied in (one, other)]
    assert answers[0] == answers[1] != []
    assert digest(one) == digest(other) != before
    assert digest(clients[1]) == before
    assert clients[1].receive(relayed[1])


def test_a_digest_tells_every_state_of_a_set_up_and_a_round_apart():
    world, seen = World(4), list[bytes]()
    asked = world.ask

    def noting(k: int, *given: object) -> list[bytes]:
        answers = asked(k, *given)
        if k == 1:
            seen.append(digest(world.clients[1]))
        return answers

    world.ask = noting
    world.set_up()
    assert world.round() == (0, 1, 2, 3)
    assert len(seen) > 5
    assert len(set(seen)) == len(seen)


def test_mutant_of_a_snapshot_that_shares_the_round_is_caught(monkeypatch):
    """A copy that shares what a message changes would answer for the original."""
    monkeypatch.setattr("secure_fd.secagg.machine._copied", lambda value, _: value)
    _, clients, relayed = opened("input")
    before = digest(clients[1])
    snapshot(clients[1]).receive(relayed[1])
    assert digest(clients[1]) != before
