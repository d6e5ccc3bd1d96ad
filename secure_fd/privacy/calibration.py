"""Plans of releases, their epsilon, and the least noise that keeps an epsilon."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Self

from secure_fd.errors import ConfigurationError
from secure_fd.privacy.accountants import RENYI, Accountant, accountant_for
from secure_fd.privacy.events import Event, check_least

_TRIES = 300
_STRIDE = 4.0  # the most that one try may change the noise by
_MOST_NOISE = 1e12
_SLOW = 1e-6  # an accountant of a coarser resolution than this takes its time


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(ABC):
    """A release that can be priced before it is made. Its noise is never passed by position.

    noise: 0 is none; more never costs more.
    """

    noise: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.noise < math.inf:
            raise ConfigurationError("noise", self.noise, "use a finite number of 0 or more")

    @abstractmethod
    def event(self) -> Event:
        """Return everything that is released under this plan, as an accountant sees it."""

    def with_noise(self, noise: float) -> Self:
        """Return the same plan with other noise."""
        return replace(self, noise=noise)

    def check_counts(self, *fields: str, least: int = 1) -> None:
        """Raise ConfigurationError for a field below `least`."""
        for name in fields:
            check_least(name, getattr(self, name), least)


def epsilon(plan: Plan, delta: float) -> float:
    """Return epsilon of the plan's release at delta; infinite without noise.

    >>> from secure_fd.privacy.dp_sgd import TrainingPlan
    >>> plan = TrainingPlan(n_records=300, batch=300, steps=1, noise=2.0)
    >>> round(epsilon(plan, delta=1e-5), 2)
    1.99
    """
    event = plan.event()
    return accountant_for(event).epsilon(event, delta)


@lru_cache(maxsize=256)
def calibrate(epsilon: float, delta: float, plan: Plan) -> float:
    """Find the least noise with which the plan costs at most `epsilon`; 0 if that is infinite.

    `epsilon(plan.with_noise(calibrate(e, delta, plan)), delta)` is at most e, and below it by no
    more than the accountant's resolution. The plan's own noise does not matter.
    Raises ConfigurationError for an epsilon or a delta that no noise serves.

    >>> from secure_fd.privacy.dp_sgd import TrainingPlan
    >>> round(calibrate(4.0, 1e-5, TrainingPlan(n_records=300, batch=300, steps=1)), 3)
    1.081
    """
    if not epsilon > 0:
        raise ConfigurationError("epsilon", epsilon, "use a number above 0, or inf for no noise")
    if math.isinf(epsilon):
        return 0.0

    def price_by(accountant: Accountant) -> Callable[[float], float]:
        return lambda noise: accountant.epsilon(plan.with_noise(noise).event(), delta)

    start, accountant = 1.0, accountant_for(plan.with_noise(1.0).event())
    if accountant.resolution > _SLOW:
        start = least_noise(price_by(RENYI), epsilon, start, slack=0.1)
    return least_noise(price_by(accountant), epsilon, start, slack=accountant.resolution)


def least_noise(
    price: Callable[[float], float],
    epsilon: float,
    start: float,
    *,
    slack: float,
    most: float = _MOST_NOISE,
) -> float:
    """Find the least noise that costs `epsilon` or, by up to `slack` as a part of it, less.

    Args:
        price: from noise to epsilon; more noise never costs more.
        epsilon: finite and above 0.
        start: noise of the first try.
        slack: as a part of epsilon.
        most: largest noise to try.

    Raises:
        ConfigurationError: no noise is enough.
    """
    least = epsilon * (1 - slack)
    aim = (least + epsilon) / 2
    low, dear = 0.0, math.inf  # the most noise that is too little, and its price
    high, cheap = math.inf, 0.0  # the least noise that is enough, and its price
    noise = start
    for step in range(_TRIES):
        cost = price(noise)
        if cost > epsilon:
            low, dear = noise, cost
        else:
            high, cheap = noise, cost
        if least <= cost <= epsilon:
            break
        if low == 0 or math.isinf(high):
            noise *= min(max(cost / aim, 1 / _STRIDE), _STRIDE)
        else:
            noise = _between(low, dear, high, cheap, aim, by_power=step % 3 < 2)
        noise = min(noise, most)
        if noise in (0.0, low, high):
            break
    if math.isinf(high):
        raise ConfigurationError("epsilon", epsilon, "no noise is enough for it: use a larger one")
    return high


def _between(
    low: float, dear: float, high: float, cheap: float, aim: float, *, by_power: bool
) -> float:
    """Return where a power law through both prices meets the aim, or else the middle.

    Epsilon falls nearly as a power of the noise, so a line between logarithms is soon right; the
    middle keeps the interval shrinking where it is not.
    """
    if by_power and cheap > 0 and dear < math.inf:
        share = math.log(dear / aim) / math.log(dear / cheap)
        met = low * math.pow(high / low, share)
        if low < met < high:
            return met
    return low * math.sqrt(high / low)
