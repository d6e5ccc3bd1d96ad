"""What every plan offers, and what the plans share."""

import math
from dataclasses import dataclass, replace
from typing import Literal, Protocol, Self

from secure_fd.errors import ConfigurationError
from secure_fd.privacy.events import Event
from secure_fd.privacy.units import PrivacyUnit


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """How far neighbours can be apart: `value`, in `norm`, of `what`."""

    norm: Literal["L2", "Hamming"]
    value: float
    what: str


class Plan(Protocol):
    """A release that can be priced before it is made."""

    @property
    def noise(self) -> float:
        """0 is none; more never costs more."""

    @property
    def most_noise(self) -> float:
        """The noise that leaves nothing to tell: epsilon is 0 there, or only in the limit."""

    @property
    def unit(self) -> PrivacyUnit:
        """What the epsilon of this plan protects."""

    @property
    def neighbours(self) -> str:
        """The relation, as the end of "neighbours differ in ..."."""

    @property
    def sensitivity(self) -> Sensitivity:
        """How far neighbours can be apart in what the noise is added to."""

    @property
    def mechanism(self) -> str:
        """The kind of noise, in words."""

    def event(self) -> Event:
        """Everything that is released under this plan, as an accountant sees it."""

    def with_noise(self, noise: float) -> Self:
        """The same plan with other noise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Noisy:
    """What all plans share: a noise that is named, never passed by position."""

    noise: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.noise <= self.most_noise or math.isinf(self.noise):
            most = self.most_noise
            allowed = "a finite number of 0 or more" if math.isinf(most) else f"0 to {most:.6g}"
            raise ConfigurationError("noise", self.noise, f"use {allowed}")

    @property
    def most_noise(self) -> float:
        """Unbounded, but where a plan says otherwise."""
        return math.inf

    def with_noise(self, noise: float) -> Self:
        """The same plan with other noise."""
        return replace(self, noise=noise)


def check_counts(plan: Noisy, *fields: str, least: int = 1) -> None:
    """Refuses a field below `least`."""
    for field in fields:
        if not getattr(plan, field) >= least:
            raise ConfigurationError(field, getattr(plan, field), f"use {least} or more")
