"""Masks are under full-length keys, each bound to what it is for.

That they are what the document says, tests/vectors/reader.py shows: it makes every masked input and
every session's number once more, without this package.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import replace

import pytest

from secure_fd.crypto.keys import AgreementKey, Keystream, derive_key, insecure_bytes
from secure_fd.secagg import masks as masking
from secure_fd.secagg.masks import pair_stream, self_stream
from secure_fd.secagg.session import NoiseTerms, RoundScope
from tests.drivers.cohort import TERMS, Cohort
from tests.drivers.lying_server import LyingServer, Story

# Keys of full length. In Flower's SecAgg+ a mask's seed is folded to 32 bits: a colluding
# neighbour and seconds of search recover an input. Here the mutant's keys are folded to 16.


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
    server.run(dict.fromkeys((0, 1), Story((0, 1, 2), (0, 1, 2))))
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
