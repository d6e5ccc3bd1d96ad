"""One interface for every way of summing what clients send: vectors in, their sum out."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import ClassVar, Final, Protocol

import numpy as np

from secure_fd.errors import ConfigurationError, LocalError, MissingClientError, PeerError
from secure_fd.exchange import Kind, Sum, read_header
from secure_fd.knowledge import IntArray, UnitArray, WordArray
from secure_fd.secagg.packing import LaneLayout
from secure_fd.secagg.session import NO_NOISE, NoiseTerms, Place, RoundTerms, frame


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


class SumClient(Protocol):
    """A client's half of a sum. What a method returns goes to the server, in order."""

    def start(self) -> list[bytes]:
        """Join: the first message of the set-up, where there is one."""

    def load(self, terms: RoundTerms, values: UnitArray) -> list[bytes]:
        """Begin the next sum with these values [m]; LocalError for values beyond its terms."""

    def receive(self, data: bytes) -> list[bytes]:
        """Answer one message of the server; PeerError for a bad one."""


class SumServer(Protocol):
    """The server's half of a sum.

    busy: a stage of the set-up or of a sum is open. stage: the one that is open, or was last.
    result: the newest sum, once it is there. payloads: by client, the words of its input as they
    were read, where a record is kept. readable: whether these are values in clear. missing: by
    client, the first stage of this sum that it did not answer, where a later stage showed it.
    """

    busy: bool
    stage: Stage
    result: Sum | None
    payloads: dict[int, WordArray]
    readable: bool
    missing: dict[int, Stage]

    @property
    def waiting(self) -> set[int]:
        """The clients whose message of this stage has not come."""

    def open(self, terms: RoundTerms) -> Mapping[int, bytes]:
        """Begin the next sum; what is to be relayed at once, by client."""

    def receive(self, sender: int, data: bytes) -> None:
        """Take a message; PeerError for one that is not of this stage and sender."""

    def advance(self) -> Mapping[int, bytes]:
        """Close the stage with the clients that answered; MissingClientError: too few."""


class SumPromise(Protocol):
    """What a sum says of itself."""

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


class SecureSum(SumPromise, Protocol):
    """Sums integer vectors of a fixed cohort of clients."""

    @property
    def session(self) -> bytes:
        """32 bytes that name the session of these parties."""

    @property
    def seed(self) -> bytes | None:
        """The clients' joint seed of public draws; None where they have no say in them."""

    def client(self, number: int) -> SumClient:
        """The half of client `number`."""

    def server(self) -> SumServer:
        """The server's half."""

    def setup_traffic(self) -> Traffic:
        """What the set-up moved, once: it is not counted again."""

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


class PlainClient:
    """A client's half of the sum in clear: one message, nothing to set up."""

    def __init__(self, number: int, session: bytes, n_clients: int) -> None:
        self._number, self._session, self._n_clients = number, session, n_clients

    def start(self) -> list[bytes]:
        """Nothing to agree on."""
        return []

    def load(self, terms: RoundTerms, values: UnitArray) -> list[bytes]:
        """The values, packed and in clear."""
        words = LaneLayout(self._n_clients, terms.bound, terms.noise.room).pack(values)
        place = Place(self._session, terms.index)
        return [frame(Kind.INPUT, place, self._number, terms.subject, words.tobytes())]

    def receive(self, data: bytes) -> list[bytes]:
        """PeerError: a sum in clear has no further messages."""
        raise PeerError(f"a sum in clear has no message of {len(data)} bytes for a client")


class PlainServer:
    """The server's half of the sum in clear: every input is read, and added."""

    readable = True

    def __init__(self, session: bytes, n_clients: int) -> None:
        self._session, self._n_clients = session, n_clients
        self.busy, self.stage = False, Stage.INPUT
        self.result: Sum | None = None
        self.payloads: dict[int, WordArray] = {}
        self.missing: dict[int, Stage] = {}
        self._terms: RoundTerms | None = None

    @property
    def waiting(self) -> set[int]:
        """The clients without an input."""
        return set(range(self._n_clients)) - set(self.payloads)

    def open(self, terms: RoundTerms) -> Mapping[int, bytes]:
        """Wait for inputs."""
        self._terms, self.payloads, self.missing = terms, {}, {}
        self.busy, self.result = True, None
        return {}

    def receive(self, sender: int, data: bytes) -> None:
        """Take one input of each client; PeerError for any other message."""
        kind, index, body = read_header(data, self._session, sender)
        terms = self._terms
        if terms is None or (kind, index) != (Kind.INPUT, terms.index) or sender in self.payloads:
            raise PeerError(f"client {sender} sent something else than its one input")
        told = len(terms.subject)
        if len(body) != told + 8 * self._layout(terms).words(terms.length):
            raise PeerError(f"the input of client {sender} has another length than agreed")
        if body[:told] != terms.subject:
            raise PeerError(f"client {sender} was told something else")
        self.payloads[sender] = np.frombuffer(body[told:], "<u8").astype(np.uint64)

    def advance(self) -> Mapping[int, bytes]:
        """Add up; MissingClientError for no input, or fewer than the noise takes."""
        self.busy, terms = False, self._terms
        if terms is None:
            raise LocalError("no sum was opened")
        least = max(1, terms.noise.survivors)
        if len(self.payloads) < least:
            raise MissingClientError(f"{len(self.payloads)} inputs arrived and {least} are needed")
        layout = self._layout(terms)
        total = np.zeros(layout.words(terms.length), dtype=np.uint64)
        for words in self.payloads.values():
            total += words
        self.payloads = dict(sorted(self.payloads.items()))
        self.result = Sum(layout.unpack(total, terms.length), tuple(self.payloads))
        return {}

    def _layout(self, terms: RoundTerms) -> LaneLayout:
        return LaneLayout(self._n_clients, terms.bound, terms.noise.room)


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
        self.session = os.urandom(32)

    @property
    def seed(self) -> None:
        """None: clients that trust the server with their values have no say in draws either."""

    def client(self, number: int) -> PlainClient:
        """The half of client `number`."""
        return PlainClient(number, self.session, self.n_clients)

    def server(self) -> PlainServer:
        """The server's half."""
        return PlainServer(self.session, self.n_clients)

    def setup_traffic(self) -> Traffic:
        """Nothing was set up."""
        return Traffic({}, {}, 0)

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
