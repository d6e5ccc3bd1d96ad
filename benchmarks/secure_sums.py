"""Machines of the benchmarks of secure sums: this package's rounds, their floor, their memory.

All sum 32-bit values and check every total. The clock is the CPU seconds of this process.

`floor_round` runs the bare primitives of a whole round and nothing else. For n clients with k
neighbours and m words of 32 bits:

  client   2 X25519 key pairs; 2 exchanges with each neighbour, one for its mask and one for the
           channel that would seal its share; 2 secrets shared among k + 1 holders; k + 1
           AES-128-CTR keystreams, each added to or taken from the vector, block by block
  server   the vectors of the survivors added; Lagrange weights once a set of responders; one
           secret combined for each client; a survivor's self mask taken away; for a dropped
           client, one exchange and one keystream with each of its surviving neighbours

`Rounds` drives this package's real machines in steady state: a session is set up once, and the
secrets of a round came with the upload of the one before. Counted is all that a client and the
server do between values and sum. Bytes are handed over one message at a time.

`measure_memory` runs the server alone in a fresh process, with the clients at the other end of a
pipe: the peak of its resident memory over the set-up, a round of all clients and a round in which
a tenth drops out, less what the interpreter holds before. Linux only: the peak is VmHWM, which
starts anew with each program.
"""

import hashlib
import json
import os
import struct
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final, Protocol

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext
from cryptography.hazmat.primitives.ciphers.algorithms import AES128
from cryptography.hazmat.primitives.ciphers.modes import CTR
from numpy.typing import NDArray

from secure_fd.crypto.primitives import IdentityKey, insecure_bytes, kem_available
from secure_fd.crypto.shamir import combine, draw_element, split, weights_at_zero
from secure_fd.knowledge import WordArray
from secure_fd.secagg.client import Client, ClientRound, ClientState
from secure_fd.secagg.messages import NONCE_BYTES
from secure_fd.secagg.server import Server, ServerRound, ServerState
from secure_fd.secagg.session import Floors, Roster, RoundTerms, Session
from secure_fd.secagg.setup import ClientSetup, SetupStage


@dataclass(frozen=True, slots=True)
class Cell:
    """One size: n clients, k neighbours of each, m words of 32 bits that a client sends."""

    clients: int
    neighbours: int
    words: int

    @property
    def shares(self) -> int:
        """Shares of a secret: one for each neighbour and one that the client keeps."""
        return self.neighbours + 1

    @property
    def threshold(self) -> int:
        """Shares that recover a secret, against a server that may lie: floor(2(k + 1)/3) + 1."""
        return 2 * self.shares // 3 + 1

    def holders(self, client: int) -> list[int]:
        """Who holds the shares of a client, itself included: all, or the nearest on a circle."""
        if self.shares == self.clients:
            return list(range(self.clients))
        first = client - self.neighbours // 2
        return [(first + step) % self.clients for step in range(self.shares)]

    def peers(self, client: int) -> list[int]:
        """The neighbours of a client."""
        return [holder for holder in self.holders(client) if holder != client]


CELLS: Final = (
    Cell(10, 9, 6_600),
    Cell(50, 20, 100_000),
    Cell(100, 20, 1_000_000),
    Cell(100, 99, 6_600),
)


def tenth(cell: Cell) -> frozenset[int]:
    """One client in ten, spread evenly: those that drop out where a tenth does."""
    return frozenset(range(0, cell.clients, 10))


@dataclass(slots=True)
class Meter:
    """Adds up the CPU seconds, of all threads, spent in its `with` blocks."""

    seconds: float = 0.0
    _start: float = 0.0

    def __enter__(self) -> None:
        self._start = time.process_time()

    def __exit__(self, *_: object) -> None:
        self.seconds += time.process_time() - self._start


@dataclass(frozen=True, slots=True)
class Cost:
    """What one round took: CPU seconds and bytes.

    client_s, up_bytes: of one client that stays to the end, a mean. server_s: of the server.
    """

    client_s: float
    server_s: float
    up_bytes: int


# The floor.


Words = NDArray[np.uint32]
Stream = tuple[CipherContext, bool]
"""A keystream, and whether it is added."""

BLOCK_WORDS: Final = 65_536
"""256 KiB: block and keystream stay in a core's cache."""

_ZEROS: Final = memoryview(bytes(4 * BLOCK_WORDS))
_KEY_BYTES: Final = 16
_NO_COUNTER: Final = bytes(16)


@dataclass(slots=True)
class _Client:
    number: int
    self_seed: int
    private: list[X25519PrivateKey]
    public: list[bytes]
    root_shares: list[int]
    seed_shares: list[int]


