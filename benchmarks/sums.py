"""Cost of secure sums: masks, proofs, encryption, and Flower's SecAgg+ beside them.

A row is a sum, n clients and m values, and has the CPU seconds of a client and of the server, of
masks the floor of both (floors.py), bytes up a client, the most memory that the server takes within
a round of all clients, and the cost of a set-up where there is one. All parties run in this
process; every total is checked. Rows of masks are measured with all clients, and with one client in
ten that drops out. The server gets the messages of a stage once all clients have made theirs: it
has a machine of its own, and the clients' work between two messages would evict its code and data
from the caches.
"""

import tracemalloc
from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np

from clock import Cost, Stopwatch, medians
from floors import floor
from secure_fd import MaskedSum
from secure_fd.secagg.session import RoundTerms
from secure_fd.secure_sum.base import SecureSum
from secure_fd.secure_sum.validated import Prio3Sum
from secure_fd.votes.codec import UnitArray
from secure_fd.votes.packing import NO_LIMITS, Limits

CLASSES: Final = 10
VOTE: Final = 3
"""Two bits a vote, as Selective-FD's hard votes have by default."""
FLOWER: Final = "secagg+"


def _encrypted(n_clients: int) -> SecureSum:
    from secure_fd.secure_sum.homomorphic import HomomorphicSum

    return HomomorphicSum(n_clients)


SUMS: Final[Mapping[str, Callable[[int], SecureSum]]] = {
    "masks": MaskedSum,
    "prio3": Prio3Sum,
    "he": _encrypted,
}


