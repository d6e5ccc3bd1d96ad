"""A set-up that a server tampers with, or that a corrupt client does, ends with nothing agreed."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest

from secure_fd.crypto.primitives import (
    SERVER,
    IdentityKey,
    IdentityPublic,
    KemKey,
    encapsulate,
    insecure_bytes,
    kem_available,
)
from secure_fd.errors import PeerError
from secure_fd.secagg import messages
from secure_fd.secagg.messages import Channel, Join, Reveal
from secure_fd.secagg.setup import SetupState
from tests.secagg_cohort import (
    SERVER_KEY,
    SERVER_NONCE,
    Cohort,
    SetUp,
    assert_setup_dead,
    flip,
    forged_member,
)

needs_kem = pytest.mark.skipif(not kem_available(), reason="no ML-KEM-768 in this cryptography")


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
    forged = tuple(forged_member(cohort, 1) if m.client == 1 else m for m in members)
    told = messages.encode_members(forged, session)
    answers = setup.answer({0: told, 1: inbound[1], 2: told, 3: told})
    reveals = {k: messages.decode_reveal(answers[k], session, k) for k in answers}
    # The best signature that there is: client 1's own, of the list that it saw itself.
    reveals[1] = Reveal(SERVER_NONCE, reveals[1].signature)
    joins = {k: machine._join for k, machine in setup.clients.items()}
    keys = [SERVER_KEY.public, joins[2].keys, joins[3].keys]
    setup.clients[0].receive(messages.encode_agreed(list(reveals.values()), keys, session))
    view = messages.view_of(session, forged)
    secret = SERVER_KEY.exchange(joins[0].keys)
    bound = view + hashlib.sha256(b"").digest()
    return Channel(session.id, 1, 0, secret, bound).pair_secret(3)


def test_a_server_cannot_play_a_client() -> None:
    cohort, setup = fresh()
    with pytest.raises(PeerError, match="signature on client 1's member list does not verify"):
        play_client_1(cohort, setup)
    assert_setup_dead(setup.clients[0])


def test_clients_that_check_no_signature_talk_to_the_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(IdentityPublic, "verify", lambda *_: None)
    cohort, setup = fresh()
    secret = play_client_1(cohort, setup)
    assert setup.clients[0].enrolment.channels[1].pair_secret(3) == secret


def test_a_client_that_has_not_joined_cannot_be_added() -> None:
    cohort, setup = fresh()
    del setup.clients[3]
    inbound = setup.deliver(setup.start())
    members = messages.decode_members(inbound[0], cohort.session)
    told = messages.encode_members([*members, forged_member(cohort, 3)], cohort.session)
    answers = setup.answer(dict.fromkeys(setup.clients, told))
    reveals = [messages.decode_reveal(answers[k], cohort.session, k) for k in answers]
    impostor = IdentityKey.generate(insecure_bytes(5))
    view = messages.view_of(cohort.session, (*members, forged_member(cohort, 3)))
    reveals.append(Reveal.signed(cohort.session, 3, view, SERVER_NONCE, impostor))
    keys = [setup.clients[k]._join.keys for k in (1, 2)] + [SERVER_KEY.public]
    with pytest.raises(PeerError, match="client 3's member list does not verify"):
        setup.clients[0].receive(messages.encode_agreed(reveals, keys, cohort.session))
    assert_setup_dead(setup.clients[0])


# What is agreed.


@dataclass
class Agreed:
    """What the server is about to tell client 0, to be tampered with."""

    cohort: Cohort
    setup: SetUp
    reveals: list[Reveal]
    keys: list[bytes]

    @classmethod
    def honest(cls, *, hybrid: bool = False) -> "Agreed":
        cohort, setup = fresh(hybrid=hybrid)
        inbound = setup.until_agreed()
        reveals, keys = messages.decode_agreed(inbound[0], cohort.session, 4, 3)
        return cls(cohort, setup, list(reveals), list(keys))

    def tell(self) -> None:
        message = messages.encode_agreed(self.reveals, self.keys, self.cohort.session)
        self.setup.clients[0].receive(message)

    def sign_anew(self, client: int, *, view: bytes | None = None, nonce: bytes) -> None:
        """A corrupt client signs what it wants."""
        shown = self.setup.server._view if view is None else view
        identity = self.cohort.identities[client]
        self.reveals[client] = Reveal.signed(self.cohort.session, client, shown, nonce, identity)


def another_nonce(told: Agreed) -> None:
    """Chosen after it has seen the others'."""
    told.sign_anew(1, nonce=bytes(32))


