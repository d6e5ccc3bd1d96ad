"""Sealed messages open for their reader alone, capsules carry one secret to one key, tags hold."""

import os
import pickle
from collections.abc import Iterator

import pytest
from cryptography.exceptions import UnsupportedAlgorithm

from secure_fd.crypto.keys import (
    CAPSULE_BYTES,
    CAPSULE_PUBLIC_BYTES,
    CapsuleKey,
    Sealer,
    capsule_public,
    check_capsules,
    insecure_bytes,
    seal_capsule,
)
from secure_fd.errors import LocalError, MissingCapabilityError, PeerError
from secure_fd.secure_sum.masked import MaskedSum

KEY = bytes(range(32))
TEXT, CONTEXT = b"a share of a secret", b"round 3, from 1 to 2"
H = bytes.fromhex


def flips(data: bytes) -> Iterator[bytes]:
    """The data with each of its bits flipped in turn."""
    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        yield bytes(flipped)


def refuses(sealer: Sealer, counter: int, sealed: bytes, context: bytes) -> bool:
    with pytest.raises(PeerError, match="the seal on shares of client 1 does not open"):
        sealer.open(counter, sealed, context, "shares of client 1")
    return True


def test_seals_are_the_published_ones():
    # McGrew and Viega, "The Galois/Counter Mode of Operation", test cases 13 and 14.
    assert Sealer(bytes(32)).seal(0, b"", b"") == H("530f8afbc74536b9a963b4f1c4cb738b")
    assert Sealer(bytes(32)).seal(0, bytes(16), b"") == H(
        "cea7403d4d606b6e074ec5d3baf39d18d0d1c8a799996bf0265b98b5d48ab919"
    )


def test_no_counter_seals_twice_or_lacks_a_nonce_and_keys_have_32_bytes():
    sealer = Sealer(KEY)
    sealer.seal(5, TEXT, CONTEXT)
    for counter in (5, 4, 0, -1, 2**96):
        with pytest.raises(LocalError, match="counter"):
            sealer.seal(counter, TEXT, CONTEXT)
    sealer.seal(6, TEXT, CONTEXT)
    for counter in (-1, 2**96):
        with pytest.raises(LocalError, match="counter"):
            sealer.open(counter, bytes(16), CONTEXT, "a message")
    for size in (0, 16, 24, 31, 33):
        with pytest.raises(LocalError, match="32 bytes"):
            Sealer(bytes(size))


@pytest.mark.parametrize("text", [TEXT, b""], ids=["text", "tag alone"])
def test_every_flipped_bit_and_other_length_is_refused(text):
    sealer = Sealer(KEY)
    sealed = sealer.seal(3, text, CONTEXT)
    assert all(refuses(sealer, 3, forged, CONTEXT) for forged in flips(sealed))
    assert all(refuses(sealer, 3, sealed, forged) for forged in flips(CONTEXT))
    assert all(refuses(Sealer(other), 3, sealed, CONTEXT) for other in flips(KEY))
    assert all(refuses(sealer, 3, sealed[:size], CONTEXT) for size in range(len(sealed)))
    assert refuses(sealer, 3, sealed + b"\0", CONTEXT)
    assert refuses(sealer, 4, sealed, CONTEXT)
    for context in (b"", CONTEXT + b"\0", CONTEXT[:-1]):
        assert refuses(sealer, 3, sealed, context)
    assert sealer.open(3, sealed, CONTEXT, "the message itself") == text


def test_a_capsule_carries_its_secret_to_the_keys_owner_and_keys_do_not_show():
    key = CapsuleKey.generate(os.urandom)
    capsule = seal_capsule(key.public, KEY, CONTEXT)
    assert (len(key.public), len(capsule)) == (CAPSULE_PUBLIC_BYTES, CAPSULE_BYTES)
    assert key.open(capsule, CONTEXT, "it") == KEY
    assert seal_capsule(key.public, KEY, CONTEXT) != capsule
    seeds = insecure_bytes(1)
    for holder, secret in ((Sealer(KEY), KEY), (CapsuleKey.generate(insecure_bytes(1)), seeds(64))):
        assert secret.hex() not in repr(holder)
        assert repr(secret) not in repr(holder)
        with pytest.raises(LocalError, match="cannot be pickled"):
            pickle.dumps(holder)
    with pytest.raises(LocalError, match="63 bytes where 64"):
        CapsuleKey.generate(lambda _: bytes(63))


def test_both_parts_of_the_key_are_needed():
    """An attacker that broke one of the two opens nothing."""
    kem, agreement = bytes(range(64)), bytes(range(32))
    capsule = seal_capsule(CapsuleKey(kem, agreement).public, KEY, b"")
    assert CapsuleKey(kem, agreement).open(capsule, b"", "it") == KEY
    for broken in (CapsuleKey(kem, KEY[::-1]), CapsuleKey(bytes(64), agreement)):
        with pytest.raises(PeerError):
            broken.open(capsule, b"", "it")


def test_a_changed_capsule_context_or_reader_is_refused():
    key, other = CapsuleKey.generate(os.urandom), CapsuleKey.generate(os.urandom)
    capsule = seal_capsule(key.public, KEY, CONTEXT)
    for at in (0, 1087, 1088, 1119, 1120, CAPSULE_BYTES - 17, CAPSULE_BYTES - 1):
        forged = capsule[:at] + bytes([capsule[at] ^ 1]) + capsule[at + 1 :]
        with pytest.raises(PeerError, match="client 1's capsule does not open"):
            key.open(forged, CONTEXT, "client 1's capsule")
    for reader, sealed, context in (
        (other, capsule, CONTEXT),
        (key, capsule, b""),
        (key, bytes(CAPSULE_BYTES), CONTEXT),
        (key, seal_capsule(other.public, KEY, CONTEXT), CONTEXT),
        *((key, bytes(size), CONTEXT) for size in (0, 1, 1120, CAPSULE_BYTES - 1)),
        (key, capsule + b"\0", CONTEXT),
    ):
        with pytest.raises(PeerError):
            reader.open(sealed, context, "it")


def test_bytes_that_are_no_public_key_are_refused():
    """Keys of other lengths, with coefficients that are too large, with a point of low order."""
    lengths = (0, 31, CAPSULE_PUBLIC_BYTES - 1, CAPSULE_PUBLIC_BYTES + 1, CAPSULE_PUBLIC_BYTES)
    for public in (*(bytes(length) for length in lengths), b"\xff" * CAPSULE_PUBLIC_BYTES):
        for use in (lambda p: seal_capsule(p, KEY, b""), capsule_public):
            with pytest.raises(PeerError, match="a capsule key is not"):
                use(public)


@pytest.fixture
def no_kem(monkeypatch):
    """A back end of `cryptography` without the algorithm."""

    def unsupported(_: bytes) -> None:
        raise UnsupportedAlgorithm("ML-KEM-768 is not supported by this backend.")

    check_capsules.cache_clear()
    monkeypatch.setattr("secure_fd.crypto.keys.MLKEM768PrivateKey.from_seed_bytes", unsupported)
    yield
    check_capsules.cache_clear()


@pytest.mark.usefixtures("no_kem")
def test_without_the_algorithm_no_masked_sum_falls_back_to_x25519_alone():
    with pytest.raises(MissingCapabilityError, match="version 48 or newer"):
        MaskedSum(3)
    assert MaskedSum(3, hybrid=False).hides
