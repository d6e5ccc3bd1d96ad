"""What the server tells everybody is signed: what clients refuse, and how a split is proved."""

import os
from functools import partial

import pytest

from attacks.told_apart import TwoStories
from secure_fd.aggregation.masked import MaskedSum
from secure_fd.broadcasts import (
    BROADCAST_BYTES,
    Listener,
    SignedDigest,
    Teller,
    proof_of_split,
)
from secure_fd.crypto.primitives import SERVER, SIGNATURE_BYTES, IdentityKey, IdentityPublic
from secure_fd.data.federated import FederatedData
from secure_fd.errors import PeerError
from secure_fd.exchange import Kind
from secure_fd.federation import Federation
from secure_fd.secagg.session import HEADER_BYTES, Place, frame
from secure_fd.server import Outbound, Server
from tests.small_federation import BRIEF, CPU, federation, participants, run

SESSION = bytes(32)
KEY, OTHER = (IdentityKey.generate(os.urandom) for _ in range(2))
SIGNED = slice(HEADER_BYTES + 4, BROADCAST_BYTES)


class Trusting(IdentityPublic):
    """Broken on purpose: every signature is right."""

    def verify(self, signature: bytes, message: bytes, what: str) -> None:
        """Nothing is looked at."""


def unsigned(data: bytes) -> bytes:
    return data[: HEADER_BYTES + 4] + bytes(SIGNATURE_BYTES) + data[BROADCAST_BYTES:]


def by_another(data: bytes) -> bytes:  # noqa: ARG001 - the same words
    return Teller(SESSION, OTHER).write(Kind.TELL, 3, b"an ensemble")


