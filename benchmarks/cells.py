"""The sizes that every benchmark runs at, and its clock: CPU seconds of this process."""

import time
from dataclasses import dataclass
from typing import Final


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
