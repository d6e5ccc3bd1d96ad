"""A client's memory of what it answered: each (client, proxy) pair is released once, for good."""

from typing import NoReturn

import numpy as np

from secure_fd.errors import ConfigurationError, LocalError
from secure_fd.knowledge import IntArray
from secure_fd.privacy.alphabet import Alphabet
from secure_fd.privacy.entropy import Random, unmet_by
from secure_fd.privacy.guarantees import label_guarantee
from secure_fd.privacy.randomized_response import RandomizedResponse
from secure_fd.privacy.subsets import BoolArray
from secure_fd.privacy.units import Guarantee


class LabelLedger:
    """One client's noisy answers, memoised by proxy index: the classes that each one names.

    Fresh noise on the same pair would average out: twenty answers at epsilon 4 are epsilon 80.
    So a second request gets the first answer, whatever the network has learnt since. Only with
    an infinite epsilon, where there is no noise to average, do answers pass unchanged.
    The truth is never stored. A copy would release pairs a second time, so there is none.
    """

    __slots__ = ("_alphabet", "_mechanism", "_named", "_released", "_unmet")

    def __init__(self, mechanism: RandomizedResponse, alphabet: Alphabet, n_proxies: int) -> None:
        if n_proxies < 1:
            raise ConfigurationError("n_proxies", n_proxies, "use 1 or more")
        self._mechanism = mechanism
        self._alphabet = alphabet
        self._named = np.zeros((n_proxies, alphabet.n_classes), dtype=np.bool_)
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
            return self._mechanism.respond_within(symbols, self._alphabet, random)
        unseen = np.flatnonzero(~self._released[indices])
        fresh, first = np.unique(indices[unseen], return_index=True)
        named = self._mechanism.respond_within(symbols[unseen[first]], self._alphabet, random)
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
        made = label_guarantee(
            self._mechanism,
            releases=self.released,
            delta=delta,
            declared=len(self._alphabet.classes) < self._alphabet.n_classes,
        )
        return made.voided_by(sorted(self._unmet))

    def __repr__(self) -> str:
        return f"LabelLedger(n_proxies={len(self._released)}, released={self.released})"

    def __reduce__(self) -> NoReturn:
        raise LocalError("a label ledger is secret and single: it cannot be pickled or copied")