@dataclass(frozen=True, slots=True)
class Cell:
    """One size of one sum. wide: values whose total has 32 bits, instead of votes."""

    sum: str
    clients: int
    values: int
    wide: bool = False

    @property
    def bound(self) -> int:
        """Return the largest value."""
        return (2**32 - 1) // self.clients if self.wide else VOTE

    @property
    def votes(self) -> int:
        """Return the votes of a client: an equal share and a half."""
        return -(-3 * self.values // (2 * CLASSES * self.clients))

    def terms(self, index: int) -> RoundTerms:
        """Return the terms of a round; only a proven sum enforces limits."""
        limits = Limits(CLASSES, self.votes * VOTE) if self.sum == "prio3" else NO_LIMITS
        return RoundTerms(index, self.values, self.bound, limits=limits)

    def input(self) -> UnitArray:
        """Return one client's values [m]: votes for the first class."""
        values = np.zeros(self.values, dtype=np.uint64)
        values[: self.votes * CLASSES : CLASSES] = self.bound
        return values

    def drops(self) -> Iterator[frozenset[int]]:
        """Yield the clients that drop out: none, and one in ten where masks are restored."""
        yield frozenset()
        if self.sum in {"masks", FLOWER}:
            yield frozenset(range(0, self.clients, 10))


CELLS: Final = (
    *(Cell("masks", n, 5_120) for n in (10, 30, 100, 300, 1_000)),
    *(Cell(name, n, 5_120) for n in (10, 100) for name in ("prio3", "he")),
    *(Cell(name, 10, 6_000, wide=True) for name in ("masks", FLOWER)),
)
"""In order of the page: masks by clients, other sums of the same votes, and SecAgg+."""
_FEW: Final = 100
"""Clients beyond which one round is enough: a client's time is a mean over more than a hundred."""


class Memory(Stopwatch):
    """Bytes that are allocated inside `with`. peak: the most that were held at one time."""

    def __init__(self) -> None:
        super().__init__()
        self.peak = self._held = self._before = 0

    def __enter__(self) -> None:
        tracemalloc.reset_peak()
        self._before, _ = tracemalloc.get_traced_memory()

    def __exit__(self, *_: object) -> None:
        now, peak = tracemalloc.get_traced_memory()
        self.peak = max(self.peak, self._held + peak - self._before)
        self._held += now - self._before


class Parties:
    """All clients and the server of a cell, and the rounds that they have run."""

    def __init__(self, cell: Cell) -> None:
        self.cell, self.sums, self._index = cell, SUMS[cell.sum](cell.clients), 0
        self._server = self.sums.server()
        self._clients = {k: self.sums.client(k) for k in range(cell.clients)}

    def set_up(self) -> Cost | None:
        """Set up again as a new epoch does; None for a sum that has no set-up."""
        if not isinstance(self.sums, MaskedSum):
            return None
        watch = Stopwatch()
        with watch:
            self.sums.server().open_setup()  # type: ignore[attr-defined]
        return self._carry(lambda client: client.join(), {}, frozenset(), watch)

    def round(self, dropped: Set[int], watch: Stopwatch) -> Cost:
        """Run one round. dropped: clients that send no input. SystemExit for a wrong sum."""
        terms, values = self.cell.terms(self._index), self.cell.input()
        self._index += 1
        with watch:
            relayed = self._server.open(terms)
        cost = self._carry(lambda client: client.load(terms, values), relayed, dropped, watch)
        found, staying = self._server.result, self.cell.clients - len(dropped)
        if found is None or not np.array_equal(found.total, values * np.uint64(staying)):
            raise SystemExit(f"{self.cell.sum}: the total is not the sum of the survivors' values")
        return cost

    def _carry(
        self,
        begin: Callable[[Any], list[bytes]],
        relayed: Mapping[int, bytes],
        dropped: Set[int],
        watch: Stopwatch,
    ) -> Cost:
        """Let all clients begin, and carry messages until no stage is open.

        watch: of the server; the clients that stay share one of their own.
        """
        clients, aside, up_bytes = Stopwatch(), Stopwatch(), 0
        sent = {}
        for k, client in self._clients.items():
            with aside if k in dropped else clients:
                sent[k] = begin(client)
        while True:
            for k in relayed.keys() - dropped:
                with clients:
                    answers = self._clients[k].receive(relayed[k])
                sent[k] = [*sent.get(k, []), *answers]
            for k, message in ((k, one) for k, messages in sent.items() for one in messages):
                up_bytes += len(message) * (k not in dropped)
                with watch:
                    # The server reads a message into memory of its own.
                    self._server.receive(k, bytes(bytearray(message)))
            if not self._server.busy:
                break
            sent = {}
            with watch:
                relayed = self._server.advance()
        staying = self.cell.clients - len(dropped)
        return Cost(clients.seconds / staying, watch.seconds, up_bytes / staying)


def rows_of(cell: Cell, repeats: int) -> Iterator[dict[str, object]]:
    """Yield the rows of a cell, one for each set of clients that drop out.

    repeats: rounds of which a row has the medians, in cells of at most a hundred clients.
    """
    times = repeats if cell.clients <= _FEW else 1
    if cell.sum == FLOWER:
        yield from _flower_rows(cell, times)
        return
    parties, memory = Parties(cell), Memory()
    set_up = parties.set_up()
    tracemalloc.start()
    parties.round(frozenset(), memory)  # the warm-up, too
    tracemalloc.stop()
    for dropped in cell.drops():
        turns = [asdict(parties.round(dropped, Stopwatch())) for _ in range(times)]
        masks = cell.sum == "masks"
        least = floor(cell.clients, cell.terms(0), len(dropped))._asdict() if masks else None
        yield {
            **_size(cell, dropped),
            **medians(turns),
            "server_memory_bytes": memory.peak,
            "floor": least,
            "set_up": None if set_up is None else asdict(set_up),
        }


def _flower_rows(cell: Cell, times: int) -> Iterator[dict[str, object]]:
    from flower_peer import flower_round

    for dropped in cell.drops():
        runs = [flower_round(cell.clients, cell.values, dropped) for _ in range(times + 1)]
        yield {**_size(cell, dropped), **medians([asdict(cost) for cost in runs[1:]])}


def _size(cell: Cell, dropped: Set[int]) -> dict[str, object]:
    return {**asdict(cell), "bound": cell.bound, "dropped": len(dropped)}
