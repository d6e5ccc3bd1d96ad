"""What the server sees of one client is uniform: every claim beside a twin that is broken.

The test: at each of the eight byte positions of a word, Pearson's chi-square of the 256 byte
values over 2**17 words; eight p-values, Bonferroni. A view is rejected below ALPHA, so a sound
view is rejected with probability 1e-6; all keys come from fixed seeds, so a verdict never
changes from run to run. Power: a top byte that is never 255, or a word one bit short, is
rejected.
"""

from collections.abc import Iterator

import numpy as np
import pytest
from scipy.stats import chi2

from secure_fd.crypto.kdf import derive_key
from secure_fd.crypto.keys import AgreementKey
from secure_fd.crypto.prg import BLOCK_WORDS, scratch_words
from secure_fd.crypto.randomness import insecure_bytes
from secure_fd.knowledge import WordArray
from secure_fd.secagg import masking
from secure_fd.secagg.messages import Advert, decode_masked, encode_advert
from secure_fd.secagg.session import RoundScope, RoundTerms
from tests.secagg_cohort import Cohort

ALPHA = 1e-6
LENGTH = 2**17
GENERATE = AgreementKey.generate
BOUND = 2**61
"""One value a word at three clients, so that words can be read as values."""


def p_value(words: WordArray) -> float:
    """Of the hypothesis that the words are uniform and independent."""
    columns = np.ascontiguousarray(words, dtype="<u8").view(np.uint8).reshape(-1, 8).T
    expected = words.size / 256
    each = [
        chi2.sf(((np.bincount(c, minlength=256) - expected) ** 2 / expected).sum(), df=255)
        for c in columns
    ]
    return min(1.0, 8 * float(min(each)))


def looks_uniform(words: WordArray) -> bool:
    return p_value(words) >= ALPHA


