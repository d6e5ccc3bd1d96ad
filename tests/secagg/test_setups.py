"""A set-up under a server that lies about its members, their keys or their capsules.

What one altered message does is in vectors/refused.py, lost messages are in test_liveness.py, and
sets of members and keys that differ from client to client in tests/model.
"""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from secure_fd.crypto.keys import CAPSULE_BYTES, PUBLIC_BYTES, SERVER, Purpose, seal_capsule
from secure_fd.errors import LocalError, MissingClientError, PeerError
from secure_fd.secagg import graph, messages
from secure_fd.secagg import setup as joining
from secure_fd.secagg.channel import Channel
from secure_fd.secagg.client import MaskingClient
from secure_fd.secagg.machine import PartyMemory
from secure_fd.secagg.messages import SignedJoin
from secure_fd.secagg.session import (
    Group,
    MessageType,
    PinnedRoster,
    RoundTerms,
    Session,
    encode_set,
)
from secure_fd.secagg.setup import ClientSetup, ServerSetup
from secure_fd.wire import frame
from tests.drivers.cohort import ALL, Cohort, SetUp, SparseSession, assert_dead, flip
from tests.drivers.lying_server import LyingServer, Story

# Members that are late, and keys that no client can use.


def late_member(cohort: Cohort) -> Group:
    """A set-up in which client 4 joins and then reveals no nonce."""
    setup = cohort.open_setup()
    answers = setup.answer(setup.deliver(setup.start()))
    setup.clients.pop(4)
    setup.finish({k: answers[k] for k in setup.clients})
    return setup.server.group


def test_a_set_up_goes_on_without_a_late_member():
    assert late_member(Cohort(7, enrolled=False)).members == (0, 1, 2, 3, 5, 6)


def test_mutant_that_needs_all_that_joined_ends_with_one_late_member(monkeypatch):
    def require_all(server: ServerSetup, seen: Mapping[int, object], _: str) -> None:
        if len(seen) < len(server._joins):
            raise MissingClientError("a client joined and then went missing")

    monkeypatch.setattr(ServerSetup, "_require", require_all)
    with pytest.raises(MissingClientError):
        late_member(Cohort(7, enrolled=False))


def test_mutant_that_takes_low_order_keys_loses_every_client(monkeypatch):
    """Client 2 signs a channel key of low order with its good identity."""
    monkeypatch.setattr(messages, "low_order", lambda _: False)
    cohort = Cohort(4, enrolled=False)
    setup = cohort.open_setup()
    corrupt, identity = setup.clients[2], cohort.identities[2]
    keys = bytes(32) + corrupt._held.public[32:]
    corrupt._join = SignedJoin.signed(cohort.session, 2, keys, corrupt._held.nonce, identity)
    inbound = setup.until_agreed()
    for k in (0, 1, 3):
        with pytest.raises(PeerError, match="high-order"):
            setup.clients[k].receive(inbound[k])


# Draws of a sparse graph: a server that ends set-ups could try seeds until one suits it.


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


def test_a_nonce_is_counted_on_disk_before_it_leaves_and_a_join_is_not():
    cohort, kept = sparse(), list[int]()
    client = cohort.clients[0]
    client._keep = lambda memory: kept.append(PartyMemory.decode(memory, cohort.session).setups)
    for _ in range(20):
        cohort.open_setup().start()
    setup = cohort.open_setup()
    inbound = setup.deliver(setup.start())
    assert kept == []
    setup.clients[0].receive(inbound[0])
    assert kept == [1]


def test_mutant_that_does_not_count_nonces_draws_without_end(monkeypatch):
    monkeypatch.setattr(MaskingClient, "_note_reveal", lambda _: None)
    assert nonces_revealed(sparse(), 9) == 9


def test_a_complete_graph_has_no_draw_that_could_be_tried_again():
    """Neighbours, thresholds and committee are the same for every seed."""
    cohort, drawn = Cohort(4, enrolled=False), []
    assert nonces_revealed(cohort, 20) == 20
    for _ in range(2):
        cohort.enrol()
        group = cohort.group
        drawn.append(([group.neighbours(k) for k in range(4)], group.committee, group.threshold))
    assert drawn[0] == drawn[1]


@pytest.mark.parametrize(("n", "degree"), [(3, None), (300, None), (301, None), (7, 4), (7, 6)])
def test_a_session_is_complete_only_if_every_group_of_it_is(n, degree):
    roster = PinnedRoster({k: (k + 1).to_bytes(32, "big") for k in range(n)})
    agreed = roster, b"", b"", b"", Cohort(enrolled=False).key.public
    session = Session(*agreed) if degree is None else SparseSession(*agreed, degree=degree)
    least = graph.threshold(n)
    members = range(least, n + 1) if n < 300 else (least, n)
    every = all(session.degree_of(count) == count - 1 for count in members)
    assert session.complete == every == (n <= 300 and degree != 4)


# A server that leaves honest clients out.


def read_0_among_its_own(n: int, corrupt: tuple[int, ...]) -> LyingServer:
    """The server says that only client 0 and those it has corrupted have joined."""
    cohort = Cohort(n, enrolled=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ServerSetup, "_require", lambda *_: None)
        cohort.enrol((0, *corrupt))
    cohort.clients = {k: cohort.clients[k] for k in (0, *corrupt)}
    server = LyingServer(cohort, corrupt)
    server.run({0: Story(cohort.group.members, cohort.group.members)})
    return server


def test_two_corrupt_clients_of_ten_are_no_group_for_a_third():
    with pytest.raises(PeerError, match="fewer than the 7"):
        read_0_among_its_own(10, (8, 9))


