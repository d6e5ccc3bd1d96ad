"""The label unit: every answer is made noisy once, and is remembered for good."""

import math
import os
from collections.abc import Mapping, Sequence
from typing import NoReturn

import numpy as np

from secure_fd.errors import ConfigurationError, LocalError
from secure_fd.knowledge import IntArray, Released, Sums
from secure_fd.privacy.guarantees import label_guarantee
from secure_fd.privacy.response import BoolArray, RandomizedResponse, sample_symbols
from secure_fd.privacy.samplers import Random, unmet_by
from secure_fd.privacy.units import Guarantee
from secure_fd.protection.base import Answer, FromAnswers, Protection, Public, check_budget


class LabelLedger:
    """One client's noisy answers, memoised by proxy index: the classes that each one names.

    Fresh noise on the same pair would average out: twenty answers at epsilon 4 are epsilon 80.
    So a second request gets the first answer, whatever the network has learnt since. Only with
    an infinite epsilon, where there is no noise to average, do answers pass unchanged.
    The truth is never stored. A copy would release pairs a second time, so there is none.
    """

    __slots__ = ("_mechanism", "_named", "_released", "_unmet")

    def __init__(self, mechanism: RandomizedResponse, n_proxies: int) -> None:
        if n_proxies < 1:
            raise ConfigurationError("n_proxies", n_proxies, "use 1 or more")
        self._mechanism = mechanism
        self._named = np.zeros((n_proxies, mechanism.alphabet_size - 1), dtype=np.bool_)
        self._released = np.zeros(n_proxies, dtype=np.bool_)
        self._unmet: frozenset[str] = frozenset()

    def release(self, indices: IntArray, symbols: IntArray, random: Random) -> BoolArray:
        """[m, C] the classes named for proxies `indices` [m] whose true symbols are `symbols` [m].

        Noise is drawn for pairs never released before, and for no other; of a pair that appears
        twice in one call, the first symbol counts. On an error nothing is recorded.
        """
        size = len(self._released)
        if indices.ndim != 1 or indices.shape != symbols.shape:
            raise LocalError(f"a release of {indices.shape} proxies has {symbols.shape} symbols")
        if indices.size and not 0 <= indices.min() <= indices.max() < size:
            raise LocalError(f"a proxy index is outside [0, {size})")
        if self._mechanism.is_identity:
            self._released[indices] = True
            return self._mechanism.respond_rows(symbols, random)
        unseen = np.flatnonzero(~self._released[indices])
        fresh, first = np.unique(indices[unseen], return_index=True)
        named = self._mechanism.respond_rows(symbols[unseen[first]], random)
        if fresh.size:
            self._unmet |= set(unmet_by(random))
        self._named[fresh] = named
        self._released[fresh] = True
        return self._named[indices]

    @property
    def released(self) -> int:
        """Number of pairs released so far: what the client level composes over."""
        return int(np.count_nonzero(self._released))

    def guarantee(self, delta: float) -> Guarantee:
        """What the answers so far carry; `delta` is that of the composition to larger units."""
        made = label_guarantee(self._mechanism, releases=self.released, delta=delta)
        return made.voided_by(sorted(self._unmet))

    def __repr__(self) -> str:
        return f"LabelLedger(n_proxies={len(self._released)}, released={self.released})"

    def __reduce__(self) -> NoReturn:
        raise LocalError("a label ledger is secret and single: it cannot be pickled or copied")


class LabelGuard(FromAnswers):
    """One client's answers, each made noisy once."""

    def __init__(self, unit: "LabelUnit", ledger: LabelLedger) -> None:
        self.ledger, self._unit = ledger, unit

    def release(self, indices: IntArray, answer: Answer) -> Released:
        """The class that each noisy answer names, as a vote; no vote where it abstains.

        A pair released before keeps its answer. It counts as released from here on, even where the
        upload never arrives: nobody can tell a lost message from one that somebody kept.
        """
        honest = answer(indices)
        if self._unit.noiseless:
            return Released.of(honest)  # drawing symbols from soft labels would be noise of its own
        random = self._unit.random
        symbols = sample_symbols(honest.weights, honest.predictions, random)
        rows = self.ledger.release(indices, symbols, random).astype(np.float64)
        return Released(rows.sum(axis=1), rows)

    def guarantee(self) -> Guarantee | None:
        """Of the answers so far; None without noise."""
        return None if self._unit.noiseless else self.ledger.guarantee(self._unit.delta)


class LabelUnit(Protection):
    """Randomised response over all classes and abstain.

    epsilon: of one answer; infinite, answers leave as they are. delta: of the composition to
    larger units, which the guarantee states. One object serves one federation.

    >>> LabelUnit(4.0, 1e-5).name
    'label unit'
    """

    name = "label unit"

    def __init__(self, epsilon: float, delta: float, random: Random = os.urandom) -> None:
        super().__init__()
        check_budget(epsilon, delta)
        self.noiseless, self.delta, self.random = math.isinf(epsilon), delta, random
        self._epsilon = epsilon

    @property
    def mechanism(self) -> RandomizedResponse:
        """The noise in force, public; LocalError before the clients agreed."""
        self._agreed()
        return self._mechanism

    @property
    def lets_pass(self) -> bool:
        """Without noise."""
        return self.noiseless

    @property
    def answers_apart(self) -> bool:
        """With noise: a weight that hangs on earlier answers would tell of them once more."""
        return not self.noiseless

    def levels(self, wanted: int) -> int:
        """One unit, for the one symbol of an answer; without noise, as wanted."""
        return wanted if self.noiseless else 1

    def agree(self, public: Public) -> None:
        """Derive the mechanism from the number of classes."""
        super().agree(public)
        self._mechanism = RandomizedResponse(self._epsilon, public.n_classes + 1)

    def _guard(self, number: int) -> LabelGuard:  # noqa: ARG002 - all are alike
        size = len(self._agreed().proxies)
        return LabelGuard(self, LabelLedger(self._mechanism, size))

    @property
    def parts(self) -> Mapping[int, LabelGuard]:
        """The clients' parts that were made in this process."""
        return self._parts

    def debias(self, sums: Sums, survivors: Sequence[int]) -> Sums:
        """Unbiased counts a class, clipped at zero: a negative vote teaches nothing.

        Only the survivors' answers carry noise into the sum.
        """
        if self.noiseless:
            return sums
        named = np.rint(sums.total)
        votes = np.clip(self._mechanism.debias(named, len(survivors)), 0.0, None)
        return Sums(votes.sum(axis=1), votes)