def floor_round(cell: Cell, dropped: frozenset[int], values: Words, *, exchanges: int = 2) -> Cost:
    """Run one round of the bare primitives; every client sums `values` [m].

    dropped: clients that share their secrets and send no vector. exchanges: 2 where channels
    are set up as well, 1 where they stand. Raises SystemExit where the total is wrong.
    """
    opening, masking, server = Meter(), Meter(), Meter()
    parties = []
    for number in range(cell.clients):
        with opening:
            parties.append(_open(number, cell, exchanges))
    total = np.zeros_like(values)
    alive = [party for party in parties if party.number not in dropped]
    for party in alive:
        with masking:
            masked = _mask(party, parties, cell, values)
        with server:
            total += masked
    with server:
        _unmask(total, parties, dropped, cell)
    if not np.array_equal(total, values * np.uint32(len(alive))):
        raise SystemExit("floor: the total is not the sum of the survivors' vectors")
    client = opening.seconds / len(parties) + masking.seconds / len(alive)
    return Cost(client, server.seconds, values.nbytes)


def _open(number: int, cell: Cell, exchanges: int) -> _Client:
    root, seed = draw_element(os.urandom), int.from_bytes(os.urandom(_KEY_BYTES))
    private = [X25519PrivateKey.from_private_bytes(root.to_bytes(32))]
    private += [X25519PrivateKey.generate() for _ in range(exchanges - 1)]
    public = [key.public_key().public_bytes_raw() for key in private]
    points = range(1, cell.shares + 1)
    shares = [split(secret, points, cell.threshold, os.urandom) for secret in (root, seed)]
    return _Client(number, seed, private, public, *shares)


def _stream(key: bytes, added: bool) -> Stream:
    return Cipher(AES128(key[:_KEY_BYTES]), CTR(_NO_COUNTER)).encryptor(), added


def _exchange(key: X25519PrivateKey, peer: bytes) -> bytes:
    return key.exchange(X25519PublicKey.from_public_bytes(peer))


def _apply(words: Words, streams: Iterable[Stream]) -> None:
    # update_into wants one cipher block of room beyond the data.
    buffer = np.empty(BLOCK_WORDS + 4, dtype=np.uint32)
    room, streams = buffer.view(np.uint8).data, list(streams)
    for start in range(0, words.size, BLOCK_WORDS):
        block = words[start : start + BLOCK_WORDS]
        zeros, mask = _ZEROS[: block.nbytes], buffer[: block.size]
        for cipher, added in streams:
            cipher.update_into(zeros, room)
            (np.add if added else np.subtract)(block, mask, out=block)


def _mask(party: _Client, parties: Sequence[_Client], cell: Cell, values: Words) -> Words:
    streams = [_stream(party.self_seed.to_bytes(_KEY_BYTES), True)]
    for peer in cell.peers(party.number):
        secret, *_ = [
            _exchange(key, public)
            for key, public in zip(party.private, parties[peer].public, strict=True)
        ]
        streams.append(_stream(secret, party.number < peer))
    masked = values.copy()
    _apply(masked, streams)
    return masked


def _unmask(total: Words, parties: Sequence[_Client], dropped: frozenset[int], cell: Cell) -> None:
    weights: dict[tuple[int, ...], tuple[int, ...]] = {}
    streams: list[Stream] = []
    for party in parties:
        holders = enumerate(cell.holders(party.number), 1)
        answers = [point for point, holder in holders if holder not in dropped]
        points = tuple(answers[: cell.threshold])
        if points not in weights:
            weights[points] = weights_at_zero(points)
        lost = party.number in dropped
        shares = party.root_shares if lost else party.seed_shares
        secret = combine(weights[points], [shares[point - 1] for point in points])
        if lost:
            alive = [parties[peer] for peer in cell.peers(party.number) if peer not in dropped]
            streams += _lost_halves(party.number, secret, alive)
        else:
            streams.append(_stream(secret.to_bytes(_KEY_BYTES), False))
    _apply(total, streams)


def _lost_halves(number: int, root: int, alive: Iterable[_Client]) -> Iterator[Stream]:
    """The masks a dropped client would have sent: they cancel the survivors' halves."""
    key = X25519PrivateKey.from_private_bytes(root.to_bytes(32))
    for peer in alive:
        yield _stream(_exchange(key, peer.public[0]), number < peer.number)


# Rounds of this package.


LANE_BITS: Final = 32


def identities(cell: Cell) -> dict[int, IdentityKey]:
    """The clients' identities, the same in every process."""
    random = insecure_bytes(cell.clients)
    return {number: IdentityKey.generate(random) for number in range(cell.clients)}


def session(cell: Cell) -> Session:
    """The cell's session, with ML-KEM-768 in the channels where the library offers it."""
    roster = Roster({number: key.public.raw for number, key in identities(cell).items()})
    return Session(roster, b"benchmark", b"", b"", degree=cell.neighbours, hybrid=kem_available())


