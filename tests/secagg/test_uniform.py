"""Mask streams and masked inputs are uniform: every claim beside a mutation.

Shares and vaults are sealed by AES-256-GCM; their keys and nonces are in tests/vectors.

At each of the eight byte positions of a word, Pearson's chi-square of the 256 byte values; eight
p-values, Bonferroni. Words are rejected below ALPHA, so sound ones are rejected with probability
1e-6; all keys come from fixed seeds, so a verdict never changes from run to run. Power: of 2**17
words, a top byte that is never 255, or a word one bit short, is rejected.
"""

from dataclasses import dataclass

import numpy as np
import pytest
from scipy.stats import chi2

from secure_fd.crypto.keys import (
    BLOCK_WORDS,
    AgreementKey,
    Keystream,
    RandomBytes,
    derive_key,
    scratch_words,
)
from secure_fd.secagg import client as round_module
from secure_fd.secagg import masks
from secure_fd.secagg.channel import Channel
from secure_fd.secagg.client import ClientRound
from secure_fd.secagg.masks import RoundSecrets, round_key
from secure_fd.secagg.session import RoundScope, RoundTerms
from secure_fd.votes.codec import WordArray
from secure_fd.wire import HEADER_BYTES, Place
from tests.drivers.cohort import Cohort

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


# Each mask stream alone.


def words_of(stream: Keystream) -> WordArray:
    scratch = scratch_words()
    blocks = (stream.read_words(BLOCK_WORDS, scratch).copy() for _ in range(LENGTH // BLOCK_WORDS))
    return np.concatenate(list(blocks))


def pair(
    scope: RoundScope, one: int = 0, other: int = 1, mine: int = 1, secret: int = 7
) -> WordArray:
    """The stream of a pair whose round keys and pair secret are fixed."""
    key, public = AgreementKey.derive(bytes([mine]) * 32), AgreementKey.derive(bytes([2]) * 32)
    return words_of(masks.pair_stream(scope, one, other, key, public.public, bytes([secret]) * 32))


def own(scope: RoundScope, client: int) -> WordArray:
    return words_of(masks.self_stream(scope, client, 2**200 + 1))


BASE = RoundScope(Cohort(3, enrolled=False).session, RoundTerms(0, LENGTH, BOUND))


def test_each_stream_is_uniform_alone():
    streams = [
        *(pair(BASE, *ends) for ends in ((0, 1), (0, 2), (1, 2))),
        *(own(BASE, client) for client in range(3)),
    ]
    assert all(map(looks_uniform, streams))


def test_a_pair_stream_needs_both_of_its_secrets(monkeypatch):
    base, other_key, other_secret = pair(BASE), pair(BASE, mine=3), pair(BASE, secret=8)
    assert looks_uniform(base - other_key)
    assert looks_uniform(base - other_secret)
    for half in (slice(0, 32), slice(32, 64)):
        # The mutation leaves out one half of what goes into the key.
        monkeypatch.setattr(
            masks,
            "derive_key",
            lambda secret, *, half=half, **rest: derive_key(secret[half], **rest),
        )
        alike = [looks_uniform(pair(BASE) - pair(BASE, **{name: 9})) for name in ("mine", "secret")]
        assert sorted(alike) == [False, True]
