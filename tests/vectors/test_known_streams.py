"""First words of mask streams under fixed keys, written down, and made again by hand.

A stream from a short seed, or under a constant key, passes every statistic; these answers it
does not give. By hand means HKDF with hmac, and AES-CTR and X25519 as the library has them.
"""

import pytest

from secure_fd.crypto.keys import AgreementKey
from secure_fd.crypto.prg import BLOCK_WORDS, Keystream, scratch_words
from secure_fd.secagg import masking
from secure_fd.secagg.masking import pair_stream, self_stream
from secure_fd.secagg.session import Roster, RoundScope, RoundTerms, Session
from tests.vectors import independent as plain

ROSTER = {k: plain.identity_public(bytes([k + 1]) * 32) for k in range(3)}
ROOTS = [bytes([0x50 + k]) * 32 for k in range(3)]
SECRET = bytes(range(100, 132))
SCOPE = RoundScope(
    Session(Roster(ROSTER), b"configuration", b"proxies", b"nonce"),
    RoundTerms(index=7, length=1000, bound=4095, subject=b"subject"),
)
TERMS = plain.terms_of(7, 1000, 4095, b"subject")

PAIRS = {
    (0, 1): "82dbb7098459b3ef40521ea1ad1b8db38b05d0f63a569927",
    (0, 2): "fc88407e679fd6f0cb6ef1dc439893fedfaa309dbbcd8fbd",
    (1, 2): "4cff882c3c2e00838dfd45fd5faad6a2a856301218d49858",
}
SELVES = {
    0: "cb887544620ba1529ac5e71ee706dc1570f38152750547f6",
    1: "7f82e7bc0aaa15540766ae41fe590d1ad7a4b5da643851a7",
    2: "d2316b1478d719dc942d1f0cbc5dd41f49558c48e043b5e2",
}


def first_words(stream: Keystream) -> str:
    return stream.read_words(3, scratch_words()).tobytes().hex()


def keys_of(one: int, other: int) -> tuple[AgreementKey, bytes]:
    mine, peer = (AgreementKey.derive(ROOTS[k]) for k in (one, other))
    return mine, peer.public


@pytest.mark.parametrize("ends", PAIRS)
def test_pair_streams_have_known_first_words_from_either_side(ends: tuple[int, int]) -> None:
    low, high = ends
    for one, other in ((low, high), (high, low)):
        stream = pair_stream(SCOPE, one, other, *keys_of(one, other), SECRET)
        assert first_words(stream) == PAIRS[ends]


@pytest.mark.parametrize("ends", PAIRS)
def test_pair_streams_made_by_hand_are_the_same(ends: tuple[int, int]) -> None:
    low, high = ends
    agreed = plain.exchange(ROOTS[low], plain.agreement_public(ROOTS[high]))
    key = plain.pair_mask_key(SCOPE.session.id, TERMS, low, high, agreed + SECRET)
    assert plain.keystream(key, 24).hex() == PAIRS[ends]


@pytest.mark.parametrize("client", SELVES)
def test_self_streams_have_known_first_words(client: int) -> None:
    seed = int.from_bytes(ROOTS[client], "big")
    assert first_words(self_stream(SCOPE, client, seed)) == SELVES[client]
    key = plain.self_mask_key(SCOPE.session.id, TERMS, client, ROOTS[client])
    assert plain.keystream(key, 24).hex() == SELVES[client]


def test_streams_go_on_as_one_keystream_across_blocks() -> None:
    """Block by block, in uneven reads: never a word twice, never one left out."""
    key = plain.self_mask_key(SCOPE.session.id, TERMS, 0, ROOTS[0])
    stream, scratch = self_stream(SCOPE, 0, int.from_bytes(ROOTS[0], "big")), scratch_words()
    sizes = (1, 2, 5, BLOCK_WORDS, 3, BLOCK_WORDS - 1)
    read = b"".join(stream.read_words(size, scratch).tobytes() for size in sizes)
    assert read == plain.keystream(key, 8 * sum(sizes))


def test_twin_with_a_seed_of_32_bits_gives_other_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """As secure aggregation in the wild has it: the key cut down before it is expanded."""

    def short(secret: bytes, *, salt: bytes, info: bytes) -> bytes:
        return plain.sha(plain.hkdf(secret, salt, info)[:4])

    monkeypatch.setattr(masking, "derive_key", short)
    assert first_words(self_stream(SCOPE, 0, int.from_bytes(ROOTS[0], "big"))) != SELVES[0]
    assert first_words(pair_stream(SCOPE, 0, 1, *keys_of(0, 1), SECRET)) != PAIRS[0, 1]
