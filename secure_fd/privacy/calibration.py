"""From a plan to its epsilon, and from an epsilon to the least noise that keeps it."""

import math
from functools import lru_cache
from typing import NamedTuple

from secure_fd.errors import ConfigurationError
from secure_fd.privacy.accountants import RENYI, Accountant, accountant_for
from secure_fd.privacy.plan import Plan

_TRIES = 300
_STRIDE = 4.0  # the most that one try may change the noise by
_MOST_NOISE = 1e12
_SLOW = 1e-6  # an accountant of a coarser resolution than this takes its time


def epsilon(plan: Plan, delta: float) -> float:
    """Epsilon of the plan's release at delta; infinite without noise. Delta may be 0 if pure.

    >>> from secure_fd.privacy.dp_sgd import TrainingPlan
    >>> plan = TrainingPlan(n_records=300, batch=300, steps=1, noise=2.0)
    >>> round(epsilon(plan, delta=1e-5), 2)
    1.99
    """
    event = plan.event()
    return accountant_for(event).epsilon(event, delta)


@lru_cache(maxsize=256)
def calibrate(epsilon: float, delta: float, plan: Plan) -> float:
    """Find the least noise with which the plan costs at most `epsilon`; 0 where that is infinite.

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
    start = min(1.0, plan.most_noise / 2)
    accountant = accountant_for(plan.with_noise(start).event())
    if accountant.resolution > _SLOW:
        start = _least_noise(RENYI, epsilon, delta, plan, start, slack=0.1)
    return _least_noise(accountant, epsilon, delta, plan, start, slack=accountant.resolution)


def _least_noise(
    accountant: Accountant, epsilon: float, delta: float, plan: Plan, start: float, *, slack: float
) -> float:
    """The least noise that costs `epsilon` or, by up to `slack` as a part of it, less."""
    least, most_noise = epsilon * (1 - slack), min(plan.most_noise, _MOST_NOISE)
    too_little: _Try | None = None
    enough: _Try | None = None
    noise = start
    for step in range(_TRIES):
        tried = _Try(noise, accountant.epsilon(plan.with_noise(noise).event(), delta))
        if tried.cost > epsilon:
            too_little = tried
        else:
            enough = tried
        if least <= tried.cost <= epsilon:
            break
        noise = min(_next(too_little, enough, (least + epsilon) / 2, step), most_noise)
        if noise in (0.0, *(end.noise for end in (too_little, enough) if end)):
            break
    if enough is None:
        raise ConfigurationError("epsilon", epsilon, "no noise is enough for it: use a larger one")
    return enough.noise


class _Try(NamedTuple):
    noise: float
    cost: float


def _next(too_little: _Try | None, enough: _Try | None, aim: float, step: int) -> float:
    """Where a power law through what is known meets the aim; now and then the middle instead.

    Epsilon falls nearly as a power of the noise, so a line between logarithms is soon right; the
    middle keeps the interval shrinking where it is not.
    """
    if too_little is None or enough is None:
        (end,) = (tried for tried in (too_little, enough) if tried)
        return end.noise * min(max(end.cost / aim, 1 / _STRIDE), _STRIDE)
    low, high = too_little.noise, enough.noise
    if enough.cost > 0 and too_little.cost < math.inf and step % 3 < 2:
        share = math.log(too_little.cost / aim) / math.log(too_little.cost / enough.cost)
        met = low * math.pow(high / low, share)
        if low < met < high:
            return met
    return low * math.sqrt(high / low)
