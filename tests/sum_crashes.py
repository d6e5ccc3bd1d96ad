"""A client of the masked sum in a process of its own, which is killed (SIGKILL) and comes back.

`python -m tests.sum_crashes FOLDER` imports the protocol once, without torch, and forks a process
for each life of client 0; the server and the other clients stay. A life ends at one message that
reaches it: before what it must not forget is written, after that, or once its answer is out. Then
a server that lies opens the round of its death once more. What came of it is printed as JSON.
"""

import json
import os
import signal
import socket
import struct
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Final

import numpy as np

from secure_fd.aggregation.masked import MaskedClient, MaskedServer
from secure_fd.crypto.primitives import AgreementKey, IdentityKey
from secure_fd.errors import MissingClientError, PeerError, SecureFDError
from secure_fd.knowledge import WordArray
from secure_fd.secagg.client import Client
from secure_fd.secagg.memory import Keep, Memory
from secure_fd.secagg.server import Server
from secure_fd.secagg.session import MessageType, Roster, RoundTerms, Session
from secure_fd.state import StateFile

CLIENTS, LENGTH, BOUND, ROUNDS, EPOCH = 5, 24, 3, 6, 4
TERMS: Final = tuple(RoundTerms(index, LENGTH, BOUND) for index in range(ROUNDS))
SILENT: Final = {1: 4}
"""By round, a client whose input is lost, so that a round has all of its stages."""
_KIND: Final = slice(2, 4)
_SIZE: Final = struct.Struct(">I")
_START, _LOAD, _TELL, _DONE, _FAILED = b"S", b"L", b"T", b"D", b"F"


