"""Every schedule within stated bounds keeps every property; `python -m tests.model.run` goes on."""

from functools import partial
from itertools import permutations

import pytest

from secure_fd.secagg.machine import digest, snapshot
from tests.model.explorer import explore, replay
from tests.model.lying import CorruptWorld
from tests.model.run import POOLED, SHORT
from tests.model.world import SERVER, World

JOIN, REVEAL = ("set-up: JOIN of client 0", "set-up: REVEAL of client 0")
KILLED = "set-up: the server is killed as it closes stage"
THREE, FOUR = partial(World, 3), partial(World, 4)
POOL = partial(CorruptWorld, 4, 2, noise=POOLED, tail=0)
FOUND = [
    (THREE, ["round 0: UNMASK of client 0 comes twice, late"]),
    (FOUR, [f"{JOIN} comes twice, late", f"{KILLED} 1, 0 writes done"]),
    (FOUR, [f"{KILLED} 1, sent to [0]", f"{REVEAL} comes twice, late"]),
    (THREE, [f"{REVEAL} comes twice, late", f"{KILLED} 2, 1 writes done"]),
    (THREE, [f"round {index}: SURVIVORS to client 0 comes twice, late" for index in range(2)]),
    (POOL, ["round 0: client 0 sends PREPARE with a bad key"]),
]
"""Schedules that broke a property once."""


@pytest.mark.parametrize("setting", SHORT, ids=lambda setting: setting.name)
def test_every_schedule_keeps_every_property(setting):
    found = explore(setting.world(), setting.faults)
    assert found.states >= setting.least


def test_enough_states_are_visited():
    assert sum(setting.least for setting in SHORT) >= 75_000


@pytest.mark.parametrize(("world", "schedule"), FOUND)
def test_a_schedule_that_broke_a_property_keeps_it_now(world, schedule):
    replay(world(), schedule)


def test_a_first_fault_of_any_client_does_what_that_of_the_lowest_does():
    """Clients are alike: without that assumption nothing more is found."""
    explore(World(3, 1, alike=False, tail=0), 1)


def test_no_step_changes_the_state_that_it_began_in():
    """Otherwise a step that runs once would stand for others."""
    world = World(3, 1, tail=0)
    explore(world, 1)
    assert all(
        digest(world.processes[number].machine) == key for (key, _), number in world._ids.items()
    )


def test_the_order_in_which_messages_of_a_stage_come_does_not_matter():
    world = World(3, 1)
    spot = world.first()
    while choices := list(world.choices(spot, faults=False)):
        if len(spot.inbox) == world.n and not spot.queue and not spot.up:
            ends = set()
            for order in permutations(spot.inbox):
                server = snapshot(world.machine(spot, SERVER))
                for k, number in order:
                    server.receive(k, world.messages[number])
                ends.add(digest(server))
            assert len(ends) == 1
        spot = choices[0].go()
