"""The server in the rounds of a session. Nothing here does input or output: bytes in, bytes out.

Rules:
 1. A stage takes one message from every client it asked, from nobody else and from nobody twice;
    the transport vouches for who sent it.
 2. A stage that is closed goes on with whoever answered, down to the quorum and, until the inputs
    are in, the floor of their noise; below, the round ends, nothing is unmasked, and
    MissingClientError says who was missing.
 3. Inputs are added as they come: the memory is one vector, however many clients there are.
 4. Every restored secret is checked against what its owner published. A decoded sum must lie in
    -room .. survivors * bound + room in every lane; otherwise the round is void.
 5. A round's number only grows. Any failure leaves the round aborted, for good; what clients
    have prepared for the next round stays.
"""

from collections.abc import Callable, Mapping
from enum import Enum, auto
from typing import Final

import numpy as np

from secure_fd.errors import LocalError, MissingClientError, PeerError
from secure_fd.knowledge import UnitArray
from secure_fd.secagg import round_messages as messages
from secure_fd.secagg.recovery import Unmasking
from secure_fd.secagg.routing import OpenedShares, Routes
from secure_fd.secagg.server_setup import ServerSetup
from secure_fd.secagg.session import RoundCounter, RoundScope, RoundTerms, Session
from secure_fd.secagg.wire import MessageType, encode_set, message_type


class ServerState(Enum):
    """Which stage of a round the server is collecting."""

    PREPARE = auto()
    INPUT = auto()
    CONSISTENCY = auto()
    UNMASK = auto()
    DONE = auto()
    ABORTED = auto()


class Server:
    """A server for a whole session; it holds no secret."""

    __slots__ = ("_prepared", "_rounds", "_routes", "session")

    def __init__(self, session: Session) -> None:
        self.session = session
        self._rounds = RoundCounter()
        self._routes: Routes | None = None
        self._prepared: tuple[int, dict[int, messages.Prepare]] = (0, {})

    def open_setup(self) -> ServerSetup:
        """Begin a set-up."""
        return ServerSetup(self.session)

    def enrol(self, setup: ServerSetup) -> None:
        """Take a set-up that is DONE into use; what an earlier one had prepared is dropped."""
        self._routes, self._prepared = Routes(setup.group), (0, {})

    def open_round(self, terms: RoundTerms) -> "ServerRound":
        """Begin a round; LocalError unless its number is above that of every earlier one."""
        if self._routes is None:
            raise LocalError("there is no set-up to open a round in")
        scope = RoundScope(self.session, terms)
        self._rounds.spend(terms.index)
        index, came = self._prepared
        prepared = came if index == terms.index else {}
        following: dict[int, messages.Prepare] = {}
        self._prepared = (terms.index + 1, following)
        return ServerRound(scope, self._routes, prepared, following)


