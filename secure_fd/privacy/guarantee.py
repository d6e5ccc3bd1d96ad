"""Privacy units, and the whole claim that must be printed with an epsilon."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

import msgspec

from secure_fd.errors import ConfigurationError, LocalError

GROUP_SIZES: Final = (*range(1, 11), 20, 50, 100)
"""Records of one person that claims state an epsilon for."""
LEAST_CLIENTS: Final = 300
"""Fewest clients of the client unit: below, noise that hides one exceeds the sum of all votes."""
LEAST_EPSILON: Final = 0.01
"""Least epsilon of a run: below, no noise suffices for DP-SGD's accountant."""
MOST_EPSILON: Final = 50.0
"""Largest epsilon of a run: above, samplers are not exact enough, and nothing is protected."""


class PrivacyUnit(StrEnum):
    """Difference between two neighbouring worlds, without which an epsilon has no meaning.

    >>> str(PrivacyUnit.RECORD)
    'record'
    """

    RECORD = "record"
    LABEL = "label"
    CLIENT = "client"


Groups = tuple[tuple[int, float], ...]
"""(records of one client that belong together, epsilon), for each size."""


@dataclass(frozen=True, slots=True)
class AtUnit:
    """Cost of the same release at a larger unit; an infinite epsilon denotes no bound."""

    unit: PrivacyUnit
    epsilon: float
    delta: float


@dataclass(frozen=True, slots=True)
class Part:
    """One part of what was released: how often, and what it would cost were it all there is."""

    name: str
    times: int
    epsilon: float


@dataclass(frozen=True, slots=True)
class Guarantee:
    """A claim of (epsilon, delta) differential privacy with everything needed to judge it.

    epsilon: infinite where nothing is protected; always so where `unmet` is not empty, so that
    no reader of this object can print a number whose assumptions failed.
    neighbours: the relation. covers, not_covered: what the epsilon covers, and what it does not.
    parts: the releases that epsilon was accounted from; a finite one comes from nowhere else.
    composes_to: the cost at larger units. epsilon_replace_one: epsilon where the neighbour
    holds another in the place of what differs, None where it was not worked out. groups: (records
    of one client that belong together, epsilon). sampler, accountant: how noise and epsilon
    were made. assumptions: what must hold. caveats: what weakens the claim. unmet: what did not
    hold.

    >>> from secure_fd.privacy.guarantee import PrivacyUnit
    >>> none = Guarantee(PrivacyUnit.RECORD, "one record", math.inf, 0, (), (), (), "", "")
    >>> none.holds
    False
    """

    unit: PrivacyUnit
    neighbours: str
    epsilon: float
    delta: float
    covers: tuple[str, ...]
    not_covered: tuple[str, ...]
    composes_to: tuple[AtUnit, ...]
    sampler: str
    accountant: str
    parts: tuple[Part, ...] = ()
    assumptions: tuple[str, ...] = ()
    caveats: tuple[str, ...] = ()
    unmet: tuple[str, ...] = ()
    epsilon_replace_one: float | None = None
    groups: Groups = ()

    def __post_init__(self) -> None:
        if not self.epsilon >= 0:
            raise ConfigurationError("epsilon", self.epsilon, "use a number of 0 or more, or inf")
        if not 0 <= self.delta < 1:
            raise ConfigurationError("delta", self.delta, "use a number in [0, 1)")
        if self.unmet and self.holds:
            raise LocalError("a guarantee whose assumptions are unmet cannot carry an epsilon")
        if self.holds and not self.parts:
            raise LocalError("an epsilon that no release was accounted for cannot be printed")

    @property
    def holds(self) -> bool:
        """True if there is a finite epsilon at all."""
        return math.isfinite(self.epsilon)

    def checked(self, noise: float, unmet: Sequence[str]) -> "Guarantee":
        """Return the claim of integer noise: no epsilon for unmet reasons or too little noise."""
        coarse = (_COARSE,) if noise > 0 and not self.holds else ()
        return self.invalidated_by((*unmet, *coarse))

    def invalidated_by(self, reasons: Sequence[str]) -> "Guarantee":
        """The same claim, with no epsilon left if there is any reason against it."""
        if not reasons:
            return self
        unmet = tuple(dict.fromkeys((*self.unmet, *reasons)))
        invalid = replace(self, epsilon=math.inf, unmet=unmet, epsilon_replace_one=None)
        return replace(invalid, parts=(), composes_to=(), caveats=(), groups=())

    @property
    def headline(self) -> str:
        """Unit, epsilon and delta, and what larger units pay; `sentence` has the conditions."""
        if not self.holds:
            return "no differential privacy"
        larger = (f"{c.unit}: {_cost(c)}" for c in self.composes_to)
        own = f"epsilon {format_epsilon(self.epsilon)} at delta {self.delta:g} for a {self.unit}"
        return "; ".join((own, *larger))

    def sentence(self) -> str:
        """The claim as one plain sentence; epsilons are rounded up."""
        if not self.holds:
            why = "; ".join(self.unmet) or "no noise is added"
            return f"No differential privacy at the {self.unit} unit: {why}."
        parts = [
            f"The {self.unit} unit has epsilon {format_epsilon(self.epsilon)} "
            f"at delta {self.delta:g}, where neighbours differ in {self.neighbours}",
            f"the budget was spent on {_listed([_spent(part) for part in self.parts])}",
            *(f"at the {c.unit} level this is {_cost(c)}" for c in self.composes_to),
            f"it covers {_listed(self.covers)}",
            f"it does not cover {_listed(self.not_covered)}",
            f"the noise is {self.sampler}",
            f"the accounting is {self.accountant}",
        ]
        if self.assumptions:
            parts.append(f"it assumes that {_listed(self.assumptions)}")
        return "; ".join([*parts, *self.caveats]) + "."

    def to_json(self) -> dict[str, object]:
        """Plain values for the report; an infinite epsilon is null, and `holds` is then false."""
        plain: dict[str, object] = msgspec.json.decode(msgspec.json.encode(self))
        return {**plain, "holds": self.holds}


