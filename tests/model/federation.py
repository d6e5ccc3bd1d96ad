"""A federation's client under every story that a lying server can tell it, restarts included.

The server signs whatever it likes: announcements, results and aborts with the number of this sum or
of the next one, as they happen or as missed ones, and asks for what opens the sum at any time. The
client is the real one; its role counts releases, and its sum has two messages: the input, and what
opens it.
"""

import copy
from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from secure_fd.crypto.keys import SERVER, IdentityKey, insecure_bytes
from secure_fd.errors import LocalError, PeerError
from secure_fd.protocol.broadcasts import BroadcastSigner
from secure_fd.protocol.client import Client
from secure_fd.protocol.messages import OPENED, UNOPENED, ClientRole, RoundAborted, SumInput
from secure_fd.secagg.session import MessageType
from secure_fd.wire import HEADER_BYTES, Kind, Place, frame, read_header
from tests.model.explorer import BrokenError, Choice, State

SESSION = bytes(32)
KEY = IdentityKey.generate(insecure_bytes(5))


class File:
    """What a process wrote; the last of `kept` is on the disk."""

    def __init__(self, values: dict[str, bytes]) -> None:
        self.kept = [dict(values)]

    def get(self, name: str) -> bytes | None:
        return self.kept[-1].get(name)

    def put(self, values: dict[str, bytes], drop: Iterator[str]) -> None:
        left = {name: value for name, value in self.kept[-1].items() if name not in set(drop)}
        self.kept.append(left | values)


class Opening:
    """A sum in two messages. opened: by sum of votes that it helped to open, the round."""

    def __init__(self, role: "Role") -> None:
        self.role, self.gave, self.vote, self.index = role, False, False, -1
        self.opened: dict[int, int] = {}

    def start(self) -> list[bytes]:
        return []

    def load(self, terms: Any, values: Any) -> list[bytes]:
        self.gave, self.vote, self.index = False, bool(values.any()), terms.index
        return [values.tobytes()]

    def receive(self, data: bytes) -> list[bytes]:
        if not self.gave:
            self.gave = True
            self.opened |= {self.index: self.role.asked} if self.vote else {}
        return [data]


class Turn:
    """A round of the role, in the form of a generator that can be copied."""

    def __init__(self, role: "Role", subject: bytes) -> None:
        self.role, self.subject, self.at = role, subject, 0

    def __next__(self) -> SumInput:
        self.at += 1
        if self.at == 1 and self.role.survey:
            return SumInput(np.zeros(2, np.uint64), 3)
        if self.at <= 1 + self.role.survey:
            self.role.asked = self.subject[0]
            self.role.spent |= {self.role.asked}
            return SumInput(np.ones(2, np.uint64), 3, counted=True)
        raise StopIteration

    def send(self, message: bytes) -> SumInput:
        del message
        return next(self)

    def throw(self, event: RoundAborted) -> None:
        raise event


class Role(ClientRole):
    """Shares one counted vote a round, after a survey where there is one.

    spent: rounds in its ledger. asked: the round of its newest vote.
    """

    def __init__(self, *, survey: bool) -> None:
        self.survey, self.asked, self.spent = survey, -1, frozenset[int]()

    def begin(self) -> Any:
        return iter(())

    def round(self, subject: bytes) -> Any:
        return Turn(self, subject)

    def unopened(self, subject: bytes) -> None:
        self.spent -= {subject[0]}

    def memory(self) -> bytes:
        return bytes(sorted(self.spent))

    def recall(self, memory: bytes) -> None:
        self.spent = frozenset(memory)


class Story(NamedTuple):
    """A global state. place: how far the story went. party: number of the client's state."""

    place: int
    party: int


class Node(NamedTuple):
    """A client, and what its processes did.

    opened: what earlier processes opened. chain: broadcasts that were read: kind and sum. life: how
    many processes there were before.
    """

    client: Client
    opened: tuple[tuple[int, int], ...] = ()
    chain: tuple[tuple[int, int], ...] = ()
    life: int = 0


