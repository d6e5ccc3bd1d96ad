"""A set-up that a server tampers with ends with nothing agreed; a corrupt client is left out."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import pytest

from secure_fd.crypto.keys import (
    CAPSULE_BYTES,
    CAPSULE_SECRET_BYTES,
    CapsuleKey,
    IdentityKey,
    IdentityPublic,
    insecure_bytes,
    seal_capsule,
)
from secure_fd.errors import PeerError
from secure_fd.secagg import messages
from secure_fd.secagg import setup as joining
from secure_fd.secagg.channel import Channel
from secure_fd.secagg.machine import ClientState
from secure_fd.secagg.messages import Reveal
from secure_fd.secagg.setup import ClientSetup, group_of
from tests.drivers.cohort import (
    SERVER_KEY,
    SERVER_NONCE,
    Cohort,
    SetUp,
    assert_setup_dead,
    flip,
    forged_member,
)

EVERYBODY = (0, 1, 2, 3)


def fresh(n: int = 4, *, hybrid: bool = False) -> tuple[Cohort, SetUp]:
    cohort = Cohort(n, hybrid=hybrid, enrolled=False)
    return cohort, cohort.open_setup()


# A server in the middle.


def play_client_1(cohort: Cohort, setup: SetUp) -> bytes | None:
    """Tell everybody but client 1 the server's key in its place, and show what each then signed.

    The result is the pair secret that the server would then share with client 0.
    """
    session = cohort.session
    inbound = setup.deliver(setup.start())
    members = messages.decode_members(inbound[0], session)
    forged = members | {1: forged_member(cohort, 1)}
    told = messages.encode_members(forged, session)
    answers = setup.answer({0: told, 1: inbound[1], 2: told, 3: told})
    reveals = {k: messages.decode_reveal(answers[k], session, k) for k in answers}
    # The best signature that there is: client 1's own, of the list that it saw itself.
    reveals[1] = Reveal(SERVER_NONCE, reveals[1].signature)
    joins = {k: machine._join for k, machine in setup.clients.items()}
    keys = [SERVER_KEY.public, joins[2].keys, joins[3].keys]
    setup.clients[0].receive(agreed_message(cohort, reveals, keys))
    view = messages.view_of(session, forged)
    group = group_of(session, view, EVERYBODY, reveals)
    secret = SERVER_KEY.exchange(joins[0].keys)
    return Channel.agreed(session, 1, 0, secret, group.view).pair_secret(3)


def agreed_message(cohort: Cohort, reveals: Mapping[int, Reveal], keys: Sequence[bytes]) -> bytes:
    """AGREED of four that joined, in which these revealed."""
    return messages.encode_agreed(reveals, EVERYBODY, keys, cohort.session)


def test_a_server_cannot_play_a_client():
    cohort, setup = fresh()
    with pytest.raises(PeerError, match="signature on client 1's member list does not verify"):
        play_client_1(cohort, setup)
    assert_setup_dead(setup.clients[0])


def test_clients_that_check_no_signature_talk_to_the_server(monkeypatch):
    monkeypatch.setattr(IdentityPublic, "verify", lambda *_: None)
    cohort, setup = fresh()
    secret = play_client_1(cohort, setup)
    assert setup.clients[0].enrolment.channels[1].pair_secret(3) == secret


def test_a_client_that_has_not_joined_cannot_be_added():
    cohort, setup = fresh()
    del setup.clients[3]
    inbound = setup.deliver(setup.start())
    members = messages.decode_members(inbound[0], cohort.session)
    forged = members | {3: forged_member(cohort, 3)}
    told = messages.encode_members(forged, cohort.session)
    answers = setup.answer(dict.fromkeys(setup.clients, told))
    reveals = {k: messages.decode_reveal(answers[k], cohort.session, k) for k in answers}
    impostor = IdentityKey.generate(insecure_bytes(5))
    view = messages.view_of(cohort.session, forged)
    reveals[3] = Reveal.signed(cohort.session, 3, view, SERVER_NONCE, impostor)
    keys = [setup.clients[k]._join.keys for k in (1, 2)] + [SERVER_KEY.public]
    with pytest.raises(PeerError, match="client 3's member list does not verify"):
        setup.clients[0].receive(agreed_message(cohort, reveals, keys))
    assert_setup_dead(setup.clients[0])


# What is agreed; tests/vectors/refused.py has more.


@dataclass
class Agreed:
    """What the server is about to tell client 0, to be tampered with."""

    cohort: Cohort
    setup: SetUp
    reveals: dict[int, Reveal]
    keys: list[bytes]

    @classmethod
    def honest(cls, *, hybrid: bool = False) -> "Agreed":
        cohort, setup = fresh(hybrid=hybrid)
        inbound = setup.until_agreed()
        reveals, keys = messages.decode_agreed(inbound[0], cohort.session, EVERYBODY)
        return cls(cohort, setup, reveals, list(keys))

    def tell(self) -> None:
        message = agreed_message(self.cohort, self.reveals, self.keys)
        self.setup.clients[0].receive(message)


def another_nonce(told: Agreed) -> None:
    """Signed by a corrupt client that chose it after it had seen the others'."""
    identity, view = told.cohort.identities[1], told.setup.server._view
    told.reveals[1] = Reveal.signed(told.cohort.session, 1, view, bytes(32), identity)


