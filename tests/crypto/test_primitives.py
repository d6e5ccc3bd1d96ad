"""Known answers of the primitives, from their sources."""

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from secure_fd.crypto.keys import (
    BLOCK_WORDS,
    AgreementKey,
    IdentityKey,
    IdentityPublic,
    Keystream,
    Purpose,
    context,
    derive_key,
    draw,
    fields,
    insecure_bytes,
    low_order,
    scratch_words,
)
from secure_fd.errors import LocalError, PeerError

H = bytes.fromhex

# NIST SP 800-38A, F.5.5 CTR-AES256.Encrypt: the four output blocks are the keystream.
NIST_KEY = H("603deb1015ca71be2b73aef0857d77811f352c073b6108d72d9810a30914dff4")
NIST_COUNTER = H("f0f1f2f3f4f5f6f7f8f9fafbfcfdfeff")
NIST_STREAM = H(
    "0bdf7df1591716335e9a8b15c860c502"
    "5a6e699d536119065433863c8f657b94"
    "1bc12c9c01610d5d0d8bd6a3378eca62"
    "2956e1c8693536b1bee99c73a31576b6"
)

# RFC 7748, 6.1: two private keys, their public keys, and the secret they share.
ALICE = H("77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a")
ALICE_PUBLIC = H("8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a")
BOB = H("5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb")
BOB_PUBLIC = H("de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f")
SHARED = H("4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742")
# Points of order 1, 2, 4 and 8, and those of their other encodings that 255 bits allow.
_P = 2**255 - 19
_ORDER_8 = (
    H("e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800"),
    H("5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157"),
)
LOW_ORDER = [
    *_ORDER_8,
    *(number.to_bytes(32, "little") for number in (0, 1, _P - 1, _P, _P + 1)),
    (2**255).to_bytes(32, "little"),
]


def test_keystream_is_nist_ctr_aes256():
    assert Keystream(NIST_KEY, NIST_COUNTER).read(64) == NIST_STREAM
    words = Keystream(NIST_KEY, NIST_COUNTER).read_words(8, scratch_words())
    assert words.tolist() == np.frombuffer(NIST_STREAM, "<u8").tolist()


@pytest.mark.parametrize("cuts", [[5], [1, 2, 3], [BLOCK_WORDS, 7], [0, 4, 0, BLOCK_WORDS]])
def test_a_stream_is_the_same_however_it_is_cut(cuts):
    stream, scratch = Keystream(NIST_KEY), scratch_words()
    parts = [stream.read_words(cut, scratch).copy() for cut in cuts]
    assert np.concatenate(parts).tobytes() == Keystream(NIST_KEY).read(sum(cuts) * 8)


def test_hkdf_is_rfc_5869_case_1():
    key = derive_key(b"\x0b" * 22, salt=bytes(range(13)), info=bytes(range(0xF0, 0xFA)), length=42)
    assert key == H(
        "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf34007208d5b887185865"
    )


def test_x25519_is_rfc_7748():
    alice, bob = AgreementKey.generate(lambda _: ALICE), AgreementKey.generate(lambda _: BOB)
    assert (alice.public, bob.public) == (ALICE_PUBLIC, BOB_PUBLIC)
    assert alice.exchange(bob.public) == bob.exchange(alice.public) == SHARED
    assert AgreementKey.derive(BOB).exchange(ALICE_PUBLIC) == SHARED


@pytest.mark.parametrize("point", LOW_ORDER, ids=lambda p: p.hex()[:8])
def test_points_of_low_order_are_refused(point):
    for encoded in (point, point[:-1] + bytes([point[-1] ^ 0x80])):
        assert low_order(encoded)
        with pytest.raises(PeerError, match="high-order"):
            AgreementKey.generate(insecure_bytes(2)).exchange(encoded)


def test_a_key_is_of_low_order_where_and_only_where_no_secret_comes_of_it():
    ours = AgreementKey.generate(insecure_bytes(2))
    near = [(int.from_bytes(p, "little") + d) % 2**256 for p in LOW_ORDER for d in (-1, 1, 2)]
    for candidate in {number.to_bytes(32, "little") for number in near} | {ALICE_PUBLIC}:
        try:
            ours.exchange(candidate)
        except PeerError:
            assert low_order(candidate)
        else:
            assert not low_order(candidate)


def test_ed25519_is_rfc_8032_test_1_and_3():
    """Section 7.1: private key, public key, message, signature."""
    for private, public, message, signature in (
        (
            "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60",
            "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
            "",
            "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555fb8821590a33bacc61e39"
            "701cf9b46bd25bf5f0595bbe24655141438e7a100b",
        ),
        (
            "c5aa8df43f9f837bedb7442f31dcb7b166d38535076f094b85ce3a2e0b4458f7",
            "fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025",
            "af82",
            "6291d657deec24024827e69c3abe01a30ce548a284743a445e3680d7db5ac3ac18ff9b538d16f290ae67f7"
            "60984dc6594a7c15e9716ed28dc027beceea1ec40a",
        ),
    ):
        identity = IdentityKey(Ed25519PrivateKey.from_private_bytes(H(private)))
        assert identity.public.raw == H(public)
        assert identity.sign(H(message)) == H(signature)
        IdentityPublic(H(public)).verify(H(signature), H(message), "it")


def test_keys_of_another_length_and_inputs_that_bind_nothing_are_refused():
    ours = AgreementKey.generate(insecure_bytes(2))
    for size in (0, 31, 33):
        with pytest.raises(PeerError, match="32 bytes"):
            ours.exchange(bytes(size))
        with pytest.raises(LocalError, match="32 bytes"):
            IdentityPublic(bytes(size))
    with pytest.raises(LocalError, match="31 bytes where 32"):
        draw(lambda size: bytes(size - 1), 32)
    for empty in ("secret", "salt", "info"):
        secret, salt, info = (b"" if name == empty else b"s" for name in ("secret", "salt", "info"))
        with pytest.raises(LocalError, match="empty"):
            derive_key(secret, salt=salt, info=info)
    for count in (-1, BLOCK_WORDS + 1):
        with pytest.raises(LocalError, match="count"):
            Keystream(NIST_KEY).read_words(count, scratch_words())


def test_contexts_differ_when_any_field_does():
    base = {"session": b"s", "terms": b"t", "sender": 1, "receiver": 2}
    changed = [base | change for change in (
        {}, {"session": b"st", "terms": b""}, {"session": b"", "terms": b"st"}, {"session": b"x"},
        {"terms": b"x"}, {"sender": 3}, {"receiver": 3}, {"sender": 2, "receiver": 1},
    )]  # fmt: skip
    built = {context(p, **fields_) for fields_ in changed for p in Purpose}
    assert len(built) == len(changed) * len(Purpose)
    assert len({fields(b"ab", b"c"), fields(b"a", b"bc"), fields(b"abc"), fields(b"abc", b"")}) == 4
