"""Set-ups over a courier of pushes: a lost message, a late site, a server that ends within one."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial

import pytest

from secure_fd.deployment.envelope import CHALLENGE_BYTES, Answer, Push, PushKind
from secure_fd.deployment.loop import Rounds
from secure_fd.deployment.roster import Terms
from secure_fd.errors import PeerError
from secure_fd.secagg.session import MessageType, Session
from secure_fd.secagg.setup import ClientSetup
from tests.drivers.flower_federation import Courier, World
from tests.small_federation import alike

ALL = (0, 1, 2, 3)
METHOD = "tests.known_words:KnownWords"
LAST = MessageType.CAPSULES
"""Type of the last message of a set-up."""


@pytest.fixture(scope="module")
def data():
    return alike(len(ALL), 24, 60)


@pytest.fixture
def world(data, tmp_path):
    return World(data, tmp_path, Terms(METHOD, image_set="digits", rounds=9, deadline=0.1))


class ServerEndedError(Exception):
    """The process of the server ends here."""


@dataclass
class Faulty(Courier):
    """A courier that loses messages of one type to some sites, or at which the server ends.

    times: number of losses. reached: number of sites that receive the message all the same. late:
    number of looks for nodes that miss a site. most: pushes before an operator ends the server.
    """

    kind: MessageType | None = None
    sites: tuple[int, ...] = ALL
    times: int = 1
    ends: bool = False
    reached: int = 0
    late: Mapping[int, int] = field(default_factory=dict)
    most: int = 10**6
    looks: int = 0
    joins: int = 0

    def nodes(self):
        self.looks += 1
        return [k for k in super().nodes() if self.looks > self.late.get(k, 0)]

    def push(self, messages, deadline):
        if self.pushes > self.most:
            raise ServerEndedError
        hit = [k for k, data in messages.items() if self._is_due(k, data)]
        self.joins += sum(Push.decode(data).kind is PushKind.JOIN for data in messages.values())
        due = bool(hit and self.times)
        self.times -= due
        lost = hit[self.reached :] if due else []
        kept = {k: data for k, data in messages.items() if k not in lost}
        yield from super().push(kept, deadline)
        if due and self.ends:
            raise ServerEndedError

    def _is_due(self, site, data):
        kinds = {int.from_bytes(part[2:4], "big") for part in Push.decode(data).parts}
        return site in self.sites and self.kind in kinds


def survivors(world, courier, rounds=1):
    """Sites in the newest sum, by round; none where it was aborted."""
    played = world.serve(courier).run(rounds)
    return [one.survivors[-1] if one.survivors else () for one in played]


KINDS = [MessageType.MEMBERS, MessageType.AGREED, LAST]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sites", [(2,), ALL], ids=["one", "all"])
def test_a_lost_message_of_the_set_up_costs_no_round(world, kind, sites):
    courier = Faulty(world, kind=kind, sites=sites)
    assert survivors(world, courier) == [ALL]
    assert courier.times == 0


@pytest.mark.parametrize("kind", KINDS)
def test_a_server_that_ends_within_the_set_up_makes_it_anew(world, kind):
    """At the last message it has written that it is enrolled, and no site is."""
    with pytest.raises(ServerEndedError):
        survivors(world, Faulty(world, kind=kind, ends=True))
    assert survivors(world, Courier(world)) == [ALL]


@pytest.mark.parametrize("later", [False, True])
def test_a_server_that_ends_after_some_sites_are_enrolled_makes_the_set_up_anew(world, later):
    """These sites answer the next greeting as enrolled ones, and join once more.

    later: site 1 misses the end of all later set-ups. One that completed only the earlier takes no
    part.
    """
    with pytest.raises(ServerEndedError):
        survivors(world, Faulty(world, kind=LAST, ends=True, reached=2))
    if later:
        courier = Faulty(world, kind=LAST, sites=(1,), times=100)
        assert survivors(world, courier) == [(0, 2, 3)]
        assert not world.files[1].get("seed")
        return
    world.start(1)  # a new process of a site that was enrolled
    assert survivors(world, Courier(world)) == [ALL]
    [seed] = {file.get("seed") for file in world.files.values()}
    assert seed


def test_a_set_up_that_reaches_too_few_sites_is_made_again_until_it_reaches_enough(world):
    """Sites that miss its last message can join no sum of it, and it has no other members."""
    courier = Faulty(world, kind=LAST, times=5, reached=2)
    assert survivors(world, courier) == [ALL]
    assert courier.times == 0


def test_a_site_that_fails_every_set_up_does_not_hold_up_the_others(world):
    courier = Faulty(world, kind=MessageType.MEMBERS, sites=(2,), times=100)
    assert survivors(world, courier) == [(0, 1, 3)]
    assert courier.joins == 3 * len(ALL)


def test_a_site_that_loses_a_set_up_of_a_later_epoch_is_back_within_two_rounds(
    data, tmp_path, monkeypatch
):
    """Epochs of six sums: the set-up of the second is lost to site 2."""
    monkeypatch.setattr("secure_fd.deployment.roster.Session", partial(Session, epoch=6))
    world = World(data, tmp_path, Terms(METHOD, image_set="digits", rounds=9, deadline=0.5))
    courier, seen = Faulty(world, kind=MessageType.AGREED, sites=(2,), times=0), []
    for one in world.serve(courier).run(9):
        seen.append(one.survivors[-1] if one.survivors else ())
        courier.times = one.index == 5
    assert seen == [ALL] * 6 + [(0, 1, 3)] * 2 + [ALL]


# Sites that are late, and invitations.


def test_sites_that_come_late_in_any_order_begin_the_federation(world):
    """Two of four are too few: no set-up begins before a third is there, however long it takes."""
    courier = Faulty(world, late={3: 2, 1: 6, 0: 12})
    assert survivors(world, courier)[0] in [(0, 1, 2, 3), (1, 2, 3)]
    assert courier.looks > 8
    assert courier.joins <= len(ALL)


def test_a_server_waits_for_the_sites_that_its_operator_asks_for_and_a_round_for_enough(world):
    """Three of four are enough for a sum, and the operator wants all of them."""
    courier = Faulty(world, late={2: 15})
    file = world.serve(courier)._file
    played = Rounds(world.roster, world.parts(), courier, file, min_sites=4).run(2)
    assert set(next(played).survivors) == {ALL}
    courier.late = dict.fromkeys((1, 2, 3), courier.looks + 12)
    assert set(next(played).survivors) == {ALL}
    assert courier.looks > 27


def greet(site, challenge=bytes(CHALLENGE_BYTES)):
    site.answer(Push(PushKind.HELLO, (challenge, b"")).encode())


def invited(site, attempt, challenge=bytes(CHALLENGE_BYTES)):
    """Return True if the site takes an invitation to this set-up."""
    invitation = Push(PushKind.JOIN, (challenge,), attempt)
    return not Answer.decode(site.answer(invitation.encode())).refused


def test_a_site_joins_another_set_up_until_it_begins_and_not_after(world):
    """A set-up in the middle of a run would change the seed of its draws."""
    greet(world.sites[0])
    assert all(invited(world.sites[0], attempt) for attempt in (1, 2))
    next(iter(world.serve(Courier(world)).run(1)))
    for restarted in (False, True):
        process = world.start(0) if restarted else world.sites[0]
        greet(process)
        assert not invited(process, 3)
        assert world.files[0].get("seed") == world.files[1].get("seed")


def test_an_invitation_that_is_late_or_a_copy_takes_no_site_out_of_its_set_up(world):
    site, second = world.sites[0], b"\1" * CHALLENGE_BYTES
    assert not invited(site, 1)  # never greeted
    greet(site)
    assert [invited(site, attempt) for attempt in (1, 1, 2)] == [True, False, True]
    greet(site, second)
    assert not invited(site, 3)
    assert invited(site, 1, second)


def test_mutant_that_makes_no_set_up_anew_loses_a_site(world, monkeypatch):
    monkeypatch.setattr("secure_fd.deployment.loop._SETUPS", 1)
    courier = Faulty(world, kind=MessageType.AGREED, sites=(2,))
    assert survivors(world, courier, 2) == [(0, 1, 3)] * 2


def test_mutant_whose_sites_refuse_each_set_up_has_none(world, monkeypatch):
    def refuses(*_):
        raise PeerError("a mutant")

    monkeypatch.setattr(ClientSetup, "receive", refuses)
    with pytest.raises(ServerEndedError):
        survivors(world, Faulty(world, most=20))
    assert world.files[-1].get("set up") is None
