"""The label unit's noise: symbols, randomised response over them, and its debiasing.

A client answers about a proxy with one symbol: a class number in [0, C), or C for "I abstain".
"""

import math
from dataclasses import dataclass, field
from decimal import ROUND_FLOOR, Decimal, localcontext

import numpy as np
from numpy.typing import NDArray

from secure_fd.errors import ConfigurationError, LocalError, PeerError
from secure_fd.knowledge import FloatArray, IntArray
from secure_fd.privacy.events import Response
from secure_fd.privacy.samplers import Random, words

BoolArray = NDArray[np.bool_]


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
    not. They are those of the rounded words, so `debias` has no bias at all. An infinite epsilon
    is the identity.

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
    _told: int = field(init=False, repr=False)
    _wrong: int = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if self.alphabet_size < 2:
            raise ConfigurationError("alphabet_size", self.alphabet_size, "use 2 or more symbols")
        if not self.epsilon > 0:
            raise ConfigurationError("epsilon", self.epsilon, "use a number above 0, or inf")
        others = self.alphabet_size - 1
        wrong = _wrong_weight(self.epsilon, others)
        object.__setattr__(self, "_wrong", wrong)
        object.__setattr__(self, "_told", WORD - others * wrong)
        if self.p <= self.q:
            raise ConfigurationError("epsilon", self.epsilon, "too small for 64-bit probabilities")

    @property
    def is_identity(self) -> bool:
        """Whether answers pass unchanged: epsilon is infinite."""
        return math.isinf(self.epsilon)

    @property
    def q(self) -> float:
        """Probability that the answer is a given symbol which is not the truth."""
        return self._wrong / WORD

    @property
    def p(self) -> float:
        """Probability that the answer is the truth."""
        return self._told / WORD

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
        if self.is_identity:
            return truth
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
        if self.is_identity:
            return votes.copy()
        if not ((votes >= 0) & (votes <= n_clients)).all():
            raise PeerError("a class has fewer votes than none or more votes than clients")
        return np.asarray((votes - n_clients * self.q) / (self.p - self.q), dtype=np.float64)


def sample_symbols(weights: FloatArray, predictions: FloatArray, random: Random) -> IntArray:
    """Draw symbols [m]: class c with probability w s_c, else abstain (C), so without bias.

    weights: [m] in [0, 1]. predictions: [m, C], rows in the simplex. A one-hot row of weight 1
    always gives its class, and weight 0 always abstains. It runs before the noise, so the
    resolution of 2^-53 costs no privacy.

    >>> import os
    >>> sample_symbols(np.array([1.0, 0.0]), np.array([[0.0, 1.0], [0.0, 1.0]]), os.urandom)
    array([1, 2])
    """
    if predictions.ndim != 2 or weights.shape != predictions.shape[:1]:
        raise LocalError(
            f"symbols need weights [m] and predictions [m, C], "
            f"not {weights.shape} and {predictions.shape}"
        )
    inside = (weights >= 0) & (weights <= 1) & (predictions >= 0).all(axis=1)
    total = predictions.sum(axis=1)
    if not (inside & ((weights == 0) | (np.abs(total - 1) < 1e-5))).all():
        raise LocalError("a weight is outside [0, 1] or a prediction outside the simplex")
    reach = np.cumsum(predictions, axis=1, dtype=np.float64)
    # Rescaled, so that the last class of a float row does not lose its rounding to abstain.
    reach /= np.where(total > 0, reach[:, -1], 1.0)[:, None]
    uniform: NDArray[np.float64] = (words(random, len(weights)) >> np.uint64(11)) / 2.0**53
    passed: IntArray = np.count_nonzero(uniform[:, None] >= weights[:, None] * reach, axis=1)
    return passed


def _wrong_weight(epsilon: float, others: int) -> int:
    """Q > 2^64 / (e^eps + A - 1): rounding is always towards more noise."""
    if math.isinf(epsilon):
        return 0
    with localcontext() as context:
        context.prec = 60
        # From epsilon 45 up Q is 1, whatever epsilon is. The exponential is taken low by more
        # than all that 60 digits can lose.
        low = Decimal(min(epsilon, 100.0)).exp() * (1 - Decimal(10) ** -50)
        ideal = Decimal(WORD) / (low + others)
        return int(ideal.to_integral_value(ROUND_FLOOR)) + 1