class FederationWorld:
    """length: broadcasts that a story has. survey: whether a round begins with one."""

    def __init__(self, length: int = 4, *, survey: bool = False) -> None:
        self.length, self.survey = length, survey
        self.nodes: list[Node] = []
        self._ids: dict[object, int] = {}

    def _client(self, values: dict[str, bytes]) -> Client:
        sums = Opening(role := Role(survey=self.survey))
        client = Client(0, SESSION, KEY.public, role, sums, file=File(values))
        client.start()
        return client

    def first(self) -> State:
        """A client that has joined."""
        return self._story(Node(self._client({})))

    def order(self, state: State) -> int:
        return Story._make(state).place

    def _story(self, node: Node) -> Story:
        """The state of a client, once the properties hold in it."""
        client, role, sums = node.client, node.client.role, node.client._sum
        opened, awaited = {*node.opened, *sums.opened.items()}, False
        if unbooked := {asked for _, asked in opened} - role.spent:
            raise BrokenError(f"(f) votes of the rounds at {unbooked} are opened and not booked")
        last = -1
        for kind, index in node.chain:
            if kind != Kind.ROUND_START and not awaited:
                raise BrokenError(f"(d) sum {last} has two results")
            awaited, last = kind == Kind.ROUND_START or index > last, index
        plain = {k: v for k, v in vars(client).items() if isinstance(v, int | bytes | None)}
        turn = client._turn.at if isinstance(client._turn, Turn) else None
        told = client.digest, client.position, turn, role.spent, sums.gave, sums.vote, sums.index
        told = (*told, role.asked, tuple(sorted(opened)))
        disk = tuple(sorted(client._file.kept[-1].items()))
        key = (tuple(plain.items()), told, disk, node.life, node.chain)
        number = self._ids.setdefault(key, len(self.nodes))
        self.nodes += [node] if number == len(self.nodes) else []
        return Story((client.position * 8 + len(opened)) * 8 + node.life * 2 + sums.gave, number)

    def choices(self, state: State, *, faults: bool) -> Iterator[Choice]:
        """All that the server may send; messages that are refused change nothing."""
        story = Story._make(state)
        node = self.nodes[story.party]
        client = node.client
        sent = [(f"asks for what opens sum {client._index}", self._ask(client))]
        if client.position < self.length:
            sent += self._broadcasts(client)
        for text, data in sent:
            after, writes, refused = self._told(client, data)
            if after.position > client.position or after._sum.gave > client._sum.gave:
                told = node._replace(client=after, chain=self._chain(node, after, data))
                yield Choice(f"the server {text}", partial(self._story, told), cost=0)
            if faults:
                for number, values in enumerate(writes):
                    text_of = f"the client is killed as the server {text}, {number} writes done"
                    yield Choice(text_of, partial(self._reborn, node, client, data, values))
                if not refused:
                    text_of = f"the client is killed after the server {text}"
                    yield Choice(text_of, partial(self._reborn, node, after, data, writes[-1]))

    def _told(self, client: Client, data: bytes) -> tuple[Client, list[dict[str, bytes]], bool]:
        """A copy of the client that took a message, what it wrote, and whether it refused."""
        after = copy.deepcopy(client, {id(KEY.public): KEY.public})
        after._file.kept = after._file.kept[-1:]
        try:
            after.receive(data)
        except (PeerError, LocalError):
            return after, after._file.kept, True
        except Exception as error:
            raise BrokenError(f"(g) the client raises {error!r}") from error
        return after, after._file.kept, False

    def _chain(self, node: Node, after: Client, data: bytes) -> tuple[tuple[int, int], ...]:
        """The broadcasts that were read, with this message if it was."""
        if after.position == len(node.chain):
            return node.chain
        start = HEADER_BYTES if data[3] == Kind.CATCH_UP else 0
        kind, index, _ = read_header(data[start:], SESSION, SERVER)
        return (*node.chain, (kind, index))

    def _reborn(self, node: Node, gone: Client, data: bytes, values: dict[str, bytes]) -> Story:
        """A new process, which reads this file. gone: its last process."""
        client, opened = self._client(values), (*node.opened, *gone._sum.opened.items())
        chain = self._chain(node, client, data)
        return self._story(Node(client, opened, chain, node.life + 1))

    def _ask(self, client: Client) -> bytes:
        return frame(MessageType.SURVIVORS, Place(SESSION, max(client._index, 0)), SERVER, b"")

    def _broadcasts(self, client: Client) -> list[tuple[str, bytes]]:
        """Every broadcast that may follow, as it happens and as a missed one."""
        made, here = [], client._index
        for index in (max(here, 0), here + 1):
            subject = bytes([client.position])
            bodies = [(Kind.ROUND_START, subject, "announces"), (Kind.RESULT, b"x", "tells x of")]
            bodies += [(Kind.RESULT, b"y", "tells y of"), (Kind.ABORTED, OPENED, "aborts opened")]
            for kind, body, what in (*bodies, (Kind.ABORTED, UNOPENED, "aborts unopened")):
                signer = BroadcastSigner(SESSION, KEY)
                signer.recall(client.digest, client.position)
                data = signer.write(kind, index, body)
                missed = frame(Kind.CATCH_UP, Place(SESSION, 0), SERVER, data)
                made += [(f"{what} sum {index}", data), (f"{what} sum {index}, missed", missed)]
        return made
