"""Both roles of a method that asks for one counted vote a round, in a form that can be copied."""

from typing import Any

import numpy as np

from secure_fd.crypto.keys import SERVER, IdentityKey, RandomBytes, insecure_bytes
from secure_fd.protocol.broadcasts import BroadcastSigner
from secure_fd.protocol.client import Client
from secure_fd.protocol.messages import ClientRole, ServerRole, SumInput, SumRequest
from secure_fd.secagg.session import MessageType
from secure_fd.wire import Kind, Place, frame

LENGTH, BOUND = 2, 2**16 - 1
SEEN = "secure_fd.model"
"""Module of these classes: `snapshot` and `digest` read the objects of the package alone."""
KEY = IdentityKey.generate(insecure_bytes(5))
"""Signs broadcasts."""


class Turn:
    """A round of a role: a survey where there is one, then the vote."""

    __module__ = SEEN

    def __init__(self, role: Any, asked: int) -> None:
        self.role, self.asked, self.left = role, asked, 1 + role.survey

    def __next__(self) -> Any:
        self.left -= 1
        if self.left < 0:
            raise StopIteration(b"the last result")
        return self.role.share(self.asked, counted=not self.left)

    def send(self, _: object) -> Any:
        return next(self)

    def throw(self, event: Exception) -> None:
        raise event


class Voter(ClientRole):
    """spent: rounds in its ledger. vote: the round of its newest share where that is counted."""

    __module__ = SEEN
    vote: int | None = None

    def __init__(self, draw: RandomBytes, kind: type, *, survey: bool) -> None:
        self.draw, self.kind, self.survey, self.spent = draw, kind, survey, frozenset[int]()

    def begin(self) -> Any:
        return iter(())

    def round(self, announcement: bytes) -> Any:
        return Turn(self, announcement[0])

    def share(self, asked: int, *, counted: bool) -> SumInput:
        self.vote = asked if counted else None
        self.spent |= {asked} if counted else set()
        values = np.frombuffer(self.draw(2 * LENGTH), "<u2").astype(self.kind)
        return SumInput(values, BOUND, counted=counted)

    def unopened(self, announcement: bytes) -> None:
        self.spent -= {announcement[0]}

    def memory(self) -> bytes:
        return bytes(sorted(self.spent))

    def recall(self, memory: bytes) -> None:
        self.spent = frozenset(memory)


class Asker(ServerRole):
    """The server's role."""

    __module__ = SEEN

    def __init__(self, *, survey: bool) -> None:
        self.survey = survey

    def round(self, index: int) -> Any:
        return Turn(self, index)

    def share(self, asked: int, *, counted: bool) -> SumRequest:
        return SumRequest(bytes([asked]), LENGTH, BOUND, counted=counted)


class Opening:
    """Client of a sum in two messages: the input, and what opens it."""

    __module__ = SEEN
    enrolled, _machine = True, None

    def __init__(self, session: bytes) -> None:
        self.session, self.gave, self.index = session, False, 0

    def start(self) -> list[bytes]:
        return []

    def load(self, terms: Any, values: Any) -> list[bytes]:
        self.gave, self.index = False, terms.index
        return [values.tobytes()]

    def receive(self, _: bytes) -> list[bytes]:
        self.gave = True
        return [frame(MessageType.UNMASK, Place(self.session, self.index), 0)]


def broadcast(client: Client, kind: Kind, index: int, body: bytes) -> bytes:
    """A signed broadcast that follows what this client has read."""
    signer = BroadcastSigner(client._session, KEY)
    signer.recall(client.digest, client.position)
    return signer.write(kind, index, body)


def missed(client: Client, data: bytes) -> bytes:
    """The same as one that did not reach it."""
    return frame(Kind.CATCH_UP, Place(client._session, 0), SERVER, data)
