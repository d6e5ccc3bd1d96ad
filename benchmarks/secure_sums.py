"""Machines of the benchmarks of secure sums: the masked sum's halves, their floor, their memory.

All sum 32-bit values and check every total. The clock is the CPU seconds of this process.

`floor_round` runs the bare primitives of a whole round and nothing else. For n clients with k
neighbours and m words of 32 bits:

  client   2 X25519 key pairs; 2 exchanges with each neighbour, one for its mask and one for the
           channel that would seal its share; 2 secrets shared among k + 1 holders; k + 1
           AES-128-CTR keystreams, each added to or taken from the vector, block by block
  server   the vectors of the survivors added; Lagrange weights once a set of responders; one
           secret combined for each client; a survivor's self mask taken away; for a dropped
           client, one exchange and one keystream with each of its surviving neighbours

`Rounds` drives the two halves of the masked sum in steady state: a session is set up once, and the
secrets of a round came with the upload of the one before. Counted is all that a client and the
server do between values and sum. The server gets a stage's messages once all clients have made
theirs: a server has a machine of its own, and here the clients' work between two messages would
evict its code and data from the caches.

`measure_memory` runs the server's half alone in a fresh process, with `Rounds` at the other
end of a pipe: the peak of its resident memory over the set-up, a round of all clients and a round
in which a tenth drops out, less what the interpreter holds before. A message is read whole from a
file, and counts; copies that a pipe or pickle would make do not. Linux only: the peak is VmHWM,
which starts anew with each program.
"""

import multiprocessing
import os
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext
from cryptography.hazmat.primitives.ciphers.algorithms import AES128
from cryptography.hazmat.primitives.ciphers.modes import CTR
from numpy.typing import NDArray

from secure_fd.crypto.keys import AgreementKey, IdentityKey, insecure_bytes
from secure_fd.crypto.shamir import combine, draw_element, split, weights_at_zero
from secure_fd.errors import ConfigurationError
from secure_fd.secagg.client import MaskingClient
from secure_fd.secagg.messages import NONCE_BYTES
from secure_fd.secagg.server import MaskingServer
from secure_fd.secagg.session import PinnedRoster, RoundTerms, Session
from secure_fd.wire import Sum

if TYPE_CHECKING:
    from multiprocessing.connection import Connection


class Stopwatch:
    """Runs inside `with`. seconds: of CPU so far, in this process and all of its threads."""

    def __init__(self) -> None:
        self.seconds = self._start = 0.0

    def __enter__(self) -> None:
        self._start = time.process_time()

    def __exit__(self, *_: object) -> None:
        self.seconds += time.process_time() - self._start


def seconds(work: Callable[[], object]) -> float:
    """CPU time of one call."""
    watch = Stopwatch()
    with watch:
        work()
    return watch.seconds


