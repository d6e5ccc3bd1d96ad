"""One interface for every way of summing what clients send: vectors in, their sum out."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import ClassVar, Final, Protocol

import numpy as np

from secure_fd.errors import ConfigurationError, LocalError, MissingClientError
from secure_fd.knowledge import IntArray, UnitArray, WordArray
from secure_fd.secagg.packing import LaneLayout
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


# Checks that every secure sum makes on its input before anything is sent, and who is left.


_BEFORE_INPUT = (Stage.PREPARE, Stage.INPUT)


def agreed_length(vectors: Mapping[int, UnitArray], n_clients: int) -> int:
    """The one length of all vectors; LocalError for an unknown client, or lengths that differ.

    Raises VoidRoundError where there is no vector at all.
    """
    _check_known(vectors, n_clients)
    shapes = {vector.shape for vector in vectors.values()}
    if len(shapes) > 1:
        raise LocalError(f"vectors of one sum need one length, not {sorted(shapes)}")
    if not shapes:
        nobody = dict.fromkeys(range(n_clients), Stage.PREPARE)
        raise VoidRoundError("no client has a vector; nothing is sent", nobody, Traffic({}, {}, 0))
    return int(next(iter(vectors.values())).size)


def absences(
    vectors: Mapping[int, UnitArray],
    n_clients: int,
    dropouts: Mapping[int, Stage] | None,
) -> dict[int, Stage]:
    """By client, ascending, the first stage that it does not answer.

    A client without a vector is silent from the start. LocalError for an unknown client.
    """
    silent = dict(dropouts or {})
    _check_known(silent, n_clients)
    silent |= {client: Stage.PREPARE for client in range(n_clients) if client not in vectors}
    return dict(sorted(silent.items()))


def uploaders(missing: Mapping[int, Stage], n_clients: int) -> tuple[int, ...]:
    """The clients whose input arrives, ascending: all that are not silent until after it."""
    return tuple(k for k in range(n_clients) if missing.get(k) not in _BEFORE_INPUT)


def _check_known(clients: Mapping[int, object], n_clients: int) -> None:
    unknown = sorted(set(clients) - set(range(n_clients)))
    if unknown:
        raise LocalError(f"clients {unknown} are not of the cohort 0 to {n_clients - 1}")


# The sum without protection: the server reads every client's values. The baseline.


class PlainSum:
    """Packs as the masked sum does, masks nothing; one stage, no framing.

    n_clients: the cohort, numbered from 0.
    """

    name: ClassVar[str] = "plain"
    hides: ClassVar[bool] = False
    guarantee: ClassVar[str] = (
        "None: the server reads every client's values, and adds them up as it is trusted to do."
    )
    caveats: ClassVar[tuple[str, ...]] = ()

    def __init__(self, n_clients: int) -> None:
        self.n_clients = n_clients

    def draw(self, round_index: int, population: int, count: int) -> None:
        """None: clients that trust the server with their values have no say here either."""

    def sum(
        self,
        round_index: int,
        vectors: Mapping[int, UnitArray],
        bound: int,
        *,
        subject: bytes = b"",  # noqa: ARG002 - nothing binds a sum in clear
        dropouts: Mapping[int, Stage] | None = None,
        noise: NoiseTerms = NO_NOISE,
    ) -> SumResult:
        """See SecureSum.sum. One input is enough without noise; only INPUT sends anything."""
        length = agreed_length(vectors, self.n_clients)
        layout = LaneLayout(self.n_clients, bound, noise.room)
        missing = absences(vectors, self.n_clients, dropouts)
        survivors = uploaders(missing, self.n_clients)
        least = max(1, noise.survivors)
        if len(survivors) < least:
            why = f"{len(survivors)} inputs arrived in round {round_index} and {least} are needed"
            raise VoidRoundError(why, missing, Traffic({}, {}, 1))
        payloads = {client: layout.pack(vectors[client]) for client in survivors}
        total = np.zeros(layout.words(length), dtype=np.uint64)
        for words in payloads.values():
            total += words
        traffic = Traffic(
            up={client: words.nbytes for client, words in payloads.items()},
            down=dict.fromkeys(payloads, 0),
            stages=1,
        )
        values = layout.unpack(total, length)
        return SumResult(values, traffic, payloads, True, survivors, missing)


def sum_for(n_clients: int, aggregation: SecureSum | None) -> SecureSum:
    """The sum that was chosen, or one in clear.

    Raises ConfigurationError where it was made for another number of clients.
    """
    chosen = aggregation or PlainSum(n_clients)
    if chosen.n_clients != n_clients:
        raise ConfigurationError(
            "aggregation", chosen.n_clients, f"make it for {n_clients} clients"
        )
    return chosen


# Clients that fall silent: a plan of simulated faults, the same for every sum that it is put to.
#
# Nothing here belongs to a deployment, where clients drop out by themselves.


_STAGES: Final = tuple(Stage)


@dataclass(frozen=True, slots=True)
class Dropouts:
    """Every client drops out of every round by itself, at a stage that is as likely as any other.

    rate: chance in [0, 1) of one client in one round. seed: 0 or more; it decides the whole plan.
    """

    rate: float
    seed: int

    def __post_init__(self) -> None:
        if not 0 <= self.rate < 1:
            raise ConfigurationError("rate", self.rate, "use a number from 0 to less than 1")
        if self.seed < 0:
            raise ConfigurationError("seed", self.seed, "use 0 or more")

    def plan(self, round_index: int, n_clients: int) -> dict[int, Stage]:
        """By client that drops out of the round, the stage from which on it is silent."""
        rng = np.random.default_rng((self.seed, round_index))
        lost = rng.random(n_clients) < self.rate
        stages = rng.integers(len(_STAGES), size=n_clients)
        return {int(k): _STAGES[stages[k]] for k in np.flatnonzero(lost)}
