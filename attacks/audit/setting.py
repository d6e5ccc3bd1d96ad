"""What every audit is given: the claim's terms, its confidence, its size and its randomness."""

import os
from dataclasses import dataclass, field, replace

import numpy as np

from secure_fd.errors import ConfigurationError
from secure_fd.knowledge import FloatArray
from secure_fd.privacy.entropy import Random, words

_LOOSE = 1e-2


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

    @property
    def loose(self) -> "Setting":
        """The same with bounds that are wrong with probability 1e-2 at most.

        For canaries too few to refute any claim otherwise: m right guesses of m are proof of an
        epsilon of about log(m / log(1 / miss)) and no more.
        """
        return replace(self, miss=max(self.miss, _LOOSE))

    def trials(self, full: int) -> int:
        """The number of trials where a full audit makes `full`."""
        return max(100, round(full * self.size))

    def generator(self) -> np.random.Generator:
        """For everything that is not the mechanism's own noise."""
        return np.random.default_rng([int(word) for word in words(self.random, 4)])

    def coins(self, count: int) -> FloatArray:
        """[count] fair coins, 0 or 1: which canaries are included."""
        return self.generator().integers(0, 2, count).astype(np.float64)