class When(StrEnum):
    """Where in its answer to a message a life ends."""

    UNWRITTEN = "before it has written"
    WRITTEN = "after it has written"
    ANSWERED = "after its answer"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one death.

    point: the message, from 0, at which client 0 was killed; -1: nowhere. inputs: by round, how
    many different inputs it sent. survivors: by round that was summed. exact: whether every sum
    was right. again: what it answered where the round of its death was opened once more.
    """

    point: int
    when: str
    forgets: bool
    inputs: dict[int, int]
    survivors: dict[int, list[int]]
    exact: bool
    again: str


# A life: client 0 at one end of a socket.


@dataclass(slots=True)
class Life:
    """point, when: where it is killed. forgets: a twin that writes nothing once rounds begin."""

    session: Session
    identity: IdentityKey = field(repr=False)
    path: Path
    point: int
    when: When
    forgets: bool
    _seen: int = -1

    def serve(self, connection: socket.socket) -> None:
        """Answer until nobody asks any more."""
        file = StateFile.open(self.path) if self.path.exists() else StateFile.create(self.path)
        keep, memory = self._keep(file), file.read("memory")
        client = MaskedClient(Client(0, self.identity, self.session, keep=keep, memory=memory))
        while request := _read(connection):
            self._seen += 1
            _write(connection, self._answer(client, request[0]))
            if self._is_end(When.ANSWERED):
                _die()

    def _keep(self, file: StateFile) -> Keep:
        def keep(memory: bytes) -> None:
            if self._is_end(When.UNWRITTEN):
                _die()
            if not self.forgets or Memory.decode(memory, self.session).last < 0:
                file.write({"memory": memory})
            if self._is_end(When.WRITTEN):
                _die()

        return keep

    def _answer(self, client: MaskedClient, request: bytes) -> list[bytes]:
        kind, body = request[:1], request[1:]
        try:
            if kind == _START:
                answers = client.start()
            elif kind == _LOAD:
                index = int.from_bytes(body, "big")
                answers = client.load(TERMS[index], values(0, index))
            else:
                answers = client.receive(body)
        except SecureFDError as error:
            return [_FAILED, str(error).encode()]
        if self._is_end(When.UNWRITTEN) or self._is_end(When.WRITTEN):
            _die()  # it had nothing to write
        return [_DONE, *answers]

    def _is_end(self, when: When) -> bool:
        return (self._seen, self.when) == (self.point, when)


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _write(connection: socket.socket, parts: Sequence[bytes]) -> None:
    packed = b"".join(_SIZE.pack(len(part)) + part for part in parts)
    connection.sendall(_SIZE.pack(len(packed)) + packed)


def _read(connection: socket.socket) -> list[bytes]:
    """The parts of one message, none where the other end is gone."""
    head = _exactly(connection, _SIZE.size)
    packed = _exactly(connection, _SIZE.unpack(head)[0]) if head else b""
    parts, at = [], 0
    while at < len(packed):
        size = _SIZE.unpack_from(packed, at)[0]
        parts.append(packed[at + _SIZE.size : at + _SIZE.size + size])
        at += _SIZE.size + size
    return parts


def _exactly(connection: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        part = connection.recv(size - len(found))
        if not part:
            return b""
        found += part
    return found


def values(number: int, index: int) -> WordArray:
    """What a client has to say in a round: the same, whenever it is asked."""
    drawn = np.random.default_rng([number, index]).integers(0, BOUND + 1, LENGTH)
    return drawn.astype(np.uint64)


# The world around it.


class World:
    """A session of five, of whom client 0 lives apart."""

    def __init__(self, path: Path, point: int, when: When, *, forgets: bool) -> None:
        identities = {k: IdentityKey.generate(os.urandom) for k in range(CLIENTS)}
        key = AgreementKey.generate(os.urandom)
        roster = Roster({k: one.public.raw for k, one in identities.items()})
        nonce = os.urandom(32)
        self.session = Session(roster, b"", b"", nonce, key.public, epoch=EPOCH)
        self.server = MaskedServer(Server(self.session, key))
        self.others = {
            k: MaskedClient(Client(k, identities[k], self.session)) for k in range(1, CLIENTS)
        }
        self._identity, self._path, self._forgets = identities[0], path, forgets
        self._process, self._connection = 0, self._born(point, when)
        self.inputs: dict[int, set[bytes]] = {}
        self.asked: dict[int, bytes] = {}
        """By round, the COHORT that client 0 was sent."""
        self.alive, self.again = True, "it was not asked"

    def _born(self, point: int, when: When) -> socket.socket:
        here, there = socket.socketpair()
        self._process = os.fork()
        if self._process == 0:
            here.close()
            life = Life(
                self.session, self._identity, self._path, point, when, forgets=self._forgets
            )
            try:
                life.serve(there)
            finally:
                os._exit(0)
        there.close()
        return here

    def ask(self, kind: bytes, body: bytes = b"") -> list[bytes] | str:
        """Its answers, or what it says against it; nothing where it is dead."""
        if not self.alive:
            return []
        try:
            _write(self._connection, [kind + body])
            parts = _read(self._connection)
        except OSError:
            parts = []
        if not parts:
            self.alive = False
            return []
        return parts[1].decode() if parts[0] == _FAILED else parts[1:]

    def reborn(self, index: int) -> None:
        """Bring it back, and open the round of its death once more, as a liar would."""
        self.close()
        self._connection, self.alive = self._born(-1, When.ANSWERED), True
        answer = self.ask(_LOAD, index.to_bytes(8, "big"))
        if isinstance(answer, str):
            self.again = answer
            return
        self.again = "it opened the round"
        if index in self.asked:
            answer = self.ask(_TELL, self.asked[index])
            if not isinstance(answer, str):
                self.again = "it answered the cohort"
                self.note(index, answer)

    def note(self, index: int, answers: Sequence[bytes]) -> None:
        """Remember its inputs."""
        masked = MessageType.MASKED.to_bytes(2, "big")
        self.inputs.setdefault(index, set()).update(a for a in answers if a[_KIND] == masked)

    def close(self) -> None:
        """End its life, if it has not ended."""
        self._connection.close()
        os.waitpid(self._process, 0)

    def set_up(self) -> None:
        """Of all that stay alive."""
        answers = self.ask(_START)
        self._deliver(0, [] if isinstance(answers, str) else answers)
        for k, client in self.others.items():
            self._deliver(k, client.start())
        self._until_idle(-1)

    def round(self, index: int) -> list[int] | None:
        """Who is in the sum, None where the round is void; ValueError for a wrong sum."""
        opening = self.server.open(TERMS[index])
        answers = self.ask(_LOAD, index.to_bytes(8, "big"))
        self._deliver(0, [] if isinstance(answers, str) else answers)
        for k, client in self.others.items():
            self._deliver(k, client.load(TERMS[index], values(k, index)))
        try:
            for k, data in opening.items():
                self._tell(k, data, index)
            self._until_idle(index)
        except MissingClientError:
            return None
        result = self.server.result
        if result is None:
            return None
        expected = sum(values(k, index) for k in result.survivors)
        if not np.array_equal(result.total, expected):
            raise ValueError(f"round {index} has a wrong sum")
        return list(result.survivors)

    def _until_idle(self, index: int) -> None:
        while self.server.busy:
            for k, data in self.server.advance().items():
                self._tell(k, data, index)

    def _tell(self, client: int, data: bytes, index: int) -> None:
        if client:
            replies = self.others[client].receive(data)
        else:
            if data[_KIND] == MessageType.COHORT.to_bytes(2, "big"):
                self.asked[index] = data
            answer = self.ask(_TELL, data)
            replies = [] if isinstance(answer, str) else answer
            self.note(index, replies)
        masked = MessageType.MASKED.to_bytes(2, "big")
        lost = SILENT.get(index) == client
        self._deliver(client, [r for r in replies if not (lost and r[_KIND] == masked)])

    def _deliver(self, client: int, messages: Sequence[bytes]) -> None:
        for data in messages:
            try:
                self.server.receive(client, data)
            except PeerError:
                return


def outcome(folder: Path, point: int, when: When, *, forgets: bool = False) -> Outcome:
    """Six rounds with one death, and a life after it."""
    path = folder / f"{point}-{when.name}-{forgets}.state"
    world = World(path, point, when, forgets=forgets)
    survivors, exact = {}, True
    world.set_up()
    if not world.alive:
        world.reborn(0)
    for index in range(ROUNDS):
        try:
            found = world.round(index)
        except ValueError:
            exact, found = False, None
        if found is not None:
            survivors[index] = found
        if not world.alive:
            world.reborn(index)
    world.close()
    inputs = {index: len(seen) for index, seen in world.inputs.items() if index >= 0}
    return Outcome(point, when.value, forgets, inputs, survivors, exact, world.again)


def main(folder: Path, points: int) -> None:
    """Every message of set-up and of the first two rounds, with each way to die; then the twin."""
    for point in range(points):
        for when in When:
            print(json.dumps(asdict(outcome(folder, point, when))))
    for point in range(points):
        print(json.dumps(asdict(outcome(folder, point, When.ANSWERED, forgets=True))))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
