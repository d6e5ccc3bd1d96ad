"""A set-up goes on without members that are late, and two stories of who was never meet.

Missing after JOIN, after MEMBERS, after AGREED or after its capsules, or with a message that it
should not have sent: a member is out, and the rounds of the others sum exactly.
"""

from collections.abc import Collection, Mapping
from random import Random

import numpy as np
import pytest

from secure_fd.crypto.keys import AgreementKey, Purpose
from secure_fd.errors import MissingClientError, PeerError
from secure_fd.secagg import messages
from secure_fd.secagg.client import ClientRound
from secure_fd.secagg.messages import SignedJoin
from secure_fd.secagg.session import Group, RoundScope, RoundTerms
from secure_fd.secagg.setup import ServerSetup
from tests.drivers.cohort import (
    Cohort,
    SetUp,
    cohort_message,
    flip,
    read_input,
    survivors_message,
    take_prepare,
)

N = 10
STAGES = ["JOIN", "REVEAL", "AGREED"]
HYBRID = [*STAGES[:2], "CAPSULES", "RELAYED"]


def run(cohort: Cohort, missing: Mapping[str, int]) -> SetUp:
    """missing: by what it is that a client does not send, or does not get any more, the client."""
    setup = cohort.open_setup()
    names = iter(HYBRID if cohort.session.hybrid else STAGES)
    outbound = setup.start()
    while True:
        setup.clients.pop(missing.get(next(names), -1), None)
        outbound = {k: message for k, message in outbound.items() if k in setup.clients}
        if setup.server.finished:
            break
        inbound = setup.deliver(outbound)
        gone = missing.get("AGREED" if not cohort.session.hybrid else "RELAYED", -1)
        if setup.server.finished:
            setup.clients.pop(gone, None)
        told = {k: message for k, message in inbound.items() if k in setup.clients}
        outbound = setup.answer(told)
    setup.enrol(cohort)
    return setup


def assert_sums(cohort: Cohort, enrolled: Collection[int], lost: int | None = None) -> None:
    """Two rounds of these clients, in the second of which one drops out."""
    for index, without in ((0, ()), (1, (lost,) if lost is not None else ())):
        current = cohort.draw(RoundTerms(index, 8, 4), enrolled)
        current.finish(without)
        current.assert_exact([k for k in enrolled if k not in without])


@pytest.mark.parametrize(
    "missing", [{}, *({stage: 4} for stage in STAGES), {"JOIN": 0, "REVEAL": 9}]
)
def test_a_set_up_goes_on_without_late_members(missing):
    cohort = Cohort(N, enrolled=False)
    setup = run(cohort, missing)
    out = {missing.get(stage) for stage in ("JOIN", "REVEAL")}
    assert setup.server.group.members == tuple(k for k in range(N) if k not in out)
    enrolled = [k for k in range(N) if k not in missing.values()]
    assert sorted(setup.clients) == enrolled
    assert_sums(cohort, enrolled, lost=5 if len(missing) < 2 else None)


@pytest.mark.parametrize("stage", ["none", *HYBRID])
def test_a_set_up_with_capsules_goes_on_without_late_members(stage):
    """Without capsules a member stays on the list, and nobody has a channel to it."""
    cohort = Cohort(7, enrolled=False, hybrid=True)
    setup = run(cohort, {stage: 3})
    left = tuple(k for k in range(7) if k != 3 or stage == "none")
    gone = stage in ("JOIN", "REVEAL", "none")
    assert setup.server.group.members == (left if gone else tuple(range(7)))
    assert setup.server.present == (tuple(range(7)) if stage in ("none", "RELAYED") else left)
    channels = {k: set(machine.enrolment.channels) for k, machine in setup.clients.items()}
    assert all(3 not in peers for peers in channels.values()) is (stage not in ("none", "RELAYED"))
    assert_sums(cohort, left, lost=5 if stage == "none" else None)


