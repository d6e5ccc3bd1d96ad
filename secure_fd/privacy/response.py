"""All subsets of one size of a small alphabet, as tables: what the code of an answer stands for."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from decimal import ROUND_FLOOR, Decimal, localcontext
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from secure_fd.errors import ConfigurationError, LocalError, PeerError
from secure_fd.knowledge import FloatArray, IntArray
from secure_fd.privacy.events import Response
from secure_fd.privacy.samplers import Random, words

BoolArray = NDArray[np.bool_]

MOST_ENTRIES = 1 << 20  # 8 MiB a table: 1,024 symbols one by one, or 18 in subsets of any size


@dataclass(frozen=True, slots=True, eq=False)
class Subsets:
    """The N subsets of d of A symbols, coded 0 to N - 1 in lexicographic order; N is the empty set.

    members: [N + 1, A] whether a subset holds a symbol. order: [A, N + 1] for each truth, the
    codes of the subsets without it, then of those with it, then N. With d = 1 a code is a symbol.
    """

    members: BoolArray
    order: IntArray


def fits(alphabet_size: int, subset_size: int) -> bool:
    """Whether the tables of these subsets are small enough to be made."""
    return math.comb(alphabet_size, subset_size) * alphabet_size <= MOST_ENTRIES


@lru_cache(maxsize=16)
def subsets_of(alphabet_size: int, subset_size: int) -> Subsets:
    """The tables, read-only, since all mechanisms of these sizes share them.

    Raises ConfigurationError where there are too many subsets.
    """
    if not fits(alphabet_size, subset_size):
        count = math.comb(alphabet_size, subset_size)
        raise ConfigurationError(
            "subset_size", subset_size, f"its {count:,} subsets of {alphabet_size} are too many"
        )
    chosen = np.array(list(itertools.combinations(range(alphabet_size), subset_size)))
    members = np.zeros((len(chosen) + 1, alphabet_size), dtype=np.bool_)
    np.put_along_axis(members[:-1], chosen, True, axis=1)
    order = np.full((alphabet_size, len(members)), len(chosen), dtype=np.int64)
    order[:, :-1] = np.argsort(members[:-1].T, axis=1, kind="stable")
    members.setflags(write=False)
    order.setflags(write=False)
    return Subsets(members, order)


# What a client may answer about a proxy: the classes that it declares, or that it abstains.


@dataclass(frozen=True, slots=True)
class Alphabet:
    """The symbols that one client answers with: its declared classes, and abstain.

    A symbol is a class number in [0, n_classes), or n_classes for "I abstain".
    classes: increasing, public. Declaring fewer than all is a statement that no noise covers.
    """

    n_classes: int
    classes: tuple[int, ...]

    def __post_init__(self) -> None:
        declared = sorted(set(self.classes))
        if not declared or declared[0] < 0 or declared[-1] >= self.n_classes:
            raise ConfigurationError(
                "classes", self.classes, f"declare one or more of 0 to {self.n_classes - 1}"
            )
        if list(self.classes) != declared:
            raise ConfigurationError("classes", self.classes, "use each once, in increasing order")

    @classmethod
    def full(cls, n_classes: int) -> "Alphabet":
        """All classes: nothing about the client's data is declared."""
        return cls(n_classes, tuple(range(n_classes)))

    @property
    def abstain(self) -> int:
        """The symbol that names no class."""
        return self.n_classes

    @property
    def size(self) -> int:
        """Number of symbols, abstain included."""
        return len(self.classes) + 1

    def encode(self, symbols: IntArray, size: int) -> IntArray:
        """Symbols as codes in [0, size): declared classes first, all else as the last code."""
        if symbols.size and not 0 <= symbols.min() <= symbols.max() <= self.n_classes:
            raise LocalError(f"a symbol is outside [0, {self.n_classes}]")
        code = np.full(self.n_classes + 1, size - 1, dtype=np.int64)
        code[list(self.classes)] = np.arange(len(self.classes))
        return code[symbols]

    def decode(self, members: BoolArray) -> BoolArray:
        """[m, C] the declared classes among codes [m, size]; abstain and spare ones are dropped."""
        named = np.zeros((len(members), self.n_classes), dtype=np.bool_)
        named[:, list(self.classes)] = members[:, : len(self.classes)]
        return named