def medians(turns: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """By name, over turns of which the first is a warm-up."""
    return {name: statistics.median(turn[name] for turn in turns[1:]) for name in turns[0]}


@dataclass(frozen=True, slots=True)
class Cell:
    """One size: n clients, k neighbours of each, m words of 32 bits that a client sends."""

    clients: int
    neighbours: int
    words: int

    def __post_init__(self) -> None:
        n, k = self.clients, self.neighbours
        if not (n >= 10 and 9 <= k < n and self.words >= 1 and (k == n - 1 or k % 2 == 0)):
            allowed = "use N >= 10, K = N - 1 or an even K from 10 to N - 2, and M >= 1"
            raise ConfigurationError("cells", (n, k, self.words), allowed)

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


@dataclass(frozen=True, slots=True)
class Cost:
    """What one round took: CPU seconds and bytes.

    client_s, up_bytes: of one client that stays to the end, a mean. server_s: of the server.
    """

    client_s: float
    server_s: float
    up_bytes: int


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


def floor_round(cell: Cell, dropped: frozenset[int], values: Words) -> Cost:
    """Run one round of the bare primitives; every client sums `values` [m].

    dropped: clients that share their secrets and send no vector. Raises SystemExit where the total
    is wrong.
    """
    opening, masking, server = Stopwatch(), Stopwatch(), Stopwatch()
    parties = []
    for number in range(cell.clients):
        with opening:
            parties.append(_open(number, cell))
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


def _open(number: int, cell: Cell) -> _Client:
    root, seed = draw_element(os.urandom), int.from_bytes(os.urandom(_KEY_BYTES))
    private = [
        X25519PrivateKey.from_private_bytes(root.to_bytes(32)),
        X25519PrivateKey.generate(),
    ]
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


LANE_BITS: Final = 32


def identities(cell: Cell) -> dict[int, IdentityKey]:
    """The clients' identities, the same in every process."""
    random = insecure_bytes(cell.clients)
    return {number: IdentityKey.generate(random) for number in range(cell.clients)}


def session(cell: Cell) -> Session:
    """The cell's session, with ML-KEM-768 in the channels."""
    roster = PinnedRoster({number: key.public.raw for number, key in identities(cell).items()})
    agreed = roster, b"benchmark", b"", b"", server_key().public
    return CellSession(*agreed, hybrid=True, degree=cell.neighbours)


@dataclass(frozen=True, slots=True)
class CellSession(Session):
    """A session whose clients have the cell's number of neighbours."""

    degree: int = 0

    def degree_of(self, members: int) -> int:
        """Return the cell's, even where a graph of odd degree does not exist."""
        return min(self.degree + (self.degree * members) % 2, members - 1)


def server_key() -> AgreementKey:
    """The server's, the same in every process."""
    return AgreementKey.generate(insecure_bytes(1))


def terms(cell: Cell, index: int) -> RoundTerms:
    """Values as large as sums in 32 bits allow: two to a word, 4 bytes each on the wire."""
    return RoundTerms(index, cell.words, (2**LANE_BITS - 1) // cell.clients)


def masked_server(cell: Cell) -> MaskingServer:
    """The server's half, with the set-up before it."""
    return MaskingServer(session(cell), server_key())


class Rounds:
    """A session of a cell's clients, and a server here or elsewhere. set_up: what opening it cost.

    Clients accept the cell's number of neighbours, which may be below what they would insist on
    themselves. Their parts in the graph are fixed: with 20 neighbours of 100 and a tenth dropped,
    some graphs leave a client with too few holders, and no run should fail by chance.
    """

    def __init__(self, cell: Cell, server: "MaskingServer | RemoteServer | None" = None) -> None:
        self._cell, self._index = cell, 0
        agreed = session(cell)
        self._server = masked_server(cell) if server is None else server
        self._clients = {
            k: MaskingClient(k, key, agreed, nonce=k.to_bytes(NONCE_BYTES, "big"))
            for k, key in identities(cell).items()
        }
        bound, generator = terms(cell, 0).bound, np.random.default_rng(cell.clients)
        self._values = generator.integers(0, bound + 1, cell.words, dtype=np.uint64)
        self._begin()
        for k, client in self._clients.items():
            with self._watches[k]:
                sent = client.start()
            self._deliver(k, sent)
        self.set_up = self._exchange({}, frozenset())

    def run(self, dropped: frozenset[int]) -> Cost:
        """One round. dropped: clients that send no input. SystemExit where the sum is wrong."""
        self._begin()
        agreed, self._index = terms(self._cell, self._index), self._index + 1
        with self._watch:
            relayed = self._server.open(agreed)
        for k, client in self._clients.items():
            with self._watches[k]:
                sent = client.load(agreed, self._values)
            self._deliver(k, sent)
        cost = self._exchange(relayed, dropped)
        found, staying = self._server.result, sorted(set(self._clients) - dropped)
        if found is None or list(found.survivors) != staying:
            raise SystemExit("rounds: others than the clients that stayed are in the sum")
        if not np.array_equal(found.total, self._values * np.uint64(len(staying))):
            raise SystemExit("rounds: the total is not the sum of the survivors' values")
        return cost

    def _begin(self) -> None:
        self._watch, self._up = Stopwatch(), [0] * self._cell.clients
        self._watches = [Stopwatch() for _ in self._up]

    def _exchange(self, relayed: Mapping[int, bytes], dropped: frozenset[int]) -> Cost:
        """Carry bytes until the server has what it waits for."""
        while True:
            sent = dict[int, list[bytes]]()
            for k in relayed.keys() - dropped:
                with self._watches[k]:
                    sent[k] = self._clients[k].receive(relayed[k])
            for k, messages in sent.items():
                self._deliver(k, messages)
            if not self._server.busy:
                break
            with self._watch:
                relayed = self._server.advance()
        staying = [k for k in self._clients if k not in dropped]
        seconds = sum(self._watches[k].seconds for k in staying)
        up_bytes = sum(self._up[k] for k in staying)
        return Cost(seconds / len(staying), self._watch.seconds, up_bytes // len(staying))

    def _deliver(self, client: int, messages: Sequence[bytes]) -> None:
        for data in messages:
            self._up[client] += len(data)
            with self._watch:
                self._server.receive(client, data)


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes. peak: above the bare interpreter's. message: one client's longest."""

    clients: int
    neighbours: int
    words: int
    peak_bytes: int
    message_bytes: int
    interpreter_bytes: int


def measure_memory(cell: Cell) -> Memory:
    """Start the server, play its clients, and ask it what it took."""
    spawn = multiprocessing.get_context("spawn")
    here, there = spawn.Pipe()
    with TemporaryDirectory() as folder:
        spool = Path(folder, "message")
        process = spawn.Process(target=_serve, args=(cell, there, spool))
        process.start()
        server = RemoteServer(here, spool)
        rounds = Rounds(cell, server)
        for dropped in (frozenset[int](), tenth(cell)):
            rounds.run(dropped)
        here.send("report")
        peak, base = here.recv()
        process.join()
    return Memory(cell.clients, cell.neighbours, cell.words, peak, server.longest, base)


class RemoteServer:
    """The server in another process: what `Rounds` asks of it. spool: file of one message."""

    def __init__(self, pipe: "Connection[object, Any]", spool: Path) -> None:
        self._pipe, self._spool = pipe, spool
        self.longest, self.busy = 0, True
        self.result: Sum | None = None

    def open(self, agreed: RoundTerms) -> Mapping[int, bytes]:
        """Begin a round."""
        return self._ask(agreed)

    def receive(self, sender: int, data: bytes) -> None:
        """Hand a message over."""
        self._spool.write_bytes(data)
        self._pipe.send(sender)
        self._pipe.recv()
        self.longest = max(self.longest, len(data))

    def advance(self) -> Mapping[int, bytes]:
        """Close the stage."""
        return self._ask("advance")

    def _ask(self, what: RoundTerms | str) -> Mapping[int, bytes]:
        self._pipe.send(what)
        clients, self.busy, survivors = self._pipe.recv()
        relayed = {client: self._pipe.recv_bytes() for client in clients}
        total = np.frombuffer(self._pipe.recv_bytes(), np.uint64) if survivors else None
        self.result = None if total is None else Sum(total, survivors)
        return relayed


def _serve(cell: Cell, pipe: "Connection[object, Any]", spool: Path) -> None:
    """The server's process. It reads a message once the one before it is not held any more."""
    base, server = _resident("VmRSS"), masked_server(cell)
    while (what := pipe.recv()) != "report":
        if isinstance(what, int):
            server.receive(what, spool.read_bytes())
            pipe.send("received")
            continue
        relayed = server.open(what) if isinstance(what, RoundTerms) else server.advance()
        found = server.result
        pipe.send((list(relayed), server.busy, None if found is None else found.survivors))
        for data in relayed.values():
            pipe.send_bytes(data)
        if found is not None:
            pipe.send_bytes(found.total.view(np.uint8).data)
        del relayed, found
    pipe.send((_resident("VmHWM") - base, base))


def _resident(field: str) -> int:
    """VmRSS, what is resident now, or VmHWM, the most that ever was, in bytes."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        name, _, value = line.partition(":")
        if name == field:
            return int(value.split()[0]) * 1024
    raise SystemExit(f"memory: this system does not report {field}")