def weakest(claims: Iterable[Guarantee]) -> Guarantee | None:
    """Return the weakest claim, the first of equals; None if there is no claim.

    A claim without epsilon is the weakest, then the larger epsilon is. Of equal epsilons it is the
    one that costs more at larger units, then the one of more releases, then the one that covers
    less.
    """

    def weakness(claim: Guarantee) -> tuple[object, ...]:
        larger = tuple(composed.epsilon for composed in claim.composes_to)
        spent = sum(part.times for part in claim.parts)
        return not claim.holds, claim.epsilon, claim.delta, larger, spent, len(claim.not_covered)

    return max(claims, key=weakness, default=None)


def format_epsilon(epsilon: float) -> str:
    """Format an epsilon: rounded up, never down, to two decimals or, from 100, a whole number.

    >>> format_epsilon(3.991), format_epsilon(3.999), format_epsilon(20510.2)
    ('4', '4', '20,511')
    """
    if not math.isfinite(epsilon):
        return "infinite"
    # The slack forgives what floating point adds: 4.0000000001 is 4, not 4.01.
    if epsilon >= 100:
        return f"{math.ceil(epsilon * (1 - 1e-12)):,}"
    return f"{math.ceil(epsilon * 100 - 1e-6) / 100:g}"


def _spent(part: Part) -> str:
    times = "once" if part.times == 1 else f"{part.times:,} times"
    return f"{part.name} ({times}, epsilon {format_epsilon(part.epsilon)} alone)"


def _cost(cost: AtUnit) -> str:
    if not math.isfinite(cost.epsilon):
        return "not bounded"
    return f"epsilon {format_epsilon(cost.epsilon)} at delta {cost.delta:g}"


def _listed(items: Sequence[str]) -> str:
    if len(items) < 2:
        return items[0] if items else "nothing"
    return ", ".join(items[:-1]) + " and " + items[-1]


# What the claims of all units share.


NEVER_COVERED = (
    "who takes part and when",
    "timing",
    "hyper-parameters tuned on private data",
    "figures that an evaluation reads off raw votes or networks",
    "other runs and other rows over the same data, whose epsilons add up",
)


_COARSE = "the noise is too small for a sampler that is within 2^-110 of exact"
QUERIED = "the client's network, if others may query it: it is trained on raw records"


def shares_assumed(clients: int, survivors: int, corrupt: int) -> tuple[str, ...]:
    """Return what a guarantee assumes if the noise of a sum is in shares, one a client."""
    return (
        "the server sees nothing but the masked sums",
        f"a sum holds {survivors:,} of {clients:,} clients or more, "
        f"and at most {corrupt:,} of these reveal their noise to the server",
    )


def check_delta_of(delta: float, count: int, what: str) -> None:
    """Refuse a delta that would allow to publish one of `count` records outright."""
    if delta * count >= 1:
        raise ConfigurationError(
            "delta", delta, f"use less than 1 / {count}, one over the number of {what}"
        )
