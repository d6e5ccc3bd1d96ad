"""What a person with several records pays under DP-SGD."""

import math
from functools import cache
from typing import Final

from secure_fd.privacy.accountants import IntegerRenyi, accountant_for
from secure_fd.privacy.events import Event
from secure_fd.privacy.plans import TrainingPlan
from secure_fd.privacy.units import GROUP_SIZES

_MOST = 200.0
"""Epsilon beyond which nothing is stated."""

Groups = tuple[tuple[int, float], ...]


def group_epsilons(plan: TrainingPlan, delta: float) -> Groups:
    """(records, epsilon) for every size: neighbours that differ in so many records of one client.

    Without sampling, k records move a step's sum k times as far. Samples have no such curve here;
    the general bound does: (e, d) for one is (k e, d (exp(k e) - 1) / (exp(e) - 1)) for k (Vadhan,
    "The Complexity of Differential Privacy", 2017, lemma 2.2), at the d that serves best. Infinite
    beyond 200.

    >>> found = dict(group_epsilons(TrainingPlan(300, 30, 10, noise=2.0), 1e-5))
    >>> found[1] < found[2] < found[3]
    True
    """
    return tuple((size, _of(plan, delta, size)) for size in GROUP_SIZES)


@cache
def _of(plan: TrainingPlan, delta: float, size: int) -> float:
    if size > 1 and plan.sample_rate < 1:
        return _general(plan.event(), delta, size)
    event = plan.with_noise(plan.noise / size).event()
    found = accountant_for(event).epsilon(event, delta)
    return found if found <= _MOST else math.inf


_DROPS: Final = (0.0, *(1.12**k for k in range(58)))
"""log(delta / d) of the general bound: up to 700."""


@cache
def _single(event: Event, delta: float) -> tuple[tuple[float, float], ...]:
    """(drop, epsilon of one record at delta exp(-drop)) for all drops."""
    accountant = IntegerRenyi()
    return tuple((drop, accountant.epsilon(event, delta * math.exp(-drop))) for drop in _DROPS)


def _general(event: Event, delta: float, size: int) -> float:
    """The least k e among all drops whose bound stays within delta; infinite where none does."""
    for drop, epsilon in _single(event, delta):
        if size * epsilon > _MOST:
            return math.inf
        if epsilon == 0 or math.log(math.expm1(size * epsilon) / math.expm1(epsilon)) <= drop:
            return size * epsilon
    return math.inf
