"""The masks are what the document says, and only pinned, signed, sound keys agree on them."""

import hashlib
import hmac
from collections.abc import Callable

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from secure_fd.aggregation.masked import MaskedSum
from secure_fd.crypto.keys import AgreementKey
from secure_fd.crypto.randomness import insecure_bytes
from secure_fd.errors import LocalError, MissingClientError, PeerError
from secure_fd.secagg import messages
from secure_fd.secagg.messages import Advert
from secure_fd.secagg.server import ServerState
from secure_fd.secagg.session import RoundScope, RoundTerms
from tests.secagg_cohort import TERMS, Cohort, Round, assert_dead, round_of

# The masks are what the document says: derived once more, by hand.


def by_hand(
    client: int, private: bytes, publics: dict[int, bytes], scope: RoundScope, words: list[int]
) -> list[int]:
    """Masked words from X25519, HMAC and AES alone, in Python integers."""
    masked = list(words)
    for peer in set(publics) - {client}:
        secret = X25519PrivateKey.from_private_bytes(private).exchange(
            X25519PublicKey.from_public_bytes(publics[peer])
        )
        low, high = sorted((client, peer))
        t = scope.terms
        terms = b"".join(b"\0\0\0\x08" + v.to_bytes(8, "big") for v in (t.index, t.length, t.bound))
        parts = (
            b"secure-fd secure aggregation", b"\0\1", scope.session.id, terms + bytes(4),
            b"pairwise mask key", low.to_bytes(4, "big"), high.to_bytes(4, "big"),
        )  # fmt: skip
        info = b"".join(len(part).to_bytes(4, "big") + part for part in parts)
        extracted = hmac.new(scope.session.id, secret, hashlib.sha256).digest()
        key = hmac.new(extracted, info + b"\x01", hashlib.sha256).digest()
        cipher = Cipher(algorithms.AES256(key), modes.CTR(bytes(16))).encryptor()
        stream = np.frombuffer(cipher.update(bytes(8 * len(words))), "<u8").tolist()
        sign = 1 if client < peer else -1
        masked = [(word + sign * mask) % 2**64 for word, mask in zip(masked, stream, strict=True)]
    return masked


def test_the_session_id_is_laid_out_as_documented() -> None:
    cohort = Cohort(3)
    everyone = b"\xff\xff\xff\xff"
    parts = (
        b"secure-fd secure aggregation", b"\0\1", b"n", b"", b"session id", everyone, everyone
    )  # fmt: skip
    label = b"".join(len(part).to_bytes(4, "big") + part for part in parts)
    roster = b"".join(k.to_bytes(4, "big") + key.public.raw for k, key in cohort.identities.items())
    agreed = (label, b"\0\x40", roster, b"configuration", b"proxies")
    text = b"".join(len(part).to_bytes(4, "big") + part for part in agreed)
    assert cohort.session.id == hashlib.sha256(text).digest()


def test_masked_words_match_an_independent_derivation() -> None:
    cohort = Cohort(4)
    privates: list[bytes] = []

    def recorded(size: int) -> bytes:
        privates.append(insecure_bytes(len(privates))(size))
        return privates[-1]

    for client in cohort.clients.values():
        client._random = recorded
    values = np.arange(40, dtype=np.uint64) % np.uint64(5)
    current = cohort.open(TERMS, dict.fromkeys(cohort.clients, values))
    scope = current.server.scope
    sent = current.masked()
    replay = iter(privates)
    publics = {k: AgreementKey.generate(lambda _: next(replay)).public for k in cohort.clients}
    packed = scope.layout.pack(values).tolist()
    for k, message in sent.items():
        expected = by_hand(k, privates[k], publics, scope, packed)
        assert messages.decode_masked(message, scope, k).tolist() == expected


