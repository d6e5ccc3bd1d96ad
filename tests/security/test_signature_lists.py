"""A client gives its shares only when a threshold of the committee signed exactly what it saw."""

import numpy as np
import pytest

from secure_fd.errors import PeerError
from secure_fd.secagg.client import ClientRound
from secure_fd.secagg.machine import ClientState
from secure_fd.secagg.session import RoundScope, RoundTerms
from tests.drivers.cohort import (
    ALL,
    LATER,
    TERMS,
    Clients,
    Cohort,
    Stage,
    assert_dead,
    cohort_message,
    flip,
    lines,
    read_input,
    sign_story,
    signatures_message,
    survivors_message,
    take_prepare,
)

SLOW: Clients = (0, 1, 2)
Signatures = dict[int, bytes]


def masked() -> Stage:
    stage = Stage.opened()
    stage.tell(stage.relayed())
    return stage


def test_survivors_outside_the_cohort_are_refused():
    stage = Stage.opened()
    stage.tell(stage.relayed(cohort=(0, 1, 2)), (0, 1, 2))
    with pytest.raises(PeerError, match="the survivors are not of the cohort"):
        stage.machines[0].receive(survivors_message((0, 1, 3), {}, stage.machines[0]))
    assert_dead(stage.machines[0])


def none_at_all(_: Stage, __: bool) -> Signatures:
    return {}


def one_of_another_identity(stage: Stage, fast: bool) -> Signatures:
    found = stage.signatures((0, 1, 2), ALL if fast else SLOW)
    return found | {2: found[1]}


def of_the_other_path(stage: Stage, fast: bool) -> Signatures:
    return stage.signatures((0, 1, 2), SLOW if fast else ALL)


def of_another_set(stage: Stage, fast: bool) -> Signatures:
    """What signs other survivors, and what signs another cohort."""
    if not fast:
        return stage.signatures((0, 1, 2), (0, 1, 3))
    group, scope, keys = stage.cohort.group, stage.machines[0].scope, stage.cohort.identities
    return {k: sign_story(keys[k], scope, group, k, SLOW, SLOW) for k in SLOW}


def of_another_round(stage: Stage, fast: bool) -> Signatures:
    return stage.signatures(SLOW, ALL if fast else SLOW, RoundScope(stage.cohort.session, LATER))


def of_other_proxies(stage: Stage, fast: bool) -> Signatures:
    terms = RoundTerms(TERMS.index, TERMS.length, TERMS.bound, b"other proxies")
    return stage.signatures(SLOW, ALL if fast else SLOW, RoundScope(stage.cohort.session, terms))


def of_another_view(stage: Stage, fast: bool) -> Signatures:
    """An earlier set-up of the same members."""
    group, scope, keys = Cohort(4, seed=1).group, stage.machines[0].scope, stage.cohort.identities
    survivors = ALL if fast else SLOW
    return {k: sign_story(keys[k], scope, group, k, ALL, survivors) for k in SLOW}


@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize(
    "forged",
    [
        none_at_all,
        one_of_another_identity,
        of_the_other_path,
        of_another_set,
        of_another_round,
        of_other_proxies,
        of_another_view,
    ],
)
def test_a_client_unmasks_under_signatures_of_what_it_saw_only(forged, fast):
    stage = masked()
    machine, signatures = stage.machines[0], forged(stage, fast)
    with pytest.raises(PeerError, match=r"[012] of the committee signed .* 3 are needed"):
        tell_signatures(machine, signatures, fast)
    assert_dead(machine)


def tell_signatures(machine: ClientRound, signatures: Signatures, fast: bool) -> bytes:
    if fast:
        return machine.receive(survivors_message(ALL, signatures, machine))
    machine.receive(survivors_message(SLOW, {}, machine))
    return machine.receive(signatures_message(signatures, machine))


def test_survivors_are_signed_together_with_the_cohort_that_they_are_left_of():
    """Seven clients: five are left of all, or of all but one, for whom no mask was then added."""
    stage = Stage.opened(Cohort(7))
    everyone, machine = tuple(range(7)), stage.machines[0]
    left = everyone[:5]
    stage.tell(stage.relayed(cohort=everyone), everyone)
    machine.receive(survivors_message(left, {}, machine))
    keys, scope, group = stage.cohort.identities, machine.scope, stage.cohort.group
    signed = {k: sign_story(keys[k], scope, group, k, everyone[:6], left) for k in left}
    with pytest.raises(PeerError, match="0 of the committee signed"):
        machine.receive(signatures_message(signed, machine))
    assert_dead(machine)


def test_a_client_that_dropped_out_signs_no_survivors():
    stage = masked()
    with pytest.raises(PeerError, match="2 of the committee signed"):
        tell_signatures(stage.machines[0], stage.signatures((0, 1, 3), SLOW), fast=False)
    assert_dead(stage.machines[0])


@pytest.mark.parametrize("fast", [True, False])
def test_a_threshold_of_signatures_is_enough_beside_a_bad_one(fast):
    stage = masked()
    signatures = stage.signatures(ALL if fast else SLOW, ALL if fast else SLOW)
    if fast:
        signatures[1] = flip(signatures[1])
    tell_signatures(stage.machines[0], signatures, fast)
    assert stage.machines[0].state is ClientState.DONE
    assert stage.machines[0]._held is None


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda entries: [entries[1], entries[0], entries[2]], "1 of the committee signed"),
        (lambda entries: [*entries, entries[0]], "has 257 bytes, not 193"),
    ],
    ids=["in another order", "more than signers"],
)
def test_a_list_of_signatures_is_that_of_its_set_in_order(change, sentence):
    """The same for the signatures beside the survivors: tests/vectors/refused.py."""
    stage = masked()
    machine = stage.machines[0]
    machine.receive(survivors_message(SLOW, {}, machine))
    whole = signatures_message(stage.signatures(SLOW, SLOW), machine)
    body = len(whole) - 3 * 64
    entries = [whole[at : at + 64] for at in range(body, len(whole), 64)]
    with pytest.raises(PeerError, match=sentence):
        machine.receive(whole[:body] + b"".join(change(entries)))
    assert_dead(machine)


# Proxies.


def test_clients_that_were_given_other_proxies_give_no_share():
    """Two of four: three signatures of one story do not exist."""
    cohort = Cohort(4)
    subjects = {0: b"one", 1: b"one", 2: b"two", 3: b"two"}
    machines = {
        k: client.open_round(RoundTerms(3, 40, 4, subjects[k]), np.zeros(40, np.uint64))
        for k, client in cohort.clients.items()
    }
    prepared = {k: take_prepare(machine) for k, machine in machines.items()}
    inputs = {}
    for k, machine in machines.items():
        relayed = lines(prepared, cohort.group, k, ALL)
        inputs[k] = machine.receive(cohort_message(relayed, ALL, machine))
    signatures = {k: read_input(machines[k], data).cohort for k, data in inputs.items()}
    for machine in machines.values():
        with pytest.raises(PeerError, match=r"2 of the committee signed .* 3 are needed"):
            machine.receive(survivors_message(ALL, signatures, machine))
        assert_dead(machine)
