"""First words of mask streams under fixed keys, written down, and made again by hand.

A stream from a short seed, or under a constant key, passes every statistic; these answers it
does not give. By hand means HKDF with hmac, and AES-CTR and X25519 as the library has them.
"""

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from secure_fd.crypto.keys import BLOCK_WORDS, AgreementKey, Keystream, scratch_words
from secure_fd.secagg import masks as masking
from secure_fd.secagg.masks import pair_stream, self_stream
from secure_fd.secagg.session import PinnedRoster, RoundScope, RoundTerms, Session
from tests.vectors import independent as plain

IDENTITIES = [Ed25519PrivateKey.from_private_bytes(bytes([k + 1]) * 32) for k in range(3)]
ROSTER = {k: plain.public(identity) for k, identity in enumerate(IDENTITIES)}
SERVER_KEY = plain.public(plain.x25519(bytes([0x40]) * 32))
ROOTS = [bytes([0x50 + k]) * 32 for k in range(3)]
SECRET = bytes(range(100, 132))
SCOPE = RoundScope(
    Session(PinnedRoster(ROSTER), b"configuration", b"proxies", b"nonce", SERVER_KEY),
    RoundTerms(index=7, length=1000, bound=4095, subject=b"subject"),
)
SESSION = plain.Session(SCOPE.session.id, ROSTER, SERVER_KEY, 0, 1024)
TERMS = plain.Terms(7, 1000, 4095, 0, 0, b"subject")

PAIRS = {
    (0, 1): "c3346387fe747bed0463e0c1a648fc74814705d73cdcc0e0",
    (0, 2): "3a79b7ac0159cc6efb0fb4d01d115631192a878dbe5c2a4c",
    (1, 2): "30a85feaddf1b27e58c94ab8c52a69836a25f3d54303c1c0",
}
SELVES = {
    0: "a90bdc4463ce40d314549e503b99c9d56336f556dcb43997",
    1: "a4ba99bf8ad85adaca7efdd1db203de3ae1918f2a1305ee1",
    2: "a631aa44a623db89597bd64bc2b8b95958b27cd0f06dccdd",
}


def first_words(stream: Keystream) -> str:
    return stream.read_words(3, scratch_words()).tobytes().hex()


def keys_of(one: int, other: int) -> tuple[AgreementKey, bytes]:
    mine, peer = (AgreementKey.derive(ROOTS[k]) for k in (one, other))
    return mine, peer.public


@pytest.mark.parametrize("ends", PAIRS)
def test_pair_streams_have_known_first_words_from_either_side(ends):
    low, high = ends
    for one, other in ((low, high), (high, low)):
        stream = pair_stream(SCOPE, one, other, *keys_of(one, other), SECRET)
        assert first_words(stream) == PAIRS[ends]


@pytest.mark.parametrize("ends", PAIRS)
def test_pair_streams_made_by_hand_are_the_same(ends):
    low, high = ends
    agreed = plain.dh(plain.x25519(ROOTS[low]), plain.public(plain.x25519(ROOTS[high])))
    key = plain.pair_mask_key(SESSION, TERMS, low, high, agreed, SECRET)
    assert plain.Stream(key).read(24).hex() == PAIRS[ends]


@pytest.mark.parametrize("client", SELVES)
def test_self_streams_have_known_first_words(client):
    seed = int.from_bytes(ROOTS[client], "big")
    assert first_words(self_stream(SCOPE, client, seed)) == SELVES[client]
    key = plain.self_mask_key(SESSION, TERMS, client, seed)
    assert plain.Stream(key).read(24).hex() == SELVES[client]


def test_streams_go_on_as_one_keystream_across_blocks():
    """Block by block, in uneven reads: never a word twice, never one left out."""
    seed, scratch = int.from_bytes(ROOTS[0], "big"), scratch_words()
    stream, key = self_stream(SCOPE, 0, seed), plain.self_mask_key(SESSION, TERMS, 0, seed)
    sizes = (1, 2, 5, BLOCK_WORDS, 3, BLOCK_WORDS - 1)
    read = b"".join(stream.read_words(size, scratch).tobytes() for size in sizes)
    assert read == plain.Stream(key).read(8 * sum(sizes))


def test_mutant_with_a_seed_of_32_bits_gives_other_words(monkeypatch):
    """As secure aggregation in the wild has it: the key cut down before it is expanded."""

    def short(secret: bytes, *, salt: bytes, info: bytes) -> bytes:
        return plain.sha(plain.hkdf(secret, salt, info)[:4])

    monkeypatch.setattr(masking, "derive_key", short)
    assert first_words(self_stream(SCOPE, 0, int.from_bytes(ROOTS[0], "big"))) != SELVES[0]
    assert first_words(pair_stream(SCOPE, 0, 1, *keys_of(0, 1), SECRET)) != PAIRS[0, 1]
