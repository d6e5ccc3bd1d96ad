"""Renyi differential privacy: divergences add up order by order (Mironov, 2017)."""

from collections import Counter
from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np

from secure_fd.knowledge import FloatArray
from secure_fd.privacy.accountants.base import parts_for, renyi_epsilon
from secure_fd.privacy.accountants.concentrated import Concentrated
from secure_fd.privacy.accountants.curves import divergence
from secure_fd.privacy.events import Event, Primitive, Response, primitives

# Any order is sound: the grids cost accuracy, not privacy.
_ORDERS: FloatArray = 1.0 + np.logspace(-6, 6, 6001)
_INTEGERS: FloatArray = np.unique(
    np.concatenate([np.arange(2, 65), np.logspace(6, 11, 41, base=2).round()])
).astype(np.float64)


@final
@dataclass(frozen=True, slots=True)
class Renyi:
    """Answers by their exact curve, alone or with Gaussians, on 6,001 orders from 1 to 10^6."""

    name: ClassVar = "Renyi, exact for each answer, converted by Canonne et al. (2020)"
    resolution: ClassVar = 1e-9

    def supports(self, event: Event) -> bool:
        """All whose curve is known at real orders."""
        return all(isinstance(part, Response | Concentrated) for part in primitives(event))

    def epsilon(self, event: Event, delta: float) -> float:
        """By the best order; for answers alone never above the sum of their epsilons."""
        parts = parts_for(self, event, delta)
        answers = {p: times for p, times in parts.items() if isinstance(p, Response)}
        converted = renyi_epsilon(_ORDERS, _total(parts, _ORDERS), delta)
        if len(answers) < len(parts):
            return converted
        return min(converted, sum(times * p.epsilon for p, times in answers.items()))


@final
@dataclass(frozen=True, slots=True)
class IntegerRenyi:
    """Everything, on integer orders from 2 to 2,048, where samples and Skellam have their bounds.

    Sampled Gaussians by Mironov, Talwar and Zhang (2019), other samples by Zhu and Wang (2019),
    Skellam by Agarwal, Kairouz and Liu (2021).
    """

    name: ClassVar = "Renyi on integer orders, converted by Canonne et al. (2020)"
    resolution: ClassVar = 1e-9

    def supports(self, event: Event) -> bool:  # noqa: ARG002 - all of them
        """Any event."""
        return True

    def epsilon(self, event: Event, delta: float) -> float:
        """By the best order."""
        parts = parts_for(self, event, delta)
        return renyi_epsilon(_INTEGERS, _total(parts, _INTEGERS), delta)


def _total(parts: Counter[Primitive], orders: FloatArray) -> FloatArray:
    total = np.zeros(orders.shape)
    for part, times in parts.items():
        total += times * divergence(part, orders)
    return total
