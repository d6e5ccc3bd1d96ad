"""Result of an attack: a figure beside the same figure without access. It needs no PyTorch."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from secure_fd.errors import LocalError

ImageArray = NDArray[np.float32]
COLUMN_ERROR: Final = "column error"
"""Name of a figure that is the error of a reconstructed row: the lower, the more leaks."""
POSITIVE: Final = "positive_control"
"""Detail of a result: what the attack reaches where nothing protects clients."""
EXCESS: Final = "Δ"
"""Prefix of the name of a figure that is an excess over held-out images."""


@dataclass(frozen=True, slots=True)
class AttackResult:
    """Result of one attack: its figure, interval, and the control, the same figure without access.

    figure, control, interval: in `unit`; interval is (low, high) at 95 %. queries: to the
    oracle. n_members, n_non_members: how many private and held-out records scored it. values: how
    many values the figure is a mean of, and 0 where it is one for each private record.
    details: further figures by name. images (name -> [n, H, W] in [0, 1]): for plots, and in no
    file of results. Raises LocalError where a number is not finite.

    >>> print(AttackResult("a", "Who was a member", .8, "AUC", "", (.7, .9), .5, "a coin"))
    Who was a member: AUC 0.8 [0.7, 0.9]; a coin: 0.5
    """

    name: str
    title: str
    figure: float
    figure_name: str
    unit: str
    interval: tuple[float, float]
    control: float
    control_name: str
    queries: int = 0
    n_members: int = 0
    n_non_members: int = 0
    values: int = 0
    caveats: tuple[str, ...] = ()
    details: Mapping[str, float] = field(default_factory=dict)
    images: Mapping[str, ImageArray] | None = field(
        default=None, compare=False, repr=False, metadata={"json": "never"}
    )

    def __post_init__(self) -> None:
        numbers = {
            "figure": self.figure,
            "interval": sum(self.interval),
            "control": self.control,
            **self.details,
        }
        for name, value in numbers.items():
            if not math.isfinite(value):
                raise LocalError(f"{self.name}: {name} is {value}, which no report can show")
        if self.interval[0] > self.interval[1]:
            raise LocalError(f"{self.name}: interval {self.interval} is not [low, high]")

    def __str__(self) -> str:
        """Figure, interval and control in one line."""
        low, high = (f"{end:.3g}" for end in self.interval)
        found = f"{self.figure_name} {self.figure:.3g} [{low}, {high}] {self.unit}".rstrip()
        return f"{self.title}: {found}; {self.control_name}: {self.control:.3g}"

    @property
    def p_value(self) -> float:
        """The chance of so large a difference from the control, either way, if both were equal.

        It follows from the 95 % interval of n values. Its wider side is 1.96 standard errors, of a
        bootstrap that divides by n, so the error grows by sqrt(n / (n - 1)). The control is an
        estimate too, about as uncertain as the figure: their difference has sqrt(2) times that
        error, and Student's distribution with n - 1 degrees of freedom. Means of few and very
        skewed values are less sure than that. A figure without any spread differs with certainty,
        one of a single value never. Where the attack states a p-value of Δ, the larger one counts:
        it covers the choice of images, which the interval does not.
        """
        from attacks.core.statistics import differs_by_chance

        low, high = self.interval
        chance = differs_by_chance(
            self.figure - self.control,
            max(high - self.figure, self.figure - low),
            self.values or self.n_members,
        )
        # A p-value of Δ is about no other figure.
        excess = self.figure_name.startswith(EXCESS)
        return max(chance, self.details.get("delta_p_value", 0.0)) if excess else chance
