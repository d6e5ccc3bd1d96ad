"""Masks are uniform, and under full-length keys that are bound to their purpose.

Every claim stands beside a mutation.
Shares and vaults are sealed by AES-256-GCM; their keys and nonces are in tests/vectors.

At each of the eight byte positions of a word, Pearson's chi-square of the 256 byte values; eight
p-values, Bonferroni. Words are rejected below ALPHA, so sound ones are rejected with probability
1e-6; all keys come from fixed seeds, so a verdict never changes from run to run. Power: of 2**17
words, a top byte that is never 255, or a word one bit short, is rejected.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import pytest
from scipy.stats import chi2

from secure_fd.crypto.keys import (
    BLOCK_WORDS,
    AgreementKey,
    Keystream,
    RandomBytes,
    derive_key,
    insecure_bytes,
    scratch_words,
)
from secure_fd.secagg import client as round_module
from secure_fd.secagg import masks
from secure_fd.secagg.channel import Channel
from secure_fd.secagg.client import ClientRound
from secure_fd.secagg.masks import RoundSecrets, round_key
from secure_fd.secagg.session import NoiseTerms, RoundScope, RoundTerms
from secure_fd.votes.codec import WordArray
from secure_fd.wire import HEADER_BYTES, Place
from tests.drivers.cohort import TERMS, Cohort
from tests.drivers.lying_server import LyingServer, Story

ALPHA = 1e-6


def p_value(words: WordArray) -> float:
    """Return the p value of the hypothesis that the words are uniform and independent."""
    columns = np.ascontiguousarray(words, dtype="<u8").view(np.uint8).reshape(-1, 8).T
    expected = words.size / 256
    each = [
        chi2.sf(((np.bincount(c, minlength=256) - expected) ** 2 / expected).sum(), df=255)
        for c in columns
    ]
    return min(1.0, 8 * float(min(each)))


def looks_uniform(words: WordArray) -> bool:
    """Return True if the test accepts."""
    return p_value(words) >= ALPHA


LENGTH = 2**17
BOUND = 2**55
"""One value a word at three clients, so that words can be read as values."""
PAIR_STREAM, SELF_STREAM = masks.pair_stream, masks.self_stream


# Mutations.


DRAW = RoundSecrets.draw


class NoMask:
    """A stream of zeros."""

    def read_words(self, count: int, _: WordArray) -> WordArray:
        return np.zeros(count, np.uint64)


def leave_out(monkeypatch: pytest.MonkeyPatch, stream: str) -> None:
    """Clients leave out their self masks, or their pair masks."""
    monkeypatch.setattr(round_module, stream, lambda *_: NoMask())


def drop_contexts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Derive every mask key under one label and one salt, for all pairs and rounds."""
    monkeypatch.setattr(
        masks, "derive_key", lambda secret, **_: derive_key(secret, salt=b"s", info=b"i")
    )


def repeat_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same root, seed, round key and pair secrets in every round."""
    monkeypatch.setattr(
        RoundSecrets,
        "draw",
        classmethod(lambda _, place, client, __: RoundSecrets(place, client, client + 5, client)),
    )
    monkeypatch.setattr(
        masks, "round_key", lambda _, __, root: AgreementKey.derive(root.to_bytes(32, "big"))
    )
    monkeypatch.setattr(Channel, "pair_secret", lambda *_: bytes(range(32)))


def copied_key(_: type, place: Place, client: int, random: RandomBytes) -> RoundSecrets:
    """RoundSecrets.draw: client 0 gives the round key of client 2 as its own."""
    drawn = RoundSecrets(place, client, client + 5, DRAW(place, client, random).seed)
    if client == 0:
        drawn.key = round_key(place, 2, 2 + 5)
    return drawn


# What the server sees of one client.


def inputs(kind: str, client: int) -> WordArray:
    rng = np.random.default_rng(client)
    return {
        "zero": np.zeros(LENGTH, np.uint64),
        "bound": np.full(LENGTH, BOUND, np.uint64),
        "votes": rng.integers(0, 2, LENGTH, dtype=np.uint64),
    }[kind]


@dataclass(frozen=True)
class Secrets:
    """A client's secrets of one round. pairs: by peer, what their channel gave for it."""

    root: int
    seed: int
    key: AgreementKey
    pairs: dict[int, bytes]


def server_views(
    cohort: Cohort, index: int, kind: str = "votes"
) -> tuple[dict[int, WordArray], dict[int, Secrets]]:
    """The words that the server reads of each client in one round, and each client's secrets."""
    values = {k: inputs(kind, k) for k in cohort.clients}
    current = cohort.open(RoundTerms(index, LENGTH, BOUND), values)
    announced = current.prepare()
    held = {k: secrets_of(machine) for k, machine in current.clients.items()}
    sent = current.answer(announced)
    current.deliver(sent)
    size = current.server.scope.words
    views = {
        k: np.frombuffer(message, "<u8", size, HEADER_BYTES).astype(np.uint64)
        for k, message in sent.items()
    }
    return views, held


