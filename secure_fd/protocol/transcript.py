"""Recorder of a run: exactly what each party saw, its bytes, its rounds and CPU time.

An attack may be built from the transcript alone.
"""

import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from secure_fd.crypto.keys import WORD
from secure_fd.secagg.session import MessageType, RoundTerms
from secure_fd.secure_sum.base import SumClient, SumServer
from secure_fd.votes.codec import Ensemble, IntArray, UnitArray, WordArray
from secure_fd.votes.packing import LaneLayout
from secure_fd.wire import HEADER_BYTES, Kind, Stage, Sum

if TYPE_CHECKING:
    from secure_fd.selection.density_ratio import ReferenceSettings


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


@dataclass(frozen=True, slots=True)
class RoundReport:
    """One round in figures.

    kept: share of the round's proxies that teach (of the classes that clients hold, where there
    are no proxies). single: share of the answered proxies at which
    one client gives nine tenths of the count or more, whose released vote no sum can hide.
    bytes_up, bytes_down: mean over clients, from the start until now. survivors: the clients in
    the sum. missing: clients and the stage from which on each was silent. refused: clients that
    sent something bad, or that refused what they were sent, and why, in a sentence.

    >>> RoundReport(0, 1.0, 0.0, 100.0, 200.0, survivors=(0, 1), missing=()).aborted
    False
    """

    index: int
    kept: float
    single: float
    bytes_up: float
    bytes_down: float
    survivors: tuple[int, ...]
    missing: tuple[tuple[int, Stage], ...]
    aborted: bool = False
    """Whether too few answered, or what they sent is no sum: no result was sent."""
    why: str = ""
    """Of an aborted round, in a sentence."""
    refused: tuple[tuple[int, str], ...] = ()


_PLAIN: Final = Kind.INPUT.to_bytes(2, "big")
_MASKED: Final = MessageType.MASKED.to_bytes(2, "big")


@dataclass(frozen=True, slots=True, eq=False)
class ObservedSum:
    """One sum as the server saw it.

    payloads: by client, the words of its input, where a record is kept. readable: whether these
    are values in clear. position: of the sum among those of its round.
    """

    result: Sum
    payloads: Mapping[int, WordArray] = field(repr=False)
    readable: bool
    position: int = 0


class TimedSum:
    """Role of a sum whose methods run under a stopwatch."""

    def __init__(self, inner: SumClient | SumServer, watch: Stopwatch) -> None:
        self.inner, self._watch = inner, watch

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - as the inner one's
        found = getattr(self.inner, name)

        def timed(*given: object) -> object:
            with self._watch:
                return found(*given)

        return timed if callable(found) else found


class RecordedSum:
    """Server role of a sum that keeps the words of every input it takes, by client.

    Inputs are words where they are in clear or masked; of other sums nothing is kept. keep: False
    keeps the sums alone.
    """

    def __init__(self, inner: SumServer, n_clients: int) -> None:
        self.inner, self._n_clients, self.keep = inner, n_clients, True
        self._inputs: dict[int, WordArray] = {}
        self.readable = False
        """True if inputs of the newest sum are kept that were in clear."""
        self.seen: list[ObservedSum] = []
        """The sums that came about, in order; its reader may empty the list."""

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - as the inner one's
        return getattr(self.inner, name)

    def open(self, terms: RoundTerms) -> Mapping[int, bytes]:
        """Begin the next sum."""
        self._terms, self._inputs, self.readable = terms, {}, False
        return self.inner.open(terms)

    def receive(self, sender: int, data: bytes) -> None:
        """Take a message, and keep the words of an input that is taken."""
        kind, due = data[2:4], self.inner.stage is Stage.INPUT and sender in self.inner.waiting
        self.inner.receive(sender, data)
        if self.keep and due and kind in (_PLAIN, _MASKED):
            terms, self.readable = self._terms, kind == _PLAIN
            start = HEADER_BYTES + (len(terms.subject) if self.readable else 0)
            layout = LaneLayout(self._n_clients, terms.bound, terms.noise.room)
            words = np.frombuffer(data, WORD, layout.words(terms.length), start)
            self._inputs[sender] = words.astype(np.uint64, copy=False)

    def advance(self) -> Mapping[int, bytes]:
        """Close the stage; a sum that came about is kept with its inputs."""
        relayed, result = self.inner.advance(), self.inner.result
        if not self.inner.busy and result is not None:
            inputs = {k: self._inputs[k] for k in result.survivors if k in self._inputs}
            self.seen.append(ObservedSum(result, inputs, self.readable, position=len(self.seen)))
        return relayed


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
        seen: ObservedSum,
        ensemble: Ensemble,
        levels: int,
        n_clients: int,
        room: int = 0,
    ) -> "DistillationRound":
        """The round of a sum of votes; room: for noise in each of its integers."""
        total = seen.result.total
        return cls(
            index=index,
            proxy_indices=ensemble.indices,
            levels=levels,
            uploads=uploads_of(seen, n_clients, levels, room, len(total)),
            payloads=dict(seen.payloads),
            total=total,
            ensemble=ensemble,
            survivors=seen.result.survivors,
        )


@dataclass(frozen=True, slots=True, eq=False)
class ParameterRound:
    """One round of FedAvg: the global parameters that every party holds after it, flattened.

    uploads: by client, its parameters as the server read them, or None under masks. total: what the
    server read of a sum of statistics, as the mean over its records.
    """

    index: int
    uploads: Mapping[int, Float32Array] | None = field(repr=False)
    payloads: Mapping[int, WordArray] = field(repr=False)
    parameters: Float32Array = field(repr=False)
    total: Float32Array | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True, eq=False)
