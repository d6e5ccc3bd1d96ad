"""What stands between a client's private data and the wire, and what its type rules out.

A `Protection` is public: what is promised, and what all parties must know of it. Each client has a
part of its own, a `Guard`, with its ledger, its releases and its noise. A `FromAnswers` guard
changes what the client's selector and network answer, and makes `Released`, the only thing that the
codec turns into integers.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence, Sized
from dataclasses import dataclass
from typing import Any, ClassVar

from secure_fd.aggregation.base import SumPromise
from secure_fd.errors import BudgetError, ConfigurationError, LocalError
from secure_fd.knowledge import (
    Contribution,
    IntArray,
    Released,
    Sums,
    UnitArray,
    WordArray,
)
from secure_fd.privacy.guarantee import LEAST_EPSILON, MOST_EPSILON, Guarantee, weakest
from secure_fd.secagg.session import NoiseTerms

Answer = Callable[[IntArray], Contribution]
"""Asks a client's selector and network about proxies."""


def check_budget(epsilon: float, delta: float) -> None:
    """Raise ConfigurationError unless a run can keep to epsilon, and delta is between 0 and 1.

    Outside the bounds of epsilon, answers would be noise alone, or protected by none.

    >>> check_budget(0.001, 1e-5)
    Traceback (most recent call last):
    secure_fd.errors.ConfigurationError: epsilon: 0.001 is not allowed; use a number from 0.01 ...
    """
    if not (LEAST_EPSILON <= epsilon <= MOST_EPSILON or epsilon == math.inf):
        allowed = f"use a number from {LEAST_EPSILON:g} to {MOST_EPSILON:g}, or inf"
        raise ConfigurationError("epsilon", epsilon, allowed)
    if not 0 < delta < 1:
        raise ConfigurationError("delta", delta, "use a number between 0 and 1")


IN_CLEAR = ("no masked sum was checked, and in a sum in clear each share stands alone",)


@dataclass(frozen=True, slots=True)
class Public:
    """What all parties know before round one."""

    n_proxies: int
    n_classes: int


class Guard:
    """One client's part of a protection, which stays with that client."""

    def perturb(self, units: WordArray) -> UnitArray:
        """The integers [m * C] that this client hands to the sum, from those it released."""
        return units

    def guarantee(self) -> Guarantee | None:
        """What has been promised for everything released so far; None where nothing is."""
        return None


class FromAnswers(Guard, ABC):
    """Guards what the client's selector and network say."""

    @abstractmethod
    def release(self, indices: IntArray, answer: Answer) -> Released:
        """What this client sends about the proxies at `indices` [m]."""


class Protection(ABC):
    """Public settings of what clients release about proxies. It makes their parts, and undoes bias.

    An object serves one federation, so that nothing is released a second time.

    >>> from secure_fd import NoProtection
    >>> isinstance(NoProtection(), Protection)
    True
    """

    name: ClassVar[str]
    """The word that the report uses."""
    asks_network: ClassVar[bool] = True
    """Whether guards release what networks say."""

    def __init__(self) -> None:
        self._public: Public | None = None
        self._parts: dict[int, Any] = {}

    def levels(self, wanted: int) -> int:
        """Integer units in a vote, where the method would use `wanted`."""
        return wanted

    def check_sum(self, aggregation: SumPromise) -> None:  # noqa: B027 - most hold under any
        """Raise ConfigurationError where the protection does not hold under this sum."""

    def agree(self, public: Public) -> None:
        """Take in what all parties know, before round one. Raises BudgetError the second time."""
        if self._public is not None:
            raise BudgetError(f"a {self.name} serves one federation: its releases are spent")
        self._public = public

    def client(self, number: int) -> Guard:
        """The part of client `number`. Raises BudgetError the second time."""
        if number in self._parts:
            raise BudgetError(f"client {number} has its part of the {self.name} already")
        made = self._parts[number] = self._guard(number)
        return made

    @abstractmethod
    def _guard(self, number: int) -> Guard:
        """Make the part of one client."""
        raise LocalError(f"a {self.name} has no part for client {number}")

    def prepare(self, proxies: Sized, n_classes: int, clients: int) -> None:
        """Agree, and make the parts of so many clients, where one process has them all."""
        self.agree(Public(len(proxies), n_classes))
        for number in range(clients):
            self.client(number)

    @property
    def parts(self) -> Mapping[int, Guard]:
        """The clients' parts that were made in this process."""
        return self._parts

    @property
    def lets_pass(self) -> bool:
        """Whether answers leave as they are: what is no vote may then be asked as well."""
        return False

    @property
    def answers_apart(self) -> bool:
        """Whether the claim is about one answer, so that no answer may steer a later one."""
        return False

    @property
    def terms(self) -> bytes:
        """Public settings that all clients must share for the claim to hold; bound into sums."""
        return b""

    @property
    def noise_terms(self) -> NoiseTerms:
        """What noise in the vectors asks of a sum; nothing by default."""
        return NoiseTerms()

    def debias(self, sums: Sums, survivors: Sequence[int]) -> Sums:  # noqa: ARG002 - no bias
        """Unbiased sums at the server, from what these clients released."""
        return sums

    def guarantee(self) -> Guarantee | None:
        """The weakest of the parts made in this process; None where nothing is promised."""
        claims = [claim for part in self._parts.values() if (claim := part.guarantee())]
        return weakest(claims) if claims else None

    def _agreed(self) -> Public:
        if self._public is None:
            raise LocalError(f"a {self.name} knows no proxies before its clients agree")
        return self._public


class Unguarded(FromAnswers):
    """Answers leave as they are."""

    def release(self, indices: IntArray, answer: Answer) -> Released:
        """The answer itself."""
        return Released.of(answer(indices))


class NoProtection(Protection):
    """Answers leave as they are, in any federation.

    >>> NoProtection().guarantee() is None
    True
    """

    name = "none"

    @property
    def lets_pass(self) -> bool:
        """Always."""
        return True

    def agree(self, public: Public) -> None:
        """Nothing is spent."""
        self._public, self._parts = public, {}

    def _guard(self, number: int) -> Unguarded:  # noqa: ARG002 - all are alike
        return Unguarded()
