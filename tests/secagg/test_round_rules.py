"""Rounds begin once and in order, by pinned clients only, and leave no secret behind."""

import gc
import weakref
from dataclasses import replace

import numpy as np
import pytest

from secure_fd.crypto.keys import AgreementKey, IdentityKey, insecure_bytes
from secure_fd.errors import LocalError
from secure_fd.secagg import client as client_module
from secure_fd.secagg.client import MaskingClient
from secure_fd.secagg.machine import ClientState
from secure_fd.secagg.masks import Prepared, prepare
from secure_fd.secagg.server import MaskingServer
from secure_fd.secagg.session import PinnedRoster, RoundTerms
from tests.drivers.cohort import Cohort, Stage, assert_dead, round_of
from tests.refusals import refused

FOLLOWING = RoundTerms(4, 40, 4)


def test_two_rounds_at_a_time_draw_no_secrets_twice_for_one_number():
    """Round 3 wants to prepare round 4, which has been prepared by itself; neither goes on."""
    cohort = Cohort(4)
    stage = Stage.opened(cohort)
    assert cohort.clients[0].open_round(FOLLOWING, np.zeros(40, np.uint64)).start()
    with pytest.raises(LocalError, match="moved on"):
        stage.tell(stage.relayed())
    assert_dead(stage.machines[0])


def test_a_party_takes_part_with_the_key_that_its_session_pins():
    cohort = Cohort(3)
    for number, identity in ((0, 1), (3, 0)):
        with pytest.raises(LocalError, match="pinned"):
            MaskingClient(number, cohort.identities[identity], cohort.session)
    with pytest.raises(LocalError, match="pins"):
        MaskingServer(cohort.session, AgreementKey.derive(bytes(32)))
    for key in (b"", bytes(31), bytes(32)):
        with refused("server"):
            replace(cohort.session, server=key)


def test_a_roster_holds_three_clients_each_identity_once_and_numbers_in_range():
    key = IdentityKey.generate(insecure_bytes(0)).public.raw
    with refused("roster"):
        Cohort(2)
    with refused("roster"):
        PinnedRoster({0: key, 1: key, 2: bytes(32)})
    for number in (-1, 2**32 - 2, 2**32 - 1):
        with refused("client"):
            PinnedRoster({number: key})


class Watched(Prepared):
    """Slots leave no room for a weak reference; this does."""


def test_a_finished_round_holds_nothing_and_its_secrets_are_gone(monkeypatch):
    """Afterwards only the secrets of the next round are alive; values go as they are masked."""
    drawn: list[weakref.ref[Watched]] = []

    def watched(*given: object) -> Prepared:
        made = prepare(*given)
        kept = Watched(made.index, made.secrets, made.own, made.sent)
        drawn.append(weakref.ref(kept))
        return kept

    monkeypatch.setattr(client_module, "prepare", watched)
    current = round_of(Cohort(4))
    inputs = current.masked()
    assert all(m._held.words is m._held.prepared is None for m in current.clients.values())
    current.go_on(current.deliver(inputs))
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