def test_one_cipher_set_up_a_pair_and_side(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    def counted(algorithm: algorithms.AES256, mode: modes.CTR) -> Cipher[modes.CTR]:
        made.append(mode)
        return Cipher(algorithm, mode)

    monkeypatch.setattr("secure_fd.crypto.prg.Cipher", counted)
    long = RoundTerms(0, 100_000, 2**60)
    for n in (3, 6):
        cohort = Cohort(n)
        made.clear()
        cohort.open(long).finish()
        assert len(made) == n * (n - 1)


# Keys and signatures.


def tampered_roster(change: Callable[[Round, list[Advert]], list[Advert]]) -> tuple[Round, bytes]:
    """Client 0's roster after the server changed it."""
    current = round_of()
    scope = current.server.scope
    adverts = messages.decode_roster(current.advertise()[0], scope)
    return current, messages.encode_roster(change(current, adverts), scope)


def flipped_signature(_: Round, adverts: list[Advert]) -> list[Advert]:
    victim = adverts[1]
    mark = bytes([victim.signature[0] ^ 1]) + victim.signature[1:]
    return [adverts[0], Advert(1, victim.key, mark), adverts[2]]


def server_key(_: Round, adverts: list[Advert]) -> list[Advert]:
    """The server plays client 1: its own key, signed by an identity that is not pinned."""
    return [
        adverts[0],
        Advert(1, AgreementKey.generate(insecure_bytes(5)).public, adverts[1].signature),
        adverts[2],
    ]


def own_advert_altered(_: Round, adverts: list[Advert]) -> list[Advert]:
    return [Advert(0, adverts[1].key, adverts[0].signature), *adverts[1:]]


def low_order_key(current: Round, adverts: list[Advert]) -> list[Advert]:
    """A malicious client 1, whose identity is good, signs the point zero."""
    identity = Cohort().identities[1]
    return [adverts[0], Advert.signed(current.server.scope, 1, bytes(32), identity), adverts[2]]


def earlier_round(_: Round, adverts: list[Advert]) -> list[Advert]:
    old = Cohort().open(RoundTerms(2, TERMS.length, TERMS.bound))
    replayed = messages.decode_advert(old.clients[1].start(), old.server.scope, 1)
    return [adverts[0], replayed, adverts[2]]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (flipped_signature, "client 1's advert for round 3 does not verify"),
        (server_key, "client 1's advert for round 3 does not verify"),
        (own_advert_altered, "alters client 0's own advert"),
        (low_order_key, "high-order"),
        (earlier_round, "client 1's advert for round 3 does not verify"),
        (lambda _, adverts: adverts[:2], "bytes, not"),
        (lambda _, adverts: [*adverts, adverts[2]], "bytes, not"),
        (lambda _, adverts: [adverts[0], adverts[1], adverts[1]], "not the pinned"),
    ],
)
def test_a_client_refuses_a_roster_that_was_changed(
    change: Callable[[Round, list[Advert]], list[Advert]], sentence: str
) -> None:
    current, roster = tampered_roster(change)
    with pytest.raises(PeerError, match=sentence):
        current.clients[0].receive(roster)
    assert_dead(current.clients[0])


def test_a_client_answers_the_roster_that_was_not_changed() -> None:
    current, roster = tampered_roster(lambda _, adverts: adverts)
    assert len(current.clients[0].receive(roster)) == 48 + 8 * current.server.scope.words


def test_the_server_refuses_a_bad_advert_and_names_its_client() -> None:
    current = round_of()
    advert = bytearray(current.clients[1].start())
    advert[-1] ^= 1
    with pytest.raises(PeerError, match="client 1's advert"):
        current.server.receive(1, bytes(advert))
    assert current.server.state is ServerState.ABORTED


# Missing clients and lying clients.


@pytest.mark.parametrize("masked", [False, True])
def test_a_missing_client_ends_the_round_and_not_the_next(masked: bool) -> None:
    cohort = Cohort(5)
    current = round_of(cohort)
    if masked:
        outbound = current.masked()
    else:
        outbound = {k: machine.start() for k, machine in current.clients.items()}
    for k in (0, 2, 3):
        current.server.receive(k, outbound[k])
    with pytest.raises(MissingClientError, match=r"clients \[1, 4\] did not answer in round 3"):
        current.server.advance()
    assert current.server.state is ServerState.ABORTED
    with pytest.raises(LocalError, match="no sum"):
        _ = current.server.total
    values = {k: np.full(40, k % 4, np.uint64) for k in cohort.clients}
    assert cohort.open(RoundTerms(4, 40, 4), values).finish().tolist() == [6] * 40


def test_a_missing_client_uncovers_no_one_and_next_round_has_other_masks() -> None:
    sums = MaskedSum(4, insecure_seed=1)
    vectors = {k: np.full(64, k, np.uint64) for k in range(4)}
    first = sums.sum(0, vectors, bound=3)
    with pytest.raises(MissingClientError, match=r"\[3\]"):
        sums.sum(1, {k: vectors[k] for k in range(3)}, bound=3)
    second = sums.sum(2, vectors, bound=3)
    assert first.total.tolist() == second.total.tolist() == [6] * 64
    assert all((first.payloads[k] != second.payloads[k]).all() for k in range(4))


def test_a_sum_that_no_honest_cohort_can_reach_is_void() -> None:
    current = Cohort().open(TERMS)
    sent = current.masked()
    scope = current.server.scope
    words = messages.decode_masked(sent[2], scope, 2) + np.uint64(13)
    sent[2] = messages.encode_masked(words, scope, 2)
    for k, message in sent.items():
        current.server.receive(k, message)
    with pytest.raises(PeerError, match="exceeds 12"):
        current.server.advance()
    assert current.server.state is ServerState.ABORTED