def another_view(told: Agreed) -> None:
    told.sign_anew(1, view=bytes(32), nonce=told.reveals[1].nonce)


def flipped_signature(told: Agreed) -> None:
    told.reveals[2] = replace(told.reveals[2], signature=flip(told.reveals[2].signature))


def swapped_nonce(told: Agreed) -> None:
    told.reveals[2] = replace(told.reveals[2], nonce=told.reveals[1].nonce)


def own_reveal(told: Agreed) -> None:
    told.reveals[0] = told.reveals[1]


def channel_key(told: Agreed) -> None:
    told.keys[0] = SERVER_KEY.public


def keys_in_another_order(told: Agreed) -> None:
    told.keys[0], told.keys[1] = told.keys[1], told.keys[0]


def one_key_short(told: Agreed) -> None:
    told.keys.pop()


def one_reveal_short(told: Agreed) -> None:
    told.reveals.pop()


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (another_nonce, "client 1 reveals a nonce that it did not commit to"),
        (another_view, "client 1's member list does not verify"),
        (flipped_signature, "client 2's member list does not verify"),
        (swapped_nonce, "client 2's member list does not verify"),
        (own_reveal, "client 0's member list does not verify"),
        (channel_key, "keys of client 1 are not those that it signed"),
        (keys_in_another_order, "keys of client 1 are not those that it signed"),
        (one_key_short, "bytes, not"),
        (one_reveal_short, "bytes, not"),
    ],
)
def test_a_client_refuses_an_agreement(change: Callable[[Agreed], None], sentence: str) -> None:
    told = Agreed.honest()
    change(told)
    with pytest.raises(PeerError, match=sentence):
        told.tell()
    assert_setup_dead(told.setup.clients[0])


@needs_kem
def test_a_client_refuses_another_kem_key() -> None:
    told = Agreed.honest(hybrid=True)
    told.keys[0] = told.keys[0][:32] + KemKey.generate(insecure_bytes(7)).public
    with pytest.raises(PeerError, match="keys of client 1 are not those that it signed"):
        told.tell()
    assert_setup_dead(told.setup.clients[0])


def test_the_agreement_that_was_not_changed_is_taken() -> None:
    told = Agreed.honest()
    told.tell()
    assert told.setup.clients[0].state is SetupState.DONE


@needs_kem
def test_a_capsule_of_the_server_gives_it_no_channel() -> None:
    """It knows one of the two secrets that it put in, and not what the keys of X25519 agree on."""
    cohort, setup = fresh(hybrid=True)
    outbound = setup.answer(setup.until_agreed())
    inbound = setup.deliver(outbound)
    public = setup.clients[3]._join.keys[32:]
    capsules = messages.decode_capsules(inbound[3], cohort.session, SERVER, 3)
    forged = [encapsulate(public)[1], *capsules[1:]]
    inbound[3] = messages.encode_capsules(forged, cohort.session, SERVER)
    setup.answer(inbound)
    ends = {k: machine.enrolment.channels for k, machine in setup.clients.items()}
    assert ends[0][3].pair_secret(1) != ends[3][0].pair_secret(1)
    with pytest.raises(PeerError, match="the seal on it does not open"):
        ends[3][0].open(1, ends[0][3].seal(1, b"shares", b""), b"", "it")
    assert ends[3][1].open(1, ends[1][3].seal(1, b"shares", b""), b"", "it") == b"shares"


@pytest.mark.parametrize("point", [bytes(32), (1).to_bytes(32, "little")])
def test_a_channel_key_of_low_order_ends_the_set_up(point: bytes) -> None:
    """A corrupt client signs it with a good identity."""
    cohort, setup = fresh()
    corrupt = setup.clients[1]
    assert corrupt._held is not None
    nonce, identity = corrupt._held.nonce, cohort.identities[1]
    corrupt._join = Join.signed(cohort.session, 1, point, nonce, identity)
    inbound = setup.until_agreed()
    with pytest.raises(PeerError, match="high-order"):
        setup.clients[0].receive(inbound[0])
    assert_setup_dead(setup.clients[0])
