"""Fixed-point codec of real vectors whose weighted mean the server computes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from secure_fd.errors import LocalError
from secure_fd.votes.codec import FloatArray, IntArray, UnitArray, WordArray

Values = NDArray[np.float64] | NDArray[np.float32]

_ROUNDING: Final = 1e-6
"""Relative excess of an entry over the limit that is accepted: rounding of 32-bit arithmetic."""


def record_shares(records: Sequence[int]) -> tuple[float, ...]:
    """Return each client's records over the largest client's.

    >>> record_shares((50, 100))
    (0.5, 1.0)
    """
    return tuple(count / max(records) for count in records)


@dataclass(frozen=True, slots=True)
class FixedPoint:
    """Codec of real vectors: a weighted entry in [-limit, limit] becomes an integer in [0, levels].

    Rounding moves a mean of K clients by at most half a step over their mean share.

    Attributes:
        shares: weight of each client, public, such as its records over the largest client's.
        limit: of a weighted entry.
        levels: steps from -limit to limit.

    >>> codec = FixedPoint((1.0, 0.5), limit=1.0, levels=1 << 17)
    >>> sent = codec.encode(0, np.array([0.25])) + codec.encode(1, np.array([1.0]))
    >>> codec.decode(sent, (0, 1)).round(4).tolist()
    [0.5]
    """

    shares: tuple[float, ...]
    limit: float
    levels: int

    def fits(self, client: int, values: Values) -> bool:
        """Return whether a client's values are finite, and small enough to be encoded."""
        return bool((np.abs(self._scaled(client, values)) <= 1.0 + _ROUNDING).all())

    def encode(self, client: int, values: Values) -> WordArray:
        """Encode the values [m] of one client, times its share.

        Raises:
            LocalError: a value is not finite or beyond the limit.
        """
        if not self.fits(client, values):
            raise LocalError(
                f"a value is not finite, or beyond {self.limit:g}; training has diverged"
            )
        scaled = np.clip(self._scaled(client, values), -1.0, 1.0)
        return np.rint((scaled + 1.0) * (self.levels / 2)).astype(np.uint64)

    def shift(self, values: IntArray, *, clip: bool) -> UnitArray:
        """Encode weighted values [m] that are integers already, in steps from the middle.

        Args:
            values: in steps.
            clip: whether they end at the limits; else noise in them may exceed these.
        """
        middle = self.levels // 2
        if not clip:
            return values + middle
        return (np.clip(values, -middle, middle) + middle).astype(np.uint64)

    def decode(self, total: UnitArray, survivors: Sequence[int]) -> FloatArray:
        """Decode the sum [m] of these clients' integers: their weighted mean."""
        summed = total.astype(np.float64) * (2 / self.levels) - len(survivors)
        weight = sum(self.shares[client] for client in survivors)
        return np.asarray(summed * self.limit / weight)

    def decode_each(
        self, uploads: Mapping[int, UnitArray] | None, part: slice = slice(None)
    ) -> dict[int, NDArray[np.float32]] | None:
        """Decode a part of each client's integers; None if no client's are readable."""
        if uploads is None:
            return None
        return {k: self.decode(v[part], (k,)).astype(np.float32) for k, v in uploads.items()}

    def _scaled(self, client: int, values: Values) -> FloatArray:
        return values.astype(np.float64) * (self.shares[client] / self.limit)
