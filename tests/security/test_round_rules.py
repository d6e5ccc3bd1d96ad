"""Order, repeats, senders and floors: what a party refuses, and that it stays aborted."""

import numpy as np
import pytest

from secure_fd.crypto.keys import IdentityKey
from secure_fd.crypto.randomness import insecure_bytes
from secure_fd.errors import ConfigurationError, LocalError, PeerError
from secure_fd.secagg import messages
from secure_fd.secagg.client import Client, ClientRound, ClientState, Floors
from secure_fd.secagg.messages import MessageType
from secure_fd.secagg.server import Server, ServerState
from secure_fd.secagg.session import Roster, RoundScope, RoundTerms, Session
from tests.secagg_cohort import TERMS, Cohort, Round, assert_dead, round_of


def header(kind: int, scope: RoundScope, sender: int) -> bytes:
    whole = messages.encode_masked(np.zeros(0, np.uint64), scope, sender)
    return whole[:2] + kind.to_bytes(2, "big") + whole[4:]


# Order, repeats, senders.


def in_state(state: ClientState) -> tuple[Round, ClientRound, bytes]:
    """A round whose client 0 is in the state, and the honest roster for it."""
    current = round_of()
    machine = current.clients[0]
    if state is ClientState.READY:
        return current, machine, messages.encode_roster([], machine.scope)
    roster = current.advertise()[0]
    if state is ClientState.SENT:
        machine.receive(roster)
    return current, machine, roster


@pytest.mark.parametrize("state", [ClientState.READY, ClientState.ADVERTISED, ClientState.SENT])
@pytest.mark.parametrize("kind", [0, *MessageType, 4, 5, 7, 255, 65535])
def test_only_a_roster_makes_an_advertised_client_speak(state: ClientState, kind: int) -> None:
    current, machine, roster = in_state(state)
    if (state, kind) == (ClientState.ADVERTISED, MessageType.ROSTER):
        hidden = machine.receive(roster)
        plain = machine.scope.layout.pack(np.zeros(40, np.uint64)).tobytes()
        assert plain not in hidden
        return
    data = header(kind, current.server.scope, 2**32 - 2) + roster[48:]
    with pytest.raises(PeerError, match=r"not allowed in state|does not exist"):
        machine.receive(data)
    assert_dead(machine)


def test_a_round_starts_once_and_values_load_once() -> None:
    current = round_of()
    current.clients[0].start()
    with pytest.raises(LocalError, match="starts from READY"):
        current.clients[0].start()
    assert_dead(current.clients[0])
    with pytest.raises(LocalError, match="loaded again"):
        current.clients[1].load(np.zeros(40, np.uint64))
    assert_dead(current.clients[1])


def test_a_roster_before_the_values_is_our_fault() -> None:
    cohort = Cohort()
    server = cohort.server.open_round(TERMS)
    clients = {k: client.open_round(TERMS) for k, client in cohort.clients.items()}
    rosters = Round(server, clients).advertise()
    with pytest.raises(LocalError, match="before values are loaded"):
        clients[0].receive(rosters[0])
    assert_dead(clients[0])


@pytest.mark.parametrize("index", [3, 2, 0])
def test_a_round_is_never_run_twice(index: int) -> None:
    cohort = Cohort()
    round_of(cohort).advertise()
    again = RoundTerms(index, 40, 4)
    parties: list[Client | Server] = [*cohort.clients.values(), cohort.server]
    for party in parties:
        with pytest.raises(LocalError, match="is spent"):
            party.open_round(again)
        party.open_round(RoundTerms(4, 40, 4))


def test_a_roster_of_an_earlier_round_is_refused() -> None:
    cohort = Cohort()
    old = round_of(cohort).advertise()[0]
    current = round_of(cohort, RoundTerms(4, 40, 4))
    current.advertise()
    with pytest.raises(PeerError, match="round 3, not 4"):
        current.clients[0].receive(old)
    assert_dead(current.clients[0])


def test_clients_that_differ_in_the_terms_never_mask_for_each_other() -> None:
    cohort = Cohort()
    current = round_of(cohort)
    other = Cohort().clients[1].open_round(RoundTerms(3, 40, 4, b"other proxies"))
    with pytest.raises(PeerError, match="client 1's advert"):
        current.server.receive(1, other.start())


