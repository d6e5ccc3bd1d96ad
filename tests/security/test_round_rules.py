"""Rounds are begun once and in order, by pinned clients only, and leave no secret behind."""

import gc
import weakref
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from secure_fd.crypto.keys import AgreementKey, IdentityKey, RandomBytes, insecure_bytes
from secure_fd.errors import ConfigurationError, LocalError
from secure_fd.secagg import client as client_module
from secure_fd.secagg.channel import Channel
from secure_fd.secagg.client import MaskingClient
from secure_fd.secagg.machine import ClientState, ServerState
from secure_fd.secagg.masks import Prepared, prepare
from secure_fd.secagg.server import MaskingServer
from secure_fd.secagg.session import Group, PinnedRoster, RoundTerms, Session
from secure_fd.wire import Place
from tests.drivers.cohort import (
    LATER,
    TERMS,
    Cohort,
    Stage,
    assert_dead,
    assert_setup_dead,
    open_round,
    round_of,
)

# Once, and in order.


def test_a_round_starts_once():
    current = round_of()
    current.clients[0].start()
    with pytest.raises(LocalError, match="starts from READY"):
        current.clients[0].start()
    assert_dead(current.clients[0])


def test_values_of_another_length_are_refused():
    with pytest.raises(LocalError, match="values"):
        Cohort().clients[0].open_round(TERMS, np.ones(39, np.uint64))


@pytest.mark.parametrize("index", [3, 2, 0])
def test_a_round_is_never_run_twice(index):
    cohort = Cohort()
    round_of(cohort).prepare()
    parties: list[MaskingClient | MaskingServer] = [*cohort.clients.values(), cohort.server]
    for party in parties:
        with pytest.raises(LocalError, match="is spent"):
            open_round(party, RoundTerms(index, 40, 4))
        open_round(party, RoundTerms(4, 40, 4))


def test_a_round_cannot_be_opened_without_a_set_up():
    cohort = Cohort(enrolled=False)
    parties: list[MaskingClient | MaskingServer] = [*cohort.clients.values(), cohort.server]
    for party in parties:
        with pytest.raises(LocalError, match="no set-up to open round 3 in"):
            open_round(party, TERMS)


def test_two_rounds_at_a_time_draw_no_secrets_twice_for_one_number():
    """Round 3 wants to prepare round 4, which has been prepared by itself; neither goes on."""
    cohort = Cohort(4)
    stage = Stage.opened(cohort)
    machine = cohort.clients[0].open_round(RoundTerms(4, 40, 4), np.zeros(40, np.uint64))
    assert machine.start()
    with pytest.raises(LocalError, match="round 3: the channel has moved on to round 4"):
        stage.tell(stage.relayed())
    assert_dead(stage.machines[0])


def test_no_sum_before_the_end():
    current = round_of()
    inbound = current.prepare()
    for state in (ServerState.INPUT, ServerState.UNMASK):
        with pytest.raises(LocalError, match=f"no sum in state {state.name}"):
            _ = current.server.total
        inbound = current.deliver(current.answer(inbound))
    assert current.server.finished


def test_a_set_up_is_begun_and_used_when_it_is_due():
    cohort = Cohort(enrolled=False)
    setup = cohort.open_setup()
    with pytest.raises(LocalError, match="no enrolment in state READY"):
        cohort.clients[0].enrol(setup.clients[0])
    with pytest.raises(LocalError, match="no group in state JOINS"):
        cohort.server.enrol(setup.server)
    setup.clients[0].start()
    with pytest.raises(LocalError, match="starts from READY"):
        setup.clients[0].start()
    assert_setup_dead(setup.clients[0])


# Who may take part.


def test_a_session_has_three_clients_and_a_client_its_pinned_identity():
    cohort = Cohort(3)
    with pytest.raises(ConfigurationError, match="use 3 clients or more"):
        Cohort(2)
    with pytest.raises(LocalError, match="pinned identity of client 0"):
        MaskingClient(0, cohort.identities[1], cohort.session)
    with pytest.raises(LocalError, match="client 3 is not on"):
        MaskingClient(3, cohort.identities[0], cohort.session)


