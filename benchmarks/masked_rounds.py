"""Rounds of this package's secure sum, its real machines in this process, with a clock on each.

A session is set up once; then every round is timed in steady state: the secrets of a round came
with the upload of the one before, so a client sends two messages, or three where somebody is
missing. Counted is all that a client and the server do between values and sum: packing, key
derivation, seals, signatures, messages and checks. Bytes are handed over one message at a time,
so no more than one masked input exists at once.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from cells import Cell, Cost, Meter
from secure_fd.crypto.primitives import IdentityKey, insecure_bytes, kem_available
from secure_fd.knowledge import WordArray
from secure_fd.secagg.client import Client, ClientRound
from secure_fd.secagg.messages import NONCE_BYTES
from secure_fd.secagg.server import Server, ServerRound, ServerState
from secure_fd.secagg.session import Floors, Roster, RoundTerms, Session
from secure_fd.secagg.setup import ClientSetup, SetupStage

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
