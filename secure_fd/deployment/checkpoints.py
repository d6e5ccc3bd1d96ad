"""The state of a server at the end of a round, in place of the sums and broadcasts before it.

A checkpoint becomes the newest one once every site has read all broadcasts before it, so that no
site needs what is dropped. A site that is away keeps the sums and broadcasts since it left.
"""

import io
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from secure_fd.deployment.health import Health
from secure_fd.errors import ConfigurationError, LocalError
from secure_fd.protocol.server import Server
from secure_fd.simulation.kept import restore, state_of
from secure_fd.storage import Store


@dataclass(frozen=True, slots=True)
class _Checkpoint:
    """State at the end of a round: how many sums and broadcasts came before it, and its bytes."""

    sums: int
    broadcasts: int
    data: bytes = field(repr=False)


class Checkpoints:
    """Lets a server start again from a round's end, and drops what came before it.

    A server role whose class has no row in `secure_fd.simulation.kept.KEPT` is replayed from its
    first round on, and nothing is dropped.
    """

    def __init__(self, server: Server, health: Health, file: Store) -> None:
        self._server, self._health = server, health
        self._file, self._sums = file, 0
        self._next: _Checkpoint | None = None

    def restore(self) -> tuple[int, ...]:
        """Stand at the checkpoint of an earlier process, where there is one; its sites."""
        data = self._file.get("checkpoint")
        if data is None:
            return ()
        try:
            found = torch.load(io.BytesIO(data), weights_only=True)
            restore(self._server.half, found["half"])
        except ConfigurationError as error:
            raise LocalError("this state file is of another version: make a new roster") from error
        self._server.go_on_from(*found["server"])
        self._health.completed, self._health.void = found["rounds"]
        self._sums = self._server.place[1]
        sites: tuple[int, ...] = found["sites"]
        return sites

    def over(self, read: Mapping[int, int]) -> None:
        """A round is over. read: broadcasts that each site is known to have read."""
        ready = self._next
        if ready is not None and ready.broadcasts <= min(read.values()):
            old = [f"sum {k}" for k in range(self._sums, ready.sums)]
            self._file.put({"checkpoint": ready.data}, drop=old)
            self._server.drop(ready.broadcasts)
            self._sums, self._next = ready.sums, None
        if self._next is None:
            self._next = self._taken(tuple(sorted(read)))

    def _taken(self, sites: tuple[int, ...]) -> _Checkpoint | None:
        server, health = self._server, self._health
        (rounds, sums), count = server.place, server.dropped + len(server.broadcasts)
        try:
            half = state_of(server.half)
        except (ConfigurationError, LocalError):
            return None
        if not half:  # a class of the user's: its state is not known
            return None
        content = {
            "half": half,
            "sites": sites,
            "server": (rounds, sums, server.digest, count),
            "rounds": (health.completed, health.void),
        }
        written = io.BytesIO()
        torch.save(content, written)
        return _Checkpoint(sums, count, written.getvalue())