def test_twin_that_needs_all_that_joined_ends_with_one_late_member(monkeypatch):
    def everybody(server: ServerSetup, seen: Mapping[int, object], _: str) -> None:
        if len(seen) < len(server._joins):
            raise MissingClientError("somebody joined and then went missing")

    monkeypatch.setattr(ServerSetup, "_require", everybody)
    with pytest.raises(MissingClientError):
        run(Cohort(N, enrolled=False), {"REVEAL": 4})


# Bad messages.


def noise(size: int) -> bytes:
    return Random(size).randbytes(size)  # noqa: S311 - chooses a test, not a key


@pytest.mark.parametrize("at", range(3), ids=["JOINS", "REVEALS", "CAPSULES"])
def test_a_bad_message_costs_its_sender_in_every_stage_of_a_set_up(at):
    """A second one that differs costs nobody, nor does one of a stranger."""
    for fault in (
        lambda _, __: b"",
        lambda message, _: noise(len(message)),
        lambda message, _: message[:48] + noise(9),
        lambda message, _: message + b"\0",
        lambda message, _: message * 2,
        lambda message, _: message[:-1],
        lambda message, _: message[:3] + b"\7" + message[4:],
        lambda message, _: message[:4] + (3).to_bytes(4, "big") + message[8:],
        lambda _, join: flip(join),
    ):
        cohort = Cohort(4, enrolled=False, hybrid=True)
        setup = cohort.open_setup()
        joins = outbound = setup.start()
        for _ in range(at):
            outbound = setup.answer(setup.deliver(outbound))
        stage = setup.server.stage
        with pytest.raises(PeerError, match="client 9 was not asked"):
            setup.server.receive(9, outbound[1])
        setup.server.receive(1, outbound[1])
        with pytest.raises(PeerError, match="client 1 sent a second message"):
            setup.server.receive(1, flip(outbound[1]))
        with pytest.raises(PeerError):
            setup.server.receive(2, fault(outbound[2], joins[2]))
        assert setup.server.stage is stage
        with pytest.raises(PeerError, match="client 2 was not asked"):
            setup.server.receive(2, outbound[2])
        setup.clients.pop(2)
        outbound.pop(2)
        setup.finish(outbound)
        assert setup.server.present == (0, 1, 3)
        setup.enrol(cohort)
        assert_sums(cohort, (0, 1, 3))


def low_order(cohort: Cohort, setup: SetUp, point: bytes) -> dict[int, bytes]:
    """Every JOIN; client 2 signs a channel key of low order with its good identity."""
    corrupt = setup.clients[2]
    assert corrupt._held is not None
    keys = point + corrupt._held.public[32:]
    identity, nonce = cohort.identities[2], corrupt._held.nonce
    corrupt._join = SignedJoin.signed(cohort.session, 2, keys, nonce, identity)
    return setup.start()


@pytest.mark.parametrize("point", [bytes(32), (1).to_bytes(32, "little"), b"\xff" * 31 + b"\x80"])
def test_a_channel_key_of_low_order_costs_whoever_joins_with_it(point):
    cohort = Cohort(4, enrolled=False)
    setup = cohort.open_setup()
    outbound = low_order(cohort, setup, point)
    if point[0] == 0xFF:  # a key like any other
        setup.server.receive(2, outbound[2])
        return
    with pytest.raises(PeerError, match="client 2 joins with a key of low order"):
        setup.server.receive(2, outbound.pop(2))
    setup.finish(outbound)
    assert setup.server.group.members == (0, 1, 3)


@pytest.mark.parametrize("key", [bytes(1216), b"\xff" * 1216])
def test_a_capsule_key_that_is_none_costs_whoever_joins_with_it(key):
    cohort = Cohort(4, enrolled=False, hybrid=True)
    setup = cohort.open_setup()
    public = AgreementKey.derive(bytes(32)).public
    corrupt = setup.clients[2]
    assert corrupt._held is not None
    corrupt._join = SignedJoin.signed(
        cohort.session, 2, public + key, corrupt._held.nonce, cohort.identities[2]
    )
    with pytest.raises(PeerError, match="a capsule key is not"):
        setup.server.receive(2, setup.start()[2])


