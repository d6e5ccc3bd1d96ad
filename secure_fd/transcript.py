"""Exactly what each party saw, and its bytes: the only thing an attack may be built from."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from secure_fd.aggregation.base import SumResult, Traffic
from secure_fd.knowledge import Ensemble, IntArray, WordArray

Float32Array = NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class DistillationRound:
    """One round of a distillation method, as it crossed the boundary.

    uploads: by client, the integers [m * C] that the server could read, or None under masks.
    payloads: by client, the words on the wire. total: [m * C] the sum. levels: units a vote.
    ensemble: what the server sent back to every client.
    """

    index: int
    proxy_indices: IntArray
    levels: int
    uploads: Mapping[int, WordArray] | None = field(repr=False)
    payloads: Mapping[int, WordArray] = field(repr=False)
    total: WordArray = field(repr=False)
    ensemble: Ensemble = field(repr=False)


@dataclass(frozen=True, slots=True, eq=False)
class ParameterRound:
    """One round of FedAvg: the global parameters that every party holds after it, flattened.

    uploads: by client, its parameters as the server read them, or None under masks.
    """

    index: int
    uploads: Mapping[int, Float32Array] | None = field(repr=False)
    payloads: Mapping[int, WordArray] = field(repr=False)
    parameters: Float32Array = field(repr=False)


@dataclass(slots=True)
class Transcript:
    """A run's rounds in order, and the bytes that each client sent and received."""

    n_clients: int
    up: NDArray[np.int64] = field(init=False)
    down: NDArray[np.int64] = field(init=False)
    distillation: list[DistillationRound] = field(default_factory=list, repr=False)
    parameters: list[ParameterRound] = field(default_factory=list, repr=False)

    def __post_init__(self) -> None:
        self.up = np.zeros(self.n_clients, dtype=np.int64)
        self.down = np.zeros(self.n_clients, dtype=np.int64)

    def count(self, traffic: Traffic) -> None:
        """Add the bytes of one secure sum."""
        for client, size in traffic.up.items():
            self.up[client] += size
        for client, size in traffic.down.items():
            self.down[client] += size

    def broadcast(self, size: int) -> None:
        """Add one message of `size` bytes from the server to every client."""
        self.down += size

    def add_parameters(self, record: ParameterRound) -> None:
        """Keep a FedAvg round; only the newest keeps its per-client data, which is large."""
        if self.parameters:
            last = self.parameters[-1]
            self.parameters[-1] = ParameterRound(last.index, None, {}, last.parameters)
        self.parameters.append(record)


def readable_uploads(
    result: SumResult, values: Mapping[int, WordArray]
) -> Mapping[int, WordArray] | None:
    """The clients' values where the wire shows them, None where masks hide them."""
    return dict(values) if result.readable else None
