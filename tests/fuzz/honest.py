"""Honest runs that the targets start from: parties at any state, and what was sent till then."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from secure_fd.crypto.keys import SERVER
from secure_fd.secagg.session import MessageType, RoundScope, RoundTerms
from secure_fd.votes.codec import WordArray
from tests.drivers.cohort import Cohort

TERMS: Final = RoundTerms(index=3, length=40, bound=4)


def kind_of(message: bytes) -> str:
    """The name of its type."""
    return MessageType(int.from_bytes(message[2:4], "big")).name


class ReachedError(Exception):
    """The message that a run was to stop at is due."""


@dataclass
class Honest:
    """Parties that go on stage by stage until `stop` says that they are where they are wanted.

    stop: the type of message that is due and is not delivered, "up" or "down" behind it where
    both directions have it. without: a client whose input gets lost. sparse: six clients with
    four neighbours each, where else there are four with three.
    """

    hybrid: bool = False
    stop: str = ""
    without: int | None = None
    sparse: bool = False
    messages: list[tuple[str, int, bytes]] = field(default_factory=list)
    due: Mapping[int, bytes] = field(default_factory=dict)

    def __post_init__(self) -> None:
        n, degree = (6, 4) if self.sparse else (4, None)
        self.cohort = Cohort(n, seed=11, degree=degree, hybrid=self.hybrid, enrolled=False)
        self.session, self.members = self.cohort.session, tuple(self.cohort.clients)
        self.scope = RoundScope(self.session, TERMS)
        opened = self.machines = self.cohort.open_setup()
        try:
            opened.run(self._carry)
            opened.enrol(self.cohort)
            self.group = opened.server.group
            self.machines = self.cohort.open(TERMS, {k: values_of(k) for k in self.members})
            self.machines.run(self._carry)
        except ReachedError:
            return

    def sent(self, kind: str, sender: int) -> bytes:
        """The message of a type that a client sent, or that the server sent to client 1."""
        found = [data for name, party, data in self.messages if (name, party) == (kind, sender)]
        return found[1 if sender == SERVER else 0]

    def _carry(self, batch: Mapping[int, bytes], up: bool) -> Iterable[tuple[int, bytes]]:
        """Note one type of message, and stop where it is not to be delivered."""
        if not batch:
            return ()
        kind = kind_of(next(iter(batch.values())))
        self.due = {k: m for k, m in batch.items() if (kind, k) != ("MASKED", self.without)}
        self.messages += [(kind, k if up else SERVER, data) for k, data in self.due.items()]
        if self.stop in (kind, f"{kind} {'up' if up else 'down'}"):
            raise ReachedError
        return self.due.items()


def values_of(client: int) -> WordArray:
    """Any numbers within the bound."""
    return (np.arange(TERMS.length, dtype=np.uint64) * np.uint64(client + 1)) % np.uint64(5)


PLAIN: Final = Honest()
