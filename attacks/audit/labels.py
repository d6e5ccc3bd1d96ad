"""Audits of the label unit: answers of a known truth, and answers with either of two truths."""

import math

import numpy as np
from scipy.stats import binom

from attacks.audit.bounds import (
    LARGEST,
    MISS,
    UNSEEN,
    Finding,
    Setting,
    clopper_pearson,
    epsilon_of,
    rounded_down,
    symbol_bound,
)
from secure_fd.privacy.label import BoolArray, NoisyLabels, RandomizedResponse
from secure_fd.votes.codec import IntArray

_CLASSES = 10
_SYMBOLS = _CLASSES + 1
"""Number of possible answers: the classes, and abstention."""
_COUNTED, _ANSWERS = 400_000, 200_000
_STRIDE = 0.0025
_PRACTICE = 0.2
"""Share of the answers from which the alphabet of the proof is taken."""
_CASES = {"a class or abstain": (3, _CLASSES), "two classes": (3, 7)}
"""Two true labels of one answer, by name."""
_VIEWS = {"two rounds": (0, 2), "beside a known client": (0, 1)}
"""Columns of `_codes_of`, by name."""


def answer_noise(setting: Setting) -> Finding:
    """Audit answers of one known truth: the share of wrong ones is bounded (Clopper, Pearson)."""
    count = setting.trials(_COUNTED)
    named = _mechanism(setting, count).named(np.arange(count), np.full(count, 3))
    wrong = int(np.count_nonzero(~named[:, 3] | (named.sum(axis=1) != 1)))
    most, none = clopper_pearson(np.array([wrong, 0]), count, MISS)[1]
    claimed_wrong = _CLASSES / (_CLASSES + math.exp(setting.epsilon))
    return Finding(
        _claimed(setting),
        0.0,
        bound=_odds(float(most)),
        ceiling=_odds(float(none)),
        attack=f"at most {most / claimed_wrong:.3f} of the claimed answers are not the truth",
        trials=count,
        finds=f"noise {rounded_down(_share_found(count, claimed_wrong))}",
    )


def _odds(wrong: float) -> float:
    """Return epsilon of one answer that is not the truth with this probability."""
    wrong = min(wrong, _CLASSES / _SYMBOLS)  # as of a symbol drawn at random
    return min(LARGEST, math.log(_CLASSES * (1 - wrong) / wrong))


def _share_found(count: int, wrong: float) -> float:
    """Return the largest share of the wrong answers whose bound is below all but for `UNSEEN`."""
    shares = np.arange(1.0, 0.0, -_STRIDE)
    seen = np.minimum(binom.isf(UNSEEN, count, shares * wrong), count).astype(np.int64)
    below = clopper_pearson(seen, count, MISS)[1] < wrong
    return float(shares[below.argmax()]) if below.any() else 0.0


def answers(setting: Setting) -> Finding:
    """Audit one answer that is requested in two rounds, and beside a client whose truth is known.

    The bound is the largest of all cases and views, each with its part of `MISS`.
    """
    found, part = [], MISS / (len(_CASES) * len(_VIEWS))
    count, claimed = setting.trials(_ANSWERS), _claimed(setting)
    for name, truths in _CASES.items():
        worlds = [_codes_of(truth, truths[0], setting, count) for truth in truths]
        for view, (first, second) in _VIEWS.items():
            counts = _counts(*(world[:, first] << _CLASSES | world[:, second] for world in worlds))
            perfect = counts.sum(axis=1)[0] * np.eye(2, counts.shape[1], dtype=np.int64)
            bound, ceiling = (symbol_bound(a, b, part) for a, b in (counts, perfect))
            attack, trials = f"{name}, {view}", 2 * len(_CASES) * count
            found.append(Finding(claimed, 0.0, bound, ceiling, attack, trials))
    return max(found, key=lambda one: one.bound)


def _codes_of(truth: int, other: int, setting: Setting, count: int) -> IntArray:
    """Return [N, 3] codes: of the client, of a client whose truth is known, of the client again."""
    audited, accomplice = (_mechanism(setting, count) for _ in range(2))
    asked = ((audited, truth), (accomplice, other), (audited, truth))
    seen = [_codes(one.named(np.arange(count), np.full(count, symbol))) for one, symbol in asked]
    return np.stack(seen, axis=1)


def _codes(named: BoolArray) -> IntArray:
    """Return [N] one integer for each set of named classes [N, C]."""
    return np.asarray(named @ (1 << np.arange(named.shape[1], dtype=np.int64)))


def _counts(*worlds: IntArray) -> IntArray:
    """Return [2, A] counts of the codes of two worlds.

    The alphabet is what appeared in practice, and one symbol for the rest: it must not follow
    from the counts of the proof.
    """
    cut = round(_PRACTICE * len(worlds[0]))
    known = np.unique(np.concatenate([world[:cut] for world in worlds]))
    counts = []
    for world in worlds:
        place = np.minimum(np.searchsorted(known, world[cut:]), len(known) - 1)
        symbol = np.where(known[place] == world[cut:], place, len(known))
        counts.append(np.bincount(symbol, minlength=len(known) + 1))
    return np.stack(counts).astype(np.int64)


def _mechanism(setting: Setting, proxies: int) -> NoisyLabels:
    response = RandomizedResponse(setting.epsilon, _SYMBOLS)
    return NoisyLabels(response, proxies, setting.delta, setting.random)


def _claimed(setting: Setting) -> float:
    """Return the epsilon claimed after an answer with noise of the operating system."""
    answer = NoisyLabels(RandomizedResponse(setting.epsilon, _SYMBOLS), 1, setting.delta)
    answer.named(np.zeros(1, dtype=np.int64), np.zeros(1, dtype=np.int64))
    return epsilon_of(answer.guarantee())