def declaring(alphabets: Sequence[Alphabet]) -> IntArray:
    """[C] the number of clients that declare each class: the K_c that debiasing needs."""
    if len({alphabet.n_classes for alphabet in alphabets}) != 1:
        raise ConfigurationError("alphabets", len(alphabets), "all must have the same classes")
    declared = np.concatenate([np.asarray(a.classes, dtype=np.int64) for a in alphabets])
    return np.bincount(declared, minlength=alphabets[0].n_classes).astype(np.int64)


# Randomised response and subset selection: the label unit's noise, pure epsilon, in integers.


WORD = 1 << 64


@dataclass(frozen=True, slots=True)
class RandomizedResponse:
    """Answers a random subset of d of A symbols, each with the truth e^eps times as likely.

    With d = 1 that is k-ary randomised response. Of the subsets, I = C(A-1, d-1) hold the truth
    and O = C(A-1, d) do not. One 64-bit word decides an answer: each subset without the truth
    has Q words, each with it P, and the fewer than I words that remain mean the empty subset.

    The ratio is at most e^eps **exactly**, so the sampler adds nothing to epsilon or delta: Q is
    rounded up, Q >= 2^64 / (I e^eps + O), and P = floor((2^64 - O Q) / I), so that
    P / Q <= (2^64 / Q - O) / I <= e^eps; the empty subset has as many words whatever the truth.
    It is the ideal mechanism with some answers redrawn blindly or emptied, hence post-processing
    of it: what any accountant finds for `event()` holds for the rounded one.

    p and q are the chances of a symbol to be in the answer where it is the truth and where it is
    not. They are those of the rounded words, so `debias` has no bias at all. An infinite epsilon
    is the identity.

    alphabet_size: A, abstain included; where clients declare classes, of the largest alphabet.
    subset_size: d; `best_subset_size` gives the one of least variance.
    Kairouz, Bonawitz, Ramage, "Discrete distribution estimation under local privacy", 2016.
    Ye, Barg, "Optimal schemes for discrete distribution estimation under locally differential
    privacy", 2018; Wang et al., "Mutual information optimally local private discrete distribution
    estimation", 2016.
    """

    epsilon: float
    alphabet_size: int
    subset_size: int = 1
    _told: int = field(init=False, repr=False)
    _wrong: int = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if self.alphabet_size < 2:
            raise ConfigurationError("alphabet_size", self.alphabet_size, "use 2 or more symbols")
        if not self.epsilon > 0:
            raise ConfigurationError("epsilon", self.epsilon, "use a number above 0, or inf")
        largest = 1 if self.is_identity else self.alphabet_size - 1
        if not 1 <= self.subset_size <= largest:
            allowed = (
                f"use 1 to {largest} at epsilon {self.epsilon} and {self.alphabet_size} symbols"
            )
            raise ConfigurationError("subset_size", self.subset_size, allowed)
        subsets_of(self.alphabet_size, self.subset_size)
        wrong = _wrong_weight(self.epsilon, self._with_truth, self._without)
        object.__setattr__(self, "_wrong", wrong)
        object.__setattr__(self, "_told", (WORD - self._without * wrong) // self._with_truth)
        if self.p <= self.q:
            raise ConfigurationError("epsilon", self.epsilon, "too small for 64-bit probabilities")

    @classmethod
    def over(
        cls, epsilon: float, alphabets: Sequence[Alphabet], subset_size: int | None = None
    ) -> "RandomizedResponse":
        """The one mechanism of a cohort: sized by the largest alphabet that a client declares.

        subset_size: None for the one of least variance.
        """
        size = max(alphabet.size for alphabet in alphabets)
        if subset_size is None:
            subset_size = best_subset_size(epsilon, size)
        return cls(epsilon, size, subset_size)

    @property
    def _with_truth(self) -> int:
        return math.comb(self.alphabet_size - 1, self.subset_size - 1)

    @property
    def _without(self) -> int:
        return math.comb(self.alphabet_size - 1, self.subset_size)

    @property
    def is_identity(self) -> bool:
        """Whether answers pass unchanged: epsilon is infinite."""
        return math.isinf(self.epsilon)

    @property
    def q(self) -> float:
        """Probability that the answer holds a given symbol which is not the truth."""
        alone = math.comb(self.alphabet_size - 2, self.subset_size - 1)  # subsets without the truth
        return ((self._with_truth - alone) * self._told + alone * self._wrong) / WORD

    @property
    def p(self) -> float:
        """Probability that the answer holds the truth."""
        return self._with_truth * self._told / WORD

    @property
    def variance(self) -> float:
        """Of one debiased answer, all A symbols added up: the expected squared error."""
        noise = self.p * (1 - self.p) + (self.alphabet_size - 1) * self.q * (1 - self.q)
        return noise / (self.p - self.q) ** 2

    def event(self) -> Response:
        """One answer, as an accountant sees it."""
        return Response(self.epsilon, self.alphabet_size, self.subset_size)

    def respond(self, symbols: IntArray, random: Random) -> IntArray:
        """Codes of subsets, as `members` reads them, for symbols in [0, A): 8 fresh bytes each.

        The word u falls below O Q and names the (u // Q)-th of the subsets without the truth, or
        it does not, and names one with it. With d = 1 codes are symbols.
        """
        if symbols.size and not 0 <= symbols.min() <= symbols.max() < self.alphabet_size:
            raise LocalError(f"a symbol is outside the alphabet [0, {self.alphabet_size})")
        truth = symbols.astype(np.int64)
        if self.is_identity:
            return truth
        word = words(random, truth.size).reshape(truth.shape)
        lies = np.uint64(self._without * self._wrong)
        # Where the word lies, the second branch wraps around, and is not taken.
        told = np.uint64(self._without) + (word - lies) // np.uint64(self._told)
        slot = np.where(word < lies, word // np.uint64(self._wrong), told).astype(np.int64)
        return subsets_of(self.alphabet_size, self.subset_size).order[truth, slot]

    def members(self, codes: IntArray) -> BoolArray:
        """[..., A] whether the answers hold each symbol."""
        return subsets_of(self.alphabet_size, self.subset_size).members[codes]

    def respond_within(self, symbols: IntArray, alphabet: Alphabet, random: Random) -> BoolArray:
        """[m, C] the classes named by a client that answers over its own declared alphabet only.

        Symbols [m] are as in `Alphabet`; one that the client did not declare counts as abstain.
        A row that names no class is an abstention.

        Why the ratio stays at most e^eps: the client runs the A-ary mechanism on codes, and then
        drops from the subset the abstain code and the spare ones, of which there are as many as
        its alphabet is smaller than the largest. What is dropped depends on the declared
        alphabet alone, so it is post-processing. A declared class is in the answer exactly if
        its code is in the subset, with the common p and q: the server debiases class by class.
        """
        if alphabet.size > self.alphabet_size and not self.is_identity:
            raise LocalError(
                f"an alphabet of {alphabet.size} symbols exceeds the agreed {self.alphabet_size}"
            )
        if self.is_identity:
            full = Alphabet.full(alphabet.n_classes)
            return full.decode(np.eye(full.size, dtype=np.bool_)[full.encode(symbols, full.size)])
        codes = self.respond(alphabet.encode(symbols, self.alphabet_size), random)
        return alphabet.decode(self.members(codes))

    def debias(self, sums: FloatArray, n_clients: int | IntArray) -> FloatArray:
        """[m, C] unbiased true counts n_c = (S_c - K_c q) / (p - q); they may be negative.

        sums: [m, C] how many answers hold each class. n_clients: K, or [C] the number of clients
        declaring each class.
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


def best_subset_size(epsilon: float, alphabet_size: int) -> int:
    """The d of least `variance`, from public numbers: near A / (e^eps + 1), 1 if that is less.

    It is the best for one answer of this epsilon. Many answers of larger subsets compose to more
    than as many of one symbol. Sizes whose tables would be too large are passed over.
    """
    if math.isinf(epsilon):
        return 1
    sizes = [d for d in range(1, max(2, alphabet_size)) if d == 1 or fits(alphabet_size, d)]
    return min(sizes, key=lambda d: RandomizedResponse(epsilon, alphabet_size, d).variance)


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


def _wrong_weight(epsilon: float, with_truth: int, without: int) -> int:
    """Q > 2^64 / (I e^eps + O): rounding is always towards more noise."""
    if math.isinf(epsilon):
        return 0
    with localcontext() as context:
        context.prec = 60
        # From epsilon 45 up Q is 1, whatever epsilon is. The exponential is taken low by more
        # than all that 60 digits can lose.
        low = Decimal(min(epsilon, 100.0)).exp() * (1 - Decimal(10) ** -50)
        ideal = Decimal(WORD) / (with_truth * low + without)
        return int(ideal.to_integral_value(ROUND_FLOOR)) + 1
