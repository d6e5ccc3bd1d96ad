"""Independent learning: every client alone; nothing crosses the boundary.

The floor of every comparison. Clients take as many steps as those that distil.
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from secure_fd.methods.base import Method, Own, Setting
from secure_fd.protocol.messages import ClientRole, ClientTurn, ServerRole, ServerTurn
from secure_fd.training.trainer import Learner


@dataclass(frozen=True, slots=True)
class Independent(Method):
    """Local and proxy steps, all on private records.

    >>> Independent().name
    'Independent'
    """

    title: ClassVar[str] = "Independent"

    def client(self, setting: Setting, own: Own) -> "IndependentClient":
        """Return the role of one client."""
        return IndependentClient(own.learner(setting.schedule))

    def server(self, setting: Setting, initial: nn.Module) -> "IndependentServer":  # noqa: ARG002 - it asks nothing
        """Return the role of the server."""
        return IndependentServer()


class IndependentClient(ClientRole):
    """Client role: trains alone, and counts its rounds itself."""

    def __init__(self, learner: Learner) -> None:
        self.learner = learner

    def round(self, announcement: bytes) -> ClientTurn:  # noqa: ARG002 - there is none
        """Take the steps of a round on private records alone."""
        self.learner.round += 1
        schedule = self.learner.schedule
        yield from self.learner.local(schedule.local_steps + schedule.proxy_steps)


class IndependentServer(ServerRole):
    """Server role: sends nothing and receives nothing."""

    def round(self, index: int) -> ServerTurn:  # noqa: ARG002 - all rounds are alike
        """End the round without a sum."""
        yield from ()
        return None