def test_a_roster_holds_each_identity_once_and_numbers_in_range():
    key = IdentityKey.generate(insecure_bytes(0)).public.raw
    with pytest.raises(ConfigurationError, match="own identity"):
        PinnedRoster({0: key, 1: key, 2: bytes(32)})
    for number in (-1, 2**32 - 2, 2**32 - 1):
        with pytest.raises(ConfigurationError, match="client"):
            PinnedRoster({number: key})


def test_the_session_id_changes_with_everything_it_commits_to():
    server = AgreementKey.derive(bytes(32)).public
    one = Session(Cohort(3).session.roster, b"c", b"p", b"n", server)
    sessions = [
        one,
        replace(one, roster=Cohort(4).session.roster),
        replace(one, roster=Cohort(3, seed=1).session.roster),
        replace(one, configuration=b"d"),
        replace(one, proxies=b"q"),
        replace(one, configuration=b"cp", proxies=b""),
        replace(one, configuration=b"", proxies=b"cp"),
        replace(one, nonce=b"m"),
        replace(one, server=AgreementKey.derive(bytes(31) + b"1").public),
        replace(one, hybrid=True),
        replace(one, epoch=1023),
    ]
    assert len({session.id for session in sessions}) == len(sessions)
    assert one.id == replace(one, roster=Cohort(3).session.roster).id


@pytest.mark.parametrize("key", [b"", bytes(31), bytes(32), bytes(33)])
def test_a_session_pins_a_server_key_that_can_be_used(key):
    with pytest.raises(ConfigurationError, match="server"):
        replace(Cohort(3).session, server=key)


def test_a_server_has_the_key_that_its_session_pins():
    cohort = Cohort(3)
    MaskingServer(cohort.session, cohort.key)
    with pytest.raises(LocalError, match="not the one that the session pins"):
        MaskingServer(cohort.session, AgreementKey.derive(bytes(32)))


# Nothing is left.


class Watched(Prepared):
    """Slots leave no room for a weak reference; this does."""


def test_a_finished_round_holds_nothing_and_its_secrets_are_gone(monkeypatch):
    """Afterwards only the secrets of the next round are alive."""
    drawn: list[weakref.ref[Watched]] = []

    def watched(
        group: Group,
        place: Place,
        client: int,
        channels: Mapping[int, Channel],
        random: RandomBytes,
    ) -> Prepared:
        made = prepare(group, place, client, channels, random)
        kept = Watched(made.index, made.secrets, made.own, made.sent)
        drawn.append(weakref.ref(kept))
        return kept

    monkeypatch.setattr(client_module, "prepare", watched)
    current = round_of(Cohort(4))
    current.finish()
    for machine in current.clients.values():
        assert machine.state is ClientState.DONE
        assert machine._held is None
        with pytest.raises(LocalError, match="READY"):
            machine.start()
        assert_dead(machine)
    gc.collect()
    alive = [made() for made in drawn]
    assert len(drawn) == 8
    assert [kept.index for kept in alive if kept is not None] == [4] * 4


def test_a_round_forgets_values_and_secrets_as_soon_as_they_are_masked():
    """Of its own secrets it keeps its shares alone."""
    current = round_of(Cohort(4))
    current.masked()
    for machine in current.clients.values():
        assert machine._held is not None
        assert machine._held.words is None
        assert machine._held.prepared is None


def test_the_secrets_of_a_round_that_was_skipped_are_lost():
    cohort = Cohort(4)
    round_of(cohort).finish()
    machine = cohort.clients[0].open_round(LATER, np.zeros(40, np.uint64))
    assert machine._held is not None
    assert machine._held.prepared is None
    assert cohort.clients[0]._enrolment.prepared is None
    assert machine.start()


def test_what_a_lost_input_carried_is_sent_again_and_the_same():
    cohort = Cohort(4)
    first = cohort.open(RoundTerms(3, 40, 4))
    first.masked()  # every upload is lost on the way
    second = cohort.open(RoundTerms(4, 40, 4), {k: np.full(40, k, np.uint64) for k in range(4)})
    assert second.finish().tolist() == [6] * 40