def test_clients_content_with_any_three_members_give_away_one_of_ten(monkeypatch):
    monkeypatch.setattr(Session, "least_members", 3)
    monkeypatch.setattr(Session, "basis_of", lambda _, members: members)
    server = read_0_among_its_own(10, (8, 9))
    assert list(server.readable()) == [frozenset({0})]
    assert (server.read([0]) == server.values[0]).all()


def test_clients_left_out_make_no_coalition_stronger():
    """Those tolerated of the roster are tolerated of every group that its clients accept."""
    for n in range(3, 14):
        session = Cohort(n, enrolled=False).session
        tolerated = 2 * session.threshold_of(n) - n - 1
        for members in range(session.least_members, n + 1):
            assert 2 * session.threshold_of(members) - members - 1 >= tolerated


@pytest.mark.parametrize("n", [460, 1000])
def test_clients_left_out_make_no_graph_weaker(n):
    """A server leaves out a third, all of them honest: its tenth of the roster is 15 % of the rest.

    Below 2^-40 all the same, whichever of 2^64 seeds it takes; with neighbours for 10 % it would be
    above 2^-60.
    """
    roster = PinnedRoster({k: k.to_bytes(32, "big") for k in range(1, n + 1)})
    large = replace(Cohort(3, enrolled=False).session, roster=roster)
    members = large.least_members
    degree, naive = large.degree_of(members), graph.default_degree(members)
    assert degree == members - 1 or graph._failures(members, degree, n)[0] <= 2**-104
    assert naive < degree
    assert graph._failures(members, naive, n)[0] > 2**-60


def test_a_set_up_takes_no_agreement_of_an_earlier_one():
    cohort = Cohort(4, enrolled=False)
    earlier = cohort.open_setup().until_agreed()
    setup = cohort.open_setup()
    setup.until_agreed()
    with pytest.raises(PeerError, match="does not verify"):
        setup.clients[0].receive(earlier[0])
    assert_dead(setup.clients[0])


# Capsules. A client goes on where a neighbour's seals do not open, so without a sender in the
# capsule it would send its input under keys of which the server lacks only what X25519 hides.

VICTIM, OTHERS, SECRET = 3, (0, 1, 2), bytes(range(32))


def hybrid_until_capsules() -> tuple[Cohort, SetUp, dict[int, bytes]]:
    cohort = Cohort(4, hybrid=True, enrolled=False)
    setup = cohort.open_setup()
    return cohort, setup, setup.deliver(setup.answer(setup.until_agreed()))


def public_info(group: Group, sender: int) -> bytes:
    """All of a capsule's info that travels."""
    return group.session.place.context(Purpose.CAPSULE, sender, VICTIM) + group.view


def info_of(machine: ClientSetup, sender: int, receiver: int) -> bytes:
    """The context of a capsule, under what the machine and client 0 have agreed on."""
    return joining._capsule_info(machine._held.group, machine._held.agreed[0], sender, receiver)


@pytest.mark.parametrize("of_the_server", [False, True])
def test_a_capsule_of_the_server_gives_it_no_channel_and_costs_no_other(of_the_server):
    """Altered, or sealed anew: the server knows one of the two secrets of the channel at most."""
    _, setup, inbound = hybrid_until_capsules()
    machine = setup.clients[VICTIM]
    made = flip(inbound[VICTIM][-3 * CAPSULE_BYTES :][:CAPSULE_BYTES])
    if of_the_server:
        public = machine._held.public[PUBLIC_BYTES:]
        made = seal_capsule(public, bytes(32), info_of(machine, 0, VICTIM))
    head, rest = inbound[VICTIM][: -3 * CAPSULE_BYTES], inbound[VICTIM][-2 * CAPSULE_BYTES :]
    setup.answer({**inbound, VICTIM: head + made + rest})
    ends = {k: each.enrolment.channels for k, each in setup.clients.items()}
    view, session = setup.server.group.view, setup.server.session
    server = Channel.agreed(session, 0, VICTIM, bytes(32), view)
    assert len({end.pair_secret(1) for end in (ends[0][3], ends[3][0], server)}) == 3
    assert ends[3][1].open(1, ends[1][3].seal(1, b"shares", b""), b"", "it") == b"shares"


def read_after_swapping_capsules() -> bool:
    """Return True if a server that sealed the victim's capsules reads it once X25519 is broken."""
    cohort, setup, relayed = hybrid_until_capsules()
    group, held = setup.server.group, setup.clients[VICTIM]._held
    public, agreed = held.public[PUBLIC_BYTES:], dict(held.agreed)
    made = [seal_capsule(public, SECRET, public_info(group, peer)) for peer in OTHERS]
    there = encode_set(group.members, group.members)
    place = group.session.place
    relayed[VICTIM] = frame(MessageType.CAPSULES, place, SERVER, there, *made)
    setup.answer(relayed)
    setup.enrol(cohort)
    server = LyingServer(cohort, [])
    server.collect_input(VICTIM, ALL)
    for k in OTHERS:
        end = Channel.agreed(cohort.session, k, VICTIM, agreed[k] + SECRET, group.view)
        server.open_box(VICTIM, k, end)
    return bool((server.read([VICTIM]) == server.values[VICTIM]).all())


def test_swapped_capsules_show_nothing_to_one_that_breaks_x25519_later():
    with pytest.raises(PeerError, match="does not open"):
        read_after_swapping_capsules()


def test_mutant_whose_capsules_name_no_sender_is_read(monkeypatch):
    def anybody(group: Group, _: bytes, sender: int, receiver: int) -> bytes:
        return public_info(group, sender) if receiver == VICTIM else b"another"

    monkeypatch.setattr(joining, "_capsule_info", anybody)
    assert read_after_swapping_capsules()