class ServerRound:
    """One round of the server: receive a stage's messages, then advance to the next stage.

    prepared: what came with the last round's inputs. following: where to put what comes with
    this round's.
    """

    __slots__ = (
        "_answered",
        "_asked",
        "_cohort_signatures",
        "_following",
        "_group",
        "_prepared",
        "_routes",
        "_shares",
        "_signatures",
        "_spoke",
        "_state",
        "_sum",
        "_total",
        "scope",
        "survivors",
    )

    def __init__(
        self,
        scope: RoundScope,
        routes: Routes,
        prepared: dict[int, messages.Prepare],
        following: dict[int, messages.Prepare],
    ) -> None:
        self.scope = scope
        self.survivors: tuple[int, ...] = ()
        self._routes = routes
        self._group = routes.group
        self._state = ServerState.PREPARE
        self._asked = dict.fromkeys(routes.group.members)
        self._answered: set[int] = set(prepared)
        self._spoke: set[int] = set()
        self._prepared = prepared
        self._following = following
        self._sum = np.zeros(scope.words, dtype=np.uint64)
        self._cohort_signatures: dict[int, bytes] = {}
        self._signatures: dict[int, bytes] = {}
        self._shares: OpenedShares | None = None
        self._total: UnitArray | None = None

    @property
    def state(self) -> ServerState:
        """Where the round stands; ABORTED never changes again."""
        return self._state

    @property
    def finished(self) -> bool:
        """Whether the sum is there."""
        return self._state is ServerState.DONE

    @property
    def waiting(self) -> tuple[int, ...]:
        """The clients that this stage has asked and that have not answered, ascending."""
        return tuple(client for client in self._asked if client not in self._answered)

    @property
    def total(self) -> UnitArray:
        """The exact sums [m] over the survivors; LocalError before the round is done.

        int64 where the terms have room for noise, else uint64.
        """
        if self._total is None or not self.finished:
            raise LocalError(f"there is no sum in state {self._state.name}")
        return self._total

    def receive(self, sender: int, data: bytes) -> None:
        """Take one message that the transport says `sender` sent."""
        state = self._take()
        if sender not in self._asked:
            raise PeerError(f"client {sender} was not asked in state {state.name}")
        kind = message_type(data, self.scope.place, sender)
        take = _INBOUND.get((state, kind))
        if take is None:
            raise PeerError(f"a {kind.name} message is not allowed in state {state.name}")
        if sender in self._spoke:
            raise PeerError(f"client {sender} sent a second message in one stage")
        take(self, sender, data)
        self._answered.add(sender)
        self._spoke.add(sender)
        self._state = state

    def advance(self) -> Mapping[int, bytes]:
        """Close the stage; what to send to each client, empty once the round is done.

        MissingClientError where fewer answered than the round needs.
        """
        state = self._take()
        if state not in _ADVANCE:
            raise LocalError(f"there is no stage to close in state {state.name}")
        present = tuple(client for client in self._asked if client in self._answered)
        self._check_reach(state, present)
        outbound, successor = _ADVANCE[state](self, present)
        self._asked, self._answered, self._spoke = dict.fromkeys(present), set(), set()
        self._state = successor
        return outbound

    def _check_reach(self, state: ServerState, present: tuple[int, ...]) -> None:
        """MissingClientError where too few are left; in the last stage every secret has its own."""
        least = self._group.quorum
        if state in (ServerState.PREPARE, ServerState.INPUT):
            # Who answers later does not change whose noise is in the sum.
            least = max(least, self.scope.terms.noise.survivors)
        if state is ServerState.UNMASK or (len(present) >= least and self._group.reaches(present)):
            return
        raise MissingClientError(
            f"clients {list(self.waiting)} did not answer in round {self.scope.terms.index}; "
            f"the {len(present)} that are left are too few (a sum needs {least}, "
            f"and enough of them around each client), so nothing is revealed"
        )

    def _take(self) -> ServerState:
        """Leave the round aborted; whoever succeeds puts the state back."""
        state, self._state = self._state, ServerState.ABORTED
        return state

    def _add_prepare(self, sender: int, data: bytes) -> None:
        degree = self._group.degree
        prepare = messages.decode_prepare(data, self.scope.place, sender, degree)
        # A client that cannot know whether its last input arrived sends the same once more.
        if self._prepared.setdefault(sender, prepare) != prepare:
            raise PeerError(f"client {sender} prepared the round twice, and differently")

    def _add_masked(self, sender: int, data: bytes) -> None:
        degree = self._group.degree
        words, signature, following = messages.decode_masked(data, self.scope, sender, degree)
        self._sum += words
        self._cohort_signatures[sender] = signature
        self._following[sender] = following

    def _add_consistent(self, sender: int, data: bytes) -> None:
        self._signatures[sender] = messages.decode_consistent(data, self.scope.place, sender)

    def _add_unmask(self, sender: int, data: bytes) -> None:
        if self._shares is None:
            raise LocalError("shares cannot come in before they were asked for")
        owners = self._shares.asked_of(sender)
        shares = messages.decode_unmask(data, self.scope.place, sender, owners)
        self._shares.add(sender, shares)

    def _close_prepare(self, cohort: tuple[int, ...]) -> "_Step":
        there, place = encode_set(cohort, self._group.members), self.scope.place
        outbound = {
            client: messages.encode_cohort(there, relayed, place)
            for client, relayed in self._routes.relay(self._prepared).items()
        }
        return outbound, ServerState.INPUT

    def _close_input(self, survivors: tuple[int, ...]) -> "_Step":
        self.survivors = survivors
        there, place = encode_set(survivors, self._group.members), self.scope.place
        if len(survivors) < len(self._prepared):
            message = messages.encode_survivors(there, b"", place)
            return dict.fromkeys(survivors, message), ServerState.CONSISTENCY
        signed = self._listed(self._cohort_signatures)
        message = messages.encode_survivors(there, signed, place)
        return dict.fromkeys(survivors, message), self._ask_shares()

    def _close_consistency(self, signers: tuple[int, ...]) -> "_Step":
        message = messages.encode_signatures(self._listed(self._signatures), self.scope.place)
        return dict.fromkeys(signers, message), self._ask_shares()

    def _listed(self, signatures: Mapping[int, bytes]) -> bytes:
        """The committee's, for everybody the same."""
        signers = (client for client in self._group.committee if client in signatures)
        return b"".join(messages.signature_entry(k, signatures[k]) for k in signers)

    def _ask_shares(self) -> ServerState:
        self._shares = OpenedShares(self._routes, self._prepared)
        return ServerState.UNMASK

    def _close_unmask(self, _: tuple[int, ...]) -> "_Step":
        if self._shares is None:
            raise LocalError("a round cannot be unmasked before shares were asked for")
        unmasking = Unmasking(self.scope, self._group, self._prepared, self.survivors, self._shares)
        unmasking.unmask(self._sum)
        terms = self.scope.terms
        limit = len(self.survivors) * terms.bound
        self._total = self.scope.layout.unpack(self._sum, terms.length, limit)
        return {}, ServerState.DONE


_Step = tuple[Mapping[int, bytes], ServerState]

# Reading: in this state, this message -> what takes it. Anything not listed aborts.
_INBOUND: Final[
    Mapping[tuple[ServerState, MessageType], Callable[[ServerRound, int, bytes], None]]
] = {
    (ServerState.PREPARE, MessageType.PREPARE): ServerRound._add_prepare,
    (ServerState.INPUT, MessageType.MASKED): ServerRound._add_masked,
    (ServerState.CONSISTENCY, MessageType.CONSISTENT): ServerRound._add_consistent,
    (ServerState.UNMASK, MessageType.UNMASK): ServerRound._add_unmask,
}

# Reading: closing this stage with these clients -> what is sent, and the state after.
_ADVANCE: Final[Mapping[ServerState, Callable[[ServerRound, tuple[int, ...]], _Step]]] = {
    ServerState.PREPARE: ServerRound._close_prepare,
    ServerState.INPUT: ServerRound._close_input,
    ServerState.CONSISTENCY: ServerRound._close_consistency,
    ServerState.UNMASK: ServerRound._close_unmask,
}
