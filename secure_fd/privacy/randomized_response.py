"""k-ary randomised response: the noise of the label unit, pure epsilon, exact in integers."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from decimal import ROUND_FLOOR, Decimal, localcontext

import numpy as np
from numpy.typing import NDArray

from secure_fd.errors import ConfigurationError, LocalError, PeerError
from secure_fd.knowledge import FloatArray, IntArray
from secure_fd.privacy.alphabet import Alphabet
from secure_fd.privacy.entropy import Random, words

WORD = 1 << 64


@dataclass(frozen=True, slots=True)
class RandomizedResponse:
    """Answers the truth with p = e^eps / (e^eps + A - 1), each other symbol with q = p / e^eps.

    One 64-bit word decides an answer, so probabilities are multiples of 2^-64: q is rounded up
    to Q / 2^64 and p is what remains, P / 2^64. Then P / Q <= e^eps **exactly**: the sampler
    adds nothing to epsilon or delta. Each probability is within A 2^-64 of its ideal, and
    `debias` uses the rounded ones, so it has no bias at all. An infinite epsilon is the identity.

    alphabet_size: A, abstain included; where clients declare classes, of the largest alphabet.
    Kairouz, Bonawitz, Ramage, "Discrete distribution estimation under local privacy", 2016.
    """

    epsilon: float
    alphabet_size: int
    _wrong: int = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if self.alphabet_size < 2:
            raise ConfigurationError("alphabet_size", self.alphabet_size, "use 2 or more symbols")
        if not self.epsilon > 0:
            raise ConfigurationError("epsilon", self.epsilon, "use a number above 0, or inf")
        object.__setattr__(self, "_wrong", _wrong_weight(self.epsilon, self.alphabet_size))
        if self.p <= self.q:
            raise ConfigurationError("epsilon", self.epsilon, "too small for 64-bit probabilities")

    @classmethod
    def over(cls, epsilon: float, alphabets: Sequence[Alphabet]) -> "RandomizedResponse":
        """The one mechanism of a cohort: sized by the largest alphabet that a client declares."""
        return cls(epsilon, max(alphabet.size for alphabet in alphabets))

    @property
    def is_identity(self) -> bool:
        """Whether answers pass unchanged: epsilon is infinite."""
        return math.isinf(self.epsilon)

    @property
    def q(self) -> float:
        """Probability of each symbol that is not the truth."""
        return self._wrong / WORD

    @property
    def p(self) -> float:
        """Probability of the truth."""
        return (WORD - (self.alphabet_size - 1) * self._wrong) / WORD

    def respond(self, symbols: IntArray, random: Random) -> IntArray:
        """Noisy symbols in [0, A), each drawn with fresh noise of 8 bytes.

        The word u falls below (A - 1) Q and names the (u // Q)-th of the other symbols, or it
        does not, and the truth is told.
        """
        if symbols.size and not 0 <= symbols.min() <= symbols.max() < self.alphabet_size:
            raise LocalError(f"a symbol is outside the alphabet [0, {self.alphabet_size})")
        truth = symbols.astype(np.int64)
        if self.is_identity:
            return truth
        word = words(random, truth.size).reshape(truth.shape)
        other = (word // np.uint64(self._wrong)).astype(np.int64)
        lie = word < np.uint64((self.alphabet_size - 1) * self._wrong)
        return np.where(lie, other + (other >= truth), truth)

    def respond_within(self, symbols: IntArray, alphabet: Alphabet, random: Random) -> IntArray:
        """Noisy symbols of a client that answers over its own declared alphabet only.

        Symbols are as in `Alphabet`; one that the client did not declare counts as abstain.

        Proof that the ratio stays at most e^eps. Let the client declare a classes, a + 1 <= A.
        It runs the A-ary mechanism on codes and maps the A - 1 - a spare codes to abstain, which
        is post-processing. In numbers, with L = (A - 1 - a) q: each declared class is answered
        with p where it is the truth and q where it is not, a ratio of p / q; abstain with p + L
        where it is the truth and q + L where it is not, and (p + L) / (q + L) <= p / q as p >= q.
        Each declared class keeps the common p and q, so the server debiases class by class.
        """
        if alphabet.size > self.alphabet_size:
            raise LocalError(
                f"an alphabet of {alphabet.size} symbols exceeds the agreed {self.alphabet_size}"
            )
        if self.is_identity:
            return symbols.astype(np.int64)
        codes = self.respond(alphabet.encode(symbols, self.alphabet_size), random)
        return alphabet.decode(codes, self.alphabet_size)

    def debias(self, sums: FloatArray, n_clients: int | IntArray) -> FloatArray:
        """[m, C] unbiased true counts n_c = (S_c - K_c q) / (p - q); they may be negative.

        sums: [m, C] noisy votes. n_clients: K, or [C] the number of clients declaring each class.
        """
        votes = np.asarray(sums, dtype=np.float64)
        if self.is_identity:
            return votes.copy()
        clients = np.asarray(n_clients, dtype=np.float64)
        if clients.shape not in ((), votes.shape[-1:]):
            raise LocalError(f"n_clients has shape {clients.shape}, not one number a class")
        if not ((votes >= 0) & (votes <= clients)).all():
            raise PeerError("a class has fewer votes than none or more votes than clients")
        return np.asarray((votes - clients * self.q) / (self.p - self.q), dtype=np.float64)


def sample_symbols(weights: FloatArray, predictions: FloatArray, random: Random) -> IntArray:
    """[m] symbols: class c with probability w s_c, else abstain (C): soft labels without bias.

    weights: [m] in [0, 1]. predictions: [m, C], rows in the simplex. A one-hot row of weight 1
    always gives its class, and weight 0 always abstains. It runs before the noise, so the
    resolution of 2^-53 costs no privacy.
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


def _wrong_weight(epsilon: float, alphabet_size: int) -> int:
    """Q = ceil(2^64 q), to 60 digits, so that rounding is always towards more noise."""
    if math.isinf(epsilon):
        return 0
    with localcontext() as context:
        context.prec = 60
        # From epsilon 45 up Q is 1, whatever epsilon is.
        ideal = Decimal(WORD) / (Decimal(min(epsilon, 100.0)).exp() + alphabet_size - 1)
        return int(ideal.to_integral_value(ROUND_FLOOR)) + 1
