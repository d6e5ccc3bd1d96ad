"""Sealed shares and vaults say nothing of what is in them: each claim beside a broken twin.

A share is a field element, so its first bit is never set; a pair secret stands in the vaults of
two clients. Either shows in clear. The keystreams are looked at as well, what was sealed beside
what came out. The test is in drivers/uniform_words.py: eleven views are accepted, so over all seeds
one of them would be rejected with probability about 1e-5. Power: as many words as there are of
vaults, of which every fifth has no first bit, are rejected.
"""

import hashlib
from collections import defaultdict

import numpy as np
import pytest

from secure_fd.crypto import keys as aead
from secure_fd.crypto.keys import TAG_BYTES, AgreementKey, Sealer
from secure_fd.crypto.shamir import ELEMENT_BYTES
from secure_fd.secagg import masks as secrets
from secure_fd.secagg.channel import Channel
from secure_fd.secagg.masks import RoundSecrets, prepare
from secure_fd.votes.codec import WordArray
from secure_fd.wire import Place
from tests.drivers.cohort import Cohort
from tests.drivers.uniform_words import looks_uniform

N, ROUNDS = 16, 12
SEAL = Sealer.seal

Sealed = dict[str, list[tuple[bytes, bytes]]]
"""Of shares and of vaults: what was sealed, and what came out, in the order of the calls."""


def sealed_by_all(monkeypatch: pytest.MonkeyPatch, seal: object = SEAL) -> Sealed:
    """Everything that 16 clients seal in 12 rounds; always in the same order of clients."""
    seen: Sealed = defaultdict(list)

    def recorded(self: Sealer, counter: int, plaintext: bytes, context: bytes) -> bytes:
        result: bytes = seal(self, counter, plaintext, context)
        seen["shares" if len(plaintext) == 2 * ELEMENT_BYTES else "vault"].append(
            (plaintext, result)
        )
        return result

    cohort = Cohort(N, seed=3)
    monkeypatch.setattr(Sealer, "seal", recorded)
    for index in range(ROUNDS):
        for k, client in cohort.clients.items():
            assert client._enrolment is not None
            place = Place(cohort.session.id, index)
            prepare(cohort.group, place, k, client._enrolment.channels, cohort.random)
    return seen


def words(pieces: list[bytes]) -> WordArray:
    return np.frombuffer(b"".join(pieces), dtype="<u8").astype(np.uint64)


def keystream(sealed: list[tuple[bytes, bytes]]) -> WordArray:
    plain = words([plaintext for plaintext, _ in sealed])
    return plain ^ words([result[:-TAG_BYTES] for _, result in sealed])


def between_rounds(stream: WordArray) -> WordArray:
    """One client's keystream in a round beside its keystream in the next, to the same receiver."""
    rounds = stream.reshape(ROUNDS, -1)
    return (rounds[1:] ^ rounds[:-1]).reshape(-1)


DERIVE = Channel._derive


def one_key(channel: Channel) -> None:
    """Channel._derive of a twin: what both ends have in common seals either way."""
    DERIVE(channel)
    channel._outbound = channel._inbound = Sealer(channel._pair)


def in_clear(_: Sealer, counter: int, plaintext: bytes, context: bytes) -> bytes:
    """The twin: it authenticates, and encrypts nothing."""
    tag = hashlib.sha256(context + plaintext + counter.to_bytes(12, "big")).digest()
    return plaintext + tag[:TAG_BYTES]


def test_a_first_bit_that_is_missing_in_every_fifth_word_is_noticed():
    noise = np.random.default_rng(0).integers(0, 2**64, 11_000, np.uint64)
    assert looks_uniform(noise)
    noise[::5] &= np.uint64(~(1 << 7) & (2**64 - 1))
    assert not looks_uniform(noise)


@pytest.mark.parametrize("kind", ["shares", "vault"])
def test_what_is_sealed_looks_like_noise_and_is_unrelated_to_what_is_in_it(kind, monkeypatch):
    sealed = sealed_by_all(monkeypatch)[kind]
    assert looks_uniform(words([result for _, result in sealed]))
    assert looks_uniform(keystream(sealed))
    assert looks_uniform(between_rounds(keystream(sealed)))


@pytest.mark.parametrize("kind", ["shares", "vault"])
def test_twin_that_seals_in_clear_is_rejected(kind, monkeypatch):
    sealed = sealed_by_all(monkeypatch, in_clear)[kind]
    assert not looks_uniform(words([result for _, result in sealed]))
    assert not looks_uniform(keystream(sealed))


def first_keys(channel: Channel, index: int) -> None:
    """Channel._move of a twin: one key for all rounds."""
    if channel._at < 0:
        channel._at = index
        channel._derive()


def test_a_repeated_nonce_is_not_enough_where_every_round_has_its_own_keys(monkeypatch):
    monkeypatch.setattr(aead, "_nonce", lambda _: bytes(12))
    sealed = sealed_by_all(monkeypatch)
    assert looks_uniform(between_rounds(keystream(sealed["shares"])))


def test_twin_that_repeats_its_nonce_and_its_keys_is_rejected(monkeypatch):
    """Every round under one nonce: then two rounds' shares show their difference."""
    monkeypatch.setattr(aead, "_nonce", lambda _: bytes(12))
    monkeypatch.setattr(Channel, "_move", first_keys)
    sealed = sealed_by_all(monkeypatch)
    assert not looks_uniform(between_rounds(keystream(sealed["shares"])))
    # A vault's key is used once, so it does not mind.
    assert looks_uniform(between_rounds(keystream(sealed["vault"])))


def test_twin_with_one_vault_key_for_all_rounds_is_rejected(monkeypatch):
    monkeypatch.setattr(
        RoundSecrets,
        "draw",
        classmethod(lambda _, place, client, __: RoundSecrets(place, client, client + 5, client)),
    )
    monkeypatch.setattr(
        secrets, "round_key", lambda _, __, root: AgreementKey.derive(root.to_bytes(32, "big"))
    )
    vault = secrets._vault
    monkeypatch.setattr(
        secrets, "_vault", lambda place, client, root: vault(Place(place.session, 0), client, root)
    )
    sealed = sealed_by_all(monkeypatch)
    assert not looks_uniform(between_rounds(keystream(sealed["vault"])))
    assert looks_uniform(between_rounds(keystream(sealed["shares"])))


@pytest.mark.parametrize("broken", [False, True])
def test_the_two_directions_of_a_channel_have_unrelated_keystreams(broken, monkeypatch):
    """Both ends seal zeros; the twin has one key for both directions."""
    if broken:
        monkeypatch.setattr(Channel, "_derive", one_key)
    cohort = Cohort(3, seed=4, epoch=2_000)
    ends = []
    for one, other in ((0, 1), (1, 0)):
        enrolment = cohort.clients[one]._enrolment
        assert enrolment is not None
        channel = enrolment.channels[other]
        ends.append(words([channel.seal(i, bytes(64), b"")[:64] for i in range(2_000)]))
    assert all(looks_uniform(end) for end in ends)
    assert looks_uniform(ends[0] ^ ends[1]) is not broken
