"""A target for every state of every machine: a client answers, or raises PeerError and is dead; a
server takes a message, or raises PeerError, drops its sender and goes on.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from secure_fd.errors import PeerError
from secure_fd.secagg.client import ClientRound
from secure_fd.secagg.machine import snapshot
from secure_fd.secagg.server import ServerRound
from secure_fd.secagg.session import MessageType
from secure_fd.secagg.setup import ClientSetup, ServerSetup
from tests.fuzz.decoders import Target, expect, outcome_of
from tests.fuzz.honest import Honest, kind_of, values_of

CLIENT = 1
"""Client whose machine is fuzzed, or which sends to the server's machine."""


def client_target(name: str, machine: ClientSetup | ClientRound, seeds: Sequence[bytes]) -> Target:
    """The reply is one message, or none; after a PeerError nothing is left of the machine."""
    packed = plain_words(machine)

    def run(data: bytes) -> str:
        current = snapshot(machine)
        try:
            reply = current.receive(data)
        except PeerError as error:
            expect(current.state.name == "ABORTED", "a machine that failed is not aborted")
            expect(current._held is None, "a machine that failed holds secrets")
            return outcome_of(error)
        expect(current.state.name != "ABORTED", "a machine that answered is aborted")
        if reply:  # an exact copy has none
            expect(kind_of(reply) in MessageType.__members__, "a reply is no message")
            expect(packed is None or packed not in reply, "a reply has the words in clear")
        return f"accepted, then {current.state.name}"

    return Target(name, run, tuple(seeds))


def plain_words(machine: ClientSetup | ClientRound) -> bytes | None:
    if isinstance(machine, ClientSetup):
        return None
    return machine.scope.layout.pack(values_of(machine.number)).tobytes()


def server_target(
    name: str,
    machine: ServerSetup | ServerRound,
    seeds: Sequence[bytes],
    after: Callable[[ServerSetup | ServerRound], None] = lambda _: None,
) -> Target:
    """after: what must hold once the message was taken."""
    before = machine.state

    def run(data: bytes) -> str:
        current = snapshot(machine)
        try:
            current.receive(CLIENT, data)
        except PeerError as error:
            expect(current.state is before, "a bad message moved the server to another stage")
            expect(CLIENT in current.refused, "the sender of a bad message is not out")
            return outcome_of(error)
        expect(current.state is before, "a message moved the server to another stage")
        try:
            after(current)
        except PeerError as error:
            return f"accepted, then {outcome_of(error)}"
        return "accepted"

    return Target(name, run, tuple(seeds))


@dataclass(frozen=True)
class Stop:
    """State of a machine: the message that is due, of an honest run."""

    name: str
    due: str
    hybrid: bool = False
    without: int | None = None
    sparse: bool = False

    def reach(self) -> Honest:
        """A new run up to there."""
        return Honest(self.hybrid, self.due, self.without, self.sparse)


CLIENT_STATES = [
    Stop("JOINED", "MEMBERS"),
    Stop("REVEALED", "AGREED"),
    Stop("hybrid REVEALED", "AGREED", hybrid=True),
    Stop("hybrid SENT_CAPSULES", "CAPSULES down", hybrid=True),
    Stop("PREPARED", "COHORT"),
    Stop("SENT", "SURVIVORS"),
    Stop("SENT, one missing", "SURVIVORS", without=2),
    Stop("SIGNED", "SIGNATURES", without=2),
    Stop("sparse PREPARED", "COHORT", sparse=True),
    Stop("sparse SENT", "SURVIVORS", sparse=True),
    Stop("sparse SIGNED", "SIGNATURES", without=2, sparse=True),
]
SERVER_STATES = [
    Stop("JOINS", "JOIN"),
    Stop("REVEALS", "REVEAL"),
    Stop("hybrid CAPSULES", "CAPSULES up", hybrid=True),
    Stop("PREPARE", "PREPARE"),
    Stop("INPUT", "MASKED"),
    Stop("CONSISTENCY", "CONSISTENT", without=2),
    Stop("UNMASK", "UNMASK"),
    Stop("UNMASK, one missing", "UNMASK", without=2),
    Stop("sparse UNMASK, one missing", "UNMASK", without=2, sparse=True),
]


def client_state(stop: Stop) -> Target:
    run = stop.reach()
    return client_target(f"client {stop.name}", run.machines.clients[CLIENT], others(run))


def server_state(stop: Stop) -> Target:
    """If shares are due, those of all others have arrived."""
    run, name = stop.reach(), f"server {stop.name}"
    server = run.machines.server
    if stop.due != "UNMASK":
        return server_target(name, server, others(run))
    for k, message in run.due.items():
        if k != CLIENT:
            server.receive(k, message)
    return server_target(name, server, others(run), closing(server))


def others(run: Honest) -> list[bytes]:
    """The message that is due, then what was sent before: replays, and parts to splice."""
    return [run.due[CLIENT], *{kind: data for kind, _, data in run.messages}.values()]


def closing(server: ServerRound) -> Callable[[ServerRound], None]:
    """Shares that were taken give the exact sum or no sum."""
    exact = np.sum([values_of(k) for k in server.survivors], axis=0).tolist()

    def close(current: ServerRound) -> None:
        current.advance()
        expect(current.total.tolist() == exact, "altered shares gave another sum")

    return close


def machines() -> list[Target]:
    """All of them."""
    return [*map(client_state, CLIENT_STATES), *map(server_state, SERVER_STATES)]
