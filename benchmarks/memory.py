"""Memory of the server: it alone, in a fresh process, with the clients at the other end of a pipe.

The server reads one message at a time. Reported is the peak of its resident memory, over the
set-up, a round of all clients and a round in which a tenth drops out, less what the interpreter
holds when it has imported the same modules and done nothing. Its sums are checked by the clients.

Linux only: the peak is VmHWM, which starts anew with each program; `ru_maxrss` would inherit
that of the process that starts it.
"""

import hashlib
import json
import struct
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final, Protocol

import numpy as np

from cells import Cell, tenth
from masked_rounds import clients, nonce, session, terms, values
from secure_fd.knowledge import WordArray
from secure_fd.secagg.client import Client, ClientRound, ClientState
from secure_fd.secagg.server import Server
from secure_fd.secagg.setup import SetupStage

ROUNDS: Final = 2
_FRAME: Final = struct.Struct(">iQ")
_END: Final = -1
"""Stands where a client's number would: the stage is over."""


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes. peak: above the bare interpreter's. message: one client's longest."""

    clients: int
    neighbours: int
    words: int
    peak_bytes: int
    message_bytes: int
    interpreter_bytes: int


class _Machine(Protocol):
    def receive(self, sender: int, data: bytes) -> None: ...

    def advance(self) -> Mapping[int, bytes]: ...


def measure_memory(cell: Cell) -> Memory:
    """Start the server, play its clients, and ask it what it took."""
    command = [sys.executable, __file__, *map(str, (cell.clients, cell.neighbours, cell.words))]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe) as process:  # noqa: S603 - itself
        if process.stdin is None or process.stdout is None:
            raise SystemExit("memory: the server's pipes did not open")
        pipes = _Pipes(process.stdout, process.stdin)
        agreed = session(cell)
        parties = clients(cell, agreed)
        _join(parties, pipes)
        for index in range(ROUNDS):
            _play(parties, cell, index, pipes)
        report = json.loads(pipes.one())
    return Memory(cell.clients, cell.neighbours, cell.words, **report, message_bytes=pipes.longest)


class _Pipes:
    """Messages of a stage, then the mark of its end, one way at a time."""

    def __init__(self, inbound: IO[bytes], outbound: IO[bytes]) -> None:
        self._inbound, self._outbound = inbound, outbound
        self.longest = 0

    def send(self, messages: Iterable[tuple[int, bytes]]) -> None:
        for number, data in messages:
            self._outbound.write(_FRAME.pack(number, len(data)))
            self._outbound.write(data)
            self.longest = max(self.longest, len(data))
        self._outbound.write(_FRAME.pack(_END, 0))
        self._outbound.flush()

    def receive(self) -> Iterator[tuple[int, bytes]]:
        """The messages up to the mark, each read when it is asked for."""
        while (head := self._inbound.read(_FRAME.size)) != _FRAME.pack(_END, 0):
            if len(head) < _FRAME.size:
                raise SystemExit("memory: the other end is gone")
            number, size = _FRAME.unpack(head)
            yield number, self._inbound.read(size)

    def one(self) -> bytes:
        ((_, data),) = self.receive()
        return data


def _join(parties: Mapping[int, Client], pipes: _Pipes) -> None:
    setups = {k: client.open_setup(nonce(k)) for k, client in parties.items()}
    outbound = [(k, setup.start()) for k, setup in setups.items()]
    while outbound:
        pipes.send(outbound)
        replies = [(k, setups[k].receive(data)) for k, data in pipes.receive()]
        outbound = [(k, reply) for k, reply in replies if reply is not None]
    for k, client in parties.items():
        client.enrol(setups[k])


def _play(parties: Mapping[int, Client], cell: Cell, index: int, pipes: _Pipes) -> None:
    """One round of the clients; in every round but the first, a tenth sends no input."""
    agreed, sent = terms(cell, index), values(cell)
    dropped = tenth(cell) if index else frozenset[int]()
    machines = {k: client.open_round(agreed) for k, client in parties.items()}
    started = [(k, machine.start()) for k, machine in machines.items()]
    pipes.send((k, message) for k, message in started if message is not None)
    while inbound := [(k, data) for k, data in pipes.receive() if k not in dropped]:
        pipes.send((k, _answer(machines[k], data, sent)) for k, data in inbound)
    expected = sent * np.uint64(cell.clients - len(dropped))
    if pipes.one() != hashlib.sha256(expected.data).digest():
        raise SystemExit("memory: the total is not the sum of the survivors' values")


def _answer(machine: ClientRound, data: bytes, sent: WordArray) -> bytes:
    if machine.state is ClientState.PREPARED:
        machine.load(sent)
    return machine.receive(data)


def _serve(cell: Cell) -> None:
    """The server's process: every message comes in over stdin, every answer leaves over stdout."""
    base = _resident("VmRSS")
    pipes, server = _Pipes(sys.stdin.buffer, sys.stdout.buffer), Server(session(cell))
    setup = server.open_setup()
    while setup.stage is not SetupStage.DONE:
        _serve_stage(setup, pipes)
    server.enrol(setup)
    for index in range(ROUNDS):
        collected = server.open_round(terms(cell, index))
        while not collected.finished:
            _serve_stage(collected, pipes)
        pipes.send([(0, hashlib.sha256(collected.total.data).digest())])
    report = {"peak_bytes": _resident("VmHWM") - base, "interpreter_bytes": base}
    pipes.send([(0, json.dumps(report).encode())])


def _serve_stage(machine: _Machine, pipes: _Pipes) -> None:
    for number, data in pipes.receive():
        machine.receive(number, data)
        del data  # Or the next message would be read while this one is still held.
    pipes.send(machine.advance().items())


def _resident(field: str) -> int:
    """VmRSS, what is resident now, or VmHWM, the most that ever was, in bytes."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        name, _, value = line.partition(":")
        if name == field:
            return int(value.split()[0]) * 1024
    raise SystemExit(f"memory: this system does not report {field}")


if __name__ == "__main__":
    _serve(Cell(*map(int, sys.argv[1:])))
