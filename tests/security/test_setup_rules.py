"""Who may form a group: what a client demands of a member list, and a server of its clients."""

from dataclasses import replace

import pytest

from secure_fd.errors import LocalError, MissingClientError, PeerError
from secure_fd.secagg import graph
from secure_fd.secagg.client import MaskingClient
from secure_fd.secagg.machine import PartyMemory, ServerState
from secure_fd.secagg.session import PinnedRoster, RoundTerms, Session
from secure_fd.secagg.setup import ServerSetup
from tests.drivers.cohort import Cohort, SparseSession
from tests.drivers.lying_server import LyingServer, Told


def test_a_set_up_ends_with_one_group_and_equal_channels():
    cohort = Cohort(4, enrolled=False)
    setup = cohort.open_setup()
    setup.answer(setup.until_agreed())
    enrolments = {k: machine.enrolment for k, machine in setup.clients.items()}
    group = setup.server.group
    for k, enrolment in enrolments.items():
        mine = enrolment.group
        assert (mine.members, mine.view, mine.seed) == (group.members, group.view, group.seed)
        assert setup.clients[k]._held is None
        for peer in group.neighbours(k):
            secrets = [enrolments[a].channels[b].pair_secret(3) for a, b in ((k, peer), (peer, k))]
            assert secrets[0] == secrets[1]
    assert cohort.session.id not in {group.view, group.seed}


# Who must be there; what a client refuses of a member list is in tests/vectors/refused.py.


def test_whoever_does_not_join_keeps_nobody_from_it():
    cohort = Cohort(5, enrolled=False)
    setup = cohort.open_setup([0, 1, 2, 4])
    setup.answer(setup.until_agreed())
    assert setup.server.group.members == (0, 1, 2, 4)
    assert setup.server.group.threshold == 4


def test_too_few_that_are_left_end_this_set_up_and_not_the_next():
    """Three of four are enough; late members are in test_setup_late.py."""
    cohort = Cohort(4, enrolled=False)
    setup = cohort.open_setup()
    answers = setup.answer(setup.deliver(setup.start()))
    del answers[2], answers[3]
    with pytest.raises(MissingClientError, match=r"2 of 4 clients revealed .* 3 are needed"):
        setup.deliver(answers)
    assert setup.server.state is ServerState.ABORTED
    with pytest.raises(LocalError, match="no stage to close in state ABORTED"):
        setup.server.advance()
    again = cohort.open_setup([0, 1, 3])
    again.answer(again.until_agreed())
    assert again.clients[0].enrolment.group.members == (0, 1, 3)


def sparse() -> Cohort:
    """Seven clients with four neighbours each: the graph depends on the seed."""
    return Cohort(7, enrolled=False, degree=4)


def nonces_revealed(cohort: Cohort, tries: int) -> int:
    """The server ends every set-up once it has seen the nonces; how many client 0 reveals."""
    for revealed in range(tries):
        try:
            cohort.open_setup().until_agreed()
        except LocalError:
            return revealed
    return tries


def test_a_client_takes_part_in_eight_draws_of_a_sparse_graph():
    """Across restarts, and again after a round that ended well."""
    cohort = sparse()
    assert nonces_revealed(cohort, 5) == 5
    for k, client in cohort.clients.items():
        memory, identity = client.memory(), cohort.identities[k]
        cohort.clients[k] = MaskingClient(k, identity, cohort.session, memory=memory)
    assert nonces_revealed(cohort, 9) == 3
    again = sparse()
    assert nonces_revealed(again, 7) == 7
    again.enrol()
    again.open(RoundTerms(0, 4, 3)).finish()
    assert nonces_revealed(again, 9) == 8


def test_the_count_is_on_disk_before_the_nonce_leaves():
    cohort, kept = sparse(), list[int]()
    client = cohort.clients[0]
    client._keep = lambda memory: kept.append(PartyMemory.decode(memory, cohort.session).setups)
    setup = cohort.open_setup()
    inbound = setup.deliver(setup.start())
    assert kept == []
    setup.clients[0].receive(inbound[0])
    assert kept == [1]


def test_a_set_up_that_reveals_nothing_does_not_count():
    """A site that is late, or a JOIN that is lost, shows the server nothing about the graph."""
    cohort = sparse()
    for _ in range(20):
        assert cohort.open_setup().start()
    assert nonces_revealed(cohort, 9) == 8


