"""Audits of the label unit: noisy answers, the ledger that remembers them, and a whole client."""

import os
from dataclasses import dataclass

import numpy as np
import torch

from attacks.audit.bounds import Finding, Kind, printed, prove_named, symbol_bound
from attacks.audit.setting import Setting
from secure_fd.data.images import Images
from secure_fd.knowledge import Contribution, FloatArray, IntArray, one_hot
from secure_fd.privacy.response import Alphabet, BoolArray, RandomizedResponse
from secure_fd.privacy.units import PrivacyUnit
from secure_fd.protection.label import LabelLedger, LabelUnit

_CLASSES = 10
_TRIALS = 200_000
_CANARIES = 50_000
_PRACTICE = 0.2


@dataclass(frozen=True, slots=True)
class _Case:
    """Two truths of one answer, by a client that answers over an alphabet."""

    name: str
    alphabet: Alphabet
    truths: tuple[int, int]


_FULL = Alphabet.full(_CLASSES)
_CASES = (
    _Case("a class or abstain", _FULL, (3, _FULL.abstain)),
    _Case("two classes", _FULL, (3, 7)),
    _Case("two declared classes", Alphabet(_CLASSES, (2, 5)), (2, 5)),
    _Case("a declared class or abstain", Alphabet(_CLASSES, (2, 5)), (2, _FULL.abstain)),
)


def mechanism(setting: Setting) -> Finding:
    """One answer with either of two truths, asked for in two rounds, and beside a known client.

    The bound is the largest of all cases and views, each with its part of `miss`.
    """
    looks = [(case, view) for case in _CASES for view in _VIEWS]
    bounds = []
    for case in _CASES:
        worlds = [_observed(case, truth, setting) for truth in case.truths]
        for view, columns in _VIEWS.items():
            codes = [_joined(world[:, list(columns)]) for world in worlds]
            bound, ceiling = _symbols(codes, setting.miss / len(looks))
            bounds.append((bound, ceiling, f"{case.name}, {view}"))
    bound, ceiling, attack = max(bounds)
    return Finding(
        kind=Kind.MECHANISM,
        unit=PrivacyUnit.LABEL,
        name="answers",
        claimed=_claim(setting),
        delta=0.0,
        bound=bound,
        ceiling=ceiling,
        miss=setting.miss,
        attack=attack,
        trials=2 * len(_CASES) * setting.trials(_TRIALS),
    )


def one_run(setting: Setting) -> Finding:
    """Every answer of one client is a canary: its truth is one of two classes, by a coin.

    A guess follows the answer where it names exactly one of the two.
    """
    count = setting.trials(_CANARIES)
    included = setting.coins(count)
    scores = _answered(included, setting)
    proof = prove_named(scores, included, setting.miss)
    name, unit = "every answer a canary", PrivacyUnit.LABEL
    return Finding.of(proof, Kind.ONE_RUN, unit, name, _claim(setting), 0.0, setting.miss)


def _answered(included: FloatArray, setting: Setting) -> FloatArray:
    """[m] class 0's votes less class 1's, of a client whose truths are 0 where included, else 1."""
    truths = one_hot(np.where(included == 1, 0, 1), 2)
    unit = LabelUnit(setting.epsilon, setting.delta, random=setting.random)
    records = Images(torch.zeros(2, 1, 1, 1), torch.arange(2))
    unit.prepare(torch.zeros(len(included), 1, 1, 1), 2, [records])
    released = unit.release(
        0, np.arange(len(included)), lambda asked: Contribution(np.ones(len(asked)), truths[asked])
    )
    votes = released.weights[:, None] * released.predictions
    return np.asarray(votes[:, 0] - votes[:, 1])


def _claim(setting: Setting) -> float:
    """What a ledger prints after one answer, with noise of the operating system."""
    ledger = _ledger(_CASES[0], setting)
    ledger.release(np.zeros(1, dtype=np.int64), np.zeros(1, dtype=np.int64), os.urandom)
    return printed(ledger.guarantee(setting.delta)).epsilon


_VIEWS = {"two rounds": (0, 1), "beside a known client": (0, 2)}


def _observed(case: _Case, truth: int, setting: Setting) -> IntArray:
    """[N, 3] codes: the client's answers in two rounds, and those of one whose truth is known."""
    count = setting.trials(_TRIALS)
    indices = np.arange(count)
    own, known = (np.full(count, symbol) for symbol in (truth, case.truths[0]))
    ledger, accomplice = _ledger(case, setting, count), _ledger(case, setting, count)
    seen = [
        asked.release(indices, symbols, setting.random)
        for asked, symbols in ((ledger, own), (accomplice, known), (ledger, own))
    ]
    return np.stack([_codes(seen[i]) for i in (0, 2, 1)], axis=1)


def _ledger(case: _Case, setting: Setting, proxies: int = 1) -> LabelLedger:
    mechanism = RandomizedResponse(setting.epsilon, _CLASSES + 1)
    return LabelLedger(mechanism, case.alphabet, proxies)


def _codes(named: BoolArray) -> IntArray:
    """[N] one integer for each set of named classes [N, C]."""
    return np.asarray(named @ (1 << np.arange(named.shape[1], dtype=np.int64)))


def _joined(codes: IntArray) -> IntArray:
    """[N] one integer a row [N, 2]."""
    return np.asarray(codes[:, 0] << _CLASSES | codes[:, 1])


def _symbols(worlds: list[IntArray], miss: float) -> tuple[float, float]:
    """The bound of two worlds' codes, and the one had they shared none.

    The alphabet is what appeared in practice, and one symbol for the rest: it must not follow
    from the counts of the proof.
    """
    cut = round(_PRACTICE * len(worlds[0]))
    known = np.unique(np.concatenate([world[:cut] for world in worlds]))
    counts = _counted(worlds[0][cut:], known), _counted(worlds[1][cut:], known)
    apart = np.zeros((2, len(known) + 1), dtype=np.int64)
    apart[0, 0] = apart[1, 1] = len(worlds[0]) - cut
    return symbol_bound(*counts, miss)[0], symbol_bound(apart[0], apart[1], miss)[0]


def _counted(codes: IntArray, known: IntArray) -> IntArray:
    place = np.minimum(np.searchsorted(known, codes), len(known) - 1)
    symbol = np.where(known[place] == codes, place, len(known))
    return np.bincount(symbol, minlength=len(known) + 1).astype(np.int64)
