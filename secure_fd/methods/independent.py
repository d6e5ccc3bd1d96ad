"""Independent learning: every client alone; nothing crosses the boundary but the rounds' numbers.

The floor of every comparison. Clients take as many steps as those that distil.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from torch import nn

from secure_fd.aggregation.base import SumServer
from secure_fd.exchange import ClientTurn, ServerTurn
from secure_fd.learner import Learner
from secure_fd.methods.base import Own, Setting
from secure_fd.transcript import Transcript

_INDEX: Final = struct.Struct(">Q")


@dataclass(frozen=True, slots=True)
class Independent:
    """Local and proxy steps, all on private records.

    >>> Independent().name
    'Independent'
    """

    @property
    def name(self) -> str:
        """The name in tables."""
        return "Independent"

    def check(self, setting: Setting, models: Sequence[nn.Module]) -> None:
        """Any federation serves."""

    def client(self, setting: Setting, own: Own) -> "IndependentClient":
        """The half of one client."""
        return IndependentClient(own.learner(setting.schedule))

    def server(self, setting: Setting, initial: nn.Module) -> "IndependentServer":  # noqa: ARG002 - it asks nothing
        """The server's half."""
        return IndependentServer()


class IndependentClient:
    """Learns alone."""

    def __init__(self, learner: Learner) -> None:
        self.learner = learner

    def begin(self) -> ClientTurn:
        """Warm up on private records."""
        yield from self.learner.warm_up()

    def round(self, subject: bytes) -> ClientTurn:
        """Steps on private records alone."""
        self.learner.round = int(_INDEX.unpack(subject)[0])
        schedule = self.learner.schedule
        yield from self.learner.local(schedule.local_steps + schedule.proxy_steps)

    def missed(self, subject: bytes, message: bytes | None) -> None:
        """A round that was missed is not made up for."""


class IndependentServer:
    """Asks nothing: its turn ends before it began, and the first broadcast is the last."""

    def round(self, index: int) -> ServerTurn:
        """The number of the round."""
        yield from ()
        return _INDEX.pack(index)

    def record(self, index: int, sums: SumServer, transcript: Transcript) -> None:
        """Nothing was seen."""
