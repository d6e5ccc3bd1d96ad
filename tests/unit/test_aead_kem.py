"""Sealed messages open for their reader alone, capsules carry one secret to one key, tags hold."""

import os
import pickle
from collections.abc import Iterator

import pytest
from cryptography.exceptions import UnsupportedAlgorithm

from secure_fd.crypto.keys import (
    CAPSULE_BYTES,
    CAPSULE_PUBLIC_BYTES,
    TAG_BYTES,
    CapsuleKey,
    Sealer,
    SecretHolder,
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


@pytest.mark.parametrize("text", [b"", TEXT, bytes(100_000)])
@pytest.mark.parametrize("counter", [0, 1, 2**32, 2**96 - 1])
def test_a_seal_opens_at_the_other_end(text, counter):
    sealed = Sealer(KEY).seal(counter, text, CONTEXT)
    assert len(sealed) == len(text) + TAG_BYTES
    assert Sealer(KEY).open(counter, sealed, CONTEXT, "a message") == text


def test_no_counter_seals_twice():
    sealer = Sealer(KEY)
    sealer.seal(5, TEXT, CONTEXT)
    for counter in (5, 4, 0):
        with pytest.raises(LocalError, match=f"counter: {counter} after 5"):
            sealer.seal(counter, TEXT, CONTEXT)
    sealer.seal(6, TEXT, CONTEXT)


def test_every_flipped_bit_of_text_and_tag_is_refused():
    sealer = Sealer(KEY)
    sealed = sealer.seal(3, TEXT, CONTEXT)
    assert all(refuses(sealer, 3, forged, CONTEXT) for forged in flips(sealed))


def test_another_context_counter_key_or_length_is_refused():
    sealer = Sealer(KEY)
    sealed = sealer.seal(3, TEXT, CONTEXT)
    assert all(refuses(sealer, 3, sealed, forged) for forged in flips(CONTEXT))
    assert refuses(sealer, 3, sealed, b"")
    assert refuses(sealer, 4, sealed, CONTEXT)
    assert all(refuses(Sealer(other), 3, sealed, CONTEXT) for other in flips(KEY))
    assert all(refuses(sealer, 3, sealed[:size], CONTEXT) for size in range(len(sealed)))
    assert refuses(sealer, 3, sealed + b"\0", CONTEXT)
    assert sealer.open(3, sealed, CONTEXT, "the message itself") == TEXT


@pytest.mark.parametrize("counter", [-1, 2**96])
def test_a_counter_without_a_nonce_is_refused(counter):
    with pytest.raises(LocalError, match="counter"):
        Sealer(KEY).seal(counter, TEXT, CONTEXT)
    with pytest.raises(LocalError, match="counter"):
        Sealer(KEY).open(counter, bytes(16), CONTEXT, "a message")


@pytest.mark.parametrize("size", [0, 16, 24, 31, 33])
def test_a_key_of_another_length_is_refused(size):
    with pytest.raises(LocalError, match=f"32 bytes, not {size}"):
        Sealer(bytes(size))


def shows_nothing(holder: SecretHolder, *secrets: bytes) -> bool:
    text = repr(holder)
    with pytest.raises(LocalError, match="cannot be pickled"):
        pickle.dumps(holder)
    return not hasattr(holder, "__dict__") and not any(
        secret.hex() in text or repr(secret) in text for secret in secrets
    )


def test_a_sealer_shows_nothing_of_its_key():
    assert shows_nothing(Sealer(KEY), KEY)


def test_a_capsule_carries_its_secret_to_the_keys_owner():
    key = CapsuleKey.generate(os.urandom)
    capsule = seal_capsule(key.public, KEY, CONTEXT)
    assert (len(key.public), len(capsule)) == (CAPSULE_PUBLIC_BYTES, CAPSULE_BYTES)
    assert key.open(capsule, CONTEXT, "it") == KEY
    assert seal_capsule(key.public, KEY, CONTEXT) != capsule


def test_a_key_is_made_of_64_and_32_bytes_of_its_source():
    asked: list[int] = []
    source = insecure_bytes(1)
    one = CapsuleKey.generate(lambda size: asked.append(size) or source(size))
    assert asked == [64, 32]
    same = CapsuleKey.generate(insecure_bytes(1))
    assert one.public == same.public
    assert same.open(seal_capsule(one.public, KEY, b""), b"", "it") == KEY
    assert CapsuleKey.generate(insecure_bytes(2)).public != one.public
    with pytest.raises(LocalError, match="63 bytes where 64"):
        CapsuleKey.generate(lambda _: bytes(63))
    seeds = insecure_bytes(1)
    assert shows_nothing(one, seeds(64), seeds(32))


def test_both_halves_of_the_key_are_needed():
    """Whoever broke one of the two opens nothing."""
    kem, agreement = bytes(range(64)), bytes(range(32))
    capsule = seal_capsule(CapsuleKey(kem, agreement).public, KEY, b"")
    assert CapsuleKey(kem, agreement).open(capsule, b"", "it") == KEY
    for half in (CapsuleKey(kem, KEY[::-1]), CapsuleKey(bytes(64), agreement)):
        with pytest.raises(PeerError, match="it does not open"):
            half.open(capsule, b"", "it")


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
    ):
        with pytest.raises(PeerError, match="it does not open"):
            reader.open(sealed, context, "it")