def own_reveal(told: Agreed) -> None:
    told.reveals[0] = told.reveals[1]


def of_others_than_it_says(told: Agreed) -> None:
    told.reveals[3] = told.reveals.pop(2)
    told.keys.pop(1)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (another_nonce, "client 1 reveals a nonce that it did not commit to"),
        (own_reveal, "client 0's member list does not verify"),
        (of_others_than_it_says, "client 3's member list does not verify"),
    ],
)
def test_a_client_refuses_an_agreement(change, sentence):
    told = Agreed.honest()
    change(told)
    with pytest.raises(PeerError, match=sentence):
        told.tell()
    assert_setup_dead(told.setup.clients[0])


def test_a_client_refuses_another_capsule_key():
    told = Agreed.honest(hybrid=True)
    told.keys[0] = told.keys[0][:32] + CapsuleKey.generate(insecure_bytes(7)).public
    with pytest.raises(PeerError, match="keys of client 1 are not those that it signed"):
        told.tell()
    assert_setup_dead(told.setup.clients[0])


def test_the_agreement_that_was_not_changed_is_taken():
    told = Agreed.honest()
    told.tell()
    assert told.setup.clients[0].state is ClientState.DONE


def relayed_to_3(replaced: Callable[[SetUp, bytes], bytes]) -> SetUp:
    """A set-up in which the server changes what client 0 sent to client 3."""
    _, setup = fresh(hybrid=True)
    inbound = setup.deliver(setup.answer(setup.until_agreed()))
    head = len(inbound[3]) - 3 * CAPSULE_BYTES
    first = inbound[3][head:][:CAPSULE_BYTES]
    rest = inbound[3][head + CAPSULE_BYTES :]
    inbound[3] = inbound[3][:head] + replaced(setup, first) + rest
    setup.answer(inbound)
    return setup


def of_the_server(setup: SetUp, _: bytes) -> bytes:
    """Sealed to client 3 in the name of client 0, with the very context."""
    machine = setup.clients[3]
    assert machine._held is not None
    info = info_of(machine, 0, 3)
    return seal_capsule(machine._join.keys[32:], bytes(CAPSULE_SECRET_BYTES), info)


def info_of(machine: ClientSetup, sender: int, receiver: int) -> bytes:
    """The context of a capsule, under what the machine and client 0 have agreed on."""
    held = machine._held
    assert held is not None
    return joining._capsule_info(held.group, held.agreed[0], sender, receiver)


def flipped(_: SetUp, capsule: bytes) -> bytes:
    return flip(capsule)


def of_zeros(_: SetUp, capsule: bytes) -> bytes:
    return bytes(len(capsule))


@pytest.mark.parametrize("replaced", [of_the_server, flipped, of_zeros])
def test_a_capsule_of_the_server_gives_it_no_channel_and_costs_no_other(replaced):
    """It knows one of the two secrets at most, and not what the keys of X25519 agree on."""
    setup = relayed_to_3(replaced)
    ends = {k: machine.enrolment.channels for k, machine in setup.clients.items()}
    server = Channel.agreed(
        setup.server.session, 0, 3, bytes(CAPSULE_SECRET_BYTES), setup.server.group.view
    )
    assert len({end.pair_secret(1) for end in (ends[0][3], ends[3][0], server)}) == 3
    with pytest.raises(PeerError, match="the seal on it does not open"):
        ends[3][0].open(1, ends[0][3].seal(1, b"shares", b""), b"", "it")
    assert ends[3][1].open(1, ends[1][3].seal(1, b"shares", b""), b"", "it") == b"shares"


def test_a_capsule_that_was_not_changed_makes_one_channel():
    setup = relayed_to_3(lambda _, capsule: capsule)
    ends = {k: machine.enrolment.channels for k, machine in setup.clients.items()}
    assert ends[0][3].pair_secret(1) == ends[3][0].pair_secret(1)


def test_a_capsule_says_what_set_up_and_whom_it_is_for():
    """One of another set-up of the same clients, or of another receiver, does not open."""
    cohort, setup = fresh(hybrid=True)
    outbound = setup.answer(setup.until_agreed())
    machine, other = setup.clients[1], cohort.open_setup()
    other.answer(other.until_agreed())
    assert machine._held is not None
    assert machine._held.capsule_key is not None
    capsule = outbound[0][48:][:CAPSULE_BYTES]
    info = info_of(machine, 0, 1)
    assert machine._held.capsule_key.open(capsule, info, "it") == setup.clients[0]._held.secrets[1]
    assert other.clients[1]._held is not None
    for wrong in (
        info_of(machine, 0, 2),
        info_of(machine, 1, 0),
        info_of(other.clients[1], 0, 1),
    ):
        with pytest.raises(PeerError, match="it does not open"):
            machine._held.capsule_key.open(capsule, wrong, "it")
