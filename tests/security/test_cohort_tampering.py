"""A client masks with the round keys that its neighbours sealed for it in this round, or not.

A key or shares that the neighbour did not seal are named to the server, and the client goes on: it
holds no share of that neighbour, and nobody but the two ends of the channel knows their mask.
"""

from collections.abc import Callable
from dataclasses import replace

import pytest

from secure_fd.crypto.keys import AgreementKey
from secure_fd.errors import PeerError
from secure_fd.secagg import client as client_module
from secure_fd.secagg import masks as round_secrets
from secure_fd.secagg import messages
from secure_fd.secagg.channel import Channel
from secure_fd.secagg.masks import NO_SHARES, pair_stream
from secure_fd.secagg.messages import Relayed
from secure_fd.wire import Place
from tests.drivers.cohort import (
    LATER,
    SERVER_KEY,
    Clients,
    Cohort,
    Stage,
    assert_dead,
    closed_in,
    flip,
)

Relay = dict[int, Relayed]

CHANGES: dict[str, Callable[[Stage, Relay], Relayed]] = {
    "the server's key": lambda _, relayed: replace(relayed[1], key=SERVER_KEY.public),
    "another client's key": lambda _, relayed: replace(relayed[1], key=relayed[2].key),
    "shares altered": lambda _, relayed: replace(relayed[1], sealed=flip(relayed[1].sealed, 0)),
    "a tag altered": lambda _, relayed: replace(relayed[1], sealed=flip(relayed[1].sealed)),
    "shares for another": lambda stage, _: stage.relayed(client=2)[1],
    "its own shares": lambda stage, _: stage.relayed(client=1)[0],
    "another session": lambda _, __: Stage.opened(Cohort(4, nonce=b"other")).relayed()[1],
}
"""By name, what the server relays in the place of client 1's line."""


def server_key(stage: Stage, relayed: Relay) -> None:
    relayed[1] = CHANGES["the server's key"](stage, relayed)


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_client_names_the_neighbour_whose_seal_does_not_open(change):
    stage = Stage.opened()
    relayed = stage.relayed()
    relayed[1] = change(stage, relayed)
    assert told(stage, relayed) == (1,)
    held = stage.machines[0]._held
    assert held is not None
    assert held.shares[1] == NO_SHARES
    assert NO_SHARES not in {held.shares[k] for k in (0, 2, 3)}


def test_lines_that_were_swapped_cost_both():
    stage = Stage.opened()
    relayed = stage.relayed()
    relayed[1], relayed[2] = relayed[2], relayed[1]
    assert told(stage, relayed) == (1, 2)


def test_shares_sealed_for_another_round_do_not_open():
    cohort = Cohort(4)
    earlier = Stage.opened(cohort)
    stage = Stage.opened(cohort, LATER)
    assert told(stage, stage.relayed() | {1: earlier.relayed()[1]}) == (1,)


def told(stage: Stage, relayed: Relay) -> Clients:
    """Whom client 0 names."""
    return closed_in(stage.machines[0], stage.tell(relayed))


def test_lines_that_were_not_changed_open():
    stage = Stage.opened()
    assert told(stage, stage.relayed()) == ()


def test_a_seal_that_does_not_bind_the_round_key_lets_the_server_swap_it(monkeypatch):
    bound = round_secrets._label
    monkeypatch.setattr(
        round_secrets,
        "_label",
        lambda place, sender, receiver, _: bound(place, sender, receiver, b""),
    )
    stage = Stage.opened()
    relayed = stage.relayed()
    server_key(stage, relayed)
    assert told(stage, relayed) == ()


def mask_that_the_server_knows(stage: Stage) -> bool:
    """Whether client 0 masks with client 1 under what follows from the server's key alone."""
    relayed, seen = stage.relayed(), []
    server_key(stage, relayed)
    machine = stage.machines[0]
    held = machine._held
    assert held is not None
    assert held.prepared is not None
    public = held.prepared.secrets.key.public
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            client_module,
            "pair_stream",
            lambda *given: seen.append(pair_stream(*given).read(32)) or pair_stream(*given),
        )
        stage.tell(relayed)
    guess = pair_stream(machine.scope, 0, 1, SERVER_KEY, public, bytes(32))
    return guess.read(32) in seen


def test_a_mask_under_a_key_of_the_server_still_needs_the_channel(monkeypatch):
    """The twin's channels add nothing, and the server reads the mask."""
    assert not mask_that_the_server_knows(Stage.opened())
    monkeypatch.setattr(Channel, "pair_secret", lambda *_: bytes(32))
    assert mask_that_the_server_knows(Stage.opened())


def test_a_round_key_of_low_order_that_a_server_passes_on_ends_the_round(monkeypatch):
    """A server that does its part refuses it: see test_round_faults.py."""
    sound = round_secrets.round_key

    def corrupt(place: Place, client: int, root: int) -> AgreementKey:
        key = sound(place, client, root)
        key.public = bytes(32) if client == 1 else key.public
        return key

    monkeypatch.setattr(round_secrets, "round_key", corrupt)
    monkeypatch.setattr(messages, "low_order", lambda _: False)
    stage = Stage.opened()
    with pytest.raises(PeerError, match="high-order"):
        stage.tell(stage.relayed())
    assert_dead(stage.machines[0])


# A graph that is not complete: seven clients with four neighbours each, five holders, four shares.


def sparse() -> Stage:
    return Stage.opened(Cohort(7, degree=4))


def test_a_client_masks_in_no_cohort_that_leaves_it_too_few_neighbours():
    """The quorum of five is there, but only three of the client's holders are."""
    stage = sparse()
    near = stage.cohort.group.neighbours(0)
    cohort = tuple(k for k in range(7) if k not in near[:2])
    with pytest.raises(PeerError, match="cohort: 3 holders are below the threshold 4"):
        stage.tell(stage.relayed(cohort=cohort), cohort)
    assert_dead(stage.machines[0])
