"""A client gives its shares only when a threshold of the committee signed exactly what it saw."""

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
    zeros,
)

SLOW: Clients = (0, 1, 2)
"""The survivors where client 3 drops out; else nobody is missing, and cohort signatures serve."""
Signatures = dict[int, bytes]


def masked() -> Stage:
    stage = Stage.opened()
    stage.tell(stage.relayed())
    return stage


def tell_signatures(machine: ClientRound, signatures: Signatures, survivors: Clients) -> bytes:
    if survivors == ALL:
        return machine.receive(survivors_message(ALL, signatures, machine))
    machine.receive(survivors_message(survivors, {}, machine))
    return machine.receive(signatures_message(signatures, machine))


def of_other_terms(stage: Stage, survivors: Clients, terms: RoundTerms) -> Signatures:
    return stage.signatures(SLOW, survivors, RoundScope(stage.cohort.session, terms))


def of_another_identity(stage: Stage, survivors: Clients) -> Signatures:
    found = stage.signatures(SLOW, survivors)
    return found | {2: found[1]}


def of_another_set(stage: Stage, survivors: Clients) -> Signatures:
    """What signs other survivors, and what signs another cohort."""
    if survivors == SLOW:
        return stage.signatures(SLOW, (0, 1, 3))
    group, scope, keys = stage.cohort.group, stage.machines[0].scope, stage.cohort.identities
    return {k: sign_story(keys[k], scope, group, k, SLOW, SLOW) for k in SLOW}


def of_another_view(stage: Stage, survivors: Clients) -> Signatures:
    """An earlier set-up of the same members."""
    group, scope, keys = Cohort(4, seed=1).group, stage.machines[0].scope, stage.cohort.identities
    return {k: sign_story(keys[k], scope, group, k, ALL, survivors) for k in SLOW}


OTHER_PROXIES = RoundTerms(TERMS.index, TERMS.length, TERMS.bound, b"other proxies")
FORGED = {
    "none": lambda *_: {},
    "another identity": of_another_identity,
    "the other path": lambda stage, left: stage.signatures(SLOW, SLOW if left == ALL else ALL),
    "another set": of_another_set,
    "another round": lambda stage, left: of_other_terms(stage, left, LATER),
    "other proxies": lambda stage, left: of_other_terms(stage, left, OTHER_PROXIES),
    "another view": of_another_view,
    "a client that dropped out": lambda stage, _: stage.signatures((0, 1, 3), SLOW),
}


@pytest.mark.parametrize("survivors", [ALL, SLOW])
@pytest.mark.parametrize("forged", FORGED)
def test_a_client_unmasks_under_signatures_of_what_it_saw_only(forged, survivors):
    stage = masked()
    machine, signatures = stage.machines[0], FORGED[forged](stage, survivors)
    with pytest.raises(PeerError, match="of the committee signed"):
        tell_signatures(machine, signatures, survivors)
    assert_dead(machine)


@pytest.mark.parametrize("survivors", [ALL, SLOW])
def test_a_threshold_of_signatures_is_enough_beside_a_bad_one(survivors):
    stage = masked()
    signatures = stage.signatures(survivors, survivors)
    if survivors == ALL:
        signatures[1] = flip(signatures[1])
    tell_signatures(stage.machines[0], signatures, survivors)
    assert stage.machines[0].state is ClientState.DONE


def test_survivors_are_of_the_cohort():
    stage = Stage.opened()
    stage.tell(stage.relayed(cohort=(0, 1, 2)), (0, 1, 2))
    with pytest.raises(PeerError, match="not of the cohort"):
        stage.machines[0].receive(survivors_message((0, 1, 3), {}, stage.machines[0]))
    assert_dead(stage.machines[0])


def test_survivors_are_signed_together_with_the_cohort_that_they_are_left_of():
    """Seven clients: five are left of all, or of all but one, for whom no mask was then added."""
    stage, everyone = Stage.opened(Cohort(7)), tuple(range(7))
    machine, left = stage.machines[0], everyone[:5]
    stage.tell(stage.relayed(cohort=everyone), everyone)
    keys, scope, group = stage.cohort.identities, machine.scope, stage.cohort.group
    signed = {k: sign_story(keys[k], scope, group, k, everyone[:6], left) for k in left}
    with pytest.raises(PeerError, match="0 of the committee signed"):
        tell_signatures(machine, signed, left)
    assert_dead(machine)


def test_clients_that_were_given_other_proxies_give_no_share():
    """Two of four: three signatures of one story do not exist."""
    cohort, machines = Cohort(4), {}
    for k in cohort.clients:
        terms = RoundTerms(3, 40, 4, b"one" if k < 2 else b"two")
        machines |= cohort.open_clients(terms, {k: zeros(terms)})
    prepared = {k: take_prepare(machine) for k, machine in machines.items()}
    inputs = {}
    for k, machine in machines.items():
        relayed = lines(prepared, cohort.group, k, ALL)
        inputs[k] = machine.receive(cohort_message(relayed, ALL, machine))
    signatures = {k: read_input(machines[k], data).cohort for k, data in inputs.items()}
    for machine in machines.values():
        with pytest.raises(PeerError, match="2 of the committee signed"):
            machine.receive(survivors_message(ALL, signatures, machine))
        assert_dead(machine)
