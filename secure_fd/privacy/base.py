"""What stands between a client's private data and the wire, and what its type rules out.

A `Protection` is public: what is promised, and what all parties must know of it. Each client has a
part of its own, a `Guard`, with its ledger, its releases and its noise. A `FromAnswers` guard
changes what the client's selector and network answer, and makes `Released`, the only thing that the
codec turns into integers.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence, Sized
from dataclasses import dataclass
from typing import Any, ClassVar, NoReturn

from secure_fd.errors import BudgetError, ConfigurationError, LocalError
from secure_fd.privacy.guarantee import LEAST_EPSILON, MOST_EPSILON, Guarantee, weakest
from secure_fd.privacy.samplers import Random, unmet_by
from secure_fd.secagg.session import NoiseTerms
from secure_fd.secure_sum.base import SumPromise
from secure_fd.votes.codec import Contribution, IntArray, Released, Sums, UnitArray, WordArray

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


@dataclass(frozen=True, slots=True)
class Public:
    """What all parties know before round one: the numbers of proxy samples and of classes."""

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


class CountedGuard(Guard):
    """Counts what it released. Nothing is ever taken back, so there is no copy.

    The epsilon that a guard states is that of the plan (a filter), whatever was released until now
    (Rogers, Roth, Ullman and Vadhan, "Privacy Odometers and Filters", NeurIPS 2016).
    """

    released: int = 0

    def __reduce__(self) -> NoReturn:
        raise LocalError("a guard counts releases: it cannot be pickled or copied")


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
    lets_pass: bool = False
    """Whether answers leave as they are: what is no vote may then be asked as well."""
    answers_apart: bool = False
    """Whether the claim is about one answer, so that no answer may steer a later one."""
    terms: bytes = b""
    """Public settings that all clients must share for the claim to hold; bound into sums."""

    def __init__(self) -> None:
        self._public: Public | None = None
        self.parts: dict[int, Any] = {}
        """The clients' parts that were made in this process, each a `Guard`."""

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
        if number in self.parts:
            raise BudgetError(f"client {number} has its part of the {self.name} already")
        made = self.parts[number] = self._guard(number)
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
    def noise_terms(self) -> NoiseTerms:
        """What noise in the vectors asks of a sum; nothing by default."""
        return NoiseTerms()

    def debias(self, sums: Sums, survivors: Sequence[int]) -> Sums:  # noqa: ARG002 - no bias
        """Unbiased sums at the server, from what these clients released."""
        return sums

    def guarantee(self) -> Guarantee | None:
        """The weakest of the parts made in this process; None where nothing is promised."""
        claims = [claim for part in self.parts.values() if (claim := part.guarantee())]
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
    lets_pass = True

    def agree(self, public: Public) -> None:
        """Nothing is spent."""
        self._public, self.parts = public, {}

    def _guard(self, number: int) -> Unguarded:  # noqa: ARG002 - all are alike
        return Unguarded()


# Noise in shares: it is enough in the sum of all clients alone.


IN_CLEAR = ("no masked sum was checked, and in a sum in clear each share stands alone",)


class SharedNoise(Protection):
    """Base of the units whose clients each add a share of the noise to what they sum.

    Args:
        epsilon: of the guarantee; infinite means no noise.
        delta: of the guarantee, between 0 and 1.
        clients: of a sum, all of them.
        random: source of the noise.

    Raises:
        ConfigurationError: no run can keep to epsilon, or delta is no probability.
    """

    counted: ClassVar[str] = "clients"
    """The argument that says how many clients there are."""
    local: bool = False
    """Whether each client's noise is enough by itself."""
    corrupt: int | None = None
    """Clients of a sum that the noise was made for, at most; None where the caller vouches."""
    masked: bool = False
    """Whether a sum was checked that shows nothing but its result."""

    def __init__(self, epsilon: float, delta: float, clients: int, random: Random) -> None:
        super().__init__()
        check_budget(epsilon, delta)
        self.noiseless, self.delta, self._clients = math.isinf(epsilon), delta, clients
        self.voids = [] if self.noiseless else list(unmet_by(random))
        """Public reasons why there is no epsilon."""

    @property
    def shares(self) -> bool:
        """Whether what leaves a client carries noise that is enough in the sum alone."""
        return not (self.noiseless or self.local)

    @property
    def unchecked(self) -> tuple[str, ...]:
        """Why there is no epsilon before a masked sum was checked; empty from then on."""
        return () if self.masked or self.local else IN_CLEAR

    def check_sum(self, aggregation: SumPromise) -> None:
        """Refuse a sum in clear, where each share stands alone, and another number of clients.

        Also refuse one whose guarantee names more corrupt clients than the noise was made for.
        Under masks that the sum itself does not vouch for there is no epsilon.
        """
        if aggregation.n_clients != self._clients:
            allowed = f"the sum has {aggregation.n_clients}"
            raise ConfigurationError(self.counted, self._clients, allowed)
        if not self.shares:
            return
        if not aggregation.hides:
            allowed = f"the {self.name} hides in the sum only: use masks"
            raise ConfigurationError("aggregation", aggregation.name, allowed)
        if self.corrupt is not None and aggregation.corrupt > self.corrupt:
            allowed = f"its guarantee names {aggregation.corrupt} corrupt clients: set honest"
            raise ConfigurationError("aggregation", aggregation.name, allowed)
        self.voids.extend(aggregation.caveats)
        self.masked = True
