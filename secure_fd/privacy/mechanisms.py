"""Noise is added only to a value that carries its sensitivity, and the event is made with it.

Integers in, integers out: floating-point noise would leave its low bits behind (Mironov, 2012).
"""

from dataclasses import dataclass, field
from typing import NoReturn

import numpy as np

from secure_fd.errors import LocalError
from secure_fd.knowledge import IntArray
from secure_fd.privacy.discrete_gaussian import discrete_gaussian
from secure_fd.privacy.entropy import Random
from secure_fd.privacy.events import DiscreteGaussian


@dataclass(frozen=True, slots=True, eq=False)
class Bounded:
    """Integers before any noise, so private, and the most that a neighbour moves them.

    values: of any shape, in units. l2: sensitivity in units, of all entries together.
    """

    values: IntArray = field(repr=False)
    l2: int

    def __post_init__(self) -> None:
        _check_integers(self.values)
        if not self.l2 > 0:
            raise LocalError(f"l2: {self.l2} is no sensitivity; use the units a neighbour may move")

    def rows(self, indices: tuple[int, ...]) -> "Bounded":
        """Some of the rows: leaving entries out moves nothing further."""
        return Bounded(self.values[list(indices)], self.l2)

    def __reduce__(self) -> NoReturn:
        raise LocalError("values without noise stay in this process: they cannot be pickled")


@dataclass(frozen=True, slots=True, eq=False)
class Noisy:
    """Integers under noise, and what an accountant must be told of it. `add_...` makes them.

    values: of the shape that the bounded ones had, in their units.
    """

    values: IntArray = field(repr=False)
    event: DiscreteGaussian

    def __post_init__(self) -> None:
        _check_integers(self.values)


def add_discrete_gaussian(bounded: Bounded, noise_multiplier: float, random: Random) -> Noisy:
    """Independent discrete Gaussian noise of sigma = noise_multiplier * l2 on every entry.

    Canonne, Kamath and Steinke, "The Discrete Gaussian for Differential Privacy" (2020), theorem
    14. A noise multiplier of 0 adds nothing and draws nothing.
    """
    event = DiscreteGaussian(noise_multiplier)
    noise = discrete_gaussian(noise_multiplier * bounded.l2, bounded.values.size, random)
    return Noisy(bounded.values + noise.reshape(bounded.values.shape), event)


def _check_integers(values: IntArray) -> None:
    if values.dtype != np.int64:
        raise LocalError(f"values: {values.dtype} is not allowed; only integers take exact noise")