def altered(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


def as_void(data: bytes) -> bytes:
    return frame(Kind.VOID, Place(SESSION, 3), SERVER, data[HEADER_BYTES:])


def of_another_round(data: bytes) -> bytes:
    return frame(Kind.TELL, Place(SESSION, 4), SERVER, data[HEADER_BYTES:])


@pytest.mark.parametrize("tamper", [unsigned, by_another, altered, as_void, of_another_round])
def test_a_client_reads_what_its_server_signed_and_nothing_else(tamper: object) -> None:
    """A refusal takes nothing: the true one is read afterwards. The twin reads the forgery."""
    assert callable(tamper)
    true = Teller(SESSION, KEY).write(Kind.TELL, 3, b"an ensemble")
    client = Listener(SESSION, KEY.public)
    with pytest.raises(PeerError, match="signature on broadcast 0"):
        client.read(tamper(true))
    assert (client.digest, client.count, client.kept) == (SESSION, 0, [])
    assert client.read(true) == (Kind.TELL, 3, b"an ensemble")
    twin = Listener(SESSION, Trusting(KEY.public.raw))
    twin.read(tamper(true))
    assert twin.count == 1


def test_a_signature_of_another_session_or_place_is_none() -> None:
    elsewhere = Teller(bytes([1]) * 32, KEY).write(Kind.TELL, 3, b"an ensemble")
    moved = frame(Kind.TELL, Place(SESSION, 3), SERVER, elsewhere[HEADER_BYTES:])
    teller = Teller(SESSION, KEY)
    teller.write(Kind.VOID, 0, b"")
    second = teller.write(Kind.TELL, 3, b"an ensemble")
    first = second[:HEADER_BYTES] + bytes(4) + second[HEADER_BYTES + 4 :]
    for data in (moved, first):
        with pytest.raises(PeerError, match="signature"):
            Listener(SESSION, KEY.public).read(data)


def test_a_signature_covers_all_that_was_told_before() -> None:
    """A client that read something else first refuses what follows, the same bytes or not."""
    one, other = Teller(SESSION, KEY), Teller(SESSION, KEY)
    one.write(Kind.TELL, 0, b"one story")
    client = Listener(SESSION, KEY.public)
    client.read(other.write(Kind.TELL, 0, b"another"))
    with pytest.raises(PeerError, match="signature on broadcast 1"):
        client.read(one.write(Kind.TELL, 1, b"the same"))
    client.read(other.write(Kind.TELL, 1, b"the same"))


# A split can be proved, and nothing else can.


def word(position: int = 0, digest: bytes = bytes(32), key: IdentityKey = KEY) -> SignedDigest:
    return SignedDigest.sign(key, SESSION, position, digest)


ONE = word()


@pytest.mark.parametrize(
    "other",
    [
        ONE,
        word(position=1, digest=b"1" * 32),
        word(digest=b"1" * 32, key=OTHER),
        SignedDigest(SESSION, 0, b"1" * 32, ONE.signature),
        SignedDigest.sign(KEY, bytes([1]) * 32, 0, b"1" * 32),
    ],
    ids=["the same", "another place", "another key", "no signature", "another session"],
)
def test_what_is_no_proof(other: SignedDigest) -> None:
    assert not proof_of_split(ONE, other, KEY.public)
    assert not proof_of_split(other, ONE, KEY.public)


def test_a_third_party_needs_the_two_records_and_the_key() -> None:
    kept = [ONE.encode(), word(digest=b"1" * 32).encode()]
    read = [SignedDigest.decode(data) for data in kept]
    assert proof_of_split(*read, IdentityPublic(KEY.public.raw))
    assert not proof_of_split(*read, OTHER.public)
    with pytest.raises(PeerError, match="132 bytes"):
        SignedDigest.decode(kept[0][:-1])


def test_clients_that_were_split_prove_it_and_honest_runs_give_no_proof(
    digits: FederatedData,
) -> None:
    """The first position at which the stories differ, and every later one, is a proof."""

    def told(serve: object) -> Federation:
        assert callable(serve)
        made = Federation(
            participants(digits),
            digits.proxies.pixels,
            federation(digits).method,
            aggregation=MaskedSum(4, public_seed=0),
            schedule=BRIEF,
            device=CPU,
            serve=serve,
        )
        return run(made)

    lying = told(
        partial(TwoStories, target=2, at=0, lie=lambda truth: truth[:1] + bytes(len(truth) - 1))
    )
    one, other = (lying.clients[k].signed for k in (1, 2))
    proved = [proof_of_split(a, b, lying.server.key) for a, b in zip(one, other, strict=False)]
    assert proved[:2] == [False, True]
    assert all(proved[1:])
    honest = told(Server)
    kept = [client.signed for client in honest.clients]
    assert all(len(words) == 4 for words in kept)
    assert not any(
        proof_of_split(a, b, honest.server.key)
        for words in kept
        for a, b in zip(kept[0], words, strict=True)
    )


# Whole federations.


class Unsigned(Server):
    """Signs nothing."""

    def begin(self) -> Outbound:
        """As a server's, without signatures."""
        return {k: [unsigned(data) for data in sent] for k, sent in super().begin().items()}


def with_another_key(
    clients: tuple[int, ...], session: bytes, _: IdentityKey, *rest: object
) -> Server:
    return Server(clients, session, OTHER, *rest)  # type: ignore[arg-type]


@pytest.mark.parametrize("serve", [Unsigned, with_another_key])
@pytest.mark.parametrize("trusting", [False, True])
def test_a_server_without_the_pinned_key_gets_no_votes(
    digits: FederatedData, serve: object, trusting: bool
) -> None:
    """Rounds are void and say why. The twin trusts any signature, and votes."""
    made = Federation(
        participants(digits),
        digits.proxies.pixels,
        federation(digits).method,
        schedule=BRIEF,
        device=CPU,
        serve=serve,  # type: ignore[arg-type]
    )
    if trusting:
        for client in made.clients:
            client._told._server = Trusting(KEY.public.raw)
    reports = made.fit(1)
    assert [r.void for r in reports] == [not trusting]
    assert made.transcript.up.any() == trusting
    if not trusting:
        assert all("signature" in why for _, why in reports[0].refused)


def test_a_relay_that_tampers_costs_the_client_behind_it(digits: FederatedData) -> None:
    made = run(federation(digits), rounds=1)
    client = made.clients[1]
    heard = client.receive
    client.receive = lambda data: heard(altered(data))  # type: ignore[method-assign]
    [report] = made.fit(1)
    assert report.survivors == (0, 2, 3)
    assert [k for k, why in report.refused if "signature" in why] == [1]
