"""A cohort of the masked sum with repeatable keys, for tests that drive the machines by hand."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np
import pytest

from secure_fd.aggregation.masked import set_up
from secure_fd.crypto.primitives import IdentityKey, RandomBytes, insecure_bytes
from secure_fd.errors import LocalError, PeerError
from secure_fd.knowledge import IntArray, WordArray
from secure_fd.secagg.client import Client, ClientRound, ClientState
from secure_fd.secagg.messages import encode_cohort, encode_members
from secure_fd.secagg.server import Server, ServerRound
from secure_fd.secagg.session import Floors, Group, Roster, RoundTerms, Session
from secure_fd.secagg.setup import ClientSetup, ServerSetup, SetupState

TERMS = RoundTerms(index=3, length=40, bound=4)
Values = Mapping[int, WordArray | IntArray]


class Cohort:
    """n clients and a server that share a session and, unless told otherwise, a set-up."""

    def __init__(
        self,
        n: int = 3,
        seed: int = 0,
        nonce: bytes = b"n",
        *,
        degree: int | None = None,
        threshold: int | None = None,
        hybrid: bool = False,
        floors: Floors | None = None,
        enrolled: bool = True,
    ) -> None:
        self.random: RandomBytes = insecure_bytes(seed)
        self.identities = {k: IdentityKey.generate(self.random) for k in range(n)}
        roster = Roster({k: key.public.raw for k, key in self.identities.items()})
        self.session = Session(
            roster,
            b"configuration",
            b"proxies",
            nonce,
            degree=degree,
            threshold=threshold,
            hybrid=hybrid,
        )
        self.server = Server(self.session)
        self.clients = {
            k: Client(k, key, self.session, floors, self.random)
            for k, key in self.identities.items()
        }
        if enrolled:
            self.enrol()

    def enrol(self, members: Collection[int] | None = None) -> None:
        """A set-up of these clients, by default of all, or another one."""
        chosen = self.clients if members is None else {k: self.clients[k] for k in members}
        self.group: Group = set_up(self.server, chosen)[0]

    def open(self, terms: RoundTerms, values: Values | None = None) -> "Round":
        """A round with values loaded: zeros where none are given."""
        return Round(self.server.open_round(terms), self.open_clients(terms, values))

    def open_clients(
        self, terms: RoundTerms, values: Values | None = None
    ) -> dict[int, ClientRound]:
        """The clients' part of a round."""
        clients = {k: client.open_round(terms) for k, client in self.clients.items()}
        for k, machine in clients.items():
            machine.load(zeros(terms) if values is None else values[k])
        return clients

    def open_setup(self, members: Collection[int] | None = None) -> "SetUp":
        """A set-up of these clients, by default of all, that nobody has begun."""
        chosen = self.clients if members is None else members
        return SetUp(self.server.open_setup(), {k: self.clients[k].open_setup() for k in chosen})


@dataclass
class SetUp:
    """The machines of one set-up, driven one stage at a time."""

    server: ServerSetup
    clients: dict[int, ClientSetup]

    def start(self) -> dict[int, bytes]:
        """Every client's JOIN."""
        return {k: machine.start() for k, machine in self.clients.items()}

    def deliver(self, outbound: Mapping[int, bytes]) -> dict[int, bytes]:
        """Give a stage's messages to the server; what it answers."""
        for k, message in outbound.items():
            self.server.receive(k, message)
        return dict(self.server.advance())

    def answer(self, inbound: Mapping[int, bytes]) -> dict[int, bytes]:
        """What each client answers to what the server sent it."""
        answers = {k: self.clients[k].receive(message) for k, message in inbound.items()}
        return {k: answer for k, answer in answers.items() if answer is not None}

    def until_agreed(self) -> dict[int, bytes]:
        """Every client has revealed its nonce; the AGREED for each."""
        return self.deliver(self.answer(self.deliver(self.start())))


@dataclass
class Round:
    """The machines of one round, driven one stage at a time."""

    server: ServerRound
    clients: dict[int, ClientRound]

    def prepare(self) -> dict[int, bytes]:
        """Every client opens the round; what the server answers to each."""
        for k, machine in self.clients.items():
            message = machine.start()
            if message is not None:
                self.server.receive(k, message)
        return dict(self.server.advance())

    def masked(self) -> dict[int, bytes]:
        """Every masked input, not yet given to the server."""
        return self.answer(self.prepare())

    def answer(self, inbound: Mapping[int, bytes]) -> dict[int, bytes]:
        """What each client answers to what the server sent it."""
        return {k: self.clients[k].receive(message) for k, message in inbound.items()}

    def deliver(
        self, outbound: Mapping[int, bytes], without: Collection[int] = ()
    ) -> dict[int, bytes]:
        """Give a stage's messages to the server, but for those of `without`; what it answers."""
        for k, message in outbound.items():
            if k not in without:
                self.server.receive(k, message)
        return dict(self.server.advance())

    def finish(self, without: Collection[int] = ()) -> WordArray | IntArray:
        """The sum of all clients but those whose inputs get lost."""
        inbound = self.deliver(self.masked(), without)
        while not self.server.finished:
            inbound = self.deliver(self.answer(inbound))
        return self.server.total


def zeros(terms: RoundTerms) -> WordArray | IntArray:
    """What a client may send that has nothing to say."""
    nothing = np.zeros(terms.length, np.int64)
    return nothing if terms.noise.room else nothing.astype(np.uint64)


def random_values(
    cohort: Cohort, terms: RoundTerms = TERMS, seed: int = 0
) -> dict[int, WordArray | IntArray]:
    """Values of every client within the bound, and beyond by its part of the room for noise."""
    rng = np.random.default_rng(seed)
    share, size = terms.noise.room // len(cohort.clients), (terms.length,)
    kind = np.int64 if terms.noise.room else np.uint64
    return {k: rng.integers(-share, terms.bound + share + 1, size, kind) for k in cohort.clients}


def round_of(cohort: Cohort | None = None, terms: RoundTerms = TERMS) -> Round:
    """A round of three clients with random values loaded."""
    cohort = cohort or Cohort()
    return cohort.open(terms, random_values(cohort, terms))


def assert_setup_dead(machine: ClientSetup) -> None:
    """No input brings it back, and it holds no key."""
    assert machine.state is SetupState.ABORTED
    assert machine._held is None
    for attempt in (
        machine.start,
        lambda: machine.receive(encode_members([], machine.session)),
        lambda: machine.enrolment,
    ):
        with pytest.raises((LocalError, PeerError), match="ABORTED"):
            attempt()
    assert machine.state is SetupState.ABORTED


def assert_dead(machine: ClientRound) -> None:
    """No input brings it back, and it holds neither key nor words."""
    assert machine.state is ClientState.ABORTED
    assert machine._held is None
    honest = encode_cohort(b"\0", b"", machine.scope.place)
    for attempt in (
        machine.start,
        lambda: machine.receive(honest),
        lambda: machine.load(np.zeros(machine.scope.terms.length, np.uint64)),
    ):
        with pytest.raises((LocalError, PeerError), match="ABORTED"):
            attempt()
    assert machine.state is ClientState.ABORTED
