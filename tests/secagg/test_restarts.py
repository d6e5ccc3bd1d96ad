"""A client that is killed at any message comes back without a second input; so does a server."""

import gc
import weakref
from collections.abc import Callable
from dataclasses import replace
from enum import Enum
from functools import cache

import numpy as np
import pytest

from secure_fd.crypto.keys import AgreementKey, IdentityKey, insecure_bytes
from secure_fd.errors import LocalError, MissingClientError, PeerError
from secure_fd.secagg import client as client_module
from secure_fd.secagg.client import MaskingClient
from secure_fd.secagg.machine import ClientState, PartyMemory, ServerState
from secure_fd.secagg.masks import Prepared, prepare
from secure_fd.secagg.server import MaskingServer
from secure_fd.secagg.session import Group, PinnedRoster, RoundTerms
from secure_fd.votes.codec import IntArray, WordArray
from tests.drivers.cohort import Cohort, Round, Stage, assert_dead, random_values, round_of
from tests.drivers.lossy_network import UP, World, kind_of, lose, nothing
from tests.refusals import refused

POINTS = 12
"""Messages to client 0 in set-up (2 to 3), in a round of all stages, and in the next."""


class KilledError(BaseException):
    """Ends client 0, whatever it was doing."""


class When(Enum):
    """Point in the answer to a message at which a life ends."""

    UNWRITTEN = "before it has written"
    WRITTEN = "after it has written"
    ANSWERED = "after its answer"


class Life(World):
    """Six rounds in which client 0 is killed at one message, and comes back from its file.

    Then a server that lies opens the round of its death once more. point: the message, from 0.
    forgets: a mutant that writes nothing once rounds begin. again: whether it answered the cohort
    of that round once more.
    """

    def __init__(self, point: int, when: When, *, forgets: bool = False) -> None:
        self.ends, self.forgets, self.seen, self.alive = (point, when), forgets, -1, True
        self.cohorts: dict[int, bytes] = {}
        self.again, self.exact, self.last = False, True, ()
        super().__init__(5, epoch=4)
        self.set_up()
        self.reborn()
        for index in range(6):
            self.fault = lose(UP, "MASKED", 4) if index == 1 else nothing
            self.last = self.round()
            self.reborn()

    def keep(self, number: int) -> Callable[[bytes], None]:
        write = super().keep(number)

        def kept(memory: bytes) -> None:
            self.end(When.UNWRITTEN)
            if not self.forgets or PartyMemory.decode(memory, self.cohort.session).last < 0:
                write(memory)
            self.end(When.WRITTEN)

        return write if number else kept

    def end(self, when: When) -> None:
        if (self.seen, when) == self.ends:
            raise KilledError

    def ask(self, client: int, what: str, *given: object) -> list[bytes]:
        if client:
            return super().ask(client, what, *given)
        if what == "receive" and kind_of(given[0]) == "COHORT":
            self.cohorts[self.index] = given[0]
        if not self.alive:
            return []
        self.seen += 1
        self.alive = self.seen != self.ends[0]
        try:
            answers = super().ask(client, what, *given)
        except KilledError:
            return []
        return answers if self.alive or self.ends[1] is When.ANSWERED else []

    def check(self, total: WordArray | IntArray, inputs: list[WordArray | IntArray]) -> None:
        self.exact &= total.tolist() == sum(inputs).tolist()

    def reborn(self) -> None:
        if self.alive:
            return
        self.alive, self.clients[0] = True, self.new_client(0)
        terms = RoundTerms(max(self.index, 0), 6, 4)
        values = random_values(self.cohort, terms, terms.index)[0]
        try:
            self.send(0, self.ask(0, "load", terms, values))
            if self.index in self.cohorts:
                answers = self.ask(0, "receive", self.cohorts[self.index])
                self.again = True
                self.send(0, answers)
        except (LocalError, PeerError):
            return


@cache
def lives() -> list[Life]:
    """Every message, with each way to die."""
    return [Life(point, when) for point in range(POINTS) for when in When]


@cache
def mutants() -> list[Life]:
    """They forget which rounds began."""
    return [Life(point, When.ANSWERED, forgets=True) for point in range(POINTS)]


def test_no_life_gives_a_second_input_to_a_round():
    assert max(life.most_inputs() for life in lives()) == 1
    assert all(life.exact for life in lives())
    assert not any(life.again for life in lives())


def test_a_client_that_forgets_gives_two():
    """The mutant writes nothing once rounds begin; a server that opens one again reads the rest."""
    assert sum(mutant.most_inputs() == 2 for mutant in mutants()) >= 3
    assert sum(mutant.again for mutant in mutants()) >= 6


def test_a_client_that_was_killed_is_in_later_sums():
    """At the latest in the next epoch, from round 4 on, for which all set up anew."""
    for life in (*lives(), *mutants()):
        assert life.last == (0, 1, 2, 3, 4), life.ends


STAGES = (ServerState.PREPARE, ServerState.INPUT, ServerState.CONSISTENCY, ServerState.UNMASK)


def until(current: Round, stage: ServerState) -> None:
    """A round in which client 3's input is lost, up to this stage."""
    if stage is ServerState.PREPARE:
        return
    inbound = current.prepare()
    lost: tuple[int, ...] = (3,)
    while current.server.state is not stage:
        inbound = current.deliver(current.answer(inbound), without=lost)
        lost = ()


@pytest.mark.parametrize("stage", STAGES)
def test_a_server_that_restarts_loses_its_round_and_goes_on(stage):
    kept: list[bytes] = []
    cohort = Cohort(5)
    cohort.server = MaskingServer(cohort.session, cohort.key, keep=kept.append)
    cohort.enrol()
    first, *later = (RoundTerms(index, 20, 3) for index in range(4))
    until(cohort.draw(first), stage)
    cohort.server = MaskingServer(cohort.session, cohort.key, memory=kept[-1])
    with pytest.raises(LocalError, match="round 0 is spent"):
        cohort.server.open_round(first)
    for terms in later:
        current = cohort.draw(terms)
        try:
            current.finish()
        except MissingClientError:
            assert terms.index == 1  # clients took what they had prepared to be there
            continue
        current.assert_exact()
    assert cohort.server.open_round(RoundTerms(9, 20, 3)).waiting == (0, 1, 2, 3, 4)


def test_a_memory_is_of_one_session_and_whole():
    cohort, other = Cohort(4), Cohort(4, nonce=b"m")
    memory = cohort.clients[1].memory()
    known = PartyMemory.decode(memory, cohort.session)
    group = Group(cohort.session, *known.agreed)
    assert (known.last, known.used, group.members) == (-1, False, (0, 1, 2, 3))
    assert group.view == cohort.group.view
    back = MaskingClient(1, cohort.identities[1], cohort.session, memory=memory)
    assert back.memory() == memory
    with pytest.raises(LocalError, match="another session"):
        PartyMemory.decode(memory, other.session)
    for damaged in (memory[:-1], memory + b"\0", memory[:40], b""):
        with pytest.raises(LocalError, match=r"damaged|another session"):
            PartyMemory.decode(damaged, cohort.session)


# Rounds begin in order, by pinned clients only, and leave no secret behind.

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