def secrets_of(machine: ClientRound) -> Secrets:
    assert machine._held is not None
    assert machine._held.prepared is not None
    drawn, index = machine._held.prepared.secrets, machine.scope.terms.index
    channels = machine._enrolment.channels
    pairs = {peer: channel.pair_secret(index) for peer, channel in channels.items()}
    return Secrets(drawn.root, drawn.seed, drawn.key, pairs)


def without_self_mask(cohort: Cohort, index: int, view: WordArray, client: int, seed: int) -> None:
    """Take off what follows from the seed, as the server does for a survivor."""
    scope = RoundScope(cohort.session, RoundTerms(index, LENGTH, BOUND))
    masks.mask_words(view, [], [SELF_STREAM(scope, client, seed)])


def without_pair_masks(
    cohort: Cohort,
    index: int,
    view: WordArray,
    client: int,
    keys: dict[int, AgreementKey],
    pairs: dict[int, bytes],
) -> None:
    """Take off what follows from the root, as the server could for one that dropped out."""
    scope = RoundScope(cohort.session, RoundTerms(index, LENGTH, BOUND))
    streams = {
        peer: PAIR_STREAM(scope, client, peer, keys[client], keys[peer].public, secret)
        for peer, secret in pairs.items()
    }
    added = [stream for peer, stream in streams.items() if client < peer]
    subtracted = [stream for peer, stream in streams.items() if client > peer]
    masks.mask_words(view, subtracted, added)


@pytest.mark.parametrize("kind", ["zero", "bound", "votes"])
def test_every_masked_input_is_uniform_whatever_it_hides(kind):
    views, _ = server_views(Cohort(3, seed=5), 0, kind)
    assert all(looks_uniform(words) for words in views.values())


def test_mutation_with_masks_of_a_narrow_range_is_rejected(monkeypatch):
    real = masks.mask_words

    def narrow(words: WordArray, added: object, subtracted: object) -> None:
        hidden = words.copy()
        real(words, added, subtracted)
        mask = (words - hidden) & np.uint64(2**62 - 1)
        np.add(hidden, mask, out=words)

    monkeypatch.setattr(masks, "mask_words", narrow)
    views, _ = server_views(Cohort(3, seed=5), 0, "zero")
    assert not any(looks_uniform(words) for words in views.values())


@pytest.mark.parametrize("broken", [False, True])
def test_no_sum_of_masked_inputs_shows_anything_before_the_unmasking(broken, monkeypatch):
    """The mutation without self masks shows the sum, though each input looks uniform."""
    if broken:
        leave_out(monkeypatch, "self_stream")
    views, _ = server_views(Cohort(4, seed=6), 0, "zero")
    everything = sum(views.values(), np.zeros(LENGTH, np.uint64))
    assert looks_uniform(everything) is bool(everything.any()) is not broken
    assert all(looks_uniform(view) for view in views.values())
    assert all(looks_uniform(everything - view) for view in views.values())


@pytest.mark.parametrize("broken", [False, True])
def test_a_seed_alone_opens_nothing(broken, monkeypatch):
    """A survivor's seed is opened; its pair masks stay. The mutation has none."""
    if broken:
        leave_out(monkeypatch, "pair_stream")
    cohort = Cohort(3, seed=12)
    views, held = server_views(cohort, 0)
    without_self_mask(cohort, 0, views[1], 1, held[1].seed)
    assert looks_uniform(views[1]) is not broken
    assert bool((views[1] == inputs("votes", 1)).all()) is broken


@pytest.mark.parametrize("broken", [False, True])
def test_a_root_alone_opens_nothing(broken, monkeypatch):
    """A client was late and its root opened; its self mask stays. The mutation has none."""
    if broken:
        leave_out(monkeypatch, "self_stream")
    cohort = Cohort(3, seed=13)
    views, held = server_views(cohort, 0)
    keys = {k: secrets.key for k, secrets in held.items()}
    without_pair_masks(cohort, 0, views[1], 1, keys, held[1].pairs)
    assert looks_uniform(views[1]) is not broken
    assert bool((views[1] == inputs("votes", 1)).all()) is broken


# Between rounds.


@pytest.mark.parametrize("reused", [False, True])
@pytest.mark.parametrize("mixed", [False, True])
def test_rounds_are_apart_unless_secrets_and_contexts_repeat(reused, mixed, monkeypatch):
    """Fresh secrets alone, and contexts alone, keep rounds apart; the mutation has neither.

    reused: the same secrets in both rounds. mixed: one context for all keys.
    """
    if reused:
        repeat_secrets(monkeypatch)
    if mixed:
        drop_contexts(monkeypatch)
    cohort = Cohort(3, seed=7)
    (first, _), (second, _) = server_views(cohort, 0), server_views(cohort, 1)
    assert all(looks_uniform(words) for words in first.values())
    for k in first:
        assert looks_uniform(first[k] - second[k]) is not (reused and mixed)


