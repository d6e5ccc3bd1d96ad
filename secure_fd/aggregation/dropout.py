"""Clients that fall silent: a plan of simulated faults, the same for every sum that it is put to.

Nothing here belongs to a deployment, where clients drop out by themselves.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from secure_fd.aggregation.base import Stage
from secure_fd.errors import ConfigurationError

_STAGES: Final = tuple(Stage)


@dataclass(frozen=True, slots=True)
class Dropouts:
    """Every client drops out of every round by itself, at a stage that is as likely as any other.

    rate: chance in [0, 1) of one client in one round. seed: 0 or more; it decides the whole plan.
    """

    rate: float
    seed: int

    def __post_init__(self) -> None:
        if not 0 <= self.rate < 1:
            raise ConfigurationError("rate", self.rate, "use a number from 0 to less than 1")
        if self.seed < 0:
            raise ConfigurationError("seed", self.seed, "use 0 or more")

    def plan(self, round_index: int, n_clients: int) -> dict[int, Stage]:
        """By client that drops out of the round, the stage from which on it is silent."""
        rng = np.random.default_rng((self.seed, round_index))
        lost = rng.random(n_clients) < self.rate
        stages = rng.integers(len(_STAGES), size=n_clients)
        return {int(k): _STAGES[stages[k]] for k in np.flatnonzero(lost)}
