"""Processes of a masked sum on a network that loses messages, for tests of whole sessions."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping

import numpy as np

from secure_fd.errors import LocalError, MissingClientError, PeerError
from secure_fd.secagg.client import MaskingClient
from secure_fd.secagg.server import MaskingServer
from secure_fd.secagg.session import MessageType, RoundTerms
from secure_fd.votes.codec import IntArray, WordArray
from tests.drivers.cohort import Cohort, random_values

Fault = Callable[[str, str, int], bool]
"""Return True if a message is lost: direction, type, client."""
UP, DOWN = "up", "down"
EPOCH = 6


def nothing(*_: object) -> bool:
    return False


def lose(direction: str, kind: str, *clients: int) -> Fault:
    """Lose every message of this type to or from these clients."""
    return lambda *message: message[:2] == (direction, kind) and message[2] in clients


class World:
    """Processes of a masked sum, each with a file, on a network that loses what a fault names."""

    def __init__(
        self, n: int = 4, *, hybrid: bool = False, degree: int | None = None, epoch: int = EPOCH
    ) -> None:
        self.cohort = Cohort(n, hybrid=hybrid, degree=degree, epoch=epoch, enrolled=False)
        self.memories: dict[int, bytes] = {}
        self.all = tuple(range(n))
        self.server = self.new_server()
        self.clients = {k: self.new_client(k) for k in self.all}
        self.fault: Fault = nothing
        self.dies_after = -1
        """The answer of the server, counted in a round, that its process does not send any more."""
        self.index = -1
        self.aborted = False
        self.masked: dict[tuple[int, int], set[bytes]] = defaultdict(set)
        self.unmasked: dict[tuple[int, int], set[bytes]] = defaultdict(set)
        self.setups = 0

    def keep(self, number: int) -> Callable[[bytes], None]:
        return lambda memory: self.memories.update({number: memory})

    def new_server(self) -> MaskingServer:
        memory, session = self.memories.get(-1), self.cohort.session
        return MaskingServer(session, self.cohort.key, self.keep(-1), memory)

    def new_client(self, k: int) -> MaskingClient:
        given = self.cohort.random, self.keep(k), self.memories.get(k)
        return MaskingClient(k, self.cohort.identities[k], self.cohort.session, *given)

    def ask(self, client: int, what: str, *given: object) -> list[bytes]:
        """Return a client's answer to a request to start, load or receive."""
        answers: list[bytes] = getattr(self.clients[client], what)(*given)
        return answers

    def set_up(self, who: Iterable[int] | None = None) -> None:
        """The set-up before the first round, of these clients."""
        for k in self.all if who is None else who:
            self.send(k, self.ask(k, "start"))
        self.until_idle()

    def round(self, away: Iterable[int] = ()) -> tuple[int, ...]:
        """The next round: the clients in the sum, none where the round is aborted."""
        self.index += 1
        terms = RoundTerms(self.index, 6, 4)
        values, opening = random_values(self.cohort, terms, self.index), self.server.open(terms)
        there = [k for k in self.all if k not in set(away)]
        for k in there:
            try:
                self.send(k, self.ask(k, "load", terms, values[k]))
            except LocalError:
                continue
        self.deliver({k: data for k, data in opening.items() if k in there})
        self.until_idle(there)
        result = None if self.aborted else self.server.result
        if result is None:
            return ()
        self.check(result.total, [values[k] for k in result.survivors])
        return result.survivors

    def check(self, total: WordArray | IntArray, inputs: list[WordArray | IntArray]) -> None:
        assert total.tolist() == np.sum(inputs, axis=0).tolist()
        assert self.most_inputs() == 1
        assert all(len(each) == 1 for each in self.unmasked.values())

    def most_inputs(self) -> int:
        """The most different inputs that one client gave to one round."""
        return max(map(len, self.masked.values()), default=0)

    def until_idle(self, there: Iterable[int] | None = None) -> None:
        self.aborted, answers = False, 0
        while self.server.busy:
            try:
                relayed = self.server.advance()
            except (MissingClientError, PeerError):
                self.aborted = True
                return
            if answers == self.dies_after:
                self.server, self.aborted = self.new_server(), True
                return
            answers += 1
            who = self.all if there is None else set(there)
            self.deliver({k: data for k, data in relayed.items() if k in who})

    def send(self, client: int, messages: Iterable[bytes]) -> None:
        for data in messages:
            kind = kind_of(data)
            self.setups += kind == "REVEAL"
            index = int.from_bytes(data[8:16], "big")
            for name, seen in (("MASKED", self.masked), ("UNMASK", self.unmasked)):
                if kind == name:
                    seen[client, index].add(data)
            if not self.fault(UP, kind, client):
                try:
                    self.server.receive(client, data)
                except PeerError:
                    return

    def deliver(self, relayed: Mapping[int, bytes]) -> None:
        for k, data in relayed.items():
            if not self.fault(DOWN, kind_of(data), k):
                try:
                    answers = self.ask(k, "receive", data)
                except (PeerError, LocalError):
                    continue
                self.send(k, answers)


def kind_of(data: bytes) -> str:
    """The type; INVITATION for the MEMBERS that has no line."""
    kind = MessageType(int.from_bytes(data[2:4], "big")).name
    return "INVITATION" if kind == "MEMBERS" and len(data) == 48 else kind