@pytest.mark.parametrize("size", [0, 1, 1120, CAPSULE_BYTES - 1, CAPSULE_BYTES + 1])
def test_a_capsule_of_another_length_is_refused(size):
    with pytest.raises(PeerError, match="it does not open"):
        CapsuleKey.generate(os.urandom).open(bytes(size), b"", "it")


@pytest.mark.parametrize(
    "public",
    [
        b"",
        bytes(31),
        bytes(CAPSULE_PUBLIC_BYTES - 1),
        bytes(CAPSULE_PUBLIC_BYTES + 1),
        b"\xff" * CAPSULE_PUBLIC_BYTES,
        bytes(CAPSULE_PUBLIC_BYTES),
    ],
    ids=["empty", "half a key", "short", "long", "coefficients too large", "a point of low order"],
)
def test_bytes_that_are_no_public_key_are_refused(public):
    with pytest.raises(PeerError, match="a capsule key is not"):
        seal_capsule(public, KEY, b"")
    with pytest.raises(PeerError, match="a capsule key is not"):
        capsule_public(public)


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


# Tags.


def tag_refused(key: bytes, index: int, tag: bytes, message: bytes) -> bool:
    with pytest.raises(PeerError, match="the seal on an input does not open"):
        Sealer(key).open(index, tag, message, "an input")
    return True


def test_a_tag_is_the_published_one():
    # McGrew and Viega, test case 13: nothing is encrypted, and nothing is added.
    assert Sealer(bytes(32)).seal(0, b"", b"") == H("530f8afbc74536b9a963b4f1c4cb738b")


def test_a_tag_is_of_the_text_wherever_it_lies():
    tag = Sealer(KEY).seal(3, b"", TEXT)
    assert len(tag) == TAG_BYTES
    assert Sealer(KEY).open(3, tag, memoryview(b"before" + TEXT)[6:], "an input") == b""


def test_another_text_index_key_or_tag_is_refused():
    tag = Sealer(KEY).seal(3, b"", TEXT)
    assert all(tag_refused(KEY, 3, tag, forged) for forged in flips(TEXT))
    assert all(tag_refused(KEY, 3, forged, TEXT) for forged in flips(tag))
    assert all(tag_refused(other, 3, tag, TEXT) for other in flips(KEY))
    assert tag_refused(KEY, 4, tag, TEXT)
    assert tag_refused(KEY, 3, tag, TEXT + b"\0")
    assert tag_refused(KEY, 3, tag, TEXT[:-1])
    assert tag_refused(KEY, 3, tag[:-1], TEXT)
    assert tag_refused(KEY, 3, b"", TEXT)
