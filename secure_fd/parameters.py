"""Model parameters as integers that may be summed exactly: FedAvg on the same secure sum."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from secure_fd.errors import ConfigurationError, LocalError
from secure_fd.knowledge import FloatArray, UnitArray, WordArray
from secure_fd.transcript import Float32Array


@dataclass(frozen=True, slots=True)
class ParameterCodec:
    """Fixed point: a weighted parameter in [-limit, limit] becomes an integer in [0, bound].

    shares: by client, its records over the largest client's, in (0, 1], public. resolution: steps
    in one unit; rounding moves a mean of K clients by at most half a step over the mean share.
    """

    shares: tuple[float, ...]
    limit: int = 16
    resolution: int = 1 << 22

    def __post_init__(self) -> None:
        if not self.shares or not all(0 < share <= 1 for share in self.shares):
            raise ConfigurationError("shares", self.shares, "use numbers above 0, at most 1")

    @property
    def bound(self) -> int:
        """Largest encoded integer."""
        return 2 * self.limit * self.resolution

    def encode(self, client: int, parameters: Float32Array) -> WordArray:
        """[m] integers of share * parameters. Raises LocalError where one does not fit."""
        weighted = parameters.astype(np.float64) * self.shares[client]
        if not (np.abs(weighted) <= self.limit).all():
            raise LocalError(
                f"parameters: one is not finite or beyond {self.limit}; training has diverged"
            )
        steps = np.rint((weighted + self.limit) * self.resolution)
        return np.asarray(steps, dtype=np.uint64)

    def decode(self, total: UnitArray, survivors: Sequence[int]) -> FloatArray:
        """[m] weighted mean over the clients in the sum, from the exact sum of their integers."""
        offset = len(survivors) * self.limit
        summed = total.astype(np.float64) / self.resolution - offset
        return np.asarray(summed / sum(self.shares[client] for client in survivors))

    def decode_one(self, client: int, values: UnitArray) -> Float32Array:
        """[m] parameters of one client, for whoever may read its upload."""
        summed = values.astype(np.float64) / self.resolution - self.limit
        return np.asarray(summed / self.shares[client], dtype=np.float32)
