"""A server that puts capsules of its own in the place of a client's, and later breaks X25519.

Capsules are sealed to public keys, which anybody can do. A client goes on where a neighbour's
seals do not open, so without a sender in the capsule it would send its input under keys of which
the server lacks nothing but what X25519 hides.
"""

from collections.abc import Mapping

import pytest

from secure_fd.crypto.keys import (
    PUBLIC_BYTES,
    SERVER,
    Purpose,
    seal_capsule,
)
from secure_fd.errors import PeerError
from secure_fd.secagg import setup
from secure_fd.secagg.channel import Channel
from secure_fd.secagg.session import Group, MessageType, encode_set
from secure_fd.secagg.setup import ClientSetup
from secure_fd.wire import frame
from tests.drivers.cohort import ALL, Cohort, SetUp
from tests.drivers.lying_server import LyingServer

VICTIM, OTHERS = 3, (0, 1, 2)
SECRET = bytes(range(32))


def public_info(group: Group, sender: int) -> bytes:
    """All of a capsule's info that travels."""
    return group.session.place.context(Purpose.CAPSULE, sender, VICTIM) + group.view


def swapped(machine: ClientSetup, group: Group) -> bytes:
    """The victim's CAPSULES, each sealed by the server."""
    assert machine._held is not None
    public = machine._held.public[PUBLIC_BYTES:]
    made = [seal_capsule(public, SECRET, public_info(group, peer)) for peer in OTHERS]
    there = encode_set(group.members, group.members)
    return frame(MessageType.CAPSULES, group.session.place, SERVER, there, *made)


def enrolled_with_swapped_capsules(cohort: Cohort) -> dict[int, bytes]:
    """A set-up in which the victim got the server's capsules; what X25519 hid of its pairs."""
    opened: SetUp = cohort.open_setup()
    relayed = opened.deliver(opened.answer(opened.until_agreed()))
    cohort.group, machine = opened.server.group, opened.clients[VICTIM]
    assert machine._held is not None
    agreed = dict(machine._held.agreed)
    relayed[VICTIM] = swapped(machine, cohort.group)
    assert not opened.answer(relayed)
    cohort.server.enrol(opened.server)
    for k, client in cohort.clients.items():
        client.enrol(opened.clients[k])
    return agreed


def read_later(cohort: Cohort, agreed: Mapping[int, bytes]) -> bool:
    """Whether the victim's input is read by a server that recorded the round."""
    server = LyingServer(cohort, [])
    server.collect_input(VICTIM, ALL)
    for k in OTHERS:
        secret = agreed[k] + SECRET
        end = Channel.agreed(cohort.session, k, VICTIM, secret, cohort.group.view)
        server.open_box(VICTIM, k, end)
    return bool((server.read([VICTIM]) == server.values[VICTIM]).all())


def test_swapped_capsules_tell_nothing_to_whoever_breaks_x25519_later():
    cohort = Cohort(4, hybrid=True, enrolled=False)
    agreed = enrolled_with_swapped_capsules(cohort)
    with pytest.raises(PeerError, match="does not open"):
        read_later(cohort, agreed)


def test_twin_whose_capsules_name_no_sender_is_read(monkeypatch):
    def anybody(group: Group, _: bytes, sender: int, receiver: int) -> bytes:
        return public_info(group, sender) if receiver == VICTIM else b"another"

    monkeypatch.setattr(setup, "_capsule_info", anybody)
    cohort = Cohort(4, hybrid=True, enrolled=False)
    assert read_later(cohort, enrolled_with_swapped_capsules(cohort))
