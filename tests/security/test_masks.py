"""The masks are what the document says, under full-length keys, each bound to what it is for."""

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from secure_fd.crypto.primitives import (
    AgreementKey,
    Keystream,
    RandomBytes,
    derive_key,
    insecure_bytes,
)
from secure_fd.secagg import masks as masking
from secure_fd.secagg.masks import pair_stream, self_stream
from secure_fd.secagg.session import NoiseTerms, RoundScope, RoundTerms
from tests.secagg_cohort import TERMS, Cohort, random_values, read_input
from tests.secagg_lying_server import LyingServer, Told

# Derived once more, by hand, from what each client drew: X25519, HMAC and AES alone.

EVERYONE, SERVER, PRIME = 2**32 - 1, 2**32 - 2, 2**255 - 19


def fields(*parts: bytes) -> bytes:
    return b"".join(len(part).to_bytes(4, "big") + part for part in parts)


def label(purpose: bytes, session: bytes, terms: bytes, sender: int, receiver: int) -> bytes:
    parties = (party.to_bytes(4, "big") for party in (sender, receiver))
    return fields(b"secure-fd secure aggregation", b"\0\3", session, terms, purpose, *parties)


def hkdf(secret: bytes, salt: bytes, info: bytes, blocks: int = 1) -> bytes:
    extracted = hmac.new(salt, secret, hashlib.sha256).digest()
    block = key = b""
    for count in range(1, blocks + 1):
        block = hmac.new(extracted, block + info + bytes([count]), hashlib.sha256).digest()
        key += block
    return key


def agree(private: bytes, other: bytes) -> bytes:
    public = X25519PrivateKey.from_private_bytes(other).public_key().public_bytes_raw()
    return X25519PrivateKey.from_private_bytes(private).exchange(
        X25519PublicKey.from_public_bytes(public)
    )


def public_of(private: bytes) -> bytes:
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def element(drawn: bytes) -> bytes:
    """A field element: the top bit is dropped; a value above the prime never happens here."""
    value = int.from_bytes(drawn, "big") & (2**255 - 1)
    assert value < PRIME
    return value.to_bytes(32, "big")


class ByHand:
    """draws: by client its nonce, channel key, root and seed, as they left the random source."""

    def __init__(self, session: bytes, terms: RoundTerms, draws: Mapping[int, list[bytes]]) -> None:
        self.session, self.draws = session, draws
        self.index = terms.index.to_bytes(8, "big")
        noise = (terms.noise.room, terms.noise.survivors)
        numbers = (terms.index, terms.length, terms.bound, *noise)
        self.terms = fields(*(n.to_bytes(8, "big") for n in numbers), terms.subject)
        lines = b"".join(map(self._member, sorted(draws)))
        header = label(b"member list", session, b"", SERVER, EVERYONE)
        listed = hashlib.sha256(header + lines).digest()
        nonces = (draws[client][0] for client in sorted(draws))
        seed = hashlib.sha256(fields(b"secure-fd joint seed", *nonces)).digest()
        everyone = bytes([2 ** len(draws) - 1])
        header = label(b"group", session, b"", SERVER, EVERYONE)
        self.view = hashlib.sha256(fields(header, listed, everyone, seed)).digest()

    def masked(self, client: int, words: list[int]) -> list[int]:
        total = self._add(words, self._self_key(client), 1)
        for peer in set(self.draws) - {client}:
            total = self._add(total, self._pair_key(client, peer), 1 if client < peer else -1)
        return total

    def _member(self, client: int) -> bytes:
        nonce, private = self.draws[client][:2]
        hidden = label(b"nonce commitment", self.session, b"", client, EVERYONE) + nonce
        digests = (hashlib.sha256(x).digest() for x in (public_of(private), hidden))
        return client.to_bytes(4, "big") + b"".join(digests)

    def _pair_key(self, one: int, other: int) -> bytes:
        low, high = sorted((one, other))
        info = label(b"channel chain", self.session, b"", low, high) + self.view
        chain = hkdf(agree(self.draws[low][1], self.draws[high][1]), self.session, info)
        info = label(b"channel ratchet", self.session, bytes(8), low, high)  # of epoch 0
        chain = hkdf(chain, self.session, info)
        for _ in range(int.from_bytes(self.index, "big")):
            chain = hashlib.sha256(b"secure-fd channel ratchet" + chain).digest()
        info = label(b"channel keys of a round", self.session, self.index, low, high)
        pair_secret = hkdf(chain, self.session, info, 3)[64:]
        secret = agree(self._round_key(low), self._round_key(high)) + pair_secret
        return hkdf(secret, self.session, label(b"pairwise mask key", self.session, self.terms,
                                                low, high))  # fmt: skip

    def _round_key(self, client: int) -> bytes:
        info = label(b"round key", self.session, self.index, client, EVERYONE)
        return hkdf(element(self.draws[client][2]), self.session, info)

    def _self_key(self, client: int) -> bytes:
        info = label(b"self mask key", self.session, self.terms, client, EVERYONE)
        return hkdf(element(self.draws[client][3]), self.session, info)

    @staticmethod
    def _add(words: list[int], key: bytes, sign: int) -> list[int]:
        cipher = Cipher(algorithms.AES256(key), modes.CTR(bytes(16))).encryptor()
        stream = np.frombuffer(cipher.update(bytes(8 * len(words))), "<u8").tolist()
        return [(word + sign * mask) % 2**64 for word, mask in zip(words, stream, strict=True)]