@pytest.mark.parametrize("masked", [False, True])
def test_the_server_takes_one_message_of_each_pinned_client(masked: bool) -> None:
    def ready() -> tuple[Round, bytes]:
        current = round_of()
        return current, (current.masked()[1] if masked else current.clients[1].start())

    current, message = ready()
    current.server.receive(1, message)
    with pytest.raises(PeerError, match="client 1 sent a second message"):
        current.server.receive(1, message)
    with pytest.raises(LocalError, match="no stage to close in state ABORTED"):
        current.server.advance()
    for sender, sentence in ((9, "client 9 is not on the pinned roster"), (2, "names party 1")):
        current, message = ready()
        with pytest.raises(PeerError, match=sentence):
            current.server.receive(sender, message)
        assert current.server.state is ServerState.ABORTED


def test_the_server_takes_a_stages_message_in_that_stage_only() -> None:
    current = round_of()
    advert = current.clients[0].start()
    masked = messages.encode_masked(
        np.zeros(current.server.scope.words, np.uint64), current.server.scope, 1
    )
    current.server.receive(0, advert)
    with pytest.raises(PeerError, match="MASKED message is not allowed in state ADVERTS"):
        current.server.receive(1, masked)
    current = round_of()
    advert = current.clients[0].start()
    current.server.receive(0, advert)
    for k in (1, 2):
        current.server.receive(k, current.clients[k].start())
    current.server.advance()
    with pytest.raises(PeerError, match="ADVERT message is not allowed in state MASKED"):
        current.server.receive(0, advert)


def test_no_sum_before_the_end() -> None:
    current = round_of()
    current.masked()
    with pytest.raises(LocalError, match="no sum in state MASKED"):
        _ = current.server.total


# Floors.


@pytest.mark.parametrize("cohort", [2, 1, 0])
def test_floors_cannot_be_set_below_three_by_accident(cohort: int) -> None:
    with pytest.raises(ConfigurationError, match="cohort"):
        Floors(cohort=cohort)
    with pytest.raises(ConfigurationError, match="cohort"):
        Floors(cohort=1, insecure_pair=True)


def test_a_client_refuses_a_session_below_its_floor_or_with_another_identity() -> None:
    cohort = Cohort(3)
    with pytest.raises(LocalError, match="cohort of 2 clients is below"):
        Cohort(2)
    with pytest.raises(LocalError, match="below this client's floor of 5"):
        Client(0, cohort.identities[0], cohort.session, Floors(cohort=5))
    with pytest.raises(LocalError, match="pinned identity of client 0"):
        Client(0, cohort.identities[1], cohort.session)
    with pytest.raises(LocalError, match="client 3 is not on"):
        Client(3, cohort.identities[0], cohort.session)


def test_a_roster_holds_each_identity_once() -> None:
    key = IdentityKey.generate(insecure_bytes(0)).public.raw
    with pytest.raises(ConfigurationError, match="own identity"):
        Roster({0: key, 1: key, 2: bytes(32)})


def test_the_session_id_changes_with_everything_it_commits_to() -> None:
    roster = Cohort(3).session.roster
    sessions = [
        Session(roster, b"c", b"p", b"n"),
        Session(Cohort(4).session.roster, b"c", b"p", b"n"),
        Session(Cohort(3, seed=1).session.roster, b"c", b"p", b"n"),
        Session(roster, b"d", b"p", b"n"),
        Session(roster, b"c", b"q", b"n"),
        Session(roster, b"cp", b"", b"n"),
        Session(roster, b"", b"cp", b"n"),
        Session(roster, b"c", b"p", b"m"),
    ]
    assert len({session.id for session in sessions}) == len(sessions)
    assert sessions[0].id == Session(Cohort(3).session.roster, b"c", b"p", b"n").id


def test_overflow_is_refused_before_anything_is_sent() -> None:
    machine = Cohort().clients[0].open_round(TERMS)
    with pytest.raises(LocalError, match="exceeds the agreed bound of 4"):
        machine.load(np.full(40, 5, np.uint64))
    assert_dead(machine)
    short = Cohort().clients[0].open_round(TERMS)
    with pytest.raises(LocalError, match="where 40 are agreed"):
        short.load(np.zeros(39, np.uint64))
    assert_dead(short)
