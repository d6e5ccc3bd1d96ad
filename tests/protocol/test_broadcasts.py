"""Broadcasts of the server are signed: clients refuse unsigned, altered and reordered ones."""

import os

import pytest

from secure_fd.crypto.keys import SERVER, SIGNATURE_BYTES, IdentityKey, IdentityPublic
from secure_fd.errors import PeerError
from secure_fd.protocol.broadcasts import (
    BROADCAST_BYTES,
    BroadcastSigner,
    BroadcastVerifier,
)
from secure_fd.protocol.server import Server
from secure_fd.wire import HEADER_BYTES, Kind, Place, frame, read_header
from tests.small_federation import federation, run

SESSION = bytes(32)
KEY, OTHER = (IdentityKey.generate(os.urandom) for _ in range(2))


def read(client, data):
    kind, _, _ = read_header(data, SESSION, SERVER)
    client.read(kind, data)


class Trusting(IdentityPublic):
    """Mutant: every signature is right."""

    def verify(self, signature, message, what):
        """Accept anything."""


def unsigned(data):
    return data[: HEADER_BYTES + 4] + bytes(SIGNATURE_BYTES) + data[BROADCAST_BYTES:]


def by_another(_):
    return BroadcastSigner(SESSION, OTHER).write(Kind.RESULT, 3, b"an ensemble")


def altered(data):
    return data[:-1] + bytes([data[-1] ^ 1])


def as_aborted(data):
    return frame(Kind.ABORTED, Place(SESSION, 3), SERVER, data[HEADER_BYTES:])


def of_another_round(data):
    return frame(Kind.RESULT, Place(SESSION, 4), SERVER, data[HEADER_BYTES:])


def of_another_session(_):
    elsewhere = BroadcastSigner(bytes([1]) * 32, KEY).write(Kind.RESULT, 3, b"an ensemble")
    return frame(Kind.RESULT, Place(SESSION, 3), SERVER, elsewhere[HEADER_BYTES:])


def of_another_place(_):
    signer = BroadcastSigner(SESSION, KEY)
    signer.write(Kind.ABORTED, 0, b"")
    second = signer.write(Kind.RESULT, 3, b"an ensemble")
    return second[:HEADER_BYTES] + bytes(4) + second[HEADER_BYTES + 4 :]


@pytest.mark.parametrize(
    "tamper",
    [
        *(unsigned, by_another, altered, as_aborted),
        *(of_another_round, of_another_session, of_another_place),
    ],
)
def test_a_client_reads_what_its_server_signed_and_nothing_else(tamper):
    """A refusal changes nothing: the true one is read afterwards. The mutant reads the forgery."""
    true = BroadcastSigner(SESSION, KEY).write(Kind.RESULT, 3, b"an ensemble")
    client = BroadcastVerifier(SESSION, KEY.public)
    with pytest.raises(PeerError, match="signature"):
        read(client, tamper(true))
    assert (client.digest, client.count) == (SESSION, 0)
    read(client, true)
    assert client.count == 1
    mutant = BroadcastVerifier(SESSION, Trusting(KEY.public.raw))
    read(mutant, tamper(true))
    assert mutant.count == 1


def test_a_signature_covers_all_broadcasts_before():
    """A client that read something else first refuses what follows, the same bytes or not."""
    one, other = BroadcastSigner(SESSION, KEY), BroadcastSigner(SESSION, KEY)
    one.write(Kind.RESULT, 0, b"one story")
    client = BroadcastVerifier(SESSION, KEY.public)
    read(client, other.write(Kind.RESULT, 0, b"another"))
    with pytest.raises(PeerError, match="signature"):
        read(client, one.write(Kind.RESULT, 1, b"the same"))
    read(client, other.write(Kind.RESULT, 1, b"the same"))


# Whole federations.


class Unsigned(Server):
    """Signs nothing."""

    def begin(self):
        """As a server's, without signatures."""
        return {k: [unsigned(data) for data in sent] for k, sent in super().begin().items()}


def signs_nothing(server):
    server.__class__ = Unsigned


def has_another_key(server):
    server._chain._key = OTHER


@pytest.mark.parametrize("change", [signs_nothing, has_another_key])
@pytest.mark.parametrize("trusting", [False, True])
def test_a_server_without_the_pinned_key_gets_no_votes(digits, change, trusting):
    """Rounds are aborted. The mutant trusts any signature, and votes."""
    made = federation(digits)
    change(made.server)
    if trusting:
        for client in made.clients:
            client._chain._server = Trusting(KEY.public.raw)
    reports = made.fit(1)
    assert [r.aborted for r in reports] == [not trusting]
    assert made.transcript.up.any() == trusting
    if not trusting:
        assert all("signature" in why for _, why in reports[0].refused)


def test_a_relay_that_tampers_costs_the_client_behind_it(digits):
    made = run(federation(digits), rounds=1)
    client = made.clients[1]
    receive = client.receive
    client.receive = lambda data: receive(altered(data))
    [report] = made.fit(1)
    assert report.survivors == (0, 2, 3)
    assert [k for k, why in report.refused if "signature" in why] == [1]