def recorded(into: list[bytes], source: RandomBytes) -> RandomBytes:
    def drawn(size: int) -> bytes:
        into.append(source(size))
        return into[-1]

    return drawn


def test_masked_words_match_an_independent_derivation():
    cohort = Cohort(4, enrolled=False)
    draws: dict[int, list[bytes]] = {k: [] for k in cohort.clients}
    for k, client in cohort.clients.items():
        client._random = recorded(draws[k], insecure_bytes(k))
    cohort.enrol()
    values = random_values(cohort)
    current = cohort.open(TERMS, values)
    sent = current.masked()
    by_hand = ByHand(cohort.session.id, TERMS, draws)
    assert by_hand.view == cohort.group.view
    for k, message in sent.items():
        packed = current.server.scope.layout.pack(values[k]).tolist()
        words = read_input(current.clients[k], message).words
        assert words.tolist() == by_hand.masked(k, packed)


def test_the_session_id_is_laid_out_as_documented():
    cohort = Cohort(5, degree=4, threshold=4)
    head = label(b"session id", b"n", b"", EVERYONE, EVERYONE)
    roster = b"".join(k.to_bytes(4, "big") + key.public.raw for k, key in cohort.identities.items())
    numbers = (number.to_bytes(8, "big") for number in (4, 4, 0, 1024, 64))
    text = fields(head, *numbers, roster, b"configuration", b"proxies", cohort.key.public)
    assert cohort.session.id == hashlib.sha256(text).digest()


@pytest.mark.parametrize("n", [3, 6])
def test_one_cipher_set_up_a_mask_and_side(n, monkeypatch):
    made = []

    def counted(algorithm: algorithms.AES256, mode: modes.CTR) -> Cipher[modes.CTR]:
        if isinstance(mode, modes.CTR):  # a tag is under GCM
            made.append(mode)
        return Cipher(algorithm, mode)

    cohort = Cohort(n)
    monkeypatch.setattr("secure_fd.crypto.primitives.Cipher", counted)
    cohort.open(RoundTerms(0, 100_000, 2**55)).finish()
    assert len(made) == n * (n - 1) + n + n  # pairs and selves of the clients, selves again
    made.clear()
    cohort.open(RoundTerms(2, 100_000, 2**55)).finish(without=(0,) if n == 6 else ())
    assert len(made) == n * (n - 1) + n + (n - 1 + n - 1 if n == 6 else n)


# Keys of full length. In Flower's SecAgg+ a mask's seed is folded to 32 bits: a colluding
# neighbour and seconds of search recover an input. Here the twin's keys are folded to 16.


def folded(key: bytes) -> bytes:
    return hashlib.sha256(key[:2]).digest()


