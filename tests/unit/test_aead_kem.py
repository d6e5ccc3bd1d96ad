"""Sealed messages open for their reader alone; capsules carry one secret to one key."""

import os
import pickle
import sys
from collections.abc import Iterator

import pytest
from cryptography.exceptions import UnsupportedAlgorithm

from secure_fd.crypto.primitives import (
    CIPHERTEXT_BYTES,
    SECRET_BYTES,
    TAG_BYTES,
    KemKey,
    Sealer,
    SecretHolder,
    encapsulate,
    insecure_bytes,
    kem_available,
)
from secure_fd.crypto.primitives import KEM_PUBLIC_BYTES as PUBLIC_BYTES
from secure_fd.errors import LocalError, MissingCapabilityError, PeerError

KEY = bytes(range(32))
TEXT, CONTEXT = b"a share of a secret", b"round 3, from 1 to 2"
H = bytes.fromhex
needs_kem = pytest.mark.skipif(not kem_available(), reason="no ML-KEM-768 in this cryptography")


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


def test_seals_are_the_published_ones() -> None:
    # McGrew and Viega, "The Galois/Counter Mode of Operation", test cases 13 and 14.
    assert Sealer(bytes(32)).seal(0, b"", b"") == H("530f8afbc74536b9a963b4f1c4cb738b")
    assert Sealer(bytes(32)).seal(0, bytes(16), b"") == H(
        "cea7403d4d606b6e074ec5d3baf39d18d0d1c8a799996bf0265b98b5d48ab919"
    )


@pytest.mark.parametrize("text", [b"", TEXT, bytes(100_000)])
@pytest.mark.parametrize("counter", [0, 1, 2**32, 2**96 - 1])
def test_a_seal_opens_at_the_other_end(text: bytes, counter: int) -> None:
    sealed = Sealer(KEY).seal(counter, text, CONTEXT)
    assert len(sealed) == len(text) + TAG_BYTES
    assert Sealer(KEY).open(counter, sealed, CONTEXT, "a message") == text


def test_no_counter_seals_twice() -> None:
    sealer = Sealer(KEY)
    sealer.seal(5, TEXT, CONTEXT)
    for counter in (5, 4, 0):
        with pytest.raises(LocalError, match=f"counter: {counter} after 5"):
            sealer.seal(counter, TEXT, CONTEXT)
    sealer.seal(6, TEXT, CONTEXT)


def test_every_flipped_bit_of_text_and_tag_is_refused() -> None:
    sealer = Sealer(KEY)
    sealed = sealer.seal(3, TEXT, CONTEXT)
    assert all(refuses(sealer, 3, forged, CONTEXT) for forged in flips(sealed))


def test_another_context_counter_key_or_length_is_refused() -> None:
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
def test_a_counter_without_a_nonce_is_refused(counter: int) -> None:
    with pytest.raises(LocalError, match="counter"):
        Sealer(KEY).seal(counter, TEXT, CONTEXT)
    with pytest.raises(LocalError, match="counter"):
        Sealer(KEY).open(counter, bytes(16), CONTEXT, "a message")


@pytest.mark.parametrize("size", [0, 16, 24, 31, 33])
def test_a_key_of_another_length_is_refused(size: int) -> None:
    with pytest.raises(LocalError, match=f"32 bytes, not {size}"):
        Sealer(bytes(size))


def shows_nothing(holder: SecretHolder, *secrets: bytes) -> bool:
    text = repr(holder)
    with pytest.raises(LocalError, match="cannot be pickled"):
        pickle.dumps(holder)
    return not hasattr(holder, "__dict__") and not any(
        secret.hex() in text or repr(secret) in text for secret in secrets
    )


def test_a_sealer_shows_nothing_of_its_key() -> None:
    assert shows_nothing(Sealer(KEY), KEY)


@needs_kem
def test_a_capsule_carries_its_secret_to_the_keys_owner() -> None:
    key = KemKey.generate(os.urandom)
    secret, capsule = encapsulate(key.public)
    assert (len(key.public), len(capsule), len(secret)) == (
        PUBLIC_BYTES,
        CIPHERTEXT_BYTES,
        SECRET_BYTES,
    )
    assert key.decapsulate(capsule) == secret
    assert encapsulate(key.public)[0] != secret


@needs_kem
def test_a_key_is_made_of_64_bytes_of_its_source() -> None:
    seed = insecure_bytes(1)(64)
    one, same = KemKey.generate(lambda size: seed[:size]), KemKey.generate(lambda size: seed[:size])
    assert one.public == same.public
    secret, capsule = encapsulate(one.public)
    assert same.decapsulate(capsule) == secret
    assert KemKey.generate(insecure_bytes(2)).public != one.public
    with pytest.raises(LocalError, match="63 bytes where 64"):
        KemKey.generate(lambda _: seed[:63])
    assert shows_nothing(one, seed, seed[:32], seed[32:])


@needs_kem
def test_a_forged_capsule_gives_a_secret_that_nobody_else_has() -> None:
    key, other = KemKey.generate(os.urandom), KemKey.generate(os.urandom)
    secret, capsule = encapsulate(key.public)
    forged = capsule[:-1] + bytes([capsule[-1] ^ 1])
    got = {key.decapsulate(forged), key.decapsulate(bytes(CIPHERTEXT_BYTES))}
    assert len(got | {secret, other.decapsulate(capsule)}) == 4
    assert key.decapsulate(forged) in got


@needs_kem
@pytest.mark.parametrize("size", [0, CIPHERTEXT_BYTES - 1, CIPHERTEXT_BYTES + 1, PUBLIC_BYTES])
def test_a_capsule_of_another_length_is_refused(size: int) -> None:
    with pytest.raises(PeerError, match=f"ciphertext has {CIPHERTEXT_BYTES} bytes, not {size}"):
        KemKey.generate(os.urandom).decapsulate(bytes(size))


@needs_kem
@pytest.mark.parametrize(
    "public",
    [b"", bytes(PUBLIC_BYTES - 1), bytes(PUBLIC_BYTES + 1), b"\xff" * PUBLIC_BYTES],
    ids=["empty", "short", "long", "coefficients not below the modulus"],
)
def test_bytes_that_are_no_public_key_are_refused(public: bytes) -> None:
    with pytest.raises(PeerError, match="a KEM key is not"):
        encapsulate(public)


@pytest.fixture
def asked_anew() -> Iterator[None]:
    kem_available.cache_clear()
    yield
    kem_available.cache_clear()


def everything_is_refused() -> bool:
    assert not kem_available()
    with pytest.raises(MissingCapabilityError, match="cryptography 48"):
        KemKey.generate(os.urandom)
    with pytest.raises(MissingCapabilityError, match="cryptography 48"):
        encapsulate(bytes(PUBLIC_BYTES))
    return True


@pytest.mark.usefixtures("asked_anew")
def test_a_release_without_the_module_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.asymmetric.mlkem", None)
    assert everything_is_refused()


@needs_kem
@pytest.mark.usefixtures("asked_anew")
def test_a_back_end_without_the_algorithm_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey

    def unsupported() -> None:
        raise UnsupportedAlgorithm("ML-KEM-768 is not supported by this backend.")

    monkeypatch.setattr(MLKEM768PrivateKey, "generate", unsupported)
    assert everything_is_refused()
