"""What all plans share: a release that can be priced before it is made."""

import math
from dataclasses import dataclass, replace
from typing import Protocol, Self

from secure_fd.errors import ConfigurationError
from secure_fd.privacy.events import Event
from secure_fd.privacy.guarantee import PrivacyUnit


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
    for name in fields:
        if not getattr(plan, name) >= least:
            raise ConfigurationError(name, getattr(plan, name), f"use {least} or more")
