"""A client that nothing disturbs for two rounds is in the sum again, whatever was lost before.

One message of a set-up is lost, or a process ends at one message of it: in the first set-up, in
that of a later epoch, and in the set-up that repairs an earlier loss. Two rounds later every client
is in the sum. No client masks two inputs of one round or gives its shares twice, and every sum is
exact, restarts included.
"""

from collections.abc import Callable

import pytest

from secure_fd.secagg.client import MaskingClient
from secure_fd.secagg.messages import invitation
from secure_fd.secagg.server import MaskingServer
from tests.drivers.lossy_network import DOWN, EPOCH, UP, Fault, World, lose, nothing

AGAIN = 2
"""Rounds after a fault by which every client is in the sum."""


def heals(world: World) -> None:
    """The fault has ended: two undisturbed rounds later every client is in every sum."""
    world.fault, world.dies_after = nothing, -1
    for _ in range(AGAIN - 1):
        world.round()
    assert [world.round() for _ in range(3)] == [world.all] * 3


def set_up_without(world: World, *clients: int) -> None:
    """A set-up whose AGREED these clients do not get."""
    world.fault = lose(DOWN, "AGREED", *clients)
    world.set_up()
    world.fault = nothing


KINDS = [(UP, "JOIN"), (DOWN, "MEMBERS"), (UP, "REVEAL"), (DOWN, "AGREED")]
HYBRID = [(UP, "CAPSULES"), (DOWN, "CAPSULES")]


def before_the_first_round(world: World) -> Callable[[], object]:
    return world.set_up


def at_an_epoch(world: World) -> Callable[[], object]:
    """The set-up of the second epoch is the one that is disturbed."""
    world.set_up()
    while world.index < EPOCH - 1:
        assert world.round() == world.all
    return world.round


def in_a_repair(world: World) -> Callable[[], object]:
    """Client 3 loses an AGREED; the set-up that repairs this is disturbed as well."""
    set_up_without(world, 3)
    assert world.round() == (0, 1, 2)
    return world.round


def disturbed(
    world: World, when: Callable[[World], Callable], fault: Fault = nothing, dies_after: int = -1
) -> None:
    """One set-up meets a fault; two rounds later every client is in the sum."""
    step = when(world)
    world.fault, world.dies_after = fault, dies_after
    step()
    heals(world)


LOST = [
    pytest.param(direction, kind, clients, id=f"{direction}-{kind}-{len(clients)}")
    for direction, kind in [*KINDS, (DOWN, "INVITATION")]
    for clients in ((1,), (0, 1), (0, 1, 2, 3))
]
LOST += [(*message, (2,)) for message in HYBRID]
in_every_set_up = pytest.mark.parametrize(
    "when", [before_the_first_round, at_an_epoch, in_a_repair], ids=lambda when: when.__name__
)


@in_every_set_up
@pytest.mark.parametrize(("direction", "kind", "clients"), LOST)
def test_a_lost_message_of_a_set_up_costs_two_rounds(when, direction, kind, clients):
    disturbed(World(hybrid=kind == "CAPSULES"), when, lose(direction, kind, *clients))


@in_every_set_up
@pytest.mark.parametrize("answers", range(3))
def test_a_server_that_ends_within_a_set_up_costs_two_rounds(when, answers):
    """At its last answer it has written that it is enrolled, and no client knows it."""
    disturbed(World(), when, dies_after=answers)


@in_every_set_up
@pytest.mark.parametrize("kind", ["MEMBERS", "AGREED", "INVITATION"])
def test_a_client_that_restarts_within_a_set_up_costs_two_rounds(when, kind):
    world = World()

    def dies(direction: str, name: str, client: int) -> bool:
        if (direction, name, client) == (DOWN, kind, 1):
            world.clients[1] = world.new_client(1)
            return True
        return False

    disturbed(world, when, dies)


def test_a_repair_costs_no_round_and_no_set_up_more():
    """The others sum while the lost client asks, and all sum in the round of the set-up."""
    world = World()
    set_up_without(world, 3)
    assert [world.round() for _ in range(4)] == [(0, 1, 2), *[world.all] * 3]
    assert world.setups == 2 * len(world.all)


def test_a_client_that_missed_a_repair_does_not_seal_under_channels_that_are_gone():
    """Its seals would open nowhere, and the server would bar it; it asks for a set-up instead."""
    world = World(7)
    set_up_without(world, 3)
    world.round()
    assert world.round(away=[5]) == (0, 1, 2, 3, 4, 6)
    assert world.round() == (0, 1, 2, 3, 4, 6)
    assert world.round() == world.all
    assert not world.server.barred


def test_a_barred_client_stays_barred_within_an_epoch_and_brings_about_no_set_up():
    world = World(7)
    world.set_up()
    world.round()
    world.server._enrolment.barred[6] = "a test barred it"
    revealed = world.setups
    world.memories.pop(6)
    world.clients[6] = world.new_client(6)
    for _ in range(3):
        assert 6 not in world.round()
    assert world.setups == revealed
    world.memories.pop(2)  # another one lost its file, and asks
    world.clients[2] = world.new_client(2)
    rounds = [world.round() for _ in range(2)]
    assert 2 in rounds[1]
    assert 6 not in rounds[1]


def test_mutant_that_keeps_its_old_set_up_while_it_joins_is_barred(monkeypatch):
    """Its shares open at none of its holders, although it follows the rules."""
    world = World(7)
    world.set_up()
    world.round()
    open_setup = MaskingClient.open_setup

    def keeps(client: MaskingClient) -> object:
        kept = client._enrolment
        opened = open_setup(client)
        client._enrolment = kept
        return opened

    monkeypatch.setattr(MaskingClient, "open_setup", keeps)
    world.memories.pop(6)
    world.clients[6] = world.new_client(6)  # it asks for a set-up
    world.round()
    world.fault = lose(DOWN, "AGREED", 3)
    world.round()
    world.fault = nothing
    world.round()
    assert set(world.server.barred) == {3}


# Sparse graphs: a seed that the server could try again decides who masks with whom.


def sparse() -> World:
    return World(7, degree=4, epoch=12)


def test_in_a_sparse_graph_a_settled_client_declines_a_set_up_within_its_epoch():
    """A lost client waits for the next epoch there; the others lose no round."""
    world = sparse()
    set_up_without(world, 3)
    others = tuple(k for k in world.all if k != 3)
    assert [world.round() for _ in range(12)] == [others] * 12
    assert world.round() == world.all
    client = world.clients[0]
    assert client.receive(invitation(client.session)) == []
    assert client.enrolled


@pytest.mark.parametrize("reached", [0, 3])
def test_in_a_sparse_graph_a_set_up_that_gave_no_sum_is_repaired(reached):
    """AGREED reached too few clients: there was no sum, so that no client is settled."""
    world = sparse()
    set_up_without(world, *world.all[reached:])
    heals(world)


def drawn_after_sums(rounds: int) -> int:
    """A server invites a client of a sparse graph after every sum; nonces that it reveals."""
    world = sparse()
    world.set_up()
    with pytest.MonkeyPatch.context() as patch:
        for _ in range(rounds):
            world.round()
            patch.setattr(MaskingServer, "_needs_setup", lambda _: True)
    return world.setups // len(world.all)


def test_in_a_sparse_graph_sums_buy_the_server_no_further_draw_in_an_epoch():
    assert drawn_after_sums(6) == 1


def test_mutant_that_is_never_settled_gives_a_draw_after_every_sum(monkeypatch):
    monkeypatch.setattr(MaskingClient, "settled", False)
    assert drawn_after_sums(6) == 6