def search(server: LyingServer) -> list[list[int]]:
    """All inputs of client 0 that some key of 16 bits explains.

    The server has its seed, from the round, and the masks that it has with client 2, which is
    corrupt; left is the mask with client 1.
    """
    words = server.words[0].copy()
    masking.mask_words(words, [], [
        self_stream(server.scope, 0, server.seeds.known[0]), server._pair_stream(0, 2)
    ])  # fmt: skip
    found, first, lanes = [], int(words[0]), range(0, 64, server.scope.layout.bits)
    for guess in range(2**16):
        key = folded(guess.to_bytes(2, "big"))
        word = (first - int.from_bytes(Keystream(key).read(8), "little")) % 2**64
        if all(word >> lane & 15 <= TERMS.bound for lane in lanes):
            candidate = words.copy()
            masking.mask_words(candidate, [], [Keystream(key)])
            found.append(server.scope.layout.unpack(candidate, TERMS.length, TERMS.bound).tolist())
    return found


def attacked() -> LyingServer:
    server = LyingServer(Cohort(3), corrupt=[2])
    server.run(dict.fromkeys((0, 1), Told((0, 1, 2), (0, 1, 2))))
    assert 0 in server.seeds.known
    return server


def test_no_search_through_short_keys_finds_an_input():
    assert search(attacked()) == []


def test_a_mask_key_of_16_bits_is_found_and_the_input_read(monkeypatch):
    def short(secret: bytes, *, salt: bytes, info: bytes) -> bytes:
        return folded(derive_key(secret, salt=salt, info=info))

    monkeypatch.setattr(masking, "derive_key", short)
    server = attacked()
    assert search(server) == [server.values[0].tolist()]


# Binding. Flower's key derivation has neither salt nor info.

KEY, OTHER = (AgreementKey.generate(insecure_bytes(seed)) for seed in (1, 2))


def streams() -> dict[str, bytes]:
    """The beginning of a mask, and of those that differ from it in one thing."""
    session = Cohort(4).session
    base = RoundScope(session, TERMS)
    scopes = {
        "session": RoundScope(replace(session, nonce=b"m"), TERMS),
        "round": RoundScope(session, replace(TERMS, index=4)),
        "length": RoundScope(session, replace(TERMS, length=41)),
        "bound": RoundScope(session, replace(TERMS, bound=5)),
        "subject": RoundScope(session, replace(TERMS, subject=b"other proxies")),
        "room": RoundScope(session, replace(TERMS, noise=NoiseTerms(room=1))),
        "floor": RoundScope(session, replace(TERMS, noise=NoiseTerms(survivors=1))),
    }
    secret = bytes(32)
    made = {name: pair_stream(scope, 0, 1, KEY, OTHER.public, secret)
            for name, scope in scopes.items()}  # fmt: skip
    made |= {
        "itself": pair_stream(base, 0, 1, KEY, OTHER.public, secret),
        "pair": pair_stream(base, 0, 2, KEY, OTHER.public, secret),
        "round key": pair_stream(base, 0, 1, KEY, KEY.public, secret),
        "channel": pair_stream(base, 0, 1, KEY, OTHER.public, b"\1" + bytes(31)),
        "self": self_stream(base, 0, 1),
        "client": self_stream(base, 1, 1),
        "seed": self_stream(base, 0, 2),
    }
    return {name: stream.read(32) for name, stream in made.items()}


def same(made: Mapping[str, bytes]) -> set[str]:
    """The names of streams that are not the only ones of their kind."""
    return {name for name, stream in made.items() if list(made.values()).count(stream) > 1}


def test_a_mask_is_bound_to_session_round_terms_pair_purpose_and_keys():
    assert same(streams()) == set()
    assert pair_stream(RoundScope(Cohort(4).session, TERMS), 1, 0, OTHER, KEY.public,
                       bytes(32)).read(32) == streams()["itself"]  # fmt: skip


@pytest.mark.parametrize(
    ("loose", "merged"),
    [
        (lambda salt, _: (salt, b"info"), {"itself", "round", "length", "bound", "subject", "pair"}
         | {"room", "floor", "self", "client"}),
        (lambda _, info: (b"salt", info), set()),  # the info names the session as well
        (lambda _, __: (b"salt", b"info"), {"itself", "session", "round", "length", "bound"}
         | {"subject", "room", "floor", "pair", "self", "client"}),
    ],
    ids=["no info", "no salt", "neither"],
)  # fmt: skip
def test_masks_bound_to_less_come_back(loose, merged, monkeypatch):
    def derive(secret: bytes, *, salt: bytes, info: bytes) -> bytes:
        salt, info = loose(salt, info)
        return derive_key(secret, salt=salt, info=info)

    monkeypatch.setattr(masking, "derive_key", derive)
    assert same(streams()) == merged
