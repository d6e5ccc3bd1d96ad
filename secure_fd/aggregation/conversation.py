"""Carries messages between the real parties in one process, and counts what a network would."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from secure_fd.aggregation.base import Stage, Traffic, VoidRoundError
from secure_fd.crypto.prg import WORD
from secure_fd.errors import MissingClientError
from secure_fd.knowledge import WordArray
from secure_fd.secagg.client import Client
from secure_fd.secagg.client_round import ClientRound
from secure_fd.secagg.group import Group
from secure_fd.secagg.server import Server, ServerRound, ServerState
from secure_fd.secagg.server_setup import SetupStage
from secure_fd.secagg.wire import HEADER_BYTES

_STAGES: Final = {
    ServerState.PREPARE: Stage.PREPARE,
    ServerState.INPUT: Stage.INPUT,
    ServerState.CONSISTENCY: Stage.CONSISTENCY,
    ServerState.UNMASK: Stage.UNMASK,
}
_ORDER: Final = tuple(Stage)


@dataclass(slots=True)
class Meter:
    """Bytes by client, and the stages in which any client sent something."""

    up: dict[int, int] = field(default_factory=dict)
    down: dict[int, int] = field(default_factory=dict)
    stages: int = 0

    def sent(self, client: int, message: bytes) -> None:
        """Count a client's message."""
        self.up[client] = self.up.get(client, 0) + len(message)

    def received(self, client: int, message: bytes) -> None:
        """Count a message to a client."""
        self.down[client] = self.down.get(client, 0) + len(message)

    def read(self) -> Traffic:
        """What was counted, and start again from nothing."""
        traffic = Traffic(dict(self.up), dict(self.down), self.stages)
        self.up, self.down, self.stages = {}, {}, 0
        return traffic


def set_up(
    server: Server, clients: Mapping[int, Client], meter: Meter, nonces: Mapping[int, bytes]
) -> Group:
    """One set-up of all these clients. nonces: parts in the joint seed that are not drawn."""
    collected = server.open_setup()
    setups = {k: client.open_setup(nonces.get(k)) for k, client in clients.items()}
    outbound: dict[int, bytes | None] = {k: machine.start() for k, machine in setups.items()}
    while collected.stage is not SetupStage.DONE:
        for k, message in outbound.items():
            if message is not None:
                meter.sent(k, message)
                collected.receive(k, message)
        meter.stages += 1
        inbound = collected.advance()
        for k, answer in inbound.items():
            meter.received(k, answer)
        outbound = {k: setups[k].receive(answer) for k, answer in inbound.items()}
    server.enrol(collected)
    for k, client in clients.items():
        client.enrol(setups[k])
    return collected.group


@dataclass(slots=True)
class Conversation:
    """One round between a server and its clients, some of which fall silent on the way.

    silent: by client, the first stage that it does not answer. Messages are handed over one by
    one, so at most one masked input exists at a time. payloads: what the server read of each
    client's words, where keep_payloads asks for that.
    """

    server: ServerRound
    clients: Mapping[int, ClientRound]
    silent: Mapping[int, Stage]
    meter: Meter
    keep_payloads: bool = True
    payloads: dict[int, WordArray] = field(default_factory=dict, repr=False)
    missing: dict[int, Stage] = field(default_factory=dict)
    _spoken: set[ServerState] = field(default_factory=set)

    def run(self) -> None:
        """Carry messages until the server has the sum; VoidRoundError where too few are left."""
        wanted = set(self.server.waiting)
        for k, client in self.clients.items():
            # What the server has from the last round's inputs it does not ask for again.
            if self._answers(k) and (message := client.start()) is not None and k in wanted:
                self._deliver(k, message)
        while not self.server.finished:
            for k, message in self._advance().items():
                self.meter.received(k, message)
                if self._answers(k):
                    self._deliver(k, self.clients[k].receive(message))

    def _answers(self, client: int) -> bool:
        limit = self.silent.get(client)
        return limit is None or _ORDER.index(_STAGES[self.server.state]) < _ORDER.index(limit)

    def _deliver(self, client: int, message: bytes) -> None:
        self.meter.sent(client, message)
        self._spoken.add(self.server.state)
        if self.server.state is ServerState.INPUT and self.keep_payloads:
            words = np.frombuffer(message, WORD, self.server.scope.words, HEADER_BYTES)
            self.payloads[client] = words.astype(np.uint64, copy=False)
        self.server.receive(client, message)

    def _advance(self) -> Mapping[int, bytes]:
        stage = _STAGES[self.server.state]
        self.meter.stages += self.server.state in self._spoken
        for client in self.server.waiting:
            self.missing.setdefault(client, stage)
        try:
            return self.server.advance()
        except MissingClientError as error:
            raise VoidRoundError(str(error), dict(self.missing), self.meter.read()) from None
