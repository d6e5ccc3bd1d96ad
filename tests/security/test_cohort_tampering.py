"""A client masks with the round keys that its neighbours sealed for it in this round, or not."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from secure_fd.crypto.primitives import AgreementKey
from secure_fd.errors import PeerError
from secure_fd.secagg import masks as round_secrets
from secure_fd.secagg.client import ClientState
from secure_fd.secagg.messages import Relayed
from secure_fd.secagg.session import Floors, Place
from tests.secagg_cohort import (
    LATER,
    SERVER_KEY,
    Clients,
    Cohort,
    Stage,
    assert_dead,
    flip,
    sign_story,
    survivors_message,
)


def server_key(_: Stage, relayed: dict[int, Relayed]) -> None:
    relayed[1] = replace(relayed[1], key=SERVER_KEY.public)


def another_clients_key(_: Stage, relayed: dict[int, Relayed]) -> None:
    relayed[1] = replace(relayed[1], key=relayed[2].key)


def key_of_order_one(_: Stage, relayed: dict[int, Relayed]) -> None:
    relayed[1] = replace(relayed[1], key=bytes(32))


def flipped_shares(_: Stage, relayed: dict[int, Relayed]) -> None:
    relayed[1] = replace(relayed[1], sealed=flip(relayed[1].sealed, 0))


def flipped_tag(_: Stage, relayed: dict[int, Relayed]) -> None:
    relayed[1] = replace(relayed[1], sealed=flip(relayed[1].sealed))


def swapped_clients(_: Stage, relayed: dict[int, Relayed]) -> None:
    relayed[1], relayed[2] = relayed[2], relayed[1]


def shares_for_another(stage: Stage, relayed: dict[int, Relayed]) -> None:
    relayed[1] = stage.relayed(client=2)[1]


def its_own_shares_back(stage: Stage, relayed: dict[int, Relayed]) -> None:
    relayed[1] = stage.relayed(client=1)[0]


def of_another_session(_: Stage, relayed: dict[int, Relayed]) -> None:
    relayed[1] = Stage.opened(Cohort(4, nonce=b"other")).relayed()[1]


def one_line_short(_: Stage, relayed: dict[int, Relayed]) -> None:
    relayed.pop(3)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (server_key, "client 1's shares for client 0 does not open"),
        (another_clients_key, "client 1's shares for client 0 does not open"),
        (key_of_order_one, "client 1's shares for client 0 does not open"),
        (flipped_shares, "client 1's shares for client 0 does not open"),
        (flipped_tag, "client 1's shares for client 0 does not open"),
        (swapped_clients, "client 1's shares for client 0 does not open"),
        (shares_for_another, "client 1's shares for client 0 does not open"),
        (its_own_shares_back, "client 1's shares for client 0 does not open"),
        (of_another_session, "client 1's shares for client 0 does not open"),
        (one_line_short, "does not fit 3 neighbours"),
    ],
)
def test_a_client_masks_for_nobody_but_its_neighbours(
    change: Callable[[Stage, dict[int, Relayed]], None], sentence: str
) -> None:
    stage = Stage.opened()
    relayed = stage.relayed()
    change(stage, relayed)
    with pytest.raises(PeerError, match=sentence):
        stage.tell(relayed)
    assert_dead(stage.machines[0])


def test_shares_sealed_for_another_round_are_refused() -> None:
    cohort = Cohort(4)
    earlier = Stage.opened(cohort)
    stage = Stage.opened(cohort, LATER)
    with pytest.raises(PeerError, match="client 1's shares for client 0 does not open"):
        stage.tell(stage.relayed() | {1: earlier.relayed()[1]})
    assert_dead(stage.machines[0])


def test_a_seal_that_does_not_bind_the_round_key_lets_the_server_swap_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bound = round_secrets._label
    monkeypatch.setattr(
        round_secrets,
        "_label",
        lambda place, sender, receiver, _: bound(place, sender, receiver, b""),
    )
    stage = Stage.opened()
    relayed = stage.relayed()
    server_key(stage, relayed)
    stage.tell(relayed)
    assert stage.machines[0].state is ClientState.SENT


def test_a_round_key_of_low_order_that_a_corrupt_client_seals_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sound = round_secrets.round_key

    def corrupt(place: Place, client: int, root: int) -> AgreementKey:
        key = sound(place, client, root)
        key.public = bytes(32) if client == 1 else key.public
        return key

    monkeypatch.setattr(round_secrets, "round_key", corrupt)
    stage = Stage.opened()
    with pytest.raises(PeerError, match="high-order"):
        stage.tell(stage.relayed())
    assert_dead(stage.machines[0])


@pytest.mark.parametrize(
    ("cohort", "sentence"),
    [
        ((0, 1), "2 clients are below the quorum of 3"),
        ((0,), "1 clients are below the quorum of 3"),
        ((), "leaves out client 0"),
        ((1, 2, 3), "leaves out client 0"),
    ],
)
def test_a_client_masks_in_no_cohort_below_the_quorum_or_without_it(
    cohort: Clients, sentence: str
) -> None:
    stage = Stage.opened()
    with pytest.raises(PeerError, match=sentence):
        stage.tell(stage.relayed(cohort=cohort), cohort)
    assert_dead(stage.machines[0])


# A graph that is not complete: seven clients with four neighbours each, five holders, four shares.


def sparse() -> Stage:
    return Stage.opened(Cohort(7, degree=4, floors=Floors(degree=4)))


def test_a_client_masks_in_no_cohort_that_leaves_it_too_few_neighbours() -> None:
    """The quorum of five is there, but only three of the client's holders are."""
    stage = sparse()
    near = stage.cohort.group.neighbours(0)
    cohort = tuple(k for k in range(7) if k not in near[:2])
    with pytest.raises(PeerError, match="cohort: 3 holders are below the threshold 4"):
        stage.tell(stage.relayed(cohort=cohort), cohort)
    assert_dead(stage.machines[0])


def test_a_client_counts_no_signature_from_outside_the_committee() -> None:
    stage = sparse()
    everyone, machine = tuple(range(7)), stage.machines[0]
    stage.tell(stage.relayed(cohort=everyone), everyone)
    keys, scope, group = stage.cohort.identities, machine.scope, stage.cohort.group
    far = next(k for k in everyone if k not in group.committee)
    signers = (*group.committee[:3], far)
    signed = {k: sign_story(keys[k], scope, group, k, everyone, everyone) for k in signers}
    with pytest.raises(PeerError, match="not an ascending part of the committee"):
        machine.receive(survivors_message(everyone, signed, machine))
    assert_dead(machine)