class GeneratorRound:
    """A generator that every party holds: the one that made a round's x, parameters flattened.

    uploads: by client, its generator in the newest sum as the server read it, or None under masks.
    """

    index: int
    uploads: Mapping[int, Float32Array] | None = field(repr=False)
    parameters: Float32Array = field(repr=False)


@dataclass(frozen=True, slots=True, eq=False)
class SurveyRound:
    """The sum in which clients said what they know, see `methods.survey`.

    uploads: by client, its integers as the server read them, or None under masks. total: the sum.
    """

    index: int
    uploads: Mapping[int, UnitArray] | None = field(repr=False)
    total: UnitArray = field(repr=False)


@dataclass(frozen=True, slots=True, eq=False)
class VotersRound:
    """The sum that says how many clients answer each proxy, see `methods.min_voters`.

    uploads: by client, its bits [m] as the server read them, or None under masks. counts: [m] the
    sum. survivors: the clients in it.
    """

    index: int
    proxy_indices: IntArray
    uploads: Mapping[int, UnitArray] | None = field(repr=False)
    counts: UnitArray = field(repr=False)
    survivors: tuple[int, ...]


@dataclass(slots=True)
class Transcript:
    """A run's rounds in order, the bytes that each client sent and received, and who was missing.

    survivors: clients in the sum of each round that gave one. aborted_rounds: those that gave none.
    missing: rounds in which a client fell silent, by client and stage, aborted rounds included.
    refused: by client that sent something bad or refused, why it last was so. keep_uploads: whether
    every round of shared parameters keeps what the server read of each client, and not the newest
    alone, or which rounds do beside it; see `upload_bytes`.

    >>> made = Transcript(2)
    >>> made.broadcast(10)
    >>> made.down.tolist()
    [10, 10]
    """

    n_clients: int
    keep_uploads: bool | Collection[int] = False
    keep_inputs: bool = True
    """Whether the words of inputs are kept at all."""
    proxies_bytes: int | None = None
    """Of the proxies as they are sent, where clients see features of them."""
    up: NDArray[np.int64] = field(init=False)
    down: NDArray[np.int64] = field(init=False)
    distillation: list[DistillationRound] = field(default_factory=list, repr=False)
    parameters: list[ParameterRound] = field(default_factory=list, repr=False)
    generated: list[DistillationRound] = field(default_factory=list, repr=False)
    """Votes about samples of a generator: indices name no proxies, and no ensemble is sent."""
    heads: list[ParameterRound] = field(default_factory=list, repr=False)
    """Of methods that share statistics of records: what was sent, their sum, the head of it."""
    features: "ReferenceSettings | None" = None
    """Of the public map that these heads are on."""
    generator: GeneratorRound | None = field(default=None, repr=False)
    """The newest, of a method that has one."""
    survey: SurveyRound | None = field(default=None, repr=False)
    """Of a method that asks clients first what they know."""
    voters: list[VotersRound] = field(default_factory=list, repr=False)
    """Of a method that counts voters before it asks for votes."""
    survivors: list[int] = field(default_factory=list)
    aborted_rounds: int = 0
    missing: Counter[tuple[int, Stage]] = field(default_factory=Counter)
    refused: dict[int, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.up = np.zeros(self.n_clients, dtype=np.int64)
        self.down = np.zeros(self.n_clients, dtype=np.int64)

    def close(self, survivors: Sequence[int] | None, missing: Mapping[int, Stage]) -> None:
        """Count a round's survivors, None where it was aborted, and who was missing from it."""
        if survivors is None:
            self.aborted_rounds += 1
        else:
            self.survivors.append(len(survivors))
        self.missing.update(missing.items())

    def broadcast(self, size: int) -> None:
        """Add one message of `size` bytes from the server to every client."""
        self.down += size

    def add_parameters(self, record: ParameterRound) -> None:
        """Keep a FedAvg round; only the newest keeps its words on the wire, which are large.

        Uploads of older rounds stay where they are asked for.
        """
        if self.parameters:
            last = self.parameters[-1]
            uploads = last.uploads if self._keeps(last.index) else None
            self.parameters[-1] = ParameterRound(last.index, uploads, {}, last.parameters)
        self.parameters.append(record)

    def _keeps(self, index: int) -> bool:
        keep = self.keep_uploads
        return keep if isinstance(keep, bool) else index in keep

    @property
    def upload_bytes(self) -> int:
        """Memory of all parameters that clients were read to send: 4 bytes each, client and round.

        >>> ones = np.ones(10, dtype=np.float32)
        >>> made = Transcript(2, keep_uploads=True)
        >>> for index in range(3):
        ...     made.add_parameters(ParameterRound(index, {0: ones, 1: ones}, {}, ones))
        >>> made.upload_bytes
        240
        """
        read = [kept.uploads for kept in self.parameters if kept.uploads is not None]
        return sum(own.nbytes for uploads in read for own in uploads.values())


def uploads_of(
    seen: ObservedSum, n_clients: int, bound: int, room: int, length: int
) -> Mapping[int, UnitArray] | None:
    """By survivor, the integers [length] of its input where the wire shows them; else None."""
    if not seen.readable:
        return None
    layout = LaneLayout(n_clients, bound, room)
    return {k: layout.unpack(seen.payloads[k], length) for k in seen.result.survivors}