def test_a_complete_graph_has_no_draw_that_could_be_tried_again():
    """Neighbours, thresholds and committee are the same for every seed."""
    cohort = Cohort(4, enrolled=False)
    assert nonces_revealed(cohort, 20) == 20
    drawn = []
    for _ in range(3):
        cohort.enrol()
        group = cohort.group
        drawn.append(([group.neighbours(k) for k in range(4)], group.committee, group.threshold))
    assert drawn[0] == drawn[1] == drawn[2]


@pytest.mark.parametrize(("n", "degree"), [(3, None), (300, None), (301, None), (7, 4), (7, 6)])
def test_a_session_is_complete_only_if_every_group_of_it_is(n, degree):
    roster = PinnedRoster({k: (k + 1).to_bytes(32, "big") for k in range(n)})
    server = Cohort(enrolled=False).key.public
    agreed = roster, b"", b"", b"", server
    session = Session(*agreed) if degree is None else SparseSession(*agreed, degree=degree)
    least = graph.threshold(n)
    members = range(least, n + 1) if n < 300 else (least, n)
    every = all(session.degree_of(count) == count - 1 for count in members)
    assert session.complete == every == (n <= 300 and degree != 4)


def test_mutant_that_does_not_count_nonces_draws_without_end(monkeypatch):
    monkeypatch.setattr(MaskingClient, "_note_reveal", lambda _: None)
    assert nonces_revealed(sparse(), 9) == 9


# A server that leaves honest clients out.


def read_0_among_its_own(n: int, corrupt: tuple[int, ...]) -> LyingServer:
    """The server says that only client 0 and those it has corrupted have joined."""
    cohort = Cohort(n, enrolled=False)
    cohort.clients = {k: cohort.clients[k] for k in (0, *corrupt)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ServerSetup, "_require", lambda *_: None)
        cohort.enrol()
    server = LyingServer(cohort, corrupt)
    everybody = cohort.group.members
    server.run({0: Told(everybody, everybody)})
    return server


def test_two_corrupt_clients_of_ten_are_no_group_for_a_third():
    with pytest.raises(PeerError, match="3 members are fewer than the 7 that client 0 insists on"):
        read_0_among_its_own(10, (8, 9))


def test_clients_content_with_any_three_members_give_away_one_of_ten(monkeypatch):
    monkeypatch.setattr(Session, "least_members", 3)
    monkeypatch.setattr(Session, "basis_of", lambda _, members: members)
    server = read_0_among_its_own(10, (8, 9))
    assert list(server.readable()) == [frozenset({0})]
    assert (server.read([0]) == server.values[0]).all()


@pytest.mark.parametrize("n", range(3, 14))
def test_clients_left_out_make_no_coalition_stronger(n):
    """Those tolerated of the roster are tolerated of every group that its clients accept."""
    cohort = Cohort(n, enrolled=False)
    full = cohort.session.threshold_of(n)
    tolerated = 2 * full - n - 1
    for members in range(cohort.session.least_members, n + 1):
        assert 2 * cohort.session.threshold_of(members) - members - 1 >= tolerated


@pytest.mark.parametrize("n", [460, 1000])
def test_clients_left_out_make_no_graph_weaker(n):
    """A server leaves out a third, all of them honest: its tenth of the roster is 15 % of the rest.

    Below 2^-40 all the same, whichever of 2^64 seeds it takes; with neighbours for 10 % it would be
    above 2^-60.
    """
    session = Cohort(3, enrolled=False).session
    roster = PinnedRoster({k: k.to_bytes(32, "big") for k in range(1, n + 1)})
    large = replace(session, roster=roster)
    members = large.least_members
    assert members == 2 * n // 3 + 1
    degree = large.degree_of(members)
    assert degree == members - 1 or graph._failures(members, degree, n)[0] <= 2**-104
    naive = graph.default_degree(members)
    assert naive < degree
    assert graph._failures(members, naive, n)[0] > 2**-60


# More of what the server demands is in test_setup_late.py.


def test_the_server_takes_a_reveal_of_members_only():
    setup = Cohort(7, enrolled=False).open_setup()
    del setup.clients[6]
    answers = setup.answer(setup.deliver(setup.start()))
    with pytest.raises(PeerError, match="client 6 was not asked"):
        setup.server.receive(6, answers[1][:4] + (6).to_bytes(4, "big") + answers[1][8:])
    assert setup.server.stage is ServerState.REVEALS
    setup.finish(answers)
    assert setup.server.group.members == tuple(range(6))
