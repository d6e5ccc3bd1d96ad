"""The server of an encrypted sum: it adds ciphertexts and never holds a key.

    INPUTS --survivors--> CONSENTS --opening--> TOTAL --receive_total--> FINISHED

What fails leaves ABORTED, for good.
"""

from enum import Enum, auto

from secure_fd.aggregation.bfv import messages, scheme
from secure_fd.aggregation.bfv.messages import Opening
from secure_fd.aggregation.bfv.scope import Scope, Session
from secure_fd.errors import LocalError, PeerError
from secure_fd.knowledge import WordArray
from secure_fd.secagg.session import RoundCounter, RoundTerms


class ServerState(Enum):
    """How far the server is in a round."""

    INPUTS = auto()
    CONSENTS = auto()
    TOTAL = auto()
    FINISHED = auto()
    ABORTED = auto()


class Server:
    """The server of a session, and the rounds that it has begun."""

    __slots__ = ("_counter", "session")

    def __init__(self, session: Session) -> None:
        self.session = session
        self._counter = RoundCounter()

    def open_round(self, terms: RoundTerms) -> "ServerRound":
        """Begin a round; LocalError unless its number has grown."""
        self._counter.spend(terms.index)
        return ServerRound(Scope(self.session, terms))


class ServerRound:
    """One round: inputs are added as they come, and none of them is kept."""

    __slots__ = ("_consents", "_survivors", "_total", "scope", "state")

    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        self.state = ServerState.INPUTS
        self._survivors: tuple[int, ...] = ()
        self._consents: dict[int, bytes] = {}
        self._total: WordArray | None = None

    def receive_input(self, client: int, message: bytes) -> None:
        """Add one client's ciphertexts; PeerError for what it did not sign, or signed twice."""
        self._begin(ServerState.INPUTS)
        if client in self._survivors:
            raise PeerError(f"client {client} sent a second input for round {self._index}")
        ciphertexts = messages.decode_input(message, self.scope, client)
        if self._total is None:
            self._total = ciphertexts
        else:
            scheme.add(self._total, ciphertexts)
        self._survivors = tuple(sorted((*self._survivors, client)))
        self.state = ServerState.INPUTS

    def survivors(self) -> bytes:
        """Close the inputs: the message for every client that sent one."""
        self._begin(ServerState.INPUTS)
        self._check_quorum(len(self._survivors), "inputs")
        self.state = ServerState.CONSENTS
        return messages.encode_survivors(self.scope, self._survivors)

    def receive_consent(self, client: int, message: bytes) -> None:
        """Keep one survivor's signature; PeerError for a client that is none, or a bad one."""
        self._begin(ServerState.CONSENTS)
        if client not in self._survivors:
            raise PeerError(f"client {client} consents to a sum that it is not in")
        signature = messages.decode_consent(message, self.scope, client, self._survivors)
        self._consents[client] = signature
        self.state = ServerState.CONSENTS

    def opening(self) -> bytes:
        """Close the consents: the message for a key holder."""
        self._begin(ServerState.CONSENTS)
        self._check_quorum(len(self._consents), "consents")
        if self._total is None:
            raise LocalError("there is nothing to decrypt")
        self.state = ServerState.TOTAL
        return messages.encode_open(
            self.scope, Opening(self._survivors, self._consents, self._total)
        )

    def receive_total(self, holder: int, message: bytes) -> WordArray:
        """The sum [length], as a key holder signed it; PeerError for values out of reach.

        The key holder is trusted to return what it decrypted; nothing here could tell.
        """
        self._begin(ServerState.TOTAL)
        slots = messages.decode_total(message, self.scope, holder)
        values = self.scope.unpack(slots, self._survivors)
        self.state = ServerState.FINISHED
        return values

    @property
    def _index(self) -> int:
        return self.scope.terms.index

    def _begin(self, expected: ServerState) -> None:
        if self.state is not expected:
            raise LocalError(
                f"round {self._index}: the server is {self.state.name} where {expected.name} is due"
            )
        self.state = ServerState.ABORTED  # until the step has succeeded

    def _check_quorum(self, count: int, what: str) -> None:
        quorum = self.scope.session.quorum
        if count < quorum:
            raise LocalError(f"round {self._index}: {count} {what} are below the quorum {quorum}")
