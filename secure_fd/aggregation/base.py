"""One interface for every way of summing what clients send: vectors in, their sum out."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from secure_fd.errors import MissingClientError
from secure_fd.knowledge import IntArray, UnitArray, WordArray
from secure_fd.secagg.session import NO_NOISE, NoiseTerms


class Stage(StrEnum):
    """What a client that drops out does not send any more; later stages are missed as well."""

    PREPARE = "prepare"
    INPUT = "input"
    CONSISTENCY = "consistency"
    UNMASK = "unmask"


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes that one secure sum moved, by client, all stages and framing included.

    stages: messages that a client which stays to the end sends one after the other.
    """

    up: Mapping[int, int]
    down: Mapping[int, int]
    stages: int


@dataclass(frozen=True, slots=True, eq=False)
class SumResult:
    """What a secure sum gave, and exactly what the server saw on the way.

    total: [m] exact integer sums over the survivors, int64 where the sum had room for noise and
    uint64 else. survivors: the clients whose vectors are in
    the sum, ascending. missing: by client, the first stage that it did not answer; one that
    went missing after its input is a survivor all the same.
    payloads: by client, the words its payload held on the wire: packed values where nothing is
    masked, uniform words where they are; empty where the sum keeps no record of them.
    readable: whether the payloads are the clients' packed values in clear.
    """

    total: UnitArray
    traffic: Traffic
    payloads: Mapping[int, WordArray] = field(repr=False)
    readable: bool
    survivors: tuple[int, ...]
    missing: Mapping[int, Stage]


class VoidRoundError(MissingClientError):
    """Too few clients answered: the round ended with nothing revealed; the next may go on.

    missing: by client, the first stage that it did not answer. traffic: what moved all the same.
    """

    def __init__(self, message: str, missing: Mapping[int, Stage], traffic: Traffic) -> None:
        super().__init__(message)
        self.missing = missing
        self.traffic = traffic


class SecureSum(Protocol):
    """Sums integer vectors of a fixed cohort of clients."""

    @property
    def name(self) -> str:
        """The word that the command line and the report use."""

    @property
    def n_clients(self) -> int:
        """The cohort, numbered from 0."""

    @property
    def guarantee(self) -> str:
        """What the server learns, whom that trusts and what is assumed, in one sentence."""

    @property
    def hides(self) -> bool:
        """Whether the server sees sums only; noise that clients share is enough only then."""

    @property
    def caveats(self) -> tuple[str, ...]:
        """Insecure settings in force, for the report; empty by default."""

    def draw(self, round_index: int, population: int, count: int) -> IntArray | None:
        """[count] distinct numbers below `population`, ascending, that all clients drew together.

        None where clients have no say, and whoever runs the federation draws.
        """

    def sum(
        self,
        round_index: int,
        vectors: Mapping[int, UnitArray],
        bound: int,
        *,
        subject: bytes = b"",
        dropouts: Mapping[int, Stage] | None = None,
        noise: NoiseTerms = NO_NOISE,
    ) -> SumResult:
        """Sum vectors whose entries are integers in [0, bound].

        subject: a digest of what the vectors speak of (the round's proxies); clients that were
        given different subjects do not sum. dropouts: by client, the stage from which on it is
        silent; a client of the cohort without a vector is silent from the start. noise: where it
        has room, vectors are int64, each entry in [-room, bound + room] and each sum of k clients
        in [-room, k * bound + room], and where fewer inputs than its survivors arrive, the round
        is void.

        Raises LocalError for a value beyond that, before anything is sent, and VoidRoundError
        where too few clients are left.
        """
