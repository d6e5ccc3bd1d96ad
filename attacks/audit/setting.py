"""What audits share: terms, code replaced for the length of a block, a unit as behind masks."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from secure_fd.errors import ConfigurationError
from secure_fd.knowledge import FloatArray
from secure_fd.privacy.plans import ClientPlan
from secure_fd.privacy.samplers import Random, words
from secure_fd.protection.client import ClientUnit


@contextmanager
def replaced(owner: object, name: str, value: object) -> Iterator[None]:
    """Let `owner`, a class or a module, have `value` under an existing name, then the old one."""
    before = vars(owner)[name]
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


@dataclass(frozen=True, slots=True)
class Setting:
    """Terms of one audit.

    epsilon, delta: what the audited mechanism is asked to keep. miss: the probability that the
    bound is wrong. size: share of the full number of trials. random: of the mechanism's noise and
    of the attacker's coins; a seeded one makes the audit repeatable, and voids printed claims,
    so claims are always read from a release with noise of the operating system.
    """

    epsilon: float
    delta: float = 1e-5
    miss: float = 1e-5
    size: float = 1.0
    random: Random = field(default=os.urandom, repr=False)

    def __post_init__(self) -> None:
        for name in ("epsilon", "delta", "miss", "size"):
            if not getattr(self, name) > 0:
                raise ConfigurationError(name, getattr(self, name), "use a number above 0")
        for name in ("delta", "miss"):
            if getattr(self, name) >= 1:
                raise ConfigurationError(name, getattr(self, name), "use a number below 1")

    @property
    def one_run_delta(self) -> float:
        """The delta at which canaries of one run are judged; the claim is taken there too.

        Steinke, Nasr and Jagielski's p value is about 2 m delta / excess right guesses and never
        less: a confidence of 1 - miss can only be had where delta is far below miss.
        """
        return min(self.delta, 1e-4 * self.miss)

    def trials(self, full: int) -> int:
        """The number of trials where a full audit makes `full`."""
        return max(100, round(full * self.size))

    def generator(self) -> np.random.Generator:
        """For everything that is not the mechanism's own noise."""
        return np.random.default_rng([int(word) for word in words(self.random, 4)])

    def coins(self, count: int) -> FloatArray:
        """[count] fair coins, 0 or 1: which canaries are included."""
        return self.generator().integers(0, 2, count).astype(np.float64)


@dataclass(frozen=True, slots=True)
class StandInForMasks:
    """Says that it hides, as a masked sum does, and sums nothing: masks are not what is audited."""

    n_clients: int
    name: ClassVar[str] = "stand-in"
    guarantee: ClassVar[str] = "none: the auditor adds up what clients send"
    hides: ClassVar[bool] = True
    caveats: ClassVar[tuple[str, ...]] = ()


def masked_unit(setting: Setting, plan: ClientPlan, random: Random) -> ClientUnit:
    """A unit of any fleet that was told its votes are summed under masks."""
    unit = ClientUnit(setting.epsilon, setting.delta, plan, small_fleet=True, random=random)
    unit.check_sum(StandInForMasks(plan.clients))
    return unit