def test_twin_that_takes_low_order_keys_loses_every_client(monkeypatch):
    monkeypatch.setattr(messages, "low_order", lambda _: False)
    cohort = Cohort(4, enrolled=False)
    setup = cohort.open_setup()
    inbound = setup.deliver(setup.answer(setup.deliver(low_order(cohort, setup, bytes(32)))))
    for k in (0, 1, 3):
        with pytest.raises(PeerError, match="high-order"):
            setup.clients[k].receive(inbound[k])


# Two stories. The server tells one half that client 6 is late, and the other that client 5 is.

TOLD = {0: 6, 1: 6, 2: 6, 5: 6, 3: 5, 4: 5, 6: 5}
"""By client, whom it is told to be late."""


def two_groups() -> tuple[Cohort, dict[int, Group]]:
    cohort = Cohort(7, enrolled=False)
    setup = cohort.open_setup()
    answers = setup.answer(setup.deliver(setup.start()))
    reveals = {k: messages.decode_reveal(data, cohort.session, k) for k, data in answers.items()}
    joins = {k: machine._join for k, machine in setup.clients.items()}
    for k, late in TOLD.items():
        who = tuple(peer for peer in range(7) if peer != late)
        keys = [joins[peer].keys for peer in who if peer != k]
        shown, session = {peer: reveals[peer] for peer in who}, cohort.session
        setup.clients[k].receive(messages.encode_agreed(shown, range(7), keys, session))
        cohort.clients[k].enrol(setup.clients[k])
    return cohort, {k: machine.enrolment.group for k, machine in setup.clients.items()}


def clients_that_unmask() -> int:
    """The server shows everybody all signatures that it has; how many give their shares."""
    cohort, groups = two_groups()
    terms = RoundTerms(1, 8, 4)
    machines: dict[int, ClientRound] = {
        k: client.open_round(terms, np.zeros(8, np.uint64)) for k, client in cohort.clients.items()
    }
    prepared = {k: take_prepare(machine) for k, machine in machines.items()}
    signed: dict[int, bytes] = {}
    for k, machine in machines.items():
        relayed = {}
        for peer in groups[k].neighbours(k):
            near = [other for other in range(7) if other not in (peer, TOLD[peer])]
            at = near.index(k) if k in near else 0
            sealed = prepared[peer].sealed[80 * at : 80 * (at + 1)]
            relayed[peer] = messages.Relayed(prepared[peer].key, sealed)
        answer = machine.receive(cohort_message(relayed, groups[k].members, machine))
        signed[k] = read_input(machine, answer).cohort
    unmasked = 0
    for k, machine in machines.items():
        members = groups[k].members
        known = {peer: signed[peer] for peer in members}
        try:
            machine.receive(survivors_message(members, known, machine))
        except PeerError:
            continue
        unmasked += 1
    return unmasked


def test_two_stories_of_who_revealed_never_meet_a_threshold():
    """Five signatures are needed, and no story has more than four honest ones."""
    _, groups = two_groups()
    assert len({group.view for group in groups.values()}) == 2
    assert len({group.seed for group in groups.values()}) == 2
    assert {group.threshold for group in groups.values()} == {5}
    assert clients_that_unmask() == 0


def test_twin_whose_signatures_name_no_group_unmasks_both_stories(monkeypatch):
    def groupless(scope: RoundScope, client: int, _: Group, cohort: bytes) -> bytes:
        return scope.context(Purpose.COHORT, client) + cohort

    monkeypatch.setattr(messages, "cohort_text", groupless)
    assert clients_that_unmask() == 7


def test_channels_of_two_stories_do_not_open_each_others_seals():
    cohort, _ = two_groups()
    ends = {k: client._enrolment for k, client in cohort.clients.items()}
    assert ends[0] is not None
    assert ends[1] is not None
    assert ends[3] is not None
    sealed = ends[0].channels[3].seal(1, b"shares", b"")
    with pytest.raises(PeerError, match="does not open"):
        ends[3].channels[0].open(1, sealed, b"", "it")
    assert ends[1].channels[0].open(1, ends[0].channels[1].seal(1, b"x", b""), b"", "it") == b"x"
