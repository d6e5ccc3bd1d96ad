"""Base of the privacy units: public settings, and each client's part with its own noise.

A `PrivacyMechanism` is public: its claim and its parameters, which every party has. Each client
has a part of its own, a `ClientMechanism`, which turns answers of its selector and network into
`Released`, the only input that the codec encodes.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NoReturn

from secure_fd.errors import BudgetError, ConfigurationError, LocalError
from secure_fd.privacy.events import check_delta
from secure_fd.privacy.guarantee import LEAST_EPSILON, MOST_EPSILON, Guarantee, weakest
from secure_fd.privacy.samplers import Random, unmet_by
from secure_fd.secagg.session import NoiseTerms
from secure_fd.secure_sum.base import SumGuarantee
from secure_fd.votes.codec import Contribution, IntArray, Released, Sums, UnitArray, WordArray

Answer = Callable[[IntArray], Contribution]
"""Asks a client's selector and network about proxies."""


def check_epsilon(epsilon: float, delta: float, *, finite: bool = True) -> None:
    """Raise ConfigurationError unless a run can keep to epsilon, and delta is between 0 and 1.

    Outside the bounds of epsilon, answers would be noise alone, or protected by none.

    >>> check_epsilon(0.001, 1e-5)
    Traceback (most recent call last):
    secure_fd.errors.ConfigurationError: epsilon: 0.001 is not allowed; use a number from 0.01 ...
    """
    if finite and math.isinf(epsilon):
        raise ConfigurationError("epsilon", epsilon, "use a finite number, or no privacy unit")
    if not (LEAST_EPSILON <= epsilon <= MOST_EPSILON or epsilon == math.inf):
        allowed = f"use a number from {LEAST_EPSILON:g} to {MOST_EPSILON:g}, or inf"
        raise ConfigurationError("epsilon", epsilon, allowed)
    check_delta(delta)


class ClientMechanism:
    """One client's part of a privacy unit, which stays with that client.

    The epsilon that it states is that of the plan (a filter), whatever was released until now
    (Rogers, Roth, Ullman and Vadhan, "Privacy Odometers and Filters", NeurIPS 2016).
    """

    released: int = 0
    """Releases so far. None is ever taken back, so there is no copy of this object."""

    def release(self, indices: IntArray, answer: Answer) -> Released:  # noqa: ARG002 - it sends none
        """Return what this client sends about the proxies at `indices` [m].

        Raises:
            LocalError: the unit covers no votes.
        """
        raise LocalError("this client's privacy mechanism releases no votes")

    def perturb(self, units: WordArray) -> UnitArray:
        """Return the integers [m * C] that enter the sum, from those of a release."""
        return units

    def guarantee(self) -> Guarantee | None:
        """Return the claim for everything released so far, None without noise."""
        return None

    def __reduce__(self) -> NoReturn:
        raise LocalError("a privacy mechanism counts releases: it cannot be pickled or copied")


class PrivacyMechanism(ABC):
    """Base of the privacy units: public settings, which make each client's part and undo bias.

    An object serves one federation, so that nothing is released a second time.

    >>> from secure_fd import NoProtection
    >>> isinstance(NoProtection(), PrivacyMechanism)
    True
    """

    name: str
    """The word that the report uses."""
    asks_network: ClassVar[bool] = True
    """True if clients release predictions of their networks."""
    is_identity: bool = False
    """True if predictions leave as they are; other bits may then be asked for as well."""
    accounts_per_answer: bool = False
    """True if the claim is about one answer, so that no answer may steer a later one."""
    terms: bytes = b""
    """Public settings that all clients must share for the claim to hold; bound into sums."""
    noise_terms: NoiseTerms = NoiseTerms()
    """Requirements of the noise in the vectors on a sum."""

    def __init__(self) -> None:
        self._agreed = False
        self.parts: dict[int, Any] = {}
        """The clients' parts that were made in this process, each a `ClientMechanism`."""

    def levels(self, wanted: int) -> int:
        """Return the integer units of a vote, where the method would use `wanted`."""
        return wanted

    def check_sum(self, aggregation: SumGuarantee) -> None:  # noqa: B027 - most hold under any
        """Raise ConfigurationError if the unit does not hold under this sum."""

    def agree(self, n_proxies: int, n_classes: int) -> None:  # noqa: ARG002 - for units that ask
        """Store the public facts, before round one. Raises BudgetError the second time."""
        if self._agreed:
            raise BudgetError(f"a {self.name} serves one federation: its releases are spent")
        self._agreed = True

    def client(self, number: int) -> ClientMechanism:
        """Make the part of client `number`. Raises BudgetError the second time."""
        if number in self.parts:
            raise BudgetError(f"client {number} has its part of the {self.name} already")
        self.parts[number] = made = self._part(number)
        return made

    @abstractmethod
    def _part(self, number: int) -> ClientMechanism:
        """Make the part of one client."""
        raise LocalError(f"a {self.name} has no part for client {number}")

    def debias(self, sums: Sums, survivors: Sequence[int]) -> Sums:  # noqa: ARG002 - no bias
        """Return unbiased sums at the server, from the releases of these clients."""
        return sums

    def guarantee(self) -> Guarantee | None:
        """Return the weakest claim of the parts made in this process, None if there is none."""
        return weakest(claim for part in self.parts.values() if (claim := part.guarantee()))


class NoNoise(ClientMechanism):
    """Votes leave as they are."""

    def release(self, indices: IntArray, answer: Answer) -> Released:
        """Return the answer itself."""
        return Released.of(answer(indices))


class NoProtection(PrivacyMechanism):
    """Votes leave as they are, in any federation.

    >>> NoProtection().guarantee() is None
    True
    """

    name = "none"
    is_identity = True

    def agree(self, n_proxies: int, n_classes: int) -> None:  # noqa: ARG002 - nothing is spent
        """Begin another federation."""
        self.parts = {}

    def _part(self, number: int) -> NoNoise:  # noqa: ARG002 - all are alike
        return NoNoise()


IN_CLEAR = "no masked sum was checked, and in a sum in clear each share stands alone"


class SharedNoise(PrivacyMechanism):
    """Base of the units whose clients each add a share of the noise, enough in the sum alone.

    Args:
        epsilon: of the guarantee, checked; infinite means no noise.
        delta: of the guarantee, checked.
        clients: of a sum, all of them.
        random: source of the noise.
        local: whether each client's noise is enough by itself.
    """

    counted: ClassVar[str] = "clients"
    """Name of the argument with the number of clients."""
    corrupt: int | None = None
    """Clients of a sum that the noise was made for, at most; None where the caller vouches."""

    def __init__(
        self, epsilon: float, delta: float, clients: int, random: Random, *, local: bool = False
    ) -> None:
        super().__init__()
        self.noiseless, self.local = math.isinf(epsilon), local
        self.delta, self._clients = delta, clients
        self.unmet = [] if self.noiseless else [*unmet_by(random), *([] if local else [IN_CLEAR])]
        """Public reasons why there is no epsilon."""

    @property
    def shares(self) -> bool:
        """True if each client's noise is enough in the sum alone."""
        return not (self.noiseless or self.local)

    def check_sum(self, aggregation: SumGuarantee) -> None:
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
        self.unmet = [reason for reason in self.unmet if reason != IN_CLEAR]
        self.unmet.extend(aggregation.caveats)
