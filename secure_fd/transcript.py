"""CPU time of this process, added up over many stretches."""

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

from secure_fd.aggregation.base import Stage, SumResult, Traffic, VoidRoundError
from secure_fd.knowledge import Ensemble, IntArray, UnitArray, WordArray


class Stopwatch:
    """Runs inside `with`. seconds: of CPU so far, in this process and all of its threads."""

    __slots__ = ("_start", "seconds")

    def __init__(self) -> None:
        self.seconds = 0.0

    def __enter__(self) -> None:
        self._start = time.process_time()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.seconds += time.process_time() - self._start


# What a caller is told of each round while a federation runs.


@dataclass(frozen=True, slots=True)
class RoundReport:
    """One round in figures.

    kept: share of the round's proxies that teach. single: share of the answered proxies at which
    one client gives nine tenths of the count or more, whose released vote no sum can hide.
    bytes_up, bytes_down: mean over clients, from the start until now. survivors: the clients in
    the sum. missing: clients and the stage from which on each was silent.
    """

    index: int
    kept: float
    single: float
    bytes_up: float
    bytes_down: float
    survivors: tuple[int, ...]
    missing: tuple[tuple[int, Stage], ...]

    @property
    def void(self) -> bool:
        """Whether too few clients answered: nothing was summed, and nobody was sent anything."""
        return not self.survivors


# Exactly what each party saw, and its bytes: the only thing an attack may be built from.


Float32Array = NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class DistillationRound:
    """One round of a distillation method, as it crossed the boundary.

    uploads: by client, the integers [m * C] that the server could read, or None under masks.
    payloads: by client, the words on the wire. total: [m * C] the sum. levels: units a vote.
    ensemble: what the server sent back to every client. survivors: the clients in the sum, which
    the server knows, and every client that stayed to the end.
    """

    index: int
    proxy_indices: IntArray
    levels: int
    uploads: Mapping[int, UnitArray] | None = field(repr=False)
    payloads: Mapping[int, WordArray] = field(repr=False)
    total: UnitArray = field(repr=False)
    ensemble: Ensemble = field(repr=False)
    survivors: tuple[int, ...]

    @classmethod
    def of(
        cls,
        index: int,
        levels: int,
        vectors: Mapping[int, UnitArray],
        result: SumResult,
        ensemble: Ensemble,
    ) -> "DistillationRound":
        """From what the clients put into a sum, what came out and what the server made of it."""
        return cls(
            index=index,
            proxy_indices=ensemble.indices,
            levels=levels,
            uploads=readable_uploads(result, vectors),
            payloads=result.payloads,
            total=result.total,
            ensemble=ensemble,
            survivors=result.survivors,
        )


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
    """A run's rounds in order, the bytes that each client sent and received, and who was missing.

    survivors: clients in the sum of each round that gave one. void_rounds: rounds that gave none.
    missing: rounds in which a client fell silent, by client and stage, void rounds included.
    """

    n_clients: int
    up: NDArray[np.int64] = field(init=False)
    down: NDArray[np.int64] = field(init=False)
    distillation: list[DistillationRound] = field(default_factory=list, repr=False)
    parameters: list[ParameterRound] = field(default_factory=list, repr=False)
    survivors: list[int] = field(default_factory=list)
    void_rounds: int = 0
    missing: Counter[tuple[int, Stage]] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.up = np.zeros(self.n_clients, dtype=np.int64)
        self.down = np.zeros(self.n_clients, dtype=np.int64)

    def count(self, result: SumResult) -> None:
        """Add the bytes of one secure sum, and who was missing from it."""
        self._count(result.traffic, result.missing)
        self.survivors.append(len(result.survivors))

    def count_void(self, ended: VoidRoundError) -> None:
        """Add the bytes of a round that ended without a sum, and who was missing from it."""
        self._count(ended.traffic, ended.missing)
        self.void_rounds += 1

    def broadcast(self, size: int) -> None:
        """Add one message of `size` bytes from the server to every client."""
        self.down += size

    def send(self, clients: Sequence[int], sizes: NDArray[np.int64]) -> None:
        """Add messages of sizes [n] bytes from the server to these clients [n]."""
        self.down[list(clients)] += sizes

    def add_parameters(self, record: ParameterRound) -> None:
        """Keep a FedAvg round; only the newest keeps its per-client data, which is large."""
        if self.parameters:
            last = self.parameters[-1]
            self.parameters[-1] = ParameterRound(last.index, None, {}, last.parameters)
        self.parameters.append(record)

    def _count(self, traffic: Traffic, missing: Mapping[int, Stage]) -> None:
        for client, size in traffic.up.items():
            self.up[client] += size
        for client, size in traffic.down.items():
            self.down[client] += size
        self.missing.update(missing.items())


def readable_uploads(
    result: SumResult, values: Mapping[int, UnitArray]
) -> Mapping[int, UnitArray] | None:
    """The survivors' values where the wire shows them, None where masks hide them."""
    return {k: values[k] for k in result.survivors} if result.readable else None