# A malicious client: it gives another client's round key as its own.


@pytest.mark.parametrize("broken", [False, True])
def test_a_copied_key_does_not_make_masks_cancel(broken, monkeypatch):
    """Client 1 is in the middle: it subtracts its pair with 0 and adds its pair with 2.

    The mutation has neither pairs in its contexts nor pair secrets.
    """
    monkeypatch.setattr(RoundSecrets, "draw", classmethod(copied_key))
    if broken:
        drop_contexts(monkeypatch)
        monkeypatch.setattr(Channel, "pair_secret", lambda *_: bytes(32))
    cohort = Cohort(3, seed=9)
    views, held = server_views(cohort, 0)
    assert held[0].key.public == held[2].key.public
    without_self_mask(cohort, 0, views[1], 1, held[1].seed)
    assert looks_uniform(views[1]) is not broken
    assert bool((views[1] == inputs("votes", 1)).all()) is broken


# The detector itself.


def test_the_detector_accepts_uniform_words():
    rng = np.random.default_rng(0)
    assert all(looks_uniform(rng.integers(0, 2**64, LENGTH, np.uint64)) for _ in range(20))


@pytest.mark.parametrize("most", [2**64 - 2**56, 2**63, 2**32, 2**24])
def test_the_detector_rejects_a_narrow_range(most):
    assert not looks_uniform(np.random.default_rng(0).integers(0, most, LENGTH, np.uint64))


# Two secrets of a pair's stream.


def words_of(stream: Keystream) -> WordArray:
    scratch = scratch_words()
    blocks = (stream.read_words(BLOCK_WORDS, scratch).copy() for _ in range(LENGTH // BLOCK_WORDS))
    return np.concatenate(list(blocks))


def pair(mine: int = 1, secret: int = 7) -> WordArray:
    """A pair's stream, of these keys."""
    scope = RoundScope(Cohort(3, enrolled=False).session, RoundTerms(0, LENGTH, BOUND))
    key, public = AgreementKey.derive(bytes([mine]) * 32), AgreementKey.derive(bytes([2]) * 32)
    return words_of(masks.pair_stream(scope, 0, 1, key, public.public, bytes([secret]) * 32))


def test_a_pair_stream_needs_both_of_its_secrets(monkeypatch):
    base, other_key, other_secret = pair(), pair(mine=3), pair(secret=8)
    assert looks_uniform(base - other_key)
    assert looks_uniform(base - other_secret)
    for half in (slice(0, 32), slice(32, 64)):
        # The mutation leaves out one half of what goes into the key.
        monkeypatch.setattr(
            masks,
            "derive_key",
            lambda secret, *, half=half, **rest: derive_key(secret[half], **rest),
        )
        alike = [looks_uniform(pair() - pair(**{name: 9})) for name in ("mine", "secret")]
        assert sorted(alike) == [False, True]


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
    masks.mask_words(words, [], [
        masks.self_stream(server.scope, 0, server.seeds.known[0]), server._pair_stream(0, 2)
    ])  # fmt: skip
    found, first, lanes = [], int(words[0]), range(0, 64, server.scope.layout.bits)
    for guess in range(2**16):
        key = folded(guess.to_bytes(2, "big"))
        word = (first - int.from_bytes(Keystream(key).read(8), "little")) % 2**64
        if all(word >> lane & 15 <= TERMS.bound for lane in lanes):
            candidate = words.copy()
            masks.mask_words(candidate, [], [Keystream(key)])
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

    monkeypatch.setattr(masks, "derive_key", short)
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
    made = {name: masks.pair_stream(scope, 0, 1, KEY, OTHER.public, secret)
            for name, scope in scopes.items()}  # fmt: skip
    made |= {
        "itself": masks.pair_stream(base, 0, 1, KEY, OTHER.public, secret),
        "pair": masks.pair_stream(base, 0, 2, KEY, OTHER.public, secret),
        "round key": masks.pair_stream(base, 0, 1, KEY, KEY.public, secret),
        "channel": masks.pair_stream(base, 0, 1, KEY, OTHER.public, b"\1" + bytes(31)),
        "self": masks.self_stream(base, 0, 1),
        "client": masks.self_stream(base, 1, 1),
        "seed": masks.self_stream(base, 0, 2),
    }
    return {name: stream.read(32) for name, stream in made.items()}


def repeated(made: Mapping[str, bytes]) -> set[str]:
    """The names of streams that are not the only ones of their kind."""
    return {name for name, stream in made.items() if list(made.values()).count(stream) > 1}


def test_a_mask_is_bound_to_session_round_terms_pair_purpose_and_keys():
    assert repeated(streams()) == set()
    assert masks.pair_stream(RoundScope(Cohort(4).session, TERMS), 1, 0, OTHER, KEY.public,
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

    monkeypatch.setattr(masks, "derive_key", derive)
    assert repeated(streams()) == merged