def clients(cell: Cell, agreed: Session) -> dict[int, Client]:
    """The clients, keys from the operating system. They accept the cell's number of neighbours,
    which may be below what they would insist on themselves.
    """
    floors = Floors(degree=cell.neighbours)
    return {k: Client(k, key, agreed, floors) for k, key in identities(cell).items()}


def nonce(client: int) -> bytes:
    """A client's part in the graph, fixed: with 20 neighbours of 100 and a tenth dropped, some
    graphs leave a client with too few holders, and no run should fail by chance.
    """
    return client.to_bytes(NONCE_BYTES, "big")


def terms(cell: Cell, index: int) -> RoundTerms:
    """Values as large as sums in 32 bits allow: two to a word, 4 bytes each on the wire."""
    return RoundTerms(index, cell.words, (2**LANE_BITS - 1) // cell.clients)


def values(cell: Cell) -> WordArray:
    """What every client sends: [m], from zero to the bound."""
    bound = terms(cell, 0).bound
    return np.random.default_rng(cell.clients).integers(0, bound + 1, cell.words, dtype=np.uint64)


@dataclass(slots=True)
class _Ledger:
    """CPU seconds and bytes of each client, CPU seconds of the server."""

    clients: list[Meter]
    up: list[int]
    server: Meter

    @classmethod
    def of(cls, count: int) -> "_Ledger":
        return cls([Meter() for _ in range(count)], [0] * count, Meter())

    def cost(self, dropped: frozenset[int]) -> Cost:
        staying = [number for number in range(len(self.up)) if number not in dropped]
        seconds = sum(self.clients[number].seconds for number in staying)
        up_bytes = sum(self.up[number] for number in staying)
        return Cost(seconds / len(staying), self.server.seconds, up_bytes // len(staying))


class Rounds:
    """A session of a cell's clients. set_up: what opening it cost."""

    def __init__(self, cell: Cell) -> None:
        self._cell, self._index = cell, 0
        agreed = session(cell)
        self._server, self._clients = Server(agreed), clients(cell, agreed)
        self._values = values(cell)
        self.set_up = self._set_up()

    def _set_up(self) -> Cost:
        ledger = _Ledger.of(self._cell.clients)
        with ledger.server:
            server = self._server.open_setup()
        setups: dict[int, ClientSetup] = {}
        outbound: dict[int, bytes | None] = {}
        for k, client in self._clients.items():
            with ledger.clients[k]:
                setups[k] = client.open_setup(nonce(k))
                outbound[k] = setups[k].start()
        while server.stage is not SetupStage.DONE:
            for k, message in outbound.items():
                if message is None:
                    raise SystemExit(f"masked_rounds: client {k} fell silent in the set-up")
                ledger.up[k] += len(message)
                with ledger.server:
                    server.receive(k, message)
            with ledger.server:
                inbound = server.advance()
            for k, data in inbound.items():
                with ledger.clients[k]:
                    outbound[k] = setups[k].receive(data)
        self._server.enrol(server)
        for k, client in self._clients.items():
            client.enrol(setups[k])
        return ledger.cost(frozenset())

    def run(self, dropped: frozenset[int]) -> Cost:
        """One round. dropped: clients that send no input. SystemExit where the sum is wrong."""
        ledger = _Ledger.of(self._cell.clients)
        agreed = terms(self._cell, self._index)
        self._index += 1
        with ledger.server:
            server = self._server.open_round(agreed)
        machines: dict[int, ClientRound] = {}
        for k, client in self._clients.items():
            with ledger.clients[k]:
                machines[k] = client.open_round(agreed)
                message = machines[k].start()
            if message is not None:
                _deliver(server, k, message, ledger)
        while not server.finished:
            with ledger.server:
                inbound = server.advance()
            self._answer(server, machines, inbound, dropped, ledger)
        if not np.array_equal(server.total, self._values * np.uint64(len(server.survivors))):
            raise SystemExit("masked_rounds: the total is not the sum of the survivors' values")
        if set(server.survivors) != set(machines) - dropped:
            raise SystemExit("masked_rounds: others than the clients that stayed are in the sum")
        return ledger.cost(dropped)

    def _answer(
        self,
        server: ServerRound,
        machines: Mapping[int, ClientRound],
        inbound: Mapping[int, bytes],
        dropped: frozenset[int],
        ledger: _Ledger,
    ) -> None:
        for k, data in inbound.items():
            if k in dropped:
                continue
            with ledger.clients[k]:
                if server.state is ServerState.INPUT:
                    machines[k].load(self._values)
                message = machines[k].receive(data)
            _deliver(server, k, message, ledger)


def _deliver(server: ServerRound, client: int, message: bytes, ledger: _Ledger) -> None:
    ledger.up[client] += len(message)
    with ledger.server:
        server.receive(client, message)


# Memory of the server.


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
