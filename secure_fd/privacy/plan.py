"""What all plans share: a release that can be priced before it is made."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Self

from secure_fd.errors import ConfigurationError
from secure_fd.privacy.events import Event, check_least


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(ABC):
    """A release that can be priced before it is made. Its noise is never passed by position.

    noise: 0 is none; more never costs more.
    """

    noise: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.noise <= self.most_noise or math.isinf(self.noise):
            most = self.most_noise
            allowed = "a finite number of 0 or more" if math.isinf(most) else f"0 to {most:.6g}"
            raise ConfigurationError("noise", self.noise, f"use {allowed}")

    @property
    def most_noise(self) -> float:
        """The noise that leaves nothing to tell: epsilon is 0 there, or only in the limit."""
        return math.inf

    @abstractmethod
    def event(self) -> Event:
        """Everything that is released under this plan, as an accountant sees it."""

    def with_noise(self, noise: float) -> Self:
        """The same plan with other noise."""
        return replace(self, noise=noise)

    def check_counts(self, *fields: str, least: int = 1) -> None:
        """Refuse a field below `least`."""
        for name in fields:
            check_least(name, getattr(self, name), least)
