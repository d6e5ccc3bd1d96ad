"""One test of uniformity, for everything that must look like noise to any party without the key.

At each of the eight byte positions of a word, Pearson's chi-square of the 256 byte values; eight
p-values, Bonferroni. Words are rejected below ALPHA, so sound ones are rejected with probability
1e-6; all keys come from fixed seeds, so a verdict never changes from run to run. Power: of 2**17
words, a top byte that is never 255, or a word one bit short, is rejected.
"""

import numpy as np
import pytest
from scipy.stats import chi2

from secure_fd.crypto.keys import AgreementKey, RandomBytes, derive_key
from secure_fd.secagg import client as round_module
from secure_fd.secagg import masks
from secure_fd.secagg.channel import Channel
from secure_fd.secagg.masks import RoundSecrets, round_key
from secure_fd.votes.codec import WordArray
from secure_fd.wire import Place

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


def repeat_roots(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same root, seed and round key in every round."""
    monkeypatch.setattr(
        RoundSecrets,
        "draw",
        classmethod(lambda _, place, client, __: RoundSecrets(place, client, client + 5, client)),
    )
    monkeypatch.setattr(
        masks, "round_key", lambda _, __, root: AgreementKey.derive(root.to_bytes(32, "big"))
    )


def repeat_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same root, seed, round key and pair secrets in every round."""
    repeat_roots(monkeypatch)
    monkeypatch.setattr(Channel, "pair_secret", lambda *_: bytes(range(32)))


def one_root(_: type, place: Place, client: int, random: RandomBytes) -> RoundSecrets:
    """RoundSecrets.draw: the seed is fresh, the root the same in every round."""
    return RoundSecrets(place, client, client + 5, DRAW(place, client, random).seed)


def copied_key(_: type, place: Place, client: int, random: RandomBytes) -> RoundSecrets:
    """RoundSecrets.draw: client 0 gives the round key of client 2 as its own."""
    drawn = RoundSecrets(place, client, client + 5, DRAW(place, client, random).seed)
    if client == 0:
        drawn.key = round_key(place, 2, 2 + 5)
    return drawn
