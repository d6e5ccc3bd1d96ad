"""Honest runs that the targets start from: parties at any state, and what was sent till then."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from secure_fd.crypto.keys import SERVER
from secure_fd.secagg.client import ClientRound
from secure_fd.secagg.server import ServerRound
from secure_fd.secagg.session import Group, MessageType, RoundScope, RoundTerms, Session
from secure_fd.secagg.setup import ClientSetup, ServerSetup
from secure_fd.votes.codec import WordArray
from tests.drivers.cohort import Cohort, Round, SetUp

TERMS: Final = RoundTerms(index=3, length=40, bound=4)


def kind_of(message: bytes) -> str:
    """The name of its type."""
    return MessageType(int.from_bytes(message[2:4], "big")).name


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
        self.session: Session = self.cohort.session
        self.members = tuple(self.cohort.clients)
        self.in_round = self._set_up()
        if self.in_round:
            self._round()

    def sent(self, kind: str, sender: int) -> bytes:
        """The message of a type that a client sent, or that the server sent to client 1."""
        found = [data for name, party, data in self.messages if (name, party) == (kind, sender)]
        return found[1 if sender == SERVER else 0]

    def _pass(self, outbound: Mapping[int, bytes], sender: int | None = None) -> bool:
        """Note one type of message, to be delivered; False where nobody is to get it."""
        self.due, kind = outbound, ""
        for k, data in outbound.items():
            kind = kind_of(data)
            self.messages.append((kind, k if sender is None else sender, data))
        return self.stop not in (kind, f"{kind} {'up' if sender is None else 'down'}")

    def _set_up(self) -> bool:
        opened = self.cohort.open_setup()
        self.server_setup: ServerSetup = opened.server
        self.setups: dict[int, ClientSetup] = opened.clients
        if not self._go(opened, opened.start()):
            return False
        opened.enrol(self.cohort)
        self.group: Group = self.server_setup.group
        return True

    def _go(self, machines: SetUp | Round, up: dict[int, bytes]) -> bool:
        """Deliver these and all that follows on them; False where the stop is reached."""
        while up:
            if self.without is not None and kind_of(up[0]) == "MASKED":
                del up[self.without]
            if not self._pass(up):
                return False
            down = machines.deliver(up)
            if not self._pass(down, SERVER):
                return False
            up = machines.answer(down)
        return True

    def _round(self) -> None:
        self.scope = RoundScope(self.session, TERMS)
        opened = self.cohort.open(TERMS, {k: values_of(k) for k in self.members})
        self.server: ServerRound = opened.server
        self.clients: dict[int, ClientRound] = opened.clients
        self._go(opened, opened.start())


def values_of(client: int) -> WordArray:
    """Any numbers within the bound."""
    return (np.arange(TERMS.length, dtype=np.uint64) * np.uint64(client + 1)) % np.uint64(5)


PLAIN: Final = Honest()