def read(scope: RoundScope, secret: bytes, one: int, other: int) -> WordArray:
    stream, scratch = masking.pair_stream(scope, secret, one, other), scratch_words()
    blocks = (stream.read_words(BLOCK_WORDS, scratch).copy() for _ in range(LENGTH // BLOCK_WORDS))
    return np.concatenate(list(blocks))


def scope_of(index: int = 0, nonce: bytes = b"n", subject: bytes = b"") -> RoundScope:
    return RoundScope(Cohort(3, nonce=nonce).session, RoundTerms(index, LENGTH, BOUND, subject))


def inputs(kind: str, client: int) -> WordArray:
    rng = np.random.default_rng(client)
    return {
        "zero": np.zeros(LENGTH, np.uint64),
        "bound": np.full(LENGTH, BOUND, np.uint64),
        "votes": rng.integers(0, 2, LENGTH, dtype=np.uint64),
    }[kind]


def server_views(cohort: Cohort, index: int, kind: str = "votes") -> dict[int, WordArray]:
    """The words that the server reads of each client in one round."""
    values = {k: inputs(kind, k) for k in cohort.clients}
    current = cohort.open(RoundTerms(index, LENGTH, BOUND), values)
    return {
        k: decode_masked(message, current.server.scope, k)
        for k, message in current.masked().items()
    }


# The detector itself.


def test_the_detector_accepts_uniform_words() -> None:
    rng = np.random.default_rng(0)
    assert all(looks_uniform(rng.integers(0, 2**64, LENGTH, np.uint64)) for _ in range(20))


@pytest.mark.parametrize("most", [2**64 - 2**56, 2**63, 2**32, 2**24])
def test_the_detector_rejects_a_narrow_range(most: int) -> None:
    assert not looks_uniform(np.random.default_rng(0).integers(0, most, LENGTH, np.uint64))


# Each mask stream alone, and apart from every other stream.


@pytest.mark.parametrize("pair", [(0, 1), (0, 2), (1, 2)])
def test_each_mask_stream_is_uniform_alone(pair: tuple[int, int]) -> None:
    assert looks_uniform(read(scope_of(), bytes([1]) * 32, *pair))


APART = {
    "round": (scope_of(1), 0, 1),
    "session": (scope_of(nonce=b"m"), 0, 1),
    "subject": (scope_of(subject=b"other proxies"), 0, 1),
    "pair": (scope_of(), 0, 2),
}


@pytest.mark.parametrize("other", APART.values(), ids=APART)
def test_one_secret_gives_unrelated_streams(other: tuple[RoundScope, int, int]) -> None:
    secret = bytes(range(32))
    one, apart = read(scope_of(), secret, 0, 1), read(other[0], secret, *other[1:])
    assert looks_uniform(one - apart)
    assert looks_uniform(one + apart)


@pytest.mark.parametrize("other", APART.values(), ids=APART)
def test_twin_without_domain_separation_is_rejected(
    other: tuple[RoundScope, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    drop_contexts(monkeypatch)
    secret = bytes(range(32))
    one, apart = read(scope_of(), secret, 0, 1), read(other[0], secret, *other[1:])
    assert not looks_uniform(one - apart)


# What the server sees of one client.


@pytest.mark.parametrize("kind", ["zero", "bound", "votes"])
def test_every_masked_input_is_uniform_whatever_it_hides(kind: str) -> None:
    views = server_views(Cohort(3, seed=5), 0, kind)
    assert all(looks_uniform(words) for words in views.values())


def test_the_sum_of_all_but_one_is_uniform() -> None:
    views = server_views(Cohort(4, seed=6), 0, "zero")
    for missing in views:
        part = sum((w for k, w in views.items() if k != missing), np.zeros(LENGTH, np.uint64))
        assert looks_uniform(part)
    assert not looks_uniform(sum(views.values(), np.zeros(LENGTH, np.uint64)))


def test_twin_with_masks_of_a_narrow_range_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    real = masking.mask_words

    def narrow(words: WordArray, added: object, subtracted: object) -> None:
        hidden = words.copy()
        real(words, added, subtracted)  # type: ignore[arg-type]
        mask = (words - hidden) & np.uint64(2**62 - 1)
        np.add(hidden, mask, out=words)

    monkeypatch.setattr(masking, "mask_words", narrow)
    assert not any(looks_uniform(w) for w in server_views(Cohort(3, seed=5), 0, "zero").values())


# Between rounds.


def test_a_client_in_two_rounds_is_uniform_in_the_difference() -> None:
    cohort = Cohort(3, seed=7)
    first, second = server_views(cohort, 0), server_views(cohort, 1)
    assert all(looks_uniform(first[k] - second[k]) for k in first)


def test_twin_that_reuses_masks_between_rounds_is_rejected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cohort = Cohort(3, seed=7)
    drop_contexts(monkeypatch)
    first = server_views(with_repeated_keys(cohort, monkeypatch), 0)
    second = server_views(with_repeated_keys(cohort, monkeypatch), 1)
    assert all(looks_uniform(words) for words in first.values())
    assert not any(looks_uniform(first[k] - second[k]) for k in first)


def test_round_keys_are_fresh_and_the_twin_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def keys_of_rounds(cohort: Cohort, indices: Iterator[int]) -> list[bytes]:
        rounds = [cohort.open(RoundTerms(index, 1, 1)) for index in indices]
        adverts = [client.start() for current in rounds for client in current.clients.values()]
        return [advert[48:80] for advert in adverts]

    cohort = Cohort(4, seed=8)
    sound = keys_of_rounds(cohort, iter(range(10)))
    assert len(set(sound)) == 40
    repeated = AgreementKey.generate(insecure_bytes(1))
    monkeypatch.setattr(AgreementKey, "generate", lambda _: repeated)
    broken = keys_of_rounds(cohort, iter(range(10, 20)))
    assert len(set(broken)) == 1


# A malicious client: it signs another client's key as its own.


def copied_key_view(cohort: Cohort) -> WordArray:
    """The server's view of client 1 where client 0 advertises client 2's key."""
    terms = RoundTerms(0, LENGTH, BOUND)
    current = cohort.open(terms, {k: inputs("votes", k) for k in cohort.clients})
    scope = current.server.scope
    adverts = {k: current.clients[k].start() for k in (1, 2)}
    copy = Advert.signed(scope, 0, adverts[2][48:80], cohort.identities[0])
    for k, message in {0: encode_advert(copy, scope), **adverts}.items():
        current.server.receive(k, message)
    victim = current.clients[1]
    return decode_masked(victim.receive(current.server.advance()[1]), scope, 1)


def test_a_copied_key_does_not_make_masks_cancel() -> None:
    view = copied_key_view(Cohort(3, seed=9))
    assert looks_uniform(view)


def test_twin_without_pairs_in_the_context_is_unmasked_by_a_copied_key(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    drop_contexts(monkeypatch)
    assert (copied_key_view(Cohort(3, seed=9)) == inputs("votes", 1)).all()


# How the twins are broken.


def drop_contexts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Derive every mask key under one label and one salt, for all pairs and rounds."""
    monkeypatch.setattr(
        masking, "derive_key", lambda secret, **_: derive_key(secret, salt=b"s", info=b"i")
    )


def with_repeated_keys(cohort: Cohort, monkeypatch: pytest.MonkeyPatch) -> Cohort:
    """The same cohort, whose clients will draw the same key pairs again."""
    again = insecure_bytes(11)
    monkeypatch.setattr(AgreementKey, "generate", lambda _: GENERATE(again))
    return cohort
