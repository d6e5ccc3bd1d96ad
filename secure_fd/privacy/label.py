"""The label unit: every answer is made noisy once, and is remembered for good.

A client answers about a proxy with one symbol: a class number in [0, C), or C for "I abstain".
"""

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from decimal import ROUND_FLOOR, Decimal, localcontext

import numpy as np
from numpy.typing import NDArray

from secure_fd.errors import ConfigurationError, LocalError, PeerError
from secure_fd.privacy.accountants import cost
from secure_fd.privacy.base import Answer, ClientMechanism, PrivacyMechanism, check_epsilon
from secure_fd.privacy.events import Repeated, Response
from secure_fd.privacy.guarantee import (
    GROUP_SIZES,
    NEVER_COVERED,
    QUERIED,
    AtUnit,
    Guarantee,
    Part,
    PrivacyUnit,
)
from secure_fd.privacy.samplers import Random, unmet_by, words
from secure_fd.votes.codec import Contribution, FloatArray, IntArray, Released, Sums

BoolArray = NDArray[np.bool_]


# The noise: randomised response over symbols, and its debiasing.


WORD = 1 << 64


@dataclass(frozen=True, slots=True)
class RandomizedResponse:
    """k-ary randomised response over A symbols, pure epsilon, in integers.

    One 64-bit word decides an answer: each symbol but the truth has Q words, the truth has the
    P that remain. The ratio is at most e^eps **exactly**, so the sampler adds nothing to epsilon
    or delta: Q is rounded up, Q >= 2^64 / (e^eps + A - 1), and P = 2^64 - (A - 1) Q, so that
    P / Q <= 2^64 / Q - (A - 1) <= e^eps. It is the ideal mechanism with some answers redrawn
    blindly, hence post-processing of it: what any accountant finds for `event()` holds for the
    rounded one.

    p and q are the chances of a symbol to be the answer where it is the truth and where it is
    not. They are those of the rounded words, so `debias` has no bias at all.

    alphabet_size: A, abstain included.
    Kairouz, Bonawitz, Ramage, "Discrete distribution estimation under local privacy", 2016.

    >>> from secure_fd.privacy.samplers import SeededRandom
    >>> mechanism = RandomizedResponse(epsilon=4.0, alphabet_size=11)
    >>> mechanism.respond(np.array([3, 3, 3, 10]), SeededRandom(0))
    array([7, 9, 3, 7])
    >>> round(mechanism.p, 3)
    0.845
    """

    epsilon: float
    alphabet_size: int
    _wrong: int = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if self.alphabet_size < 2:
            raise ConfigurationError("alphabet_size", self.alphabet_size, "use 2 or more symbols")
        if not 0 < self.epsilon < math.inf:
            raise ConfigurationError("epsilon", self.epsilon, "use a finite number above 0")
        object.__setattr__(self, "_wrong", _wrong_weight(self.epsilon, self.alphabet_size - 1))
        if self.p <= self.q:
            raise ConfigurationError("epsilon", self.epsilon, "too small for 64-bit probabilities")

    @property
    def q(self) -> float:
        """Probability that the answer is a given symbol which is not the truth."""
        return self._wrong / WORD

    @property
    def p(self) -> float:
        """Probability that the answer is the truth."""
        return (WORD - (self.alphabet_size - 1) * self._wrong) / WORD

    def event(self) -> Response:
        """One answer, as an accountant sees it."""
        return Response(self.epsilon, self.alphabet_size)

    def respond(self, symbols: IntArray, random: Random) -> IntArray:
        """Answers for symbols in [0, A): 8 fresh bytes each.

        The word u below (A - 1) Q names the (u // Q)-th of the symbols that are not the truth,
        ascending; any other word names the truth.
        """
        if symbols.size and not 0 <= symbols.min() <= symbols.max() < self.alphabet_size:
            raise LocalError(f"a symbol is outside the alphabet [0, {self.alphabet_size})")
        truth = symbols.astype(np.int64)
        word = words(random, truth.size).reshape(truth.shape)
        wrong = (word // np.uint64(self._wrong)).astype(np.int64)
        wrong += wrong >= truth  # skips the truth
        lies = word < np.uint64((self.alphabet_size - 1) * self._wrong)
        return np.where(lies, wrong, truth)

    def respond_rows(self, symbols: IntArray, random: Random) -> BoolArray:
        """One-hot answers [m, A - 1] for symbols [m], the last of which is "I abstain".

        A row of zeros is an abstention.
        """
        answers = self.respond(symbols, random)
        return np.asarray(answers[:, None] == np.arange(self.alphabet_size - 1))

    def debias(self, sums: FloatArray, n_clients: int) -> FloatArray:
        """[m, C] unbiased true counts n_c = (S_c - K q) / (p - q); they may be negative.

        sums: [m, C] how many answers hold each class. n_clients: K.

        >>> mechanism = RandomizedResponse(epsilon=1.0, alphabet_size=4)
        >>> expected = 5 * mechanism.p + 2 * mechanism.q  # 7 clients, 5 of them hold class 0
        >>> mechanism.debias(np.array([[expected]]), n_clients=7).round(6)
        array([[5.]])
        """
        votes = np.asarray(sums, dtype=np.float64)
        if not ((votes >= 0) & (votes <= n_clients)).all():
            raise PeerError("a class has fewer votes than none or more votes than clients")
        return np.asarray((votes - n_clients * self.q) / (self.p - self.q), dtype=np.float64)

    def guarantee(self, *, releases: int, delta: float) -> Guarantee:
        """Return the claim of answers that are each released once: deniability of a single one.

        Args:
            releases: answers of the busiest client.
            delta: of the composition only; the label unit has none.
        """
        total = cost(Repeated(self.event(), releases), delta)
        levels = (PrivacyUnit.RECORD, PrivacyUnit.CLIENT)
        return Guarantee(
            unit=PrivacyUnit.LABEL,
            neighbours="one released symbol of one (client, proxy) pair, abstain included",
            epsilon=self.epsilon,
            delta=0.0,
            covers=("the class that a client answered for one proxy", "whether it abstained there"),
            not_covered=(
                "a record or a client, whose effect on all answers adds up as stated",
                QUERIED,
                *NEVER_COVERED,
            ),
            composes_to=tuple(AtUnit(level, total, delta) for level in levels),
            sampler="randomised response by 64-bit integer thresholds, exact for this epsilon",
            accountant=f"pure for one answer, exact Renyi over {releases:,} answers",
            parts=(Part("answers, each about another proxy", releases, self.epsilon),),
            assumptions=(
                "each (client, proxy) pair is released once and remembered",
                "for the larger units, that nothing but these answers leaves the client and that "
                "their number does not depend on their contents",
            ),
            caveats=("this is deniability of a single answer and nothing more",),
            groups=tuple(
                (size, total) for size in GROUP_SIZES
            ),  # any record may change all answers
        )


def sample_symbols(honest: Contribution, random: Random) -> IntArray:
    """Draw symbols [m]: class c with probability w s_c, else abstain (C), so without bias.

    A one-hot row of weight 1 always gives its class, and weight 0 always abstains. It runs before
    the noise, so the resolution of 2^-53 costs no privacy.

    >>> import os
    >>> rows = np.array([[0.0, 1.0], [0.0, 1.0]])
    >>> sample_symbols(Contribution(np.array([1.0, 0.0]), rows), os.urandom)
    array([1, 2])
    """
    weights, reach = honest.weights, np.cumsum(honest.predictions, axis=1, dtype=np.float64)
    # Rescaled, so that the last class of a float row does not lose its rounding to abstain.
    reach /= np.where(reach[:, -1] > 0, reach[:, -1], 1.0)[:, None]
    uniform: NDArray[np.float64] = (words(random, len(weights)) >> np.uint64(11)) / 2.0**53
    passed: IntArray = np.count_nonzero(uniform[:, None] >= weights[:, None] * reach, axis=1)
    return passed


def _wrong_weight(epsilon: float, others: int) -> int:
    """Q > 2^64 / (e^eps + A - 1): rounding is always towards more noise."""
    with localcontext() as context:
        context.prec = 60
        # From epsilon 45 up Q is 1, whatever epsilon is. The exponential is taken low by more
        # than all that 60 digits can lose.
        low = Decimal(min(epsilon, 100.0)).exp() * (1 - Decimal(10) ** -50)
        ideal = Decimal(WORD) / (low + others)
        return int(ideal.to_integral_value(ROUND_FLOOR)) + 1


# The unit and its parts.


class NoisyLabels(ClientMechanism):
    """One client's noisy answers, stored by proxy index: the classes that each one names.

    Fresh noise on the same pair would average out: twenty answers at epsilon 4 are epsilon 80.
    So a second request gets the first answer, whatever the network has learnt since.
    The truth is never stored. A copy would release pairs a second time, so there is none.
    """

    def __init__(
        self,
        mechanism: RandomizedResponse,
        n_proxies: int,
        delta: float,
        random: Random = os.urandom,
    ) -> None:
        self._mechanism, self._delta, self._random = mechanism, delta, random
        self._named = np.zeros((n_proxies, mechanism.alphabet_size - 1), dtype=np.bool_)
        self._answered = np.zeros(n_proxies, dtype=np.bool_)

    def release(self, indices: IntArray, answer: Answer) -> Released:
        """Return the class that each noisy answer names, as a vote; no vote where it abstains.

        A pair released before keeps its answer. It counts as released from here on, even if the
        upload never arrives: a lost message looks like one that was kept.
        """
        symbols = sample_symbols(answer(indices), self._random)
        rows = self.named(indices, symbols).astype(np.float64)
        return Released(rows.sum(axis=1), rows)

    def named(self, indices: IntArray, symbols: IntArray) -> BoolArray:
        """[m, C] the classes named for proxies `indices` [m] whose true symbols are `symbols` [m].

        Noise is drawn for pairs never released before, and for no other; of a pair that appears
        twice in one call, the first symbol counts. On an error nothing is recorded.
        """
        size = len(self._answered)
        if indices.ndim != 1 or indices.shape != symbols.shape:
            raise LocalError(f"a release of {indices.shape} proxies has {symbols.shape} symbols")
        if indices.size and not 0 <= indices.min() <= indices.max() < size:
            raise LocalError(f"a proxy index is outside [0, {size})")
        unseen = np.flatnonzero(~self._answered[indices])
        fresh, first = np.unique(indices[unseen], return_index=True)
        self._named[fresh] = self._mechanism.respond_rows(symbols[unseen[first]], self._random)
        self._answered[fresh] = True
        self.released = int(np.count_nonzero(self._answered))
        return self._named[indices]

    def guarantee(self) -> Guarantee:
        """Return the claim for the answers so far."""
        made = self._mechanism.guarantee(releases=self.released, delta=self._delta)
        return made.invalidated_by(unmet_by(self._random) if self.released else ())


class LabelUnit(PrivacyMechanism):
    """Randomised response over all classes and abstain.

    Args:
        epsilon: of one answer.
        delta: of the composition to larger units, which the guarantee states.
        random: source of the noise.

    >>> LabelUnit(4.0, 1e-5).name
    'label unit'
    """

    name = "label unit"
    accounts_per_answer = True  # a weight that depends on earlier answers would leak them again
    parts: dict[int, NoisyLabels]

    def __init__(self, epsilon: float, delta: float, random: Random = os.urandom) -> None:
        super().__init__()
        check_epsilon(epsilon, delta)
        self.delta, self.random, self._epsilon = delta, random, epsilon

    def levels(self, wanted: int) -> int:  # noqa: ARG002 - an answer is one symbol
        """Return one unit."""
        return 1

    def agree(self, n_proxies: int, n_classes: int) -> None:
        """Derive the mechanism, which is public, from the number of classes."""
        super().agree(n_proxies, n_classes)
        self.mechanism = RandomizedResponse(self._epsilon, n_classes + 1)
        self._n_proxies = n_proxies

    def _part(self, number: int) -> NoisyLabels:
        if not self._agreed:
            raise LocalError(f"client {number} needs the proxies before its part of the label unit")
        return NoisyLabels(self.mechanism, self._n_proxies, self.delta, self.random)

    def debias(self, sums: Sums, survivors: Sequence[int]) -> Sums:
        """Return unbiased counts a class, clipped at zero.

        Only the survivors' answers carry noise into the sum.
        """
        named = np.rint(sums.total)
        votes = np.clip(self.mechanism.debias(named, len(survivors)), 0.0, None)
        return Sums(votes.sum(axis=1), votes)
