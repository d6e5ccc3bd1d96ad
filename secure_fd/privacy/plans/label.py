"""The label unit: deniable answers, and what many of them cost a client."""

import math
from dataclasses import dataclass
from typing import final

from secure_fd.errors import ConfigurationError
from secure_fd.privacy.events import Event, Repeated, Response
from secure_fd.privacy.plans.base import Noisy, Sensitivity
from secure_fd.privacy.units import PrivacyUnit


@final
@dataclass(frozen=True, slots=True)
class LabelPlan(Noisy):
    """Answers about proxies, each a subset of the symbols that leans towards the truth.

    alphabet_size: symbols, abstain included. subset_size: symbols named in one answer; 1 is
    randomised response. releases: 1 is the label unit; more is what that many answers of one
    network cost a record or the client, for both may change them all. noise: the probability that
    the truth is not in an answer, at most that of an answer made blindly.
    """

    alphabet_size: int
    subset_size: int = 1
    releases: int = 1

    def __post_init__(self) -> None:
        Response(0.0, self.alphabet_size, self.subset_size)  # refuses impossible sizes
        if not self.releases >= 0:
            raise ConfigurationError("releases", self.releases, "use 0 or more")
        Noisy.__post_init__(self)

    @property
    def unit(self) -> PrivacyUnit:
        """The label for one answer; for more, the client, and any record of it."""
        return PrivacyUnit.LABEL if self.releases == 1 else PrivacyUnit.CLIENT

    @property
    def neighbours(self) -> str:
        """One answer, or all."""
        if self.releases == 1:
            return "one released symbol of one (client, proxy) pair, abstain included"
        return f"all {self.releases:,} released symbols of one client, abstain included"

    @property
    def sensitivity(self) -> Sensitivity:
        """Every answer may change, to any other symbol."""
        return Sensitivity("Hamming", self.releases, "the symbols that a client answers")

    @property
    def mechanism(self) -> str:
        """Randomised response, or its form with subsets."""
        single = self.subset_size == 1
        return "randomised response" if single else f"subsets of {self.subset_size} symbols"

    @property
    def most_noise(self) -> float:
        """How often a subset that is drawn blindly misses the truth."""
        return 1 - self.subset_size / self.alphabet_size

    @property
    def answer_epsilon(self) -> float:
        """Of one answer: log of the odds of holding the truth, against those of a blind one."""
        if self.noise == 0:
            return math.inf
        others = (self.alphabet_size - self.subset_size) / self.subset_size
        return max(0.0, math.log(others * (1 - self.noise) / self.noise))

    def event(self) -> Event:
        """So many answers."""
        answer = Response(self.answer_epsilon, self.alphabet_size, self.subset_size)
        return Repeated(answer, self.releases)
