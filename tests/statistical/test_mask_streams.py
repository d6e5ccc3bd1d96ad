"""Every mask stream is uniform, and unrelated to every other; each claim beside a broken twin.

The test and its error rates are in drivers/uniform_words.py: about thirty views are accepted below,
so over all seeds one of them would be rejected with probability 3e-5.
"""

import numpy as np
import pytest

from secure_fd.crypto.keys import BLOCK_WORDS, AgreementKey, Keystream, derive_key, scratch_words
from secure_fd.secagg import masks as masking
from secure_fd.secagg.session import RoundScope, RoundTerms
from secure_fd.votes.codec import WordArray
from tests.drivers.cohort import Cohort
from tests.drivers.uniform_words import drop_contexts, looks_uniform

LENGTH = 2**17

# The detector itself.


def test_the_detector_accepts_uniform_words():
    rng = np.random.default_rng(0)
    assert all(looks_uniform(rng.integers(0, 2**64, LENGTH, np.uint64)) for _ in range(20))


@pytest.mark.parametrize("most", [2**64 - 2**56, 2**63, 2**32, 2**24])
def test_the_detector_rejects_a_narrow_range(most):
    assert not looks_uniform(np.random.default_rng(0).integers(0, most, LENGTH, np.uint64))


# Each mask stream alone, and apart from every other stream.


def words_of(stream: Keystream) -> WordArray:
    scratch = scratch_words()
    blocks = (stream.read_words(BLOCK_WORDS, scratch).copy() for _ in range(LENGTH // BLOCK_WORDS))
    return np.concatenate(list(blocks))


def scope_of(
    index: int = 0, nonce: bytes = b"n", subject: bytes = b"", length: int = LENGTH
) -> RoundScope:
    session = Cohort(3, nonce=nonce, enrolled=False).session
    return RoundScope(session, RoundTerms(index, length, 2**55, subject))


def pair(
    scope: RoundScope, one: int = 0, other: int = 1, mine: int = 1, secret: int = 7
) -> WordArray:
    """The stream of a pair whose round keys and pair secret are fixed."""
    key, public = AgreementKey.derive(bytes([mine]) * 32), AgreementKey.derive(bytes([2]) * 32)
    return words_of(
        masking.pair_stream(scope, one, other, key, public.public, bytes([secret]) * 32)
    )


def own(scope: RoundScope, client: int = 0, seed: int = 2**200 + 1) -> WordArray:
    return words_of(masking.self_stream(scope, client, seed))


BASE = scope_of()
SCOPES = {
    "round": scope_of(1),
    "session": scope_of(nonce=b"m"),
    "subject": scope_of(subject=b"other proxies"),
    "length": scope_of(length=LENGTH + 1),
}
# Two streams that one set of secrets gives in two contexts.
APART = {
    **{f"pair, {name}": (pair, (BASE,), (scope,)) for name, scope in SCOPES.items()},
    **{f"self, {name}": (own, (BASE,), (scope,)) for name, scope in SCOPES.items()},
    "pair, peer": (pair, (BASE, 0, 1), (BASE, 0, 2)),
    "self, client": (own, (BASE, 0), (BASE, 1)),
}


@pytest.mark.parametrize("ends", [(0, 1), (0, 2), (1, 2)])
def test_each_pair_stream_is_uniform_alone(ends):
    assert looks_uniform(pair(BASE, *ends))


@pytest.mark.parametrize("client", [0, 1, 2])
def test_each_self_stream_is_uniform_alone(client):
    assert looks_uniform(own(BASE, client))


@pytest.mark.parametrize("case", APART.values(), ids=APART)
def test_one_secret_gives_unrelated_streams(case):
    kind, one, other = case
    first, second = kind(*one), kind(*other)
    assert looks_uniform(first - second)
    assert looks_uniform(first + second)


@pytest.mark.parametrize("case", APART.values(), ids=APART)
def test_twin_without_domain_separation_is_rejected(case, monkeypatch):
    drop_contexts(monkeypatch)
    kind, one, other = case
    assert not looks_uniform(kind(*one) - kind(*other))


def test_a_pair_stream_needs_both_of_its_secrets(monkeypatch):
    base, other_key, other_secret = pair(BASE), pair(BASE, mine=3), pair(BASE, secret=8)
    assert looks_uniform(base - other_key)
    assert looks_uniform(base - other_secret)
    for half in (slice(0, 32), slice(32, 64)):
        # The twin forgets one half of what goes into the key.
        monkeypatch.setattr(
            masking,
            "derive_key",
            lambda secret, *, half=half, **rest: derive_key(secret[half], **rest),
        )
        alike = [looks_uniform(pair(BASE) - pair(BASE, **{name: 9})) for name in ("mine", "secret")]
        assert sorted(alike) == [False, True]
