"""The real machines over one fixed set-up and two fixed rounds, every message on record.

Four clients, a complete graph, three shares. Round 5 asks for four inputs and is complete; round 6
has room for noise and asks for three, and the input of client 4 is lost. Their numbers have gaps,
so that no number is taken for a place. Each client draws from a stream of its own, so what it
draws does not depend on the order of the others. A delivery can be replaced, to see what the
receiver makes of it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from secure_fd.crypto.primitives import SERVER, IdentityKey, RandomBytes, insecure_bytes
from secure_fd.errors import SecureFDError
from secure_fd.knowledge import IntArray, WordArray
from secure_fd.secagg.client import Client, ClientRound
from secure_fd.secagg.masks import RoundSecrets, Shares
from secure_fd.secagg.server import Server, ServerRound, ServerState
from secure_fd.secagg.session import MessageType, NoiseTerms, Roster, RoundTerms, Session
from secure_fd.secagg.setup import ClientSetup, ServerSetup, SetupStage

SEEDS = {1: 1001, 4: 1004, 6: 1006, 9: 1009}
NONCE, CONFIGURATION, PROXIES = b"a session's nonce", b"what else was agreed", bytes(range(32))
NOISE = {5: NoiseTerms(survivors=4), 6: NoiseTerms(room=500, survivors=3)}
TERMS = tuple(
    RoundTerms(index, 40, 1000, b"subject of round %d" % index, noise)
    for index, noise in NOISE.items()
)
LOST = {5: (), 6: (4,)}


@dataclass(frozen=True)
class Delivery:
    """One message on its way. index: of the round, None in the set-up."""

    index: int | None
    sender: int
    receiver: int
    data: bytes

    @property
    def kind(self) -> str:
        """The type that the frame names."""
        return MessageType(int.from_bytes(self.data[2:4], "big")).name


Tamper = Callable[[Delivery], Delivery]


@dataclass
class RefusedError(Exception):
    """What a party said to a delivery. when: at the delivery itself, or as the stage was closed."""

    party: int
    when: str
    error: SecureFDError


@dataclass
class Flow:
    """Runs at once. deliveries: what arrived, in order; lost: what did not.

    secrets: by round and client. shares: by round and holder, those of every owner.
    """

    tamper: Tamper = lambda delivery: delivery
    deliveries: list[Delivery] = field(default_factory=list)
    secrets: dict[tuple[int, int], RoundSecrets] = field(default_factory=dict)
    shares: dict[tuple[int, int], Mapping[int, Shares]] = field(default_factory=dict)
    lost: list[Delivery] = field(default_factory=list)
    sums: dict[int, list[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.random: dict[int, RandomBytes] = {k: insecure_bytes(s) for k, s in SEEDS.items()}
        self.identities = {k: IdentityKey.generate(random) for k, random in self.random.items()}
        roster = Roster({k: identity.public.raw for k, identity in self.identities.items()})
        self.session = Session(roster, CONFIGURATION, PROXIES, NONCE)
        self.server = Server(self.session)
        self.clients = {
            k: Client(k, identity, self.session, None, self.random[k])
            for k, identity in self.identities.items()
        }
        self._set_up()
        for terms in TERMS:
            self._round(terms)

    def _set_up(self) -> None:
        server = self.server.open_setup()
        machines = {k: client.open_setup() for k, client in self.clients.items()}
        up: dict[int, bytes | None] = {k: machine.start() for k, machine in machines.items()}
        while server.stage is not SetupStage.DONE:
            for k, message in up.items():
                if message is not None:
                    self._to_server(server, Delivery(None, k, SERVER, message))
            up = {
                k: self._to_client(machines[k], Delivery(None, SERVER, k, message))
                for k, message in self._close(server).items()
            }
        self.server.enrol(server)
        for k, client in self.clients.items():
            client.enrol(machines[k])
        self.group = server.group

    def _round(self, terms: RoundTerms) -> None:
        server, index = self.server.open_round(terms), terms.index
        machines = {k: client.open_round(terms) for k, client in self.clients.items()}
        for k, machine in machines.items():
            machine.load(values_of(k, terms))
        up = {k: machine.start() for k, machine in machines.items()}
        for k, machine in machines.items():
            assert machine._held is not None
            assert machine._held.prepared is not None
            self.secrets[index, k] = machine._held.prepared.secrets
        while not server.finished:
            lost = LOST[index] if server.state is ServerState.INPUT else ()
            for k, message in up.items():
                if message is None:
                    continue
                sent = Delivery(index, k, SERVER, message)
                if k in lost:
                    self.lost.append(sent)
                else:
                    self._to_server(server, sent)
            up = {
                k: self._to_client(machines[k], Delivery(index, SERVER, k, message))
                for k, message in self._close(server).items()
            }
            for k, machine in machines.items():
                if machine._held is not None and machine._held.shares:
                    self.shares[index, k] = machine._held.shares
        self.sums[index] = server.total.tolist()

    def _to_server(self, server: ServerSetup | ServerRound, delivery: Delivery) -> None:
        came = self.tamper(delivery)
        self.deliveries.append(came)
        try:
            server.receive(came.sender, came.data)
        except SecureFDError as error:
            raise RefusedError(SERVER, "receive", error) from error

    def _to_client(self, machine: ClientSetup | ClientRound, delivery: Delivery) -> bytes | None:
        came = self.tamper(delivery)
        self.deliveries.append(came)
        try:
            return machine.receive(came.data)
        except SecureFDError as error:
            raise RefusedError(delivery.receiver, "receive", error) from error

    def _close(self, server: ServerSetup | ServerRound) -> Mapping[int, bytes]:
        try:
            return server.advance()
        except SecureFDError as error:
            raise RefusedError(SERVER, "close", error) from error


def values_of(client: int, terms: RoundTerms) -> WordArray | IntArray:
    """Any numbers within the bound, and beyond it by a part of the room that all may take up."""
    share = terms.noise.room // len(SEEDS)
    steps = np.arange(terms.length) * (37 * client + terms.index)
    values = steps % (terms.bound + 2 * share + 1) - share
    return values if share else values.astype(np.uint64)


def instead_of(
    index: int | None, kind: str, sender: int, receiver: int, bad: Callable[[Delivery], Delivery]
) -> Tamper:
    """Replace one delivery, leave all others."""

    def tamper(delivery: Delivery) -> Delivery:
        at = (delivery.index, delivery.kind, delivery.sender, delivery.receiver)
        return bad(delivery) if at == (index, kind, sender, receiver) else delivery

    return tamper


def with_data(delivery: Delivery, data: bytes) -> Delivery:
    """The same sender and receiver, other bytes."""
    return replace(delivery, data=data)
